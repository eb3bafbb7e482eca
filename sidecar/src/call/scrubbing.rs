//! Large messages of a server, scrubbed on a worker thread so that other links do not wait.
//!
//! What must stay true: messages reach the harness in the order in which the server sent them. So the link does not
//! read from its servers while one of their messages is being scrubbed; everything else continues.

use std::borrow::Cow;
use std::future::pending;
use std::sync::Arc;

use bytes::BytesMut;
use futures_util::future::BoxFuture;
use relay_proto::envelope::{IdValue, Outcome};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::in_flight::Call;
use super::replies::{ScrubbedLine, TooLarge, scrub_message, scrub_response};
use super::{CallerContext, Pipeline};
use cofferdam_servers::ServerSet;

/// The large message of a link that is being scrubbed, if there is one.
#[derive(Default)]
pub(crate) struct LargeMessage(Option<Scrubbing>);

struct Scrubbing {
    work: BoxFuture<'static, Scrubbed>,
    /// Set where the message is the response to a call.
    response: Option<PendingResponse>,
}

/// A response that is being scrubbed, and the call that it answers.
pub(super) struct PendingResponse {
    pub(super) id: IdValue,
    /// None once the harness has cancelled it.
    pub(super) call: Option<Call>,
    pub(super) outcome: Outcome,
    /// The size of the response as the server sent it.
    pub(super) bytes: usize,
}

/// The result of the worker.
pub(crate) enum Scrubbed {
    Message(Result<ScrubbedLine<'static>, TooLarge>),
    /// None where its id was redacted.
    Response(Option<ScrubbedLine<'static>>),
    /// The worker failed: no part of the message may be sent.
    Failed,
}

/// Scrubbing a smaller message takes less time than handing it to another thread and back.
pub(super) const LARGE_BYTES: usize = 256 * 1024;

impl LargeMessage {
    pub(crate) fn is_being_scrubbed(&self) -> bool {
        self.0.is_some()
    }

    /// Whether the response to this request is being scrubbed.
    pub(super) fn holds(&self, id: &IdValue) -> bool {
        self.response().is_some_and(|response| response.id == *id)
    }

    /// Requests that wait for a response.
    pub(super) fn requests(&self) -> usize {
        usize::from(self.response().is_some_and(|response| response.call.is_some()))
    }

    /// Takes out the call that the harness cancelled; its response is then dropped.
    pub(super) fn cancel(&mut self, id: &IdValue) -> Option<Call> {
        let response = self.0.as_mut()?.response.as_mut().filter(|response| response.id == *id)?;
        response.call.take()
    }

    /// Waits for the worker. Cancel-safe.
    pub(crate) async fn scrubbed(&mut self) -> Scrubbed {
        match &mut self.0 {
            Some(Scrubbing { work, .. }) => work.await,
            None => pending().await,
        }
    }

    /// Starts to scrub a large response. `changed` is the response for the harness, where it differs from the server's.
    pub(super) fn scrub_response(
        &mut self,
        caller: &CallerContext,
        message: BytesMut,
        changed: Option<Vec<u8>>,
        id: Vec<u8>,
        response: PendingResponse,
    ) {
        let scrubber = caller.scrubber();
        let harness_id = response.call.as_ref().map_or_else(|| "null".into(), |call| call.id.clone());
        let work = in_turn(caller, move || {
            let message = changed.unwrap_or_else(|| message.into());
            Scrubbed::Response(scrub_response(&scrubber, Cow::Owned(message), &id, harness_id.as_bytes()))
        });
        self.0 = Some(Scrubbing { work, response: Some(response) });
    }

    /// Starts to scrub a large request or notification of a server, or response of the sidecar itself.
    pub(super) fn scrub_message(&mut self, caller: &CallerContext, message: Vec<u8>) {
        let scrubber = caller.scrubber();
        let limit = caller.max_message_bytes;
        let work = in_turn(caller, move || {
            Scrubbed::Message(scrub_message(&scrubber, &message, limit).map(ScrubbedLine::into_owned))
        });
        self.0 = Some(Scrubbing { work, response: None });
    }

    /// The link ends: takes out the call whose response is dropped.
    pub(super) fn end(&mut self) -> Option<Call> {
        self.0.take()?.response?.call
    }

    fn response(&self) -> Option<&PendingResponse> {
        self.0.as_ref()?.response.as_ref()
    }
}

/// Runs `scrub` on a worker thread when it is the session's turn.
fn in_turn(
    caller: &CallerContext,
    scrub: impl FnOnce() -> Scrubbed + Send + 'static,
) -> BoxFuture<'static, Scrubbed> {
    let session = Arc::clone(&caller.session);
    Box::pin(async move {
        let turns = [&session.scrub_turn, &session.context.scrub_turns];
        run_in_turn(turns, &session.context.tasks, scrub).await.unwrap_or(Scrubbed::Failed)
    })
}

/// Runs `work` on a worker thread when it has a permit of its session and then one of all sessions: each session has one
/// message scrubbed at a time, and the sessions take turns in the order in which they asked. `None` if the work failed.
async fn run_in_turn<T: Send + 'static>(
    [of_session, of_all]: [&Arc<Semaphore>; 2],
    tasks: &TaskTracker,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let of_session = Arc::clone(of_session).acquire_owned().await.ok()?;
    let of_all = Arc::clone(of_all).acquire_owned().await.ok()?;
    let work = tasks.spawn_blocking(move || {
        let result = work();
        drop((of_session, of_all));
        result
    });
    work.await.ok()
}

