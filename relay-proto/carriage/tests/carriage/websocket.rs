//! WebSockets: a byte stream between correct peers; a protocol violation ends it.

use std::io;

use relay_carriage::Stream;
use relay_carriage::dial::DialError;
use relay_carriage::websocket::{self, Header, MAX_FRAME, UpgradeError};
use rustls::version::TLS13;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::support::*;

#[tokio::test]
async fn any_number_of_bytes_is_carried_even_one_by_one() {
    for count in [1, 125, 126, 65_535, 65_536, MAX_FRAME, MAX_FRAME + 1, 400_000] {
        let (endpoint, served) = listen_once(|stream| async move {
            let mut stream = websocket::accept(stream).await.unwrap();
            echo(&mut stream).await
        })
        .await;
        let stream =
            in_time(websocket::connect(tcp(&endpoint).await, &web_socket(&endpoint), &[])).await.unwrap();
        exchange(stream, count).await;
        let _ = in_time(served).await.unwrap();
    }
    let (near, far) = thin_pipe(1);
    let served = spawn(async move {
        let mut stream = websocket::accept(far).await.unwrap();
        echo(&mut stream).await
    });
    let endpoint = web_socket(&"h:1".parse().unwrap());
    exchange(in_time(websocket::connect(near, &endpoint, &[])).await.unwrap(), 3_000).await;
    let _ = in_time(served).await.unwrap();
}

#[tokio::test]
async fn a_shutdown_ends_the_peers_reading() {
    let (endpoint, served) = listen_once(|stream| async move {
        let mut stream = websocket::accept(stream).await.unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.map(|_| all)
    })
    .await;
    let mut stream = websocket::connect(tcp(&endpoint).await, &web_socket(&endpoint), &[]).await.unwrap();
    stream.write_all(b"the last bytes").await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(in_time(served).await.unwrap().unwrap(), b"the last bytes");
}

#[tokio::test]
async fn headers_are_sent_and_cannot_inject_others() {
    let (endpoint, request) = listen_once(|mut stream: TcpStream| async move {
        let mut buffer = vec![0; 4096];
        let count = stream.read(&mut buffer).await.unwrap();
        String::from_utf8(buffer[..count].to_vec()).unwrap()
    })
    .await;
    let header = |name: &str, value: &str| Header { name: name.into(), value: value.into() };
    let _ = websocket::connect(
        tcp(&endpoint).await,
        &web_socket(&endpoint),
        &[header("X-Preview-Token", "abc def")],
    )
    .await;
    let request = in_time(request).await.unwrap();
    assert!(request.starts_with("GET /relay HTTP/1.1\r\nHost: 127.0.0.1:"), "{request}");
    assert!(request.contains("\r\nX-Preview-Token: abc def\r\n"), "{request}");
    for wrong in [
        header("A", "x\r\nB: y"),
        header("A:", "x"),
        header("", "x"),
        header("A b", "x"),
        header("A", "\u{e9}"),
    ] {
        let (near, _far) = thin_pipe(1);
        let refused = websocket::connect(near, &web_socket(&endpoint), &[wrong]).await.err();
        assert!(matches!(refused, Some(UpgradeError::Header(_))), "{refused:?}");
    }
}

/// The error of a sandbox whose WebSocket request reaches a TLS server that responds with `text`.
async fn dial_error(text: &'static [u8]) -> DialError {
    let acceptor = TlsAcceptor::from(certificate_tls_config(&[&TLS13]));
    let (endpoint, _served) = listen_once(move |stream| async move {
        let mut stream = acceptor.accept(stream).await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await;
        stream.write_all(text).await.unwrap();
        stream.shutdown().await.unwrap();
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    })
    .await;
    let (sandbox, pin) = (identity(), identity().public());
    in_time(dial(&sandbox, &pin).web_socket(&web_socket(&endpoint))).await.err().unwrap()
}

#[tokio::test]
async fn a_failed_upgrade_is_reported_with_its_reason() {
    for stripped in [
        &b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"[..],
        b"HTTP/1.1 426 Upgrade Required\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n",
    ] {
        let refused = dial_error(stripped).await;
        assert!(matches!(refused, DialError::Upgrade(UpgradeError::Stripped { .. })), "{refused:?}");
        assert!(refused.to_string().contains("does not forward WebSocket upgrades"), "{refused}");
    }
    let refused = dial_error(b"HTTP/1.1 404 Not Found\r\n\r\n").await;
    assert!(matches!(refused, DialError::Upgrade(UpgradeError::Status(404))), "{refused:?}");
    assert!(refused.to_string().contains("is the path of the relay's address correct"), "{refused}");
    let refused = dial_error(b"HTTP/1.1 502 Bad Gateway\r\n\r\n").await;
    assert!(matches!(refused, DialError::BehindProxy { status: 502 }), "{refused:?}");
    let refused = dial_error(b"220 mail.example ESMTP\r\n").await;
    assert!(matches!(refused, DialError::Upgrade(UpgradeError::NotHttp)), "{refused:?}");
    let refused = dial_error(b"").await;
    assert!(matches!(refused, DialError::Upgrade(UpgradeError::Closed)), "{refused:?}");
}

/// What a reader gets when its peer, after an upgrade, sends these raw bytes and nothing more.
async fn read_raw(raw: &[u8]) -> io::Result<Vec<u8>> {
    let (endpoint, served) = listen_once(|stream| async move {
        let mut stream = websocket::accept(stream).await.unwrap();
        let mut first = [0; 16];
        stream.read(&mut first).await.map(|count| first[..count].to_vec())
    })
    .await;
    let mut stream = upgrade_by_hand(&endpoint).await;
    stream.write_all(raw).await.unwrap();
    in_time(served).await.unwrap()
}

