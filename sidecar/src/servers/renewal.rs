//! How a new credential reaches a process that runs.
//!
//! The session says that a secret has other values; the process that has those before gets a successor
//! ([`super::generation`]), which takes over between two calls, or its files are written anew ([`super::reload`]). While
//! that does not work out, the process goes on for as long as its credential lives, it is tried again ever later, and
//! the reason is there for people to read. A process whose credential is over gets no new calls: the next one starts
//! another, or is told why none can be had.
//!
//! What must stay true: one successor at a time, [`MAX_DRAINING`] predecessors at most, and a bounded number of starts
//! within a minute, whatever Vault or a sandbox does; [`Renewal::next`] may be dropped at any await.

mod attending;

use std::future::{Future, pending};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_base::{Backoff, RateLimiter};
use futures_util::future::select_all;
use relay_proto::envelope::{IdValue, Outcome};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until};

use super::current::Current;
use super::event::{Event, Incarnation};
use super::generation::{CheckTools, Generation, Progress, Step};
use super::instance::Role;
use super::likeness::{Listing, Tools, Turned, agreement};
use super::spec::Replace;
use super::start::Starter;
use crate::inject::Secrets;
use crate::inject::credentials::Credentials;
use crate::upstream::outbound::Outbound;

pub(super) struct Renewal {
    credentials: Arc<Credentials>,
    replace: Replace,
    /// Done when some secret of the session has other values.
    change: Change,
    alarm: Option<Pin<Box<Sleep>>>,
    /// The link is to attend.
    due: bool,
    successor: Option<Generation>,
    draining: Vec<Generation>,
    /// What the harness's handshake came to, and how many it made.
    agreed: Option<u64>,
    handshakes: u64,
    /// How many it had made when the successor was started.
    known_handshakes: u64,
    /// Of the current process, as far as they are known.
    tools: Option<Tools>,
    /// The current process is being asked for them.
    inquiry: Option<(Listing, Instant)>,
    /// What processes had before their files were written anew.
    retained: Vec<(Instant, Arc<Secrets>)>,
    backoff: Backoff,
    not_before: Instant,
    pace: RateLimiter,
    trouble: Option<String>,
    notes: Vec<Note>,
}

type Change = Pin<Box<dyn Future<Output = watch::Receiver<u64>> + Send>>;

/// What happened beside the current process.
pub(super) enum News {
    Draining(Incarnation, Event),
    /// [`Renewal::attend`] has something to do.
    Due,
    Successor(Step),
}

/// What a link has to do about a replacement.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Note {
    /// This process was ended before everybody had an answer.
    Cut { from: Incarnation, why: String },
    /// This process gets no new calls; what only listens goes elsewhere.
    HandedOver { from: Incarnation },
    /// This process is over, and nothing waits for it.
    Over(Incarnation),
    /// For the log and the audit.
    Told(Told, String),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Told {
    Failed,
    Reloaded,
    Replaced,
    Retired,
}

/// Predecessors that still work, each a process: calls may be as many credentials' lives long.
const MAX_DRAINING: usize = 8;
/// Successors of one link within a minute. The shortest leases are some seconds long.
const STARTS_PER_MINUTE: u32 = 60;
/// When there may be a process to look at, or a handshake may be over.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

impl Renewal {
    /// None where no credential of what this starts can change.
    pub(super) fn of(starter: &Starter) -> Option<Box<Self>> {
        starter.may_change().then(|| {
            let mut renewal = Self {
                credentials: Arc::clone(&starter.credentials),
                replace: starter.server.replace,
                change: listen(starter.credentials.changes()),
                alarm: None,
                due: false,
                successor: None,
                draining: Vec::new(),
                agreed: None,
                handshakes: 0,
                known_handshakes: 0,
                tools: None,
                inquiry: None,
                retained: Vec::new(),
                backoff: Backoff::new(attending::FIRST_WAIT, attending::LONGEST_WAIT),
                not_before: Instant::now(),
                pace: RateLimiter::per_minute(STARTS_PER_MINUTE),
                trouble: None,
                notes: Vec::new(),
            };
            renewal.expect_a_process(starter);
            Box::new(renewal)
        })
    }

    /// A process is being started the usual way: with the newest there is.
    pub(super) fn expect_a_process(&mut self, starter: &Starter) {
        self.replace = starter.server.replace;
        (self.tools, self.inquiry, self.trouble) = (None, None, None);
        self.backoff.reset();
        self.wake_at(Some(Instant::now() + LOOK_AGAIN));
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.successor.is_none() && self.draining.is_empty()
    }

    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    pub(super) async fn next(&mut self) -> News {
        let Self { change, alarm, successor, draining, .. } = self;
        let news = tokio::select! {
            receiver = change.as_mut() => {
                self.change = listen(receiver);
                News::Due
            }
            () = ring(alarm) => News::Due,
            step = step(successor) => News::Successor(step),
            (from, event) = last_words(draining) => News::Draining(from, event),
        };
        if let News::Due = news {
            self.alarm = None;
            self.due = true;
        }
        news
    }

    pub(super) fn role(&self, of: Incarnation) -> Role {
        match self.successor.as_ref().is_some_and(|successor| successor.id == of) {
            true => Role::Successor,
            false => Role::Draining,
        }
    }

    pub(super) fn draining(&mut self, which: Incarnation) -> Option<&mut Generation> {
        self.draining.iter_mut().find(|draining| draining.id == which)
    }

