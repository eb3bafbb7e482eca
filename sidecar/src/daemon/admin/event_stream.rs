//! The command line's side of `GET /v1/events`: reads server-sent events from the admin socket.
//!
//! What must stay true: the size of an event is limited; if the sidecar sends nothing for three heartbeats, the stream
//! fails.

use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, header::HOST};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::client::AdminError;
use super::routes;
use super::{AdminRequest, AdminResponse};
use crate::session::changes::Change;

/// An open stream of changes.
pub(crate) struct EventStream {
    body: Incoming,
    parser: EventParser,
    /// The task that drives the connection; aborted when the stream is dropped.
    _connection: JoinSet<()>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum WatchEvent {
    Changed(Change),
    /// Some changes were not sent, because this client read too slowly.
    Lagged,
    /// Every change from now on will be sent.
    Ready,
}

/// The response to the request for a stream.
pub(crate) enum WatchResponse {
    Refused { why: String },
    Stream(EventStream),
}

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15);
/// Three heartbeats of the sidecar.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(45);
/// An event has a few hundred bytes.
const MAX_EVENT_BYTES: usize = 64 * 1024;

/// Requests the stream of changes.
pub(crate) async fn watch(socket: &Path) -> Result<WatchResponse, AdminError> {
    timeout(RESPONSE_TIMEOUT, open(socket))
        .await
        .unwrap_or_else(|elapsed| Err(AdminError::Io(elapsed.into())))
}

async fn open(socket: &Path) -> Result<WatchResponse, AdminError> {
    let connected = UnixStream::connect(socket).await;
    let stream = connected.map_err(|source| AdminError::Connect { path: socket.into(), source })?;
    let (mut sender, driver) = http1::handshake(TokioIo::new(stream)).await.map_err(io_error)?;
    let mut connection = JoinSet::new();
    // An error of the connection also fails the response or its body.
    connection.spawn(async { drop(driver.await) });
    let encoded = routes::encode(&AdminRequest::Watch);
    let request = Request::builder().method(encoded.route.method.clone()).uri(encoded.path);
    let request = request.header(HOST, "localhost").body(Full::<Bytes>::default()).map_err(io_error)?;
    let response: Response<Incoming> = sender.send_request(request).await.map_err(io_error)?;
    let (status, body) = (response.status(), response.into_body());
    if status.is_success() {
        return Ok(WatchResponse::Stream(EventStream {
            body,
            parser: EventParser::default(),
            _connection: connection,
        }));
    }
    let body = Limited::new(body, MAX_EVENT_BYTES).collect().await.map_err(AdminError::other)?.to_bytes();
    match routes::decode_response(encoded.route, status, &body).map_err(AdminError::Response)? {
        AdminResponse::Refused { why } => Ok(WatchResponse::Refused { why }),
        _ => Err(AdminError::other("the sidecar sent an unexpected response")),
    }
}

impl EventStream {
    /// The next event. `None` if the sidecar has ended the stream, as it does when it stops.
    pub(crate) async fn next(&mut self) -> Result<Option<WatchEvent>, AdminError> {
        loop {
            if let Some(event) = self.parser.next()? {
                return Ok(Some(event));
            }
            let frame = timeout(SILENCE_TIMEOUT, self.body.frame()).await;
            let frame = frame.map_err(|elapsed| AdminError::Io(elapsed.into()))?;
            match frame.transpose().map_err(io_error)? {
                Some(frame) => self.parser.feed(&frame.into_data().unwrap_or_default())?,
                None => return Ok(None),
            }
        }
    }
}

fn io_error(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> AdminError {
    AdminError::other(error)
}

impl AdminError {
    fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Io(io::Error::other(error))
    }
}

/// Splits the bytes of the stream into events.
#[derive(Debug, Default)]
struct EventParser {
    bytes: Vec<u8>,
}

impl EventParser {
    fn feed(&mut self, bytes: &[u8]) -> Result<(), AdminError> {
        if self.bytes.len() + bytes.len() > MAX_EVENT_BYTES {
            return Err(AdminError::other("the sidecar sent an event that is too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Removes the next event. `None` if no event is complete. Comments, which the sidecar sends as heartbeats, are skipped.
    fn next(&mut self) -> Result<Option<WatchEvent>, AdminError> {
        while let Some(end) = self.bytes.windows(2).position(|pair| pair == b"\n\n") {
            let rest = self.bytes.split_off(end + 2);
            let event = std::mem::replace(&mut self.bytes, rest);
            if let Some(event) = parse(&String::from_utf8_lossy(&event)).map_err(AdminError::Response)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }
}

fn parse(text: &str) -> Result<Option<WatchEvent>, serde_json::Error> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    match (field("event"), field("data")) {
        (Some("ready"), _) => Ok(Some(WatchEvent::Ready)),
        (Some("lagged"), _) => Ok(Some(WatchEvent::Lagged)),
        (Some(_), Some(data)) => serde_json::from_str(data).map(|change| Some(WatchEvent::Changed(change))),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::changes::ChangeKind;

    #[test]
    fn events_are_parsed_however_their_bytes_are_split() {
        let change = Change::new(ChangeKind::LinkOpened, &"dev".parse().unwrap());
        let data = serde_json::to_string(&change).unwrap();
        let text = format!(
            "event: ready\ndata: {{}}\n\n:\n\nevent: link-opened\ndata: {data}\n\nevent: lagged\ndata: {{}}\n\n"
        );
        for size in [1, 7, text.len()] {
            let mut parser = EventParser::default();
            let mut events = Vec::new();
            for chunk in text.as_bytes().chunks(size) {
                parser.feed(chunk).unwrap();
                while let Some(event) = parser.next().unwrap() {
                    events.push(event);
                }
            }
            let expected = [WatchEvent::Ready, WatchEvent::Changed(change.clone()), WatchEvent::Lagged];
            assert_eq!(events, expected, "chunks of {size} bytes");
        }
    }

    #[test]
    fn an_event_that_is_too_long_is_refused() {
        let mut parser = EventParser::default();
        parser.feed(&[b'x'; MAX_EVENT_BYTES]).unwrap();
        assert!(parser.next().unwrap().is_none());
        parser.feed(b"x").unwrap_err();
    }
}
