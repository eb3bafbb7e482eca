//! The servers of one link: the one that serves it, and beside it those for the tools of scopes.
//!
//! A stdio server has a second process for each scope, started by the first call of one of its tools and told what the
//! base was told; an HTTP server has one session, and each request the headers of its scope. The source of an event is
//! known by its [`Lane`].
//!
//! What must stay true: nothing but calls of a scope's tools, and questions about their tasks, goes to the process of that
//! scope, and those go nowhere else; once a reload has changed what a process would be started with, where scopes are
//! involved, that process is given no further call; a server without scopes costs a comparison. [`Servers::next`] may be
//! dropped at any await.

mod processes;

use std::iter::once;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use relay_proto::envelope::{Id, IdValue, Outcome};
use relay_proto::memory::{Heard, Memory};
use tokio::time::timeout;

use super::instance::{CancelledWhile, END_TIME, Event, Incarnation, Instance, Passed, Unavailable};
use super::leaving::Leaving;
use super::spec::{Scope, ServerKind, ServerSpec};
use super::start::Starter;
use crate::process::Ended;
use crate::upstream::outbound::Outbound;

/// One of the servers of a link, never used for another.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub(crate) struct Lane(u32);

/// One process of one of them.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Process {
    pub(crate) lane: Lane,
    pub(crate) incarnation: Incarnation,
}

#[cfg(test)]
impl Process {
    pub(crate) const BASE: Self = Self { lane: Lane::BASE, incarnation: Incarnation::NONE };
    pub(crate) const OTHER: Self = Self { lane: Lane::OTHER, incarnation: Incarnation::NONE };
    pub(crate) const SUCCESSOR: Self = Self { lane: Lane::BASE, incarnation: Incarnation::ANOTHER };
}

#[cfg(test)]
impl Lane {
    pub(crate) const BASE: Self = Self(0);
    pub(crate) const OTHER: Self = Self(1);
}

#[derive(Default)]
pub(crate) struct Servers {
    base: Member,
    /// Those of scopes, and those that are given up and still have calls.
    beside: Vec<Member>,
    /// As it was configured at the last call.
    server: Option<Arc<ServerSpec>>,
    /// As it was configured when the base was started.
    started_as: Option<Arc<ServerSpec>>,
    departed: Vec<Leaving>,
    lanes: u32,
    /// Whose turn it is to be heard first.
    turn: usize,
}

#[derive(Default)]
struct Member {
    lane: Lane,
    scope: Option<Arc<Scope>>,
    standing: Standing,
    instance: Instance,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Standing {
    #[default]
    Current,
    /// It finishes what it has.
    GivenUp,
}

impl Member {
    fn process(&self) -> Process {
        Process { lane: self.lane, incarnation: self.instance.incarnation() }
    }
}

/// A process beside the base, for people.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Beside {
    pub(crate) tools: String,
    pub(crate) pid: u32,
}

impl Servers {
    /// What the harness said to the base.
    pub(crate) fn memory(&self) -> &Memory {
        self.base.instance.memory()
    }

    pub(crate) fn memory_mut(&mut self) -> &mut Memory {
        self.base.instance.memory_mut()
    }

    /// The process that gets what is sent there now.
    pub(crate) fn process(&self, lane: Lane) -> Process {
        self.find(lane).map_or(Process { lane, incarnation: Incarnation::NONE }, Member::process)
    }

    pub(crate) fn base(&self) -> Lane {
        self.base.lane
    }

    /// Where a request goes, by the configuration of this moment.
    pub(crate) fn lane(&mut self, server: &Arc<ServerSpec>, scope: Option<&Arc<Scope>>) -> Lane {
        if !self.server.as_ref().is_some_and(|known| Arc::ptr_eq(known, server)) {
            self.adopt(server);
        }
        match (scope, &server.kind) {
            (Some(scope), ServerKind::Stdio(_)) => self.lane_of_scope(scope),
            (Some(_), ServerKind::Http(_)) | (None, _) => self.base.lane,
        }
    }

