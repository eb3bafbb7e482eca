//! The processes of a link's servers one by one: each server has several while its credential is being replaced.

use std::iter::once;
use std::ops::Range;
use std::sync::Arc;

use relay_proto::envelope::{IdValue, Outcome};

use super::{Beside, Lane, Member, Process, Servers, Standing};
use crate::inject::Secrets;
use crate::servers::instance::{Event, Note, Role, Unavailable};
use crate::servers::spec::Scope;
use crate::servers::start::Starter;
use crate::upstream::outbound::Outbound;

impl Servers {
    /// The same to one certain process, if it is still there.
    pub(crate) fn tell_to(&mut self, process: Process, message: Outbound) {
        if let Some(member) = self.member(process.lane) {
            member.instance.tell_to(process.incarnation, message);
        }
    }

    /// The same to every process, whatever it is there for.
    pub(crate) fn tell_each(&mut self, message: &Outbound) {
        for member in once(&mut self.base).chain(&mut self.beside) {
            member.instance.tell_each(message.clone());
        }
    }

    /// See [`Instance::send_to`].
    pub(crate) fn send_to(
        &mut self,
        process: Process,
        message: &Outbound,
    ) -> Option<Result<Option<Event>, Unavailable>> {
        self.member(process.lane)?.instance.send_to(process.incarnation, message)
    }

    /// A process answered a request of the harness's that others would have to hear of.
    pub(crate) fn answered(
        &mut self,
        from: Process,
        id: &IdValue,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
    ) {
        self.base.instance.answered(from.incarnation, id, outcome, message, body);
    }

    /// See [`Instance::tools_changed`].
    pub(crate) fn tools_changed(&mut self, from: Process) {
        if let Some(member) = self.member(from.lane) {
            member.instance.tools_changed(from.incarnation);
        }
    }

    /// See [`Instance::role`].
    pub(crate) fn role(&self, of: Process) -> Role {
        self.find(of.lane).map_or(Role::Draining, |member| member.instance.role(of.incarnation))
    }

    /// What the process has that is given what is in this scope, or in none.
    pub(crate) fn secrets(&self, scope: Option<&Arc<Scope>>) -> Option<Arc<Secrets>> {
        let runs = |member: &&Member| match (&member.scope, scope, member.standing) {
            (Some(own), Some(scope), Standing::Current) => own.runs_like(scope),
            _ => false,
        };
        match scope {
            None => self.base.instance.secrets(),
            Some(_) => self.beside.iter().find(runs)?.instance.secrets(),
        }
    }

    /// Whether there is something to [attend](Self::attend) to.
    pub(crate) fn are_changing(&self) -> bool {
        self.base.instance.is_changing() || self.beside.iter().any(|member| member.instance.is_changing())
    }

    /// See [`Instance::attend`].
    pub(crate) fn attend(
        &mut self,
        is_busy: impl Fn(Process) -> bool,
        starter: impl Fn() -> Option<Starter>,
    ) -> Vec<(Lane, Note)> {
        let mut notes = Vec::new();
        for member in once(&mut self.base).chain(&mut self.beside) {
            let Member { lane, scope, standing, instance } = member;
            let is_busy = |incarnation| is_busy(Process { lane: *lane, incarnation });
            let starter = || {
                let starter = starter().filter(|_| *standing == Standing::Current)?;
                match scope {
                    Some(scope) => starter.in_scope_like(scope),
                    None => Some(starter),
                }
            };
            notes.extend(instance.attend(is_busy, starter).into_iter().map(|note| (*lane, note)));
        }
        notes
    }

    /// How far replacements are, for people.
    pub(crate) fn replacement(&self) -> Option<String> {
        let told = once(&self.base).chain(&self.beside).filter_map(|member| member.instance.replacement());
        let told: Vec<String> = told.collect();
        (!told.is_empty()).then(|| told.join("; "))
    }

    pub(crate) fn processes_beside(&self) -> Vec<Beside> {
        let told = |member: &Member| {
            let tools = match (&member.scope, member.standing) {
                (Some(scope), Standing::Current) => scope.to_string(),
                (Some(scope), Standing::GivenUp) => format!("{scope} (given up)"),
                (None, _) => "(given up)".into(),
            };
            Some(Beside { tools, pid: member.instance.pid()? })
        };
        self.beside.iter().filter_map(told).collect()
    }
}
