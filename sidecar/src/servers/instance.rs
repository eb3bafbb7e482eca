//! One server: the process that calls go to, and those beside it while its credential is being replaced.
//!
//! ```text
//!   successor ──takes over──▶ current ──hands over──▶ draining ──all answered, or time over──▶ leaving
//! ```
//!
//! What must stay true: each message goes to one process and its answer is believed from that one only; a process that
//! was handed over from gets no new call; where nothing is being replaced, nothing of this costs anything.
//! [`Instance::next`] may be dropped at any await.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use relay_proto::envelope::{Id, IdValue, Outcome};
use relay_proto::json;
use relay_proto::memory::{Accepted, Heard, Memory};
use tokio::time::{Instant, timeout_at};

pub(crate) use super::event::{CancelledWhile, Event, Incarnation, Passed, Unavailable};
pub(crate) use super::renewal::Note;

use super::current::Current;
use super::generation::{Generation, Progress};
use super::leaving::Leaving;
use super::renewal::{News, Renewal};
use super::start::Starter;
use crate::inject::Secrets;
use crate::process::Ended;
use crate::upstream::outbound::Outbound;

#[derive(Default)]
pub(crate) struct Instance {
    current: Current,
    /// None where no credential of the server's can change.
    renewal: Option<Box<Renewal>>,
}

/// What a process is to its link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Role {
    Current,
    Draining,
    Successor,
}

/// The whole of an end. With the goodbye before it, a session is over within the promised five seconds.
pub(super) const END_TIME: Duration = Duration::from_secs(4);

impl Instance {
    /// Hands one message to a process that can take it at once, which is almost always; otherwise it is to be
    /// [sent](Self::send).
    pub(crate) fn pass(&mut self, message: &[u8]) -> Passed {
        self.current.pass(message)
    }

    /// Writes what was passed, as far as the process takes it at once; the rest goes with [`Self::next`].
    pub(crate) fn write_now(&mut self) {
        self.current.write_now();
    }

    /// Sends, or starts the server and sends then.
    pub(crate) fn send(
        &mut self,
        message: Outbound,
        starter: impl FnOnce() -> Starter,
    ) -> Result<(), Unavailable> {
        let Self { current, renewal } = self;
        current.send(message, || {
            let starter = starter();
            match renewal {
                Some(renewal) => renewal.expect_a_process(&starter),
                None => *renewal = Renewal::of(&starter),
            }
            starter
        })
    }

    /// Sends a request to the process that it is about, whether that takes others or not, and says what the link should
    /// hear of it; none where that process is gone.
    pub(crate) fn send_to(
        &mut self,
        to: Incarnation,
        message: &Outbound,
    ) -> Option<Result<Option<Event>, Unavailable>> {
        let process = match to == self.current.id() {
            true => &mut self.current.generation,
            false => self.renewal.as_mut()?.draining(to)?,
        };
        process.send_alone(message.clone())
    }

    /// Says something to a server that runs, or will soon: no process is started for it, and one that does not
    /// read is told nothing. Its own end is reported by `next`.
    pub(crate) fn tell(&mut self, message: Outbound) {
        self.current.tell(message);
    }

    /// The same to one certain process, if it is still there.
    pub(crate) fn tell_to(&mut self, to: Incarnation, message: Outbound) {
        match (to == self.current.id(), &mut self.renewal) {
            (true, _) => self.current.tell(message),
            (false, Some(renewal)) => renewal.tell(to, message),
            (false, None) => {}
        }
    }

    /// The same to all processes of this server.
    pub(crate) fn tell_each(&mut self, message: Outbound) {
        if let Some(renewal) = &mut self.renewal {
            renewal.tell_all(&message);
        }
        self.current.tell(message);
    }

    /// Says something to those of its processes that only finish what they have.
    pub(super) fn tell_draining(&mut self, message: &Outbound) {
        if let Some(renewal) = &mut self.renewal {
            renewal.tell_draining(message);
        }
    }

    /// A request of the harness's under an id of our own: its response is dropped.
    pub(super) fn under_own_id(&mut self, message: &[u8], id: &Id<'_>, method: &str) -> Outbound {
        let own = self.current.memory.next_id();
        let message = json::replace(message, id.span.clone(), own.to_string().as_bytes());
        Outbound::request(message, own, method, None)
    }

    /// The harness gave up on a request: HTTP servers learn it by the end of the stream.
    pub(crate) fn cancel(&mut self, id: &IdValue) -> CancelledWhile {
        self.current.cancel(id)
    }

    /// Whether the server takes so slowly that the link should stop reading.
    pub(crate) fn is_full(&self) -> bool {
        self.current.is_full()
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.current.pid()
    }

