//! Large messages of a server, scrubbed on a worker thread so that other links do not wait.
//!
//! What must stay true: messages reach the harness in the order in which the server sent them. So the link does not
//! read from its servers while one of their messages is being scrubbed; everything else continues. Each sandbox has one
//! message scrubbed at a time, over all its links, so that many of them take no more of the processors than one. What
//! scrubbing takes is charged for as long as it lasts.

use std::borrow::Cow;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::future::BoxFuture;
use relay_proto::envelope::{IdValue, Outcome};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;

use super::in_flight::Call;
use super::replies::{ScrubbedLine, TooLarge, scrub_message, scrub_response};
use super::{CallerContext, Pipeline};
use crate::config::{SCRUBBING_COPIES, SMALL_BUFFERS};
use cofferdam_base::memory::{MEMORY_RETRY_DELAY, MemoryCharge};
use cofferdam_servers::{NO_MEMORY, ServerSet};
use relay_proto::code::Code;

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
    /// There was no memory for it in time.
    NoMemory,
    /// The worker failed: no part of the message may be sent.
    Failed,
}

/// Scrubbing a smaller message takes less time than handing it to another thread and back.
const LARGE_BYTES: usize = 256 * 1024;
/// What scrubbing such a message takes is within what a link is charged for its buffers.
const SMALL_BYTES: usize = SMALL_BUFFERS as usize / SCRUBBING_COPIES;

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
        let size = changed.as_ref().map_or(message.len(), Vec::len);
        let work = in_turn(caller, size, move || {
            let message = changed.unwrap_or_else(|| message.into());
            Scrubbed::Response(scrub_response(&scrubber, Cow::Owned(message), &id, harness_id.as_bytes()))
        });
        self.0 = Some(Scrubbing { work, response: Some(response) });
    }

    /// Starts to scrub a large request or notification of a server, or response of the sidecar itself.
    pub(super) fn scrub_message(&mut self, caller: &CallerContext, message: Vec<u8>) {
        let scrubber = caller.scrubber();
        let limit = caller.max_message_bytes;
        let work = in_turn(caller, message.len(), move || {
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

impl CallerContext {
    /// A charge for the memory that scrubbing a message of this size takes, as long as that lasts. None for a large message,
    /// and if there is no memory for it now: then it waits for its turn.
    pub(super) fn try_charge_scrubbing(&self, size: usize) -> Option<MemoryCharge> {
        try_charge(self.session.context.scrubbing_memory(), size)
    }

    /// The same for a message that cannot wait, whatever the ceilings say.
    pub(super) fn charge_scrubbing(&self, size: usize) -> MemoryCharge {
        let mut charge = self.session.context.scrubbing_memory();
        charge.set(SCRUBBING_COPIES * size);
        charge
    }
}

fn try_charge(mut charge: MemoryCharge, size: usize) -> Option<MemoryCharge> {
    let needed = if size <= SMALL_BYTES { 0 } else { SCRUBBING_COPIES * size };
    (size <= LARGE_BYTES && charge.try_grow_to(needed)).then_some(charge)
}

/// Runs `scrub`, for a message of this size, on a worker thread when it is the sandbox's turn.
fn in_turn(
    caller: &CallerContext,
    size: usize,
    scrub: impl FnOnce() -> Scrubbed + Send + 'static,
) -> BoxFuture<'static, Scrubbed> {
    let session = Arc::clone(&caller.session);
    Box::pin(async move {
        let context = &session.context;
        let turn = Turn {
            of_sandbox: Arc::clone(&session.scrub_turn),
            of_all: Arc::clone(&context.scrub_turns.of_all),
            memory: context.scrubbing_memory(),
            needed: SCRUBBING_COPIES * size,
            patience: context.config.load().limits.memory_wait,
        };
        match turn.run(&context.tasks, scrub).await {
            Ok(scrubbed) => scrubbed,
            Err(NotRun::NoMemory) => Scrubbed::NoMemory,
            Err(NotRun::Failed) => Scrubbed::Failed,
        }
    })
}

/// What work on a worker thread waits for.
struct Turn {
    /// Each sandbox has one message scrubbed at a time.
    of_sandbox: Arc<Semaphore>,
    /// The sandboxes take turns in the order in which they asked.
    of_all: Arc<Semaphore>,
    memory: MemoryCharge,
    /// The bytes that the work takes.
    needed: usize,
    /// How long the work waits for them.
    patience: Duration,
}

/// Why work has no result.
#[derive(Debug, Eq, PartialEq)]
enum NotRun {
    NoMemory,
    Failed,
}

impl Turn {
    async fn run<T: Send + 'static>(
        self,
        tasks: &TaskTracker,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NotRun> {
        let Self { of_sandbox, of_all, mut memory, needed, patience } = self;
        let of_sandbox = of_sandbox.acquire_owned().await.map_err(|_| NotRun::Failed)?;
        let mut deadline = None;
        let of_all = loop {
            let turn = Arc::clone(&of_all).acquire_owned().await.map_err(|_| NotRun::Failed)?;
            if memory.try_grow_to(needed) {
                break turn;
            }
            // Others, who may need less, do not wait meanwhile.
            drop(turn);
            if Instant::now() >= *deadline.get_or_insert_with(|| Instant::now() + patience) {
                return Err(NotRun::NoMemory);
            }
            sleep(MEMORY_RETRY_DELAY).await;
        };
        let work = tasks.spawn_blocking(move || {
            let result = work();
            drop((memory, of_sandbox, of_all));
            result
        });
        work.await.map_err(|_| NotRun::Failed)
    }
}

impl Pipeline {
    /// The worker is done: queues the message for the harness.
    pub(crate) fn on_scrubbed(&mut self, servers: &mut ServerSet, scrubbed: Scrubbed, now: Instant) {
        let Some(Scrubbing { response, .. }) = self.large.0.take() else { return };
        match (scrubbed, response) {
            (Scrubbed::NoMemory, Some(PendingResponse { call: Some(call), .. })) => {
                self.fail(servers, call, Code::MessageTooLarge, NO_MEMORY, now);
            }
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
            (Scrubbed::NoMemory, None) => self.push_message(Err(TooLarge)),
            (Scrubbed::Response(_) | Scrubbed::Failed, None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::{Mutex, mpsc};

    use cofferdam_base::memory::MemoryAccount;
    use futures_util::future::join4;
    use futures_util::poll;

    use super::*;
    use crate::session::Session;
    use crate::session::fixture::Fixture;
    use crate::session::principal::Principal;

    fn turn(of_sandbox: &Arc<Semaphore>, of_all: &Arc<Semaphore>) -> Turn {
        Turn {
            of_sandbox: Arc::clone(of_sandbox),
            of_all: Arc::clone(of_all),
            memory: MemoryAccount::new(0).empty_charge(),
            needed: 0,
            patience: Duration::ZERO,
        }
    }

    #[tokio::test]
    async fn sandboxes_take_turns_with_large_messages_however_many_sessions_they_have() {
        let fixture = Fixture::new("");
        let session_of = |uid| {
            let principal = Principal::anonymous("dev".parse().unwrap(), Some(uid));
            Arc::clone(&Session::new(&fixture.context, &principal).scrub_turn)
        };
        let sessions = [session_of(1), session_of(1), session_of(1), session_of(2)];
        let all = Arc::new(Semaphore::new(1));
        let tasks = TaskTracker::new();
        let order = Arc::new(Mutex::new(Vec::new()));
        let (release, released) = mpsc::channel::<()>();
        let scrub = |message: &'static str| {
            let order = Arc::clone(&order);
            move || order.lock().unwrap().push(message)
        };
        let first_message = scrub("first sandbox, session 1");
        let mut one = pin!(turn(&sessions[0], &all).run(&tasks, move || {
            released.recv().unwrap();
            first_message();
        }));
        let mut two = pin!(turn(&sessions[1], &all).run(&tasks, scrub("first sandbox, session 2")));
        let mut three = pin!(turn(&sessions[2], &all).run(&tasks, scrub("first sandbox, session 3")));
        let mut other = pin!(turn(&sessions[3], &all).run(&tasks, scrub("second sandbox")));
        // All have asked for their turns, in this order, while the first message is being scrubbed.
        assert!(poll!(&mut one).is_pending());
        assert!(poll!(&mut two).is_pending());
        assert!(poll!(&mut three).is_pending());
        assert!(poll!(&mut other).is_pending());
        release.send(()).unwrap();
        let results = join4(one, two, three, other).await;
        assert_eq!(results, (Ok(()), Ok(()), Ok(()), Ok(())));
        let expected = [
            "first sandbox, session 1",
            "second sandbox",
            "first sandbox, session 2",
            "first sandbox, session 3",
        ];
        assert_eq!(*order.lock().unwrap(), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn work_waits_for_memory_without_keeping_others_waiting_and_releases_it() {
        let semaphore = || Arc::new(Semaphore::new(1));
        let (one, other, all) = (semaphore(), semaphore(), semaphore());
        let tasks = TaskTracker::new();
        let account = MemoryAccount::new(100);
        let of_size = |of_sandbox: &Arc<Semaphore>, needed| Turn {
            memory: account.empty_charge(),
            needed,
            patience: Duration::from_secs(30),
            ..turn(of_sandbox, &all)
        };
        let mut held = account.empty_charge();
        assert!(held.try_grow_to(60));
        let mut large = pin!(of_size(&one, 50).run(&tasks, || 1));
        assert!(poll!(&mut large).is_pending());
        let small = of_size(&other, 40).run(&tasks, {
            let account = Arc::clone(&account);
            move || account.used()
        });
        assert_eq!(small.await, Ok(100), "the work of another sandbox waits, or is not charged");
        assert_eq!(account.used(), 60, "a charge is not released");
        assert_eq!(large.as_mut().await, Err(NotRun::NoMemory));
        drop(held);
        assert_eq!(of_size(&one, 50).run(&tasks, || 1).await, Ok(1));
        assert_eq!(account.used(), 0);
    }

    #[test]
    fn what_scrubbing_a_message_takes_is_charged_and_it_waits_where_there_is_no_memory() {
        let account = MemoryAccount::new(SCRUBBING_COPIES * LARGE_BYTES);
        let charged = |size| try_charge(account.empty_charge(), size).map(|charge| charge.bytes());
        assert_eq!(charged(LARGE_BYTES), Some(SCRUBBING_COPIES * LARGE_BYTES));
        assert_eq!(charged(LARGE_BYTES + 1), None);
        assert_eq!((charged(SMALL_BYTES), charged(SMALL_BYTES + 1)), (Some(0), Some(9 * (SMALL_BYTES + 1))));
        assert_eq!(account.used(), 0, "a charge is not released");
        let mut others = account.empty_charge();
        assert!(others.try_grow_to(1));
        assert_eq!((charged(LARGE_BYTES), charged(SMALL_BYTES)), (None, Some(0)));
    }

    #[tokio::test]
    async fn a_worker_that_fails_releases_its_turn() {
        let (of_sandbox, of_all) = (Arc::new(Semaphore::new(1)), Arc::new(Semaphore::new(1)));
        let tasks = TaskTracker::new();
        let failed: Result<(), NotRun> =
            turn(&of_sandbox, &of_all).run(&tasks, || panic!("in the test")).await;
        assert_eq!(failed, Err(NotRun::Failed));
        assert_eq!(turn(&of_sandbox, &of_all).run(&tasks, || 1).await, Ok(1));
    }
}