    /// See [`Instance::pass`]. What is in a scope of an HTTP server is sent.
    pub(crate) fn pass(&mut self, lane: Lane, message: &[u8]) -> Passed {
        self.member(lane).map_or(Passed::No, |member| member.instance.pass(message))
    }

    /// See [`Instance::write_now`]: for the base.
    pub(crate) fn write_now(&mut self) {
        self.base.instance.write_now();
    }

    /// See [`Instance::send`].
    pub(crate) fn send(
        &mut self,
        lane: Lane,
        message: Outbound,
        starter: impl FnOnce() -> Starter,
    ) -> Result<(), Unavailable> {
        if lane == self.base.lane {
            let Self { base, started_as, .. } = self;
            return base.instance.send(message, || {
                let starter = starter();
                *started_as = Some(Arc::clone(&starter.server));
                starter
            });
        }
        let memory = self.base.instance.memory();
        let member = self.beside.iter_mut().find(|member| member.lane == lane);
        let Some(Member { scope: Some(scope), standing: Standing::Current, instance, .. }) = member else {
            return Err(Unavailable::because("the process for it was given up"));
        };
        if instance.is_idle() {
            *instance.memory_mut() = memory.for_sibling();
        }
        instance.send(message, || starter().in_scope(scope))
    }

    /// See [`Instance::tell`].
    pub(crate) fn tell(&mut self, lane: Lane, message: Outbound) {
        if let Some(member) = self.member(lane) {
            member.instance.tell(message);
        }
    }

    /// Tells all that take calls.
    pub(crate) fn tell_all(&mut self, message: Outbound) {
        for member in self.current_beside() {
            member.instance.tell(message.clone());
        }
        self.base.instance.tell(message);
    }

    /// The base is asked this; what it sets is set in the others too.
    pub(crate) fn set_beside(&mut self, message: &[u8], id: &Id<'_>, method: &str) {
        if !Memory::concerns_siblings(method) {
            return;
        }
        for member in self.current_beside() {
            let request = member.instance.under_own_id(message, id, method);
            member.instance.tell(request);
        }
        if !Memory::concerns_predecessors(method) {
            return;
        }
        for Member { standing, instance, .. } in once(&mut self.base).chain(&mut self.beside) {
            let request = instance.under_own_id(message, id, method);
            match standing {
                Standing::Current => instance.tell_draining(&request),
                Standing::GivenUp => instance.tell_each(request),
            }
        }
    }

    /// See [`Instance::cancel`].
    pub(crate) fn cancel(&mut self, lane: Lane, id: &IdValue) -> CancelledWhile {
        self.member(lane).map_or(CancelledWhile::UnderWay, |member| member.instance.cancel(id))
    }

    /// An answer to a question that the sidecar asked by itself.
    pub(crate) fn own_answer(
        &mut self,
        lane: Lane,
        id: &IdValue,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
    ) -> Heard {
        let member = self.member(lane);
        member.map_or(Heard::Nothing, |member| member.instance.own_answer(id, outcome, message, body))
    }

    /// Whether one of them takes so slowly that the link should stop reading.
    pub(crate) fn is_full(&self) -> bool {
        self.base.instance.is_full() || self.beside.iter().any(|member| member.instance.is_full())
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.base.instance.pid()
    }

    /// See [`Instance::buffered`].
    pub(crate) fn buffered(&mut self, lane: Lane) -> Option<(Process, Event)> {
        let (incarnation, event) = self.member(lane)?.instance.buffered()?;
        Some((Process { lane, incarnation }, event))
    }

    pub(crate) async fn next(&mut self) -> (Process, Event) {
        if self.beside.is_empty() {
            let (incarnation, event) = self.base.instance.next().await;
            return (Process { lane: self.base.lane, incarnation }, event);
        }
        let Self { base, beside, turn, .. } = self;
        let mut all: Vec<_> = once(base)
            .chain(beside)
            .map(|member| {
                Box::pin(async {
                    let (incarnation, event) = member.instance.next().await;
                    (Process { lane: member.lane, incarnation }, event)
                })
            })
            .collect();
        *turn = (*turn + 1) % all.len();
        all.rotate_left(*turn);
        let (given, _, _) = select_all(all).await;
        given
    }

