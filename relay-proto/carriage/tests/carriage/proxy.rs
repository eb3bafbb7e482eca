//! CONNECT proxies: one that works, and every kind of failure.

use std::time::Duration;

use relay_carriage::dial::{Dial, DialError};
use relay_carriage::identity::Identity;
use relay_carriage::proxy::{Proxy, ProxyError};
use relay_carriage::tls;
use relay_proto::address::HostPort;
use relay_proto::key::PublicKey;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::*;

/// Reads one HTTP head, byte by byte.
async fn read_head(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        bytes.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(bytes).unwrap()
}

fn parse_proxy(proxy: &str) -> Proxy {
    proxy.parse().unwrap()
}

/// The error of a sandbox that dials through `proxy`.
async fn dial_error(proxy: &Proxy, limit: Duration) -> DialError {
    let (sandbox, pin): (Identity, PublicKey) = (identity(), identity().public());
    let target: HostPort = "sidecar.invalid:7443".parse().unwrap();
    let dial = Dial { identity: &sandbox, pin: &pin, proxy: Some(proxy), limit };
    in_time(dial.tls(&target)).await.err().unwrap()
}

#[tokio::test]
async fn a_proxy_with_a_password_connects() {
    let (sandbox, sidecar) = (identity(), identity());
    let (key, pin) = (sandbox.public(), sidecar.public());
    let (address, served) = listen_once(move |stream| async move {
        let (mut stream, key) = tls::accept(stream, &sidecar).await.unwrap();
        let _ = echo(&mut stream).await;
        key
    })
    .await;
    // The proxy resolves the name; this one connects to the sidecar whatever the name is.
    let (proxy, request) = listen_once(move |mut stream| async move {
        let request = read_head(&mut stream).await;
        let mut far = tcp(&address).await;
        // Some proxies send their response in small pieces.
        for piece in b"HTTP/1.1 200 Connection established\r\nX-Proxy: yes\r\n\r\n".chunks(5) {
            stream.write_all(piece).await.unwrap();
            stream.flush().await.unwrap();
        }
        let _ = tokio::io::copy_bidirectional(&mut stream, &mut far).await;
        request
    })
    .await;
    let proxy = parse_proxy(&format!("http://alice:wonder%20land@{proxy}"));
    let dial = Dial { proxy: Some(&proxy), ..dial(&sandbox, &pin) };
    exchange(in_time(dial.tls(&"sidecar.invalid:7443".parse().unwrap())).await.unwrap(), 100_000).await;
    assert_eq!(in_time(served).await.unwrap(), key);
    assert_eq!(
        in_time(request).await.unwrap(),
        "CONNECT sidecar.invalid:7443 HTTP/1.1\r\nHost: sidecar.invalid:7443\r\n\
         Proxy-Authorization: Basic YWxpY2U6d29uZGVyIGxhbmQ=\r\n\r\n"
    );
}

#[tokio::test]
async fn every_error_of_a_proxy_comes_with_advice() {
    type Expected = fn(&ProxyError) -> bool;
    let cases: [(&'static [u8], &str, Expected, &str); 7] = [
        (
            b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
            "",
            |error| matches!(error, ProxyError::NeedsPassword { .. }),
            "http://USER:PASSWORD@HOST:PORT",
        ),
        (
            b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
            "alice:hunter2@",
            |error| matches!(error, ProxyError::WrongPassword { .. }),
            "correct them",
        ),
        (
            b"HTTP/1.1 403 Forbidden\r\n\r\n",
            "",
            |error| matches!(error, ProxyError::Forbidden { .. }),
            "`--proxy`",
        ),
        (
            b"HTTP/1.1 502 Bad Gateway\r\n\r\n",
            "",
            |error| matches!(error, ProxyError::Status { status: 502, .. }),
            "is sidecar.invalid:7443 up",
        ),
        (b"SOCKS?", "", |error| matches!(error, ProxyError::NotHttp { .. }), "`HTTPS_PROXY`"),
        (b"HTTP/1.1 ?\r\n\r\n", "", |error| matches!(error, ProxyError::NotHttp { .. }), "`HTTPS_PROXY`"),
        (&[b'H'; 3], "", |error| matches!(error, ProxyError::NotHttp { .. }), "`HTTPS_PROXY`"),
    ];
    for (response, credentials, expected, advice) in cases {
        let address = peer_that_sends(response).await;
        let refused = dial_error(&parse_proxy(&format!("http://{credentials}{address}")), TEST_TIMEOUT).await;
        let text = refused.to_string();
        let DialError::Proxy(refused) = refused else { panic!("{text}") };
        assert!(expected(&refused), "{refused:?}");
        assert!(text.contains(advice) && text.contains(&address.to_string()), "{text}");
        assert!(!text.contains("hunter2") && !format!("{refused:?}").contains("hunter2"), "{text}");
    }
}

#[tokio::test]
async fn a_proxy_that_closes_is_named_in_the_error() {
    let address = peer_that_closes().await;
    let refused = dial_error(&parse_proxy(&address.to_string()), TEST_TIMEOUT).await;
    assert!(
        matches!(&refused, DialError::Proxy(ProxyError::Closed { proxy }) if *proxy == address),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_proxy_that_hangs_is_named_in_the_error() {
    let address = peer_that_sends(b"").await;
    let refused =
        dial_error(&parse_proxy(&address.to_string()), Duration::from_millis(300)).await.to_string();
    let expected = format!("connecting through the proxy {address} took longer than 0.3 seconds; ");
    assert!(refused.starts_with(&expected), "{refused}");
}
