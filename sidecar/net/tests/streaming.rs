//! Bodies that are sent and read piece by piece, against real sockets on loopback.

#![expect(clippy::unwrap_used, reason = "a failed step of a test ends the test")]

use std::time::Duration;

use bytes::Bytes;
use cofferdam_net::{
    AddressPolicy, Dialer, Endpoint, OneShotError, StreamedResponse, Trust, channel_body, open_stream,
};
use http::Request;
use http_body_util::{BodyExt as _, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn pieces_of_a_body_are_sent_and_read_as_they_come() {
    let (listener, endpoint) = listen().await;
    let (body, request_body) = channel_body(2);
    let request = Request::post("/").header("host", "test").body(request_body).unwrap();
    let dialer = dialer();
    let client = async {
        let mut response = open_stream(&dialer, &endpoint, request, TIMEOUT).await.unwrap();
        let mut pieces = Vec::new();
        while let Some(piece) = response.next_piece().await.unwrap() {
            pieces.push(piece);
        }
        pieces
    };
    let server = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        body.send_data(Bytes::from_static(b"first")).await.unwrap();
        read_until(&mut socket, b"5\r\nfirst\r\n").await;
        body.send_data(Bytes::from_static(b"second")).await.unwrap();
        read_until(&mut socket, b"6\r\nsecond\r\n").await;
        drop(body);
        read_until(&mut socket, b"0\r\n\r\n").await;
        socket.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n").await.unwrap();
        tokio::task::yield_now().await;
        socket.write_all(b"3\r\ntwo\r\n0\r\n\r\n").await.unwrap();
    };
    let (pieces, ()) = timeout(TIMEOUT, async { tokio::join!(client, server) }).await.unwrap();
    assert_eq!(pieces.concat(), b"onetwo");
}

/// The piece and the end of the sender race with the task that reads the body.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_piece_is_sent_if_the_sender_is_dropped_at_once() {
    for _ in 0..20_000 {
        let (sender, body) = channel_body(2);
        let mut reading = JoinSet::new();
        reading.spawn(body.collect());
        sender.send_data(Bytes::from_static(b"last")).await.unwrap();
        drop(sender);
        let read = timeout(TIMEOUT, reading.join_next()).await.unwrap().unwrap();
        assert_eq!(read.unwrap().unwrap().to_bytes(), "last");
    }
}

#[tokio::test]
async fn dropping_a_response_closes_its_connection() {
    let (listener, endpoint) = listen().await;
    let (mut socket, response) = exchange(&listener, &endpoint, "content-length: 10\r\n\r\nhalf").await;
    drop(response);
    let mut rest = Vec::new();
    timeout(TIMEOUT, socket.read_to_end(&mut rest)).await.expect("the connection stayed open").unwrap();
}

#[tokio::test]
async fn a_truncated_body_is_an_error_and_a_collected_body_is_bounded() {
    let (listener, endpoint) = listen().await;
    let (socket, mut response) =
        exchange(&listener, &endpoint, "transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n").await;
    assert_eq!(response.next_piece().await.unwrap().unwrap(), "half");
    drop(socket);
    assert!(matches!(response.next_piece().await, Err(OneShotError::Broken(_))));

    let (_socket, response) = exchange(&listener, &endpoint, "content-length: 5\r\n\r\nwhole").await;
    assert_eq!(*response.collect(5).await.unwrap(), b"whole");
    let (_socket, response) = exchange(&listener, &endpoint, "content-length: 6\r\n\r\n").await;
    assert!(matches!(response.collect(5).await, Err(OneShotError::TooLarge { limit: 5 })));
    let (_socket, response) =
        exchange(&listener, &endpoint, "transfer-encoding: chunked\r\n\r\n6\r\nlonger\r\n").await;
    assert!(matches!(response.collect(5).await, Err(OneShotError::TooLarge { limit: 5 })));
}

/// Runs one exchange in which the server sends `response` after the status line.
async fn exchange(
    listener: &TcpListener,
    endpoint: &Endpoint,
    response: &str,
) -> (TcpStream, StreamedResponse) {
    let request = Request::get("/").header("host", "test").body(Full::<Bytes>::default()).unwrap();
    let server = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        read_until(&mut socket, b"\r\n\r\n").await;
        socket.write_all(format!("HTTP/1.1 200 OK\r\n{response}").as_bytes()).await.unwrap();
        socket
    };
    let dialer = dialer();
    let (socket, opened) = tokio::join!(server, open_stream(&dialer, endpoint, request, TIMEOUT));
    (socket, opened.unwrap())
}

async fn read_until(socket: &mut TcpStream, end: &[u8]) {
    let mut received = Vec::new();
    while !received.ends_with(end) {
        received.push(timeout(TIMEOUT, socket.read_u8()).await.expect("the bytes did not arrive").unwrap());
    }
}

async fn listen() -> (TcpListener, Endpoint) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, Endpoint::new(&url.parse().unwrap(), AddressPolicy::Any))
}

fn dialer() -> Dialer {
    Dialer::trusting(Trust::System)
}