    /// The processes of scopes heard another handshake than the base.
    pub(crate) fn give_up_scopes(&mut self) {
        for member in self.current_beside() {
            member.standing = Standing::GivenUp;
        }
    }

    /// Those that only finish what they have.
    pub(crate) fn given_up(&self) -> impl Iterator<Item = Lane> {
        let given_up = self.beside.iter().filter(|member| member.standing == Standing::GivenUp);
        given_up.map(|member| member.lane)
    }

    /// Ends one of these, which has nothing left to finish.
    pub(crate) fn dismiss(&mut self, lane: Lane) {
        let Some(place) = self.beside.iter().position(|member| member.lane == lane) else { return };
        let leaving = self.beside.swap_remove(place).instance.dismiss();
        self.departed.retain(|leaving| !leaving.is_over());
        self.departed.push(leaving);
    }

    /// Ends them all, and says what became of them.
    pub(crate) async fn end(self, grace: Duration) -> Ended {
        let Self { base, beside, departed, .. } = self;
        let ends = join_all(once(base).chain(beside).map(|member| member.instance.end(grace)));
        let departed = timeout(END_TIME, join_all(departed.iter().map(Leaving::gone)));
        let (ends, departed) = tokio::join!(ends, departed);
        let departed = departed.unwrap_or_else(|_| vec![Ended::NotYet]);
        match ends.into_iter().chain(departed).all(|ended| ended == Ended::All) {
            true => Ended::All,
            false => Ended::NotYet,
        }
    }

    /// The server's configuration is new to this link. Where tools have credentials of their own, what was started with
    /// other entries than it says now is given up.
    #[cold]
    fn adopt(&mut self, server: &Arc<ServerSpec>) {
        self.server = Some(Arc::clone(server));
        let before = self.started_as.as_ref();
        for member in &mut self.beside {
            let stays = |scope: &Arc<Scope>| server.scopes.iter().any(|other| other.runs_like(scope));
            if !member.scope.as_ref().is_some_and(stays) {
                member.standing = Standing::GivenUp;
            }
        }
        let scoped = |server: &Arc<ServerSpec>| !server.scopes.is_empty();
        let matters = scoped(server) || before.is_some_and(scoped);
        // An HTTP server's connection reads the secrets of its scopes, as they were when it was made.
        let differs = before.is_some_and(|before| {
            let http = matches!(server.kind, ServerKind::Http(_));
            !before.runs_like(server) || http && before.scopes != server.scopes
        });
        if matters && differs && !self.base.instance.is_idle() {
            let mut successor = Member { lane: self.new_lane(), ..Member::default() };
            *successor.instance.memory_mut() = self.base.instance.memory().clone();
            let mut old = std::mem::replace(&mut self.base, successor);
            old.standing = Standing::GivenUp;
            self.beside.push(old);
        }
    }

    fn lane_of_scope(&mut self, scope: &Arc<Scope>) -> Lane {
        let runs_like = |member: &&mut Member| member.scope.as_ref().is_some_and(|own| own.runs_like(scope));
        if let Some(member) = self.current_beside().find(runs_like) {
            return member.lane;
        }
        let lane = self.new_lane();
        self.beside.push(Member { lane, scope: Some(Arc::clone(scope)), ..Member::default() });
        lane
    }

    fn new_lane(&mut self) -> Lane {
        self.lanes += 1;
        Lane(self.lanes)
    }

    fn find(&self, lane: Lane) -> Option<&Member> {
        once(&self.base).chain(&self.beside).find(|member| member.lane == lane)
    }

    fn member(&mut self, lane: Lane) -> Option<&mut Member> {
        once(&mut self.base).chain(&mut self.beside).find(|member| member.lane == lane)
    }

    fn current_beside(&mut self) -> impl Iterator<Item = &mut Member> {
        self.beside.iter_mut().filter(|member| member.standing == Standing::Current)
    }
}
