//! What is done about credentials that changed or end, each time that the link attends to it.

use std::time::Duration;

use relay_proto::name::Name;
use tokio::time::Instant;

use super::{LOOK_AGAIN, MAX_DRAINING, Note, Renewal, Told};
use crate::inject::Secrets;
use crate::servers::current::Current;
use crate::servers::event::Incarnation;
use crate::servers::generation::{CheckTools, Generation};
use crate::servers::likeness::Listing;
use crate::servers::spec::Replace;
use crate::servers::start::Starter;

/// How the credentials of a process stand.
struct Held {
    /// Secrets with other values by now.
    changed: Vec<Name>,
    /// When the first of them is over.
    ends: Option<Instant>,
}

/// How long the current process may take to list its tools: it may be busy, and then what is known has to do.
const INQUIRY_TIME: Duration = Duration::from_secs(5);
/// The wait after the first failure; it doubles.
pub(super) const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait between two tries.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// What a server had before its files were written anew is kept for this long: it may read them a little later, and
/// finish with the old what it began.
const RELOAD_GRACE: Duration = Duration::from_secs(30);

impl Renewal {
    pub(in crate::servers) fn attend(
        &mut self,
        current: &mut Current,
        is_busy: impl Fn(Incarnation) -> bool,
        starter: impl FnOnce() -> Option<Starter>,
    ) -> Vec<Note> {
        self.due = false;
        let now = Instant::now();
        let writing = self.release(current, &is_busy).then_some(now + LOOK_AGAIN);
        self.retained.retain(|(until, _)| *until > now);
        let held = current.process().map(|process| self.assess(&process.belongings.secrets));
        let mut wake = match held {
            None => current.is_opening().then_some(now + LOOK_AGAIN),
            Some(Held { ends: Some(ends), .. }) if ends <= now && self.replace != Replace::Never => {
                self.retire(current);
                Some(now)
            }
            Some(Held { changed, ends }) => {
                let wake = match changed.is_empty() {
                    true => {
                        self.settled(current);
                        None
                    }
                    false => self.renew(current, &changed, &is_busy, starter, now),
                };
                let ends = ends.filter(|_| self.replace != Replace::Never);
                [wake, ends].into_iter().flatten().min()
            }
        };
        let retained = self.retained.iter().map(|(until, _)| *until).min();
        wake = [wake, retained, writing].into_iter().flatten().min();
        self.wake_at(wake);
        std::mem::take(&mut self.notes)
    }

    /// The successor is of no use; it is tried again later.
    pub(in crate::servers) fn fail(&mut self, current: &mut Current, why: String) {
        self.give_up_successor(current);
        let wait = self.backoff.next_delay();
        self.not_before = Instant::now() + wait;
        self.trouble = Some(format!("not replaced: {why}"));
        let told = format!("{why}; the old process goes on, and it is tried again in {} s", wait.as_secs());
        self.notes.push(Note::Told(Told::Failed, told));
    }

    fn assess(&self, secrets: &Secrets) -> Held {
        let newest = self.credentials.newest();
        let mut held = Held { changed: Vec::new(), ends: None };
        for (name, own) in secrets {
            let same = newest.get(name).filter(|newest| newest.generation == own.generation);
            if newest.contains_key(name) && same.is_none() {
                held.changed.push(name.clone());
            }
            // One that was renewed ends later than it was first said to.
            let ends = same.unwrap_or(own).expires();
            held.ends = [held.ends, ends].into_iter().flatten().min();
        }
        held
    }

    /// Takes one more step towards new credentials; says when to look again.
    fn renew(
        &mut self,
        current: &mut Current,
        changed: &[Name],
        is_busy: &impl Fn(Incarnation) -> bool,
        starter: impl FnOnce() -> Option<Starter>,
        now: Instant,
    ) -> Option<Instant> {
        if self.successor.is_some() {
            return self.take_over(current, is_busy, now);
        }
        if self.not_before > now {
            return Some(self.not_before);
        }
        // When one of them is over, the link attends again.
        let room = self.draining.len() < MAX_DRAINING;
        let starter = starter().filter(|_| room)?;
        self.replace = starter.server.replace;
        match self.replace {
            _ if starter.can_reload(changed) => self.reload(current, &starter, now),
            _ if self.replace == Replace::Never => {
                self.trouble =
                    Some("it keeps the credential that it was started with (`replace = \"never\"`)".into());
                None
            }
            _ if !self.pace.allows(now) => {
                self.not_before = now + FIRST_WAIT;
                Some(self.not_before)
            }
            _ => {
                self.known_handshakes = self.handshakes;
                self.successor = Some(Generation::to_take_over(starter));
                self.inquire(current, now);
                None
            }
        }
    }

