//! The processes of one slot by their role: the one that serves, its successor, and those that drain.
//!
//! What must stay true: a draining process gets no new call; at most [`MAX_DRAINING`] of them live at a time; the
//! pipeline is notified when a process hands over or ends.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_confine::Standing;
use cofferdam_process::Ended;
use cofferdam_secrets::Secrets;
use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};

use crate::event::{ProcessId, Role};
use crate::generation::Generation;
use crate::outbound::{Outbound, OutboundCow};
use crate::replacement::Notice;
use crate::terminating::Terminating;
use crate::upstream::Upstream;

#[derive(Default)]
pub(crate) struct Processes {
    pub(crate) current: Option<Generation>,
    pub(crate) successor: Option<Generation>,
    /// Oldest first.
    pub(crate) draining: Vec<Generation>,
    /// Processes that are being ended and may not have exited yet.
    pub(crate) terminating: Terminating,
    /// Handed to the pipeline by the next [`Slot::advance_replacements`](crate::slot::Slot::advance_replacements).
    pub(crate) notices: Vec<Notice>,
}

/// More than one, because a call may last as long as the leases of several successors.
pub(crate) const MAX_DRAINING: usize = 8;
/// The time limit for ending all processes. With the goodbye message before it, a session ends within the five seconds
/// that SPECIFICATION.md promises.
pub(crate) const END_TIMEOUT: Duration = Duration::from_secs(4);

impl Processes {
    pub(crate) fn role(&self, process: ProcessId) -> Option<Role> {
        let is = |generation: &Generation| generation.id == process;
        if self.current.as_ref().is_some_and(is) {
            Some(Role::Current)
        } else if self.successor.as_ref().is_some_and(is) {
            Some(Role::Successor)
        } else {
            self.draining.iter().any(is).then_some(Role::Draining)
        }
    }

    pub(crate) fn find_mut(&mut self, process: ProcessId) -> Option<&mut Generation> {
        let Self { current, successor, draining, .. } = self;
        let mut all = current.iter_mut().chain(successor).chain(draining);
        all.find(|generation| generation.id == process)
    }

    /// Sends to the draining processes and to the successor, where `roles` names them; never to the current process.
    pub(crate) fn send_to_roles(&mut self, message: &Outbound, roles: &[Role]) {
        let draining = self.draining.iter_mut().filter(|_| roles.contains(&Role::Draining));
        let successor = self.successor.iter_mut().filter(|_| roles.contains(&Role::Successor));
        for process in draining.chain(successor) {
            process.send(OutboundCow::Owned(message.clone()));
        }
    }

    /// The secrets that the current process has.
    pub(crate) fn secrets(&self) -> Option<Arc<Secrets>> {
        self.current.as_ref()?.process().map(|process| Arc::clone(&process.resources.secrets))
    }

    /// The pid of the current process.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.current.as_ref()?.upstream().and_then(Upstream::pid)
    }

    /// The walls around the current process, if it is confined.
    pub(crate) fn standing(&self) -> Option<Arc<Standing>> {
        self.current.as_ref()?.upstream().and_then(Upstream::standing)
    }

    /// Whether the current process reads so slowly that the link should stop reading.
    pub(crate) fn is_full(&self) -> bool {
        self.current.as_ref().and_then(Generation::upstream).is_some_and(Upstream::is_full)
    }

    /// Bytes that the processes have not read yet.
    pub(crate) fn queued_bytes(&self) -> usize {
        let all = self.current.iter().chain(&self.successor).chain(&self.draining);
        all.filter_map(Generation::upstream).map(Upstream::queued_bytes).sum()
    }

    /// The events that were returned have been handled: the memory of their messages is released.
    pub(crate) fn release_handled(&mut self) {
        let Self { current, successor, draining, .. } = self;
        let all = current.iter_mut().chain(successor).chain(draining);
        all.filter_map(Generation::upstream_mut).for_each(Upstream::release_handled);
    }

    /// Whether the slot has no process, not even one that is still exiting.
    pub(crate) fn is_empty(&self) -> bool {
        self.current.is_none()
            && self.successor.is_none()
            && self.draining.is_empty()
            && self.terminating.are_all_dead()
    }

    /// Puts `next` in the place of the current process, which gets no new calls.
    pub(crate) fn hand_over(&mut self, next: Option<Generation>) {
        let Some(old) = std::mem::replace(&mut self.current, next) else { return };
        let process = old.id;
        self.notices.push(Notice::HandedOver(process));
        match old.drain(&self.terminating) {
            Some(draining) => self.draining.push(draining),
            None => self.notices.push(Notice::Ended(process)),
        }
        if self.draining.len() > MAX_DRAINING {
            let process = self.draining[0].id;
            self.end_draining(process);
            let why = format!(
                "the call was aborted: its server process was replaced, and more than {MAX_DRAINING} replaced processes were still finishing calls"
            );
            self.notices.push(Notice::CutOff { process, why });
        }
    }

    /// Ends draining processes that nothing waits for, once everything has been written to them; returns whether bytes
    /// for one of them are still queued.
    pub(crate) fn end_drained(&mut self, is_busy: &dyn Fn(ProcessId) -> bool) -> bool {
        let has_been_sent_everything =
            |one: &Generation| one.upstream().is_none_or(|upstream| upstream.queued_bytes() == 0);
        let idle = self.draining.iter().filter(|draining| !is_busy(draining.id));
        let (done, writing): (Vec<_>, Vec<_>) =
            idle.map(|one| (one.id, has_been_sent_everything(one))).partition(|(_, sent)| *sent);
        for (process, _) in done {
            self.end_draining(process);
            self.notices.push(Notice::Ended(process));
        }
        !writing.is_empty()
    }

    pub(crate) fn end_draining(&mut self, process: ProcessId) {
        if let Some(index) = self.draining.iter().position(|draining| draining.id == process) {
            self.draining.remove(index).end_in_background(&self.terminating);
        }
    }

    pub(crate) fn end_successor(&mut self) {
        if let Some(successor) = self.successor.take() {
            self.notices.push(Notice::Ended(successor.id));
            successor.end_in_background(&self.terminating);
        }
    }

    /// Ends all processes of the slot with their descendants, and returns whether all are dead.
    pub(crate) async fn end(self, grace: Duration) -> Ended {
        let deadline = Instant::now() + END_TIMEOUT;
        let processes = self.draining.into_iter().chain(self.successor).chain(self.current);
        let ends = processes.map(|process| process.end(grace, deadline));
        let all = async { tokio::join!(join_all(ends), self.terminating.wait_until_dead()) };
        match timeout_at(deadline, all).await {
            Ok((ends, left)) if ends.iter().chain([&left]).all(|ended| *ended == Ended::All) => Ended::All,
            Ok(_) | Err(_) => Ended::NotYet,
        }
    }
}