    /// The process that gets the next message, or would if there were one.
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.current.id()
    }

    pub(crate) fn role(&self, of: Incarnation) -> Role {
        match &self.renewal {
            Some(renewal) if of != self.current.id() => renewal.role(of),
            _ => Role::Current,
        }
    }

    /// What the process has that runs now.
    pub(crate) fn secrets(&self) -> Option<Arc<Secrets>> {
        self.current.process().map(|process| Arc::clone(&process.belongings.secrets))
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.current.memory
    }

    pub(crate) fn memory_mut(&mut self) -> &mut Memory {
        &mut self.current.memory
    }

    /// Whether nothing runs that takes calls, and nothing is on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.current.is_idle()
    }

    /// Ends whatever runs in the background. Nothing waits for its responses any more.
    pub(super) fn dismiss(self) -> Leaving {
        let Self { current, renewal } = self;
        if let Some(renewal) = renewal {
            renewal.dismiss(&current);
        }
        current.dismiss()
    }

    /// The server answered a request of the harness's that a new process would have to hear of.
    pub(crate) fn answered(
        &mut self,
        from: Incarnation,
        id: &IdValue,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
    ) {
        let accepted = self.current.memory.answered(id, outcome, message, body.clone());
        let Some(renewal) = self.renewal.as_mut().filter(|_| from == self.current.id()) else {
            return;
        };
        match accepted {
            Some(Accepted::Handshake) => renewal.agreed_on(message, body),
            Some(Accepted::Tools) => renewal.listed(message, body),
            Some(Accepted::Other) | None => {}
        }
    }

    /// An answer to a question of ours.
    pub(crate) fn own_answer(
        &mut self,
        id: &IdValue,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
    ) -> Heard {
        let Self { current, renewal } = self;
        if let Some(renewal) = renewal
            && renewal.own_answer(current, id, outcome, message, body.clone())
        {
            return Heard::Nothing;
        }
        let heard = current.memory.own_response(id, outcome, message, body);
        if let (Heard::ToolsChanged, Some(renewal)) = (heard, renewal) {
            renewal.forget_tools();
        }
        heard
    }

    /// The tools are not those that were listed.
    pub(crate) fn tools_changed(&mut self, from: Incarnation) {
        if let Some(renewal) = self.renewal.as_mut().filter(|_| from == self.current.id()) {
            renewal.forget_tools();
        }
    }

    /// Whether there is something to [attend](Self::attend) to.
    pub(crate) fn is_changing(&self) -> bool {
        self.renewal.as_ref().is_some_and(|renewal| renewal.is_due() || !renewal.is_quiet())
    }

    /// Does what is due: takes over, ends what is drained, tries again. `is_busy` says whether a caller waits for a
    /// process; `starter` is how one is started by now, if one may be.
    pub(crate) fn attend(
        &mut self,
        is_busy: impl Fn(Incarnation) -> bool,
        starter: impl FnOnce() -> Option<Starter>,
    ) -> Vec<Note> {
        let Self { current, renewal } = self;
        match renewal {
            Some(renewal) => renewal.attend(current, is_busy, starter),
            None => Vec::new(),
        }
    }

    /// How far the replacement is, for people; none where there is nothing to say.
    pub(crate) fn replacement(&self) -> Option<String> {
        self.renewal.as_ref()?.told()
    }

    /// A message that has arrived already.
    pub(crate) fn buffered(&mut self) -> Option<(Incarnation, Event)> {
        self.current.buffered().map(|event| (self.current.id(), event))
    }

    pub(crate) async fn next(&mut self) -> (Incarnation, Event) {
        loop {
            let Self { current, renewal } = self;
            let Some(renewal) = renewal else {
                let event = current.next().await;
                let from = current.id();
                if is_end(&event) {
                    current.generation = Generation::idle();
                }
                return (from, event);
            };
            let happened = match renewal.is_quiet() {
                // The one that works goes first: news can wait until it is waited for.
                true => tokio::select! {
                    biased;
                    event = current.next() => Ok(event),
                    news = renewal.next() => Err(news),
                },
                false => tokio::select! {
                    event = current.next() => Ok(event),
                    news = renewal.next() => Err(news),
                },
            };
            match happened {
                Ok(event) => {
                    let from = current.id();
                    if is_end(&event) {
                        current.generation = Generation::idle();
                        renewal.lost(current);
                    }
                    return (from, event);
                }
                Err(news) => {
                    if let Some(happening) = self.heed(news) {
                        return happening;
                    }
                }
            }
        }
    }

    /// Ends whatever runs, descendants included, and says what became of it.
    pub(crate) async fn end(self, grace: Duration) -> Ended {
        let Self { current, renewal } = self;
        let deadline = Instant::now() + END_TIME;
        let others = renewal.map(|renewal| renewal.into_processes()).unwrap_or_default();
        let (current, leaving) = current.into_parts();
        let ends = others.into_iter().chain([current]).map(|process| process.end(grace, deadline));
        let all = async { tokio::join!(join_all(ends), leaving.gone()) };
        match timeout_at(deadline, all).await {
            Ok((ends, left)) => {
                let mut ends = ends.into_iter().chain([left]);
                match ends.all(|ended| ended == Ended::All) {
                    true => Ended::All,
                    false => Ended::NotYet,
                }
            }
            Err(_) => Ended::NotYet,
        }
    }

    /// What happened beside the current process, as its link hears it.
    fn heed(&mut self, news: News) -> Option<(Incarnation, Event)> {
        let Self { current, renewal } = self;
        let renewal = renewal.as_mut()?;
        match news {
            News::Due => Some((current.id(), Event::Due)),
            News::Draining(from, event) => {
                if let Event::Gone { .. } = event {
                    renewal.see_off(from, current);
                }
                Some((from, event))
            }
            News::Successor(step) => {
                let (from, progress) = renewal.advance(step, current)?;
                let why = match progress {
                    Progress::Going | Progress::Forgotten | Progress::Returned(_) => return None,
                    Progress::Event(event) => return Some((from, event)),
                    Progress::Ready => return Some((current.id(), Event::Due)),
                    Progress::Failed(why) | Progress::NotReplayed { why, .. } => why,
                    Progress::Gone(why) => format!("the new process ended: {why}"),
                    Progress::NotStarted(error) => error.told(),
                };
                renewal.fail(current, why);
                Some((current.id(), Event::Due))
            }
        }
    }
}

/// Whether nothing more comes from the process that this is from.
fn is_end(event: &Event) -> bool {
    matches!(event, Event::Gone { .. } | Event::NotStarted { .. })
}

#[cfg(test)]
mod tests;
