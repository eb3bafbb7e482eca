//! The faults that a test can inject.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use hyper::Response;
use serde_json::json;
use tokio::time::sleep;

use super::body::{Cut, HandlerResult, channel, empty, error};
use super::frames::message;
use super::server::{Side, lock};

/// What happens to a request instead of its normal response.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The connection is closed without a response.
    Cut,
    /// A response of a gigabyte, without `Content-Length`.
    Gigabyte,
    /// The head and a part of the body; then the connection is closed.
    HalfResponse,
    /// The events of a process end after the first one, although the process has not exited.
    HalfStream,
    /// HTTP 307 to this address.
    Redirect(String),
    /// No response for an hour.
    Silence,
    Status(u16),
    /// This status, with `Retry-After` in seconds.
    StatusRetryAfter(u16, u64),
    /// This status, with this message in the body.
    StatusWithMessage(u16, String),
}

/// After how much a stream is disconnected.
#[derive(Clone, Copy, Debug)]
pub enum CutEvery {
    Bytes(usize),
    Time(Duration),
}

#[derive(Default)]
pub(super) struct Faults {
    planned: Mutex<Vec<PlannedFault>>,
    cuts: Mutex<Option<CutEvery>>,
    /// Of streams and processes whose request has no time limit of its own.
    time_limit: Mutex<Option<Duration>>,
    /// While this file exists, the control API does not respond.
    hold_file: Mutex<Option<PathBuf>>,
}

const HOLD_POLL: Duration = Duration::from_millis(20);

struct PlannedFault {
    side: Side,
    path: String,
    fault: Fault,
    /// How many matching requests are served normally first.
    skipped: usize,
    remaining: usize,
}

impl Faults {
    pub(super) fn plan(&self, side: Side, path: &str, fault: Fault, times: usize) {
        let path = path.to_owned();
        lock(&self.planned).push(PlannedFault { side, path, fault, skipped: 0, remaining: times });
    }

    /// Injects a fault into one request, after this many others.
    pub(super) fn plan_after(&self, side: Side, requests: usize, fault: Fault) {
        let plan = PlannedFault { side, path: String::new(), fault, skipped: requests, remaining: 1 };
        lock(&self.planned).push(plan);
    }

    pub(super) fn hold_while_exists(&self, file: &Path) {
        *lock(&self.hold_file) = Some(file.to_owned());
    }

    /// Waits until a request to this side may be answered.
    pub(super) async fn await_release(&self, side: Side) {
        let file = lock(&self.hold_file).clone().filter(|_| side == Side::Control);
        while file.as_ref().is_some_and(|file| file.exists()) {
            sleep(HOLD_POLL).await;
        }
    }

    pub(super) fn clear(&self) {
        lock(&self.planned).clear();
    }

    pub(super) fn cut_every(&self, every: Option<CutEvery>) {
        *lock(&self.cuts) = every;
    }

    pub(super) fn limit_time(&self, limit: Option<Duration>) {
        *lock(&self.time_limit) = limit;
    }

    pub(super) fn time_limit(&self) -> Option<Duration> {
        *lock(&self.time_limit)
    }

    pub(super) fn cuts(&self) -> Option<CutEvery> {
        *lock(&self.cuts)
    }

    /// Returns the fault that is planned for a request, and counts it. `path` includes the query.
    pub(super) fn take(&self, side: Side, path: &str) -> Option<Fault> {
        let mut planned = lock(&self.planned);
        let matching =
            |plan: &&mut PlannedFault| plan.remaining > 0 && plan.side == side && path.contains(&plan.path);
        let found = planned.iter_mut().find(matching)?;
        if found.skipped > 0 {
            found.skipped -= 1;
            return None;
        }
        found.remaining -= 1;
        Some(found.fault.clone())
    }
}

impl Fault {
    pub(super) async fn response(self) -> HandlerResult {
        match self {
            Self::Cut => Err(Cut),
            Self::Gigabyte => {
                let (sender, body) = channel();
                let piece = Bytes::from(vec![b' '; 1 << 20]);
                // The thread ends when the client disconnects.
                std::thread::spawn(move || {
                    (0..1024).try_for_each(|_| sender.blocking_send(Ok(piece.clone())))
                });
                Ok(Response::new(body))
            }
            Self::HalfResponse => {
                let (sender, body) = channel();
                let _ = sender.try_send(Ok(Bytes::from_static(b"{\"sandboxID\":")));
                let _ = sender.try_send(Err(io::ErrorKind::ConnectionAborted.into()));
                let response = Response::builder().header("content-length", 4096);
                Ok(response.body(body).expect("the parts are valid"))
            }
            Self::HalfStream => {
                let (sender, body) = channel();
                let _ = sender.try_send(Ok(message(&json!({"event": {"start": {"pid": 1}}}))));
                let response = Response::builder().header("content-type", "application/connect+json");
                Ok(response.body(body).expect("the parts are valid"))
            }
            Self::Redirect(target) => {
                let mut response = empty(307);
                response.headers_mut().insert("location", target.parse().expect("a URL is a header"));
                Ok(response)
            }
            Self::Silence => {
                sleep(Duration::from_secs(3600)).await;
                Err(Cut)
            }
            Self::Status(status) => Ok(error(status, "as planned by the test")),
            Self::StatusRetryAfter(status, seconds) => {
                let mut response = error(status, "as planned by the test");
                response.headers_mut().insert("retry-after", seconds.into());
                Ok(response)
            }
            Self::StatusWithMessage(status, message) => Ok(error(status, &message)),
        }
    }
}
