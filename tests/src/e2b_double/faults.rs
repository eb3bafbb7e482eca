//! What a test can break.

use std::io;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use hyper::Response;
use tokio::time::sleep;

use super::body::{Answer, Cut, channel, empty, error};
use super::server::{Side, lock};

/// What happens to a planned request instead of its answer.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The connection closes without an answer.
    Cut,
    /// A body of a gigabyte, without its length.
    Gigabyte,
    /// The head and a part of the promised body; then the connection closes.
    HalfAnswer,
    /// To another address, with the method kept.
    Redirect(String),
    /// No answer for an hour.
    Silence,
    Status(u16),
    /// With `Retry-After`, in seconds.
    StatusRetryAfter(u16, u64),
    /// With this message in the body.
    StatusSaying(u16, String),
}

/// When a stream is cut.
#[derive(Clone, Copy, Debug)]
pub enum CutEvery {
    Bytes(usize),
    Time(Duration),
}

#[derive(Default)]
pub(super) struct Faults {
    planned: Mutex<Vec<Planned>>,
    cuts: Mutex<Option<CutEvery>>,
}

struct Planned {
    side: Side,
    path: String,
    fault: Fault,
    left: usize,
}

impl Faults {
    pub(super) fn plan(&self, side: Side, path: &str, fault: Fault, times: usize) {
        lock(&self.planned).push(Planned { side, path: path.to_owned(), fault, left: times });
    }

    pub(super) fn cut_every(&self, every: Option<CutEvery>) {
        *lock(&self.cuts) = every;
    }

    pub(super) fn cuts(&self) -> Option<CutEvery> {
        *lock(&self.cuts)
    }

    /// Takes the fault that is planned for a request.
    pub(super) fn take(&self, side: Side, path: &str) -> Option<Fault> {
        let mut planned = lock(&self.planned);
        let matching = |one: &&mut Planned| one.left > 0 && one.side == side && path.contains(&one.path);
        let found = planned.iter_mut().find(matching)?;
        found.left -= 1;
        Some(found.fault.clone())
    }
}

impl Fault {
    pub(super) async fn answer(self) -> Answer {
        match self {
            Self::Cut => Err(Cut),
            Self::Gigabyte => {
                let (sender, body) = channel();
                let piece = Bytes::from(vec![b' '; 1 << 20]);
                // Ends by itself when the client hangs up.
                std::thread::spawn(move || {
                    (0..1024).try_for_each(|_| sender.blocking_send(Ok(piece.clone())))
                });
                Ok(Response::new(body))
            }
            Self::HalfAnswer => {
                let (sender, body) = channel();
                let _ = sender.try_send(Ok(Bytes::from_static(b"{\"sandboxID\":")));
                let _ = sender.try_send(Err(io::ErrorKind::ConnectionAborted.into()));
                let response = Response::builder().header("content-length", 4096);
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
            Self::StatusSaying(status, message) => Ok(error(status, &message)),
        }
    }
}