async fn upgrade_by_hand(endpoint: &relay_proto::address::HostPort) -> TcpStream {
    let mut stream = tcp(endpoint).await;
    let request = "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                   Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\n") {
        response.push(stream.read_u8().await.unwrap());
    }
    stream
}

/// The peer sends the header alone, so a reader that waited for the rest would never return.
#[tokio::test]
async fn an_oversize_frame_is_refused_at_its_header() {
    let frame_header = |length: u64| [&[0x82, 0xff][..], &length.to_be_bytes(), &[0; 4]].concat();
    for too_long in [MAX_FRAME as u64 + 1, u32::MAX.into(), i64::MAX as u64, u64::MAX] {
        let error = read_raw(&frame_header(too_long)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
    let error = read_raw(&frame_header(MAX_FRAME as u64 + 1)).await.unwrap_err();
    assert!(error.to_string().contains("a link accepts at most"), "{error}");
}

#[tokio::test]
async fn a_message_in_many_fragments_is_bounded_too() {
    let (endpoint, served) = listen_once(|stream| async move {
        let mut stream = websocket::accept(stream).await.unwrap();
        stream.read(&mut [0; 16]).await
    })
    .await;
    let mut stream = upgrade_by_hand(&endpoint).await;
    // Fragments of 16 KiB, none of them the last.
    let fragment = |opcode: u8| [&[opcode, 0xfe, 0x40, 0, 0, 0, 0, 0][..], &[0; 0x4000]].concat();
    let mut sent = stream.write_all(&fragment(0x02)).await;
    for _ in 0..1000 {
        if sent.is_err() || served.is_finished() {
            break;
        }
        sent = stream.write_all(&fragment(0x00)).await;
    }
    // A reader without a bound would still wait for the last fragment.
    drop(stream);
    assert_eq!(in_time(served).await.unwrap().unwrap_err().kind(), io::ErrorKind::InvalidData);
}

#[tokio::test]
async fn a_websocket_protocol_violation_ends_the_stream() {
    let masked =
        |opcode: u8, text: &[u8]| [&[opcode, 0x80 | text.len() as u8, 0, 0, 0, 0][..], text].concat();
    assert_eq!(read_raw(&masked(0x82, b"abc")).await.unwrap(), b"abc");
    assert_eq!(
        read_raw(&[masked(0x89, b"ping"), masked(0x82, b""), masked(0x82, b"abc")].concat()).await.unwrap(),
        b"abc"
    );
    assert_eq!(
        read_raw(&masked(0x88, b"")).await.unwrap(),
        b"",
        "a close frame must end the stream without an error"
    );
    for (what, raw) in [
        ("text", masked(0x81, b"abc")),
        ("unmasked", vec![0x82, 3, b'a', b'b', b'c']),
        ("a reserved bit", masked(0xc2, b"abc")),
        ("a reserved opcode", masked(0x83, b"abc")),
        ("a long ping", [&[0x89, 0xfe, 0, 200, 0, 0, 0, 0][..], &[0; 200]].concat()),
        ("a continuation without a first fragment", masked(0x80, b"abc")),
    ] {
        assert!(read_raw(&raw).await.is_err(), "{what}");
    }
}

#[tokio::test]
async fn a_truncated_stream_is_an_error() {
    let (endpoint, served) = listen_once(|stream| async move {
        let mut stream = websocket::accept(stream).await.unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await
    })
    .await;
    let mut stream = upgrade_by_hand(&endpoint).await;
    stream.write_all(&[0x82, 0x85, 0, 0, 0, 0, b'a']).await.unwrap();
    drop(stream);
    assert!(in_time(served).await.unwrap().is_err());
}

#[tokio::test]
async fn pings_are_answered() {
    let (endpoint, _served) = listen_once(|stream| async move {
        let mut stream = websocket::accept(stream).await.unwrap();
        stream.read(&mut [0; 16]).await
    })
    .await;
    let mut stream = upgrade_by_hand(&endpoint).await;
    stream.write_all(&[0x89, 0x82, 0, 0, 0, 0, b'h', b'i']).await.unwrap();
    let mut pong = [0; 4];
    in_time(stream.read_exact(&mut pong)).await.unwrap();
    assert_eq!(pong, [0x8a, 2, b'h', b'i']);
}

/// A peer that does not read blocks the writer, which buffers one message at most.
#[tokio::test]
async fn a_peer_that_does_not_read_stops_the_writer() {
    let (near, far) = tokio::io::duplex(1024);
    let endpoint = web_socket(&"h:1".parse().unwrap());
    let (mut client, _server) =
        tokio::join!(async { websocket::connect(near, &endpoint, &[]).await.unwrap() }, async {
            websocket::accept(far).await.unwrap()
        });
    assert!(bytes_until_blocked(&mut client).await <= 2 * MAX_FRAME);
}

/// How many bytes can be written to a stream until it accepts no more.
async fn bytes_until_blocked(stream: &mut impl Stream) -> usize {
    let (mut written_bytes, bytes) = (0, vec![0; MAX_FRAME]);
    loop {
        let write = std::future::poll_fn(|context| {
            std::task::Poll::Ready(match std::pin::Pin::new(&mut *stream).poll_write(context, &bytes) {
                std::task::Poll::Ready(written) => Some(written.unwrap()),
                std::task::Poll::Pending => None,
            })
        });
        match write.await {
            Some(count) => written_bytes += count,
            None => return written_bytes,
        }
        assert!(written_bytes < 1 << 24, "the stream never blocks");
    }
}