    pub(super) fn tell(&mut self, to: Incarnation, message: Outbound) {
        if let Some(draining) = self.draining(to) {
            draining.tell(message);
        } else if let Some(successor) = self.successor.as_mut().filter(|one| one.id == to) {
            successor.tell(message);
        }
    }

    pub(super) fn tell_draining(&mut self, message: &Outbound) {
        self.draining.iter_mut().for_each(|draining| draining.tell(message.clone()));
    }

    pub(super) fn tell_all(&mut self, message: &Outbound) {
        self.tell_draining(message);
        if let Some(successor) = &mut self.successor {
            successor.tell(message.clone());
        }
    }

    /// What the harness's own handshake came to.
    pub(super) fn agreed_on(&mut self, message: &[u8], body: Option<Range<usize>>) {
        self.agreed = agreement(message, body);
        self.handshakes += 1;
        self.tools = None;
    }

    /// What a harness was shown of its tools.
    pub(super) fn listed(&mut self, message: &[u8], body: Option<Range<usize>>) {
        let listed = body.and_then(|result| Tools::listed(message, result));
        // A first page says nothing new of a list that is known as a whole.
        if listed.is_some_and(|listed| listed.are_all_known()) || self.tools.is_none() {
            self.tools = listed;
        }
    }

    pub(super) fn forget_tools(&mut self) {
        self.tools = None;
    }

    /// The current process may have been asked for its tools; says whether this answers that.
    pub(super) fn own_answer(
        &mut self,
        current: &mut Current,
        id: &IdValue,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
    ) -> bool {
        let Some((listing, _)) = self.inquiry.as_mut().filter(|(listing, _)| listing.asked() == id) else {
            return false;
        };
        match listing.hear(outcome, message, body, &mut current.memory) {
            Turned::More(question) => current.tell(question),
            Turned::Done(tools) => {
                self.tools = Some(tools);
                self.inquiry = None;
                self.due = true;
            }
        }
        true
    }

    /// The current process is gone by itself: its replacement takes over now.
    pub(super) fn lost(&mut self, current: &mut Current) {
        (self.inquiry, self.tools) = (None, None);
        if let Some(successor) = self.successor.take() {
            self.install(successor, current, CheckTools::Yes);
        }
        self.wake_at(Some(Instant::now() + LOOK_AGAIN));
    }

    pub(super) fn advance(&mut self, step: Step, current: &mut Current) -> Option<(Incarnation, Progress)> {
        let successor = self.successor.as_mut()?;
        // The harness shakes hands with the process of no scope.
        let agreed = self.agreed.or(current.generation.agreed);
        let progress = successor.advance(step, &mut current.memory, None, agreed);
        self.due |= !matches!(progress, Progress::Event(_) | Progress::Going);
        Some((successor.id, progress))
    }

    /// Ends a process that was handed over from.
    pub(super) fn see_off(&mut self, which: Incarnation, current: &Current) {
        let Some(place) = self.draining.iter().position(|draining| draining.id == which) else {
            return;
        };
        self.draining.remove(place).see_off(&current.leaving);
    }

    /// Ends all but the current process in the background.
    pub(super) fn dismiss(mut self, current: &Current) {
        for process in self.draining.iter_mut().chain(&mut self.successor) {
            process.see_off(&current.leaving);
        }
    }

    /// All but the current one.
    pub(super) fn into_processes(self) -> Vec<Generation> {
        self.draining.into_iter().chain(self.successor).collect()
    }

    /// How far it is, for people.
    pub(super) fn told(&self) -> Option<String> {
        let mut told: Vec<String> = self.trouble.iter().cloned().collect();
        if let Some(successor) = &self.successor {
            told.push(match successor.ready_from() {
                Some(_) => "a new process is ready and waits to take over".into(),
                None => "a new process is being started".into(),
            });
        }
        match self.draining.len() {
            0 => {}
            1 => told.push("one old process finishes its calls".into()),
            count => told.push(format!("{count} old processes finish their calls")),
        }
        (!told.is_empty()).then(|| told.join("; "))
    }

    /// Puts a successor in the place of the current process, which is returned if it still runs.
    fn install(
        &mut self,
        mut successor: Generation,
        current: &mut Current,
        check: CheckTools,
    ) -> Option<Generation> {
        successor.promote(&mut current.memory, check);
        current.hand_over(successor)
    }

    fn wake_at(&mut self, when: Option<Instant>) {
        self.alarm = when.map(|when| Box::pin(sleep_until(when)));
    }
}

fn listen(mut receiver: watch::Receiver<u64>) -> Change {
    Box::pin(async move {
        match receiver.changed().await {
            Ok(()) => receiver,
            // The session is over, and this with it.
            Err(_) => pending().await,
        }
    })
}

async fn ring(alarm: &mut Option<Pin<Box<Sleep>>>) {
    match alarm {
        Some(alarm) => alarm.await,
        None => pending().await,
    }
}

async fn step(successor: &mut Option<Generation>) -> Step {
    match successor {
        Some(successor) => successor.next().await,
        None => pending().await,
    }
}

async fn last_words(draining: &mut [Generation]) -> (Incarnation, Event) {
    if draining.is_empty() {
        return pending().await;
    }
    let words = draining
        .iter_mut()
        .map(|draining| Box::pin(async { (draining.id, draining.next_of_draining().await) }));
    select_all(words).await.0
}