impl Pipeline {
    /// The worker is done: queues the message for the harness.
    pub(crate) fn on_scrubbed(&mut self, servers: &mut ServerSet, scrubbed: Scrubbed, now: Instant) {
        let Some(Scrubbing { response, .. }) = self.large.0.take() else { return };
        match (scrubbed, response) {
            (
                Scrubbed::Response(scrubbed),
                Some(PendingResponse { call: Some(call), outcome, bytes, .. }),
            ) => {
                self.finish_response(servers, call, outcome, bytes, scrubbed, now);
            }
            (_, Some(PendingResponse { call: Some(call), outcome, bytes, .. })) => {
                self.finish_response(servers, call, outcome, bytes, None, now);
            }
            // The harness cancelled it.
            (_, Some(PendingResponse { call: None, .. })) => {}
            (Scrubbed::Message(scrubbed), None) => self.push_message(scrubbed),
            (Scrubbed::Response(_) | Scrubbed::Failed, None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::{Mutex, mpsc};

    use futures_util::future::join4;
    use futures_util::poll;

    use super::*;

    #[tokio::test]
    async fn sessions_take_turns_with_large_messages() {
        let semaphore = || Arc::new(Semaphore::new(1));
        let (first, second, all) = (semaphore(), semaphore(), semaphore());
        let tasks = TaskTracker::new();
        let order = Arc::new(Mutex::new(Vec::new()));
        let (release, released) = mpsc::channel::<()>();
        let scrub = |message: &'static str| {
            let order = Arc::clone(&order);
            move || order.lock().unwrap().push(message)
        };
        let first_message = scrub("first session, message 1");
        let mut one = pin!(run_in_turn([&first, &all], &tasks, move || {
            released.recv().unwrap();
            first_message();
        }));
        let mut two = pin!(run_in_turn([&first, &all], &tasks, scrub("first session, message 2")));
        let mut three = pin!(run_in_turn([&first, &all], &tasks, scrub("first session, message 3")));
        let mut other = pin!(run_in_turn([&second, &all], &tasks, scrub("second session")));
        // All have asked for their turns, in this order, while the first message is being scrubbed.
        assert!(poll!(&mut one).is_pending());
        assert!(poll!(&mut two).is_pending());
        assert!(poll!(&mut three).is_pending());
        assert!(poll!(&mut other).is_pending());
        release.send(()).unwrap();
        let results = join4(one, two, three, other).await;
        assert_eq!(results, (Some(()), Some(()), Some(()), Some(())));
        let expected = [
            "first session, message 1",
            "second session",
            "first session, message 2",
            "first session, message 3",
        ];
        assert_eq!(*order.lock().unwrap(), expected);
    }

    #[tokio::test]
    async fn a_worker_that_fails_releases_its_turn() {
        let (of_session, of_all) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1)));
        let tasks = TaskTracker::new();
        let failed: Option<()> = run_in_turn([&of_session, &of_all], &tasks, || panic!("in the test")).await;
        assert_eq!(failed, None);
        assert_eq!(run_in_turn([&of_session, &of_all], &tasks, || 1).await, Some(1));
    }
}
