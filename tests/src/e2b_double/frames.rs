//! The frames of the Connect protocol. The double shares no code with the client.

use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Value, json};

const END: u8 = 2;

/// An error with one of Connect's codes.
#[derive(Clone, Debug)]
pub(super) struct RpcError {
    pub(super) code: &'static str,
    pub(super) message: String,
}

impl RpcError {
    pub(super) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The HTTP status that the Connect protocol assigns to the code, for unary requests.
    pub(super) fn status(&self) -> u16 {
        match self.code {
            "deadline_exceeded" => 504,
            "invalid_argument" => 400,
            "not_found" => 404,
            "unauthenticated" => 401,
            "unimplemented" => 501,
            _ => 500,
        }
    }

    pub(super) fn json(&self) -> Value {
        json!({"code": self.code, "message": self.message})
    }
}

pub(super) fn message(value: &Value) -> Bytes {
    frame(0, value)
}

/// The last frame of a stream.
pub(super) fn end(error: Option<&RpcError>) -> Bytes {
    frame(END, &error.map_or_else(|| json!({}), |error| json!({"error": error.json()})))
}

fn frame(flags: u8, value: &Value) -> Bytes {
    let text = value.to_string();
    let mut frame = BytesMut::with_capacity(5 + text.len());
    frame.put_u8(flags);
    frame.put_u32(u32::try_from(text.len()).expect("a test's message is small"));
    frame.put_slice(text.as_bytes());
    frame.freeze()
}

/// Reads the frames of a request, as they arrive.
pub(super) struct FrameReader {
    body: Incoming,
    received: BytesMut,
    pub(super) bytes: usize,
}

impl FrameReader {
    pub(super) fn new(body: Incoming) -> Self {
        Self { body, received: BytesMut::new(), bytes: 0 }
    }

    /// The next message; `None` at the end of the request. Cancel-safe.
    pub(super) async fn next(&mut self) -> io::Result<Option<Value>> {
        loop {
            if let Some(mut head) = self.received.get(..5) {
                let flags = head.get_u8();
                let length = usize::try_from(head.get_u32()).expect("a u32 fits into usize");
                if flags & END != 0 {
                    return Ok(None);
                }
                if self.received.len() >= 5 + length {
                    self.received.advance(5);
                    let body = self.received.split_to(length);
                    return serde_json::from_slice(&body).map(Some).map_err(io::Error::other);
                }
            }
            match self.body.frame().await {
                None if self.received.is_empty() => return Ok(None),
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(frame) => {
                    if let Ok(data) = frame.map_err(io::Error::other)?.into_data() {
                        self.bytes += data.len();
                        self.received.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}
