//! A port in the sandbox that the host dials: the pinned sidecar is accepted, and every other peer is refused.

use relay_carriage::identity::Identity;
use relay_carriage::inbound::{InboundError, accept_inbound, send_preamble};
use relay_carriage::tls::{self, TlsError};
use relay_carriage::websocket;
use relay_proto::address::HostPort;
use relay_proto::key::PublicKey;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;

use crate::support::*;

/// Starts a sandbox's port for one connection, whose bytes it sends back. Returns its address, key and result.
async fn start_sandbox(pin: PublicKey) -> (HostPort, PublicKey, JoinHandle<Result<(), InboundError>>) {
    let sandbox = identity();
    let key = sandbox.public();
    let (address, served) = listen_once(move |stream| async move {
        let mut stream = accept_inbound(stream, &sandbox, &pin).await?;
        let _ = echo(&mut stream).await;
        Ok(())
    })
    .await;
    (address, key, served)
}

#[tokio::test]
async fn the_sidecar_is_accepted_over_tcp() {
    let sidecar = identity();
    let (address, expected, served) = start_sandbox(sidecar.public()).await;
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
    let (address, expected, served) = start_sandbox(sidecar.public()).await;
    let stream = in_time(websocket::connect(tcp(&address).await, &web_socket(&address), &[])).await.unwrap();
    let (stream, key) = in_time(tls::accept(stream, &sidecar)).await.unwrap();
    assert_eq!(key, expected);
    exchange(stream, 100_000).await;
    in_time(served).await.unwrap().unwrap();
}

#[tokio::test]
async fn another_sidecar_is_refused() {
    let other: Identity = identity();
    let (address, _, served) = start_sandbox(identity().public()).await;
    let mut stream = tcp(&address).await;
    send_preamble(&mut stream).await.unwrap();
    assert!(in_time(tls::accept(stream, &other)).await.is_err());
    let refused = in_time(served).await.unwrap().unwrap_err();
    assert!(matches!(refused, InboundError::Tls(TlsError::WrongPin { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_peer_that_does_not_send_the_preamble_gets_no_byte() {
    for sent in [&b""[..], b"cofferdam-dial/2\n", b"SSH-2.0-x\r\n", b"\x16\x03\x01", b"cofferdam-relay/1\n"] {
        let (address, _, served) = start_sandbox(identity().public()).await;
        let mut stream = tcp(&address).await;
        stream.write_all(sent).await.unwrap();
        let _ = stream.shutdown().await;
        let mut received = Vec::new();
        let _ = in_time(stream.read_to_end(&mut received)).await;
        assert_eq!(received, b"", "{sent:?}");
        assert!(in_time(served).await.unwrap().is_err());
    }
}