    /// Writes the files of a process anew.
    fn reload(&mut self, current: &mut Current, starter: &Starter, now: Instant) -> Option<Instant> {
        let process = current.process_mut()?;
        match process.reload(starter) {
            Ok(before) => {
                self.retained.push((now + RELOAD_GRACE, before));
                self.backoff.reset();
                self.trouble = None;
                self.notes
                    .push(Note::Told(Told::Reloaded, "the server's files have the new credential".into()));
                Some(now)
            }
            Err(error) => {
                self.fail(current, error.to_string());
                Some(self.not_before)
            }
        }
    }

    /// Asks the current process for its tools where they are not all known.
    fn inquire(&mut self, current: &mut Current, now: Instant) {
        if self.tools.is_some_and(|tools| tools.are_all_known()) {
            return;
        }
        if let Some((listing, question)) = Listing::begin(&mut current.memory) {
            current.tell(question);
            self.inquiry = Some((listing, now + INQUIRY_TIME));
        }
    }

    /// Lets the successor take over, if it may; otherwise says when to look again.
    fn take_over(
        &mut self,
        current: &mut Current,
        is_busy: &impl Fn(Incarnation) -> bool,
        now: Instant,
    ) -> Option<Instant> {
        let from = self.successor.as_ref()?.ready_from()?;
        if from > now {
            return Some(from);
        }
        if let Some((_, deadline)) = self.inquiry.as_ref().filter(|(_, deadline)| *deadline > now) {
            return Some(*deadline);
        }
        self.inquiry = None;
        if current.memory.has_open_handshake() {
            return Some(now + LOOK_AGAIN);
        }
        let tools = self.successor.as_ref().and_then(Generation::tools);
        let differ = tools.zip(self.tools).is_some_and(|(new, old)| !new.are_like(old));
        if differ {
            self.fail(current, "the tools of the new process differ from those of the old one".into());
            return Some(self.not_before);
        }
        if self.handshakes != self.known_handshakes {
            self.give_up_successor(current);
            return Some(now);
        }
        if self.replace == Replace::Idle && is_busy(current.id()) {
            return None;
        }
        let successor = self.successor.take()?;
        let old = current.pid();
        let draining = self.install(successor, current, CheckTools::No);
        self.drain(current, draining);
        self.tools = tools;
        self.backoff.reset();
        self.trouble = None;
        let pid = |pid: Option<u32>| pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
        let told = format!("process {} took over from {}", pid(current.pid()), pid(old));
        self.notes.push(Note::Told(Told::Replaced, told));
        Some(now)
    }

    /// The credential of the current process is over: it gets no new calls, whether a replacement is ready or not.
    fn retire(&mut self, current: &mut Current) {
        let draining = match self.successor.take() {
            Some(successor) => self.install(successor, current, CheckTools::Yes),
            None => current.hand_over(Generation::idle()),
        };
        (self.tools, self.inquiry) = (None, None);
        self.drain(current, draining);
        let told = "the credential of the process is over; the next call starts another".into();
        self.notes.push(Note::Told(Told::Retired, told));
    }

    fn drain(&mut self, current: &Current, draining: Option<Generation>) {
        let Some(draining) = draining else { return };
        self.notes.push(Note::HandedOver { from: draining.id });
        self.draining.push(draining);
        if self.draining.len() > MAX_DRAINING {
            let from = self.draining[0].id;
            self.see_off(from, current);
            let why = "the server's process was replaced, and too many others after it".into();
            self.notes.push(Note::Cut { from, why });
        }
    }

    /// Ends those that nothing waits for any more; says whether one of them has not yet heard all that it was told.
    fn release(&mut self, current: &Current, is_busy: &impl Fn(Incarnation) -> bool) -> bool {
        let over = self.draining.iter().filter(|draining| !is_busy(draining.id));
        let (told, telling): (Vec<_>, Vec<_>) =
            over.map(|draining| (draining.id, draining.has_heard_all())).partition(|(_, all)| *all);
        for (which, _) in told {
            self.see_off(which, current);
            self.notes.push(Note::Over(which));
        }
        !telling.is_empty()
    }

    /// The current process has the newest that there is.
    fn settled(&mut self, current: &Current) {
        self.backoff.reset();
        self.trouble = None;
        self.give_up_successor(current);
    }

    fn give_up_successor(&mut self, current: &Current) {
        self.inquiry = None;
        if let Some(mut successor) = self.successor.take() {
            self.notes.push(Note::Over(successor.id));
            successor.see_off(&current.leaving);
        }
    }
}
