//! A port in the sandbox that the host dials: the sidecar is accepted, and every other peer is refused.

use relay_carriage::entrance::{EntranceError, enter, send_preamble};
use relay_carriage::identity::Identity;
use relay_carriage::tls::{self, TlsError};
use relay_carriage::websocket;
use relay_proto::address::HostPort;
use relay_proto::key::PublicKey;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;

use crate::support::*;

/// A sandbox's port for one connection, whose bytes it sends back.
async fn sandbox(pin: PublicKey) -> (HostPort, PublicKey, JoinHandle<Result<(), EntranceError>>) {
    let own = identity();
    let key = own.public();
    let (address, served) = port(move |stream| async move {
        let mut stream = enter(stream, &own, &pin).await?;
        let _ = echo(&mut stream).await;
        Ok(())
    })
    .await;
    (address, key, served)
}

#[tokio::test]
async fn the_sidecar_is_accepted_over_tcp() {
    let sidecar = identity();
    let (address, expected, served) = sandbox(sidecar.public()).await;
    let mut stream = tcp(&address).await;
    send_preamble(&mut stream).await.unwrap();
    let (stream, key) = in_time(tls::accept(stream, &sidecar)).await.unwrap();
    assert_eq!(key, expected);
    exchange(stream, 100_000).await;
    in_time(served).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_sidecar_is_accepted_over_a_web_socket() {
    let sidecar = identity();
    let (address, expected, served) = sandbox(sidecar.public()).await;
    let stream = in_time(websocket::client(tcp(&address).await, &web_socket(&address), &[])).await.unwrap();
    let (stream, key) = in_time(tls::accept(stream, &sidecar)).await.unwrap();
    assert_eq!(key, expected);
    exchange(stream, 100_000).await;
    in_time(served).await.unwrap().unwrap();
}

#[tokio::test]
async fn another_sidecar_is_refused() {
    let other: Identity = identity();
    let (address, _, served) = sandbox(identity().public()).await;
    let mut stream = tcp(&address).await;
    send_preamble(&mut stream).await.unwrap();
    assert!(in_time(tls::accept(stream, &other)).await.is_err());
    let refused = in_time(served).await.unwrap().unwrap_err();
    assert!(matches!(refused, EntranceError::Tls(TlsError::WrongPin { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_peer_that_does_not_send_the_preamble_gets_nothing() {
    for sent in [&b""[..], b"cofferdam-dial/2\n", b"SSH-2.0-x\r\n", b"\x16\x03\x01", b"cofferdam-relay/1\n"] {
        let (address, _, served) = sandbox(identity().public()).await;
        let mut stream = tcp(&address).await;
        stream.write_all(sent).await.unwrap();
        let _ = stream.shutdown().await;
        let mut got = Vec::new();
        let _ = in_time(stream.read_to_end(&mut got)).await;
        assert_eq!(got, b"", "{sent:?}");
        assert!(in_time(served).await.unwrap().is_err());
    }
}
