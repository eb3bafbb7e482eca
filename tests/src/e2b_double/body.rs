//! Responses of the double: JSON, errors, and streams that can be cut.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// The body of every response: pieces from a channel. A piece that is an error closes the connection.
pub(super) struct Pieces(mpsc::Receiver<io::Result<Bytes>>);

pub(super) type PieceSender = mpsc::Sender<io::Result<Bytes>>;

/// The connection is closed without a response.
#[derive(Debug)]
pub(super) struct Cut;

pub(super) type HandlerResult = Result<Response<Pieces>, Cut>;

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the double closes this connection")
    }
}

impl std::error::Error for Cut {}

impl Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

/// A channel for the pieces of a streamed body, and that body.
pub(super) fn channel() -> (PieceSender, Pieces) {
    let (sender, receiver) = mpsc::channel(4);
    (sender, Pieces(receiver))
}

pub(super) fn bytes(status: u16, kind: &str, content: impl Into<Bytes>) -> Response<Pieces> {
    let content = content.into();
    let length = content.len();
    let (sender, body) = channel();
    // The channel is empty, so this does not fail.
    let _ = sender.try_send(Ok(content));
    let response =
        Response::builder().status(status).header("content-type", kind).header("content-length", length);
    response.body(body).expect("the parts are valid")
}

pub(super) fn json_body(status: u16, value: &Value) -> Response<Pieces> {
    bytes(status, "application/json", value.to_string())
}

pub(super) fn empty(status: u16) -> Response<Pieces> {
    let mut response = Response::new(channel().1);
    *response.status_mut() = StatusCode::from_u16(status).expect("a test's status is valid");
    response
}

/// An error of the control API, of the proxy, or of `envd` outside its RPC.
pub(super) fn error(status: u16, message: &str) -> Response<Pieces> {
    json_body(status, &json!({"code": status, "message": message}))
}
