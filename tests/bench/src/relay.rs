//! A relay link without a shim: sends what a shim would send.
//!
//! It numbers and acknowledges messages and responds to heartbeats as a shim does, with the same code. It does not
//! reconnect, because no measurement disconnects it.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use relay_proto::control::{Hello, Proof, Purpose};
use relay_proto::decoder::Decoder;
use relay_proto::delivery::{Inbox, Outbox};
use relay_proto::frame::{Frame, MaybeRan, PREFACE};
use relay_proto::limits::{DEFAULT_WINDOW, MAX_MESSAGE, VERSION};
use serde_json::Value;

use crate::bench_error::BenchError;

#[derive(Debug)]
pub(crate) struct Link {
    stream: UnixStream,
    decoder: Decoder,
    pub(crate) outbox: Outbox,
    inbox: Inbox,
    /// Encoded bytes that are not written yet.
    out: Vec<u8>,
    last_id: u64,
}

impl Link {
    /// Connects, sends Hello and waits for Welcome. The session has no server process yet.
    pub(crate) fn open(socket: &Path, server: &str) -> Result<Self, BenchError> {
        let connected = UnixStream::connect(socket).and_then(|stream| {
            stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
            Ok(stream)
        });
        let stream =
            connected.map_err(|source| BenchError::Start { what: "a link to the sidecar".into(), source })?;
        let mut link = Self {
            stream,
            decoder: Decoder::new(),
            outbox: Outbox::new(0),
            inbox: Inbox::new(MAX_MESSAGE, DEFAULT_WINDOW),
            out: opening(server),
            last_id: 0,
        };
        link.write()?;
        match link.next_frame()? {
            Frame::Welcome(welcome) => link.outbox = Outbox::new(welcome.window),
            other => return Err(BenchError::UnexpectedResponse(format!("{other:?} to a Hello"))),
        }
        Ok(link)
    }

    /// The legacy handshake of MCP.
    pub(crate) fn handshake(&mut self) -> Result<(), BenchError> {
        self.request("initialize", INITIALIZE)?;
        self.push(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        self.write()
    }

    /// Makes one small call and waits for its response.
    pub(crate) fn small_call(&mut self) -> Result<(), BenchError> {
        let result = self.request("tools/call", SMALL_CALL)?;
        match result.contains("How deep is the water") {
            true => Ok(()),
            false => Err(BenchError::UnexpectedResponse(result)),
        }
    }

    /// Queues a message; [`Self::write`] sends it.
    pub(crate) fn push(&mut self, message: &[u8]) {
        self.outbox.push(message, MaybeRan::No);
    }

    pub(crate) fn push_frame(&mut self, frame: &Frame) {
        frame.encode(&mut self.out);
    }

    /// The stream, for a caller that polls both directions.
    pub(crate) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Writes everything that the credit allows, or as much as a non-blocking socket accepts.
    pub(crate) fn write(&mut self) -> Result<(), BenchError> {
        if let Some(ack) = self.inbox.take_ack() {
            Frame::Ack(ack).encode(&mut self.out);
        }
        self.outbox.take_ready(&mut self.out);
        let mut written = 0;
        while written < self.out.len() {
            match self.stream.write(&self.out[written..]) {
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(BenchError::Write { what: "to the sidecar".into(), source }),
            }
        }
        self.out.drain(..written);
        Ok(())
    }

    /// Whether bytes are left that the socket did not accept.
    pub(crate) fn has_unwritten(&self) -> bool {
        !self.out.is_empty()
    }

    /// Reads once and handles the frames: acknowledgements, heartbeats, and messages that no request waits for.
    pub(crate) fn read_frames(&mut self) -> Result<(), BenchError> {
        self.read()?;
        while let Some(frame) = self.decode_next()? {
            self.handle_frame(frame)?;
        }
        Ok(())
    }

    fn request(&mut self, method: &str, params: &str) -> Result<String, BenchError> {
        self.last_id += 1;
        let id = self.last_id;
        let request = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        self.push(request.as_bytes());
        self.write()?;
        loop {
            let frame = self.next_frame()?;
            let Some(message) = self.handle_frame(frame)? else { continue };
            let response: Value = serde_json::from_slice(&message).unwrap_or_default();
            match (response.get("id").and_then(Value::as_u64), response.get("result")) {
                (Some(response_id), Some(result)) if response_id == id => return Ok(result.to_string()),
                (None, None) if response.get("method").is_some() => {}
                _ => {
                    return Err(BenchError::UnexpectedResponse(
                        response.to_string().chars().take(160).collect(),
                    ));
                }
            }
        }
    }

    /// Handles a frame as a shim does; returns the message that it completes.
    fn handle_frame(&mut self, frame: Frame) -> Result<Option<Vec<u8>>, BenchError> {
        let wrong = |error: &dyn std::error::Error| BenchError::UnexpectedResponse(error.to_string());
        match frame {
            Frame::Ack(ack) => self.outbox.acknowledge(ack).map_err(|error| wrong(&error))?,
            Frame::Message(part) => {
                let message = self.inbox.accept(part).map_err(|error| wrong(&error))?;
                return Ok(message.map(|message| message.bytes));
            }
            Frame::Ping => Frame::Pong.encode(&mut self.out),
            Frame::Pong => {}
            other => return Err(BenchError::UnexpectedResponse(format!("{other:?}"))),
        }
        Ok(None)
    }

    fn next_frame(&mut self) -> Result<Frame, BenchError> {
        loop {
            if let Some(frame) = self.decode_next()? {
                return Ok(frame);
            }
            self.read()?;
        }
    }

    fn decode_next(&mut self) -> Result<Option<Frame>, BenchError> {
        self.decoder.next().map_err(|error| BenchError::UnexpectedResponse(error.to_string()))
    }

    fn read(&mut self) -> Result<(), BenchError> {
        match self.stream.read(self.decoder.spare()) {
            Ok(0) => Err(BenchError::Ended { what: "the link".into(), last_log_line: String::new() }),
            Ok(count) => {
                self.decoder.filled(count);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(BenchError::NoResponse {
                id: self.last_id,
                within: RESPONSE_TIMEOUT,
                last_log_line: String::new(),
            }),
            Err(source) => Err(BenchError::Read { what: "from the sidecar".into(), source }),
        }
    }
}

/// A preface and a Hello with this server's name.
pub(crate) fn opening(server: &str) -> Vec<u8> {
    let hello = Hello {
        versions: vec![VERSION],
        proof: Proof::Socket,
        purpose: Purpose::Link,
        server: Some(server.parse().expect("the benchmark's servers have valid names")),
        resume: None,
        capabilities: Vec::new(),
        software: "bench".into(),
    };
    let mut opening = PREFACE.to_vec();
    Frame::Hello(hello).encode(&mut opening);
    opening
}

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
const INITIALIZE: &str =
    r#"{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}"#;
const SMALL_CALL: &str = r#"{"name":"echo","arguments":{"text":"How deep is the water today?"}}"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opening_is_decoded_as_a_hello() {
        let mut decoder = Decoder::new();
        decoder.feed(&opening("bench"));
        let Ok(Some(Frame::Hello(hello))) = decoder.next() else { panic!("not a Hello") };
        assert_eq!((hello.server.unwrap().as_str(), hello.versions), ("bench", vec![VERSION]));
    }
}
