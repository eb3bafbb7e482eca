//! How a new credential reaches a slot whose process runs.
//!
//! When a secret of the session gets new values, the process with the old values gets a successor, which takes
//! over between two calls, or its files are rewritten ([`crate::reload`]). While that fails, the process serves for as
//! long as its credential is valid, the attempt is repeated with backoff, and `sessions` shows the reason. A process whose
//! credential expired gets no new calls: the next call starts another process, or fails with the reason. A reload of the
//! configuration that changes what a process would be started with replaces it in the same way.
//!
//! What must stay true: one successor at a time, a bounded number of draining processes, and a bounded number of starts
//! within a minute, whatever Vault or a sandbox does.

use std::ops::Range;
use std::time::Duration;

use relay_proto::envelope::{IdValue, Outcome};
use relay_proto::name::Name;
use relay_proto::replay::{Accepted, OwnResponse, Replay};
use tokio::time::Instant;

use super::{RECHECK_DELAY, Slot, replay_of};
use crate::event::{Event, ProcessId};
use crate::generation::{CheckTools, Generation, Progress, Step};
use crate::launcher::Launcher;
use crate::outbound::Outgoing;
use crate::processes::{MAX_DRAINING, Processes};
use crate::replacement::{CredentialState, Notice, Replacement, ReplacementOutcome};
use crate::spec::Replace;
use crate::tool_fingerprint::{Fingerprinting, PageResult, ToolFingerprint};

/// How long the current process may take to list its tools. If it is too busy, the tools known so far are compared.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long old secrets are kept after files were rewritten: the server may read the files a little later, and
/// finish calls in progress with the old values.
const RELOAD_GRACE: Duration = Duration::from_secs(30);

/// As `sessions` shows them, of a process with `replace = "never"`.
const KEEPS_FORMER: &str = "the process keeps the credential it was started with (`replace = \"never\"`)";
const KEEPS_EXPIRED: &str =
    "the credential of the process has expired, and the process keeps it (`replace = \"never\"`)";

/// What [`Slot::advance_replacements`] needs from the link.
pub(crate) struct AdvanceContext<'a> {
    /// Whether a request, a task or a request to the harness is open on a process.
    pub(crate) is_busy: &'a dyn Fn(ProcessId) -> bool,
    /// The launcher for a process that is started now; `None` if none may be started.
    pub(crate) launcher: &'a dyn Fn() -> Option<Launcher>,
    pub(crate) now: Instant,
}

impl Slot {
    /// Whether [`Self::advance_replacements`] has something to do.
    pub(crate) fn has_replacement_work(&self) -> bool {
        let Processes { successor, draining, notices, .. } = &self.processes;
        self.is_replacement_due || successor.is_some() || !draining.is_empty() || !notices.is_empty()
    }

    /// Takes the next steps: lets a successor take over, ends drained processes, repeats failed attempts.
    pub(crate) fn advance_replacements(
        &mut self,
        context: &AdvanceContext<'_>,
        base: &mut Replay,
    ) -> Vec<Notice> {
        self.is_replacement_due = false;
        let writing = self.processes.end_drained(context.is_busy).then_some(context.now + RECHECK_DELAY);
        // A successor of a scope's process needs the settings that were made since the process was started.
        if let (Some(own), Some(_)) = (&mut self.scope_replay, &self.processes.successor) {
            own.copy_settings(base);
        }
        let next = self.replacing(base).and_then(|mut replacing| replacing.check_credentials(context));
        self.wake_at([writing, next].into_iter().flatten().min());
        std::mem::take(&mut self.processes.notices)
    }

    /// Records that the server accepted a request of the harness that is replayed to later processes.
    pub(crate) fn on_accepted(
        &mut self,
        process: ProcessId,
        accepted: Accepted,
        message: &[u8],
        body: Option<Range<usize>>,
    ) {
        let is_current = self.processes.current.as_ref().is_some_and(|current| current.id == process);
        let Some(replacement) = self.replacement.as_mut().filter(|_| is_current) else { return };
        match accepted {
            Accepted::Handshake => replacement.offered.on_handshake(message, body),
            Accepted::Tools => replacement.offered.on_tool_list(message, body),
            Accepted::Other => {}
        }
    }

    /// Forgets the tools of the current process, which have changed.
    pub(crate) fn forget_tools(&mut self) {
        if let Some(replacement) = &mut self.replacement {
            replacement.offered.tools = None;
        }
    }

    /// A response of a process to a request of the sidecar itself.
    pub(crate) fn on_own_response(
        &mut self,
        id: &IdValue,
        outcome: Outcome,
        message: &[u8],
        body: Option<Range<usize>>,
        base: &mut Replay,
    ) -> OwnResponse {
        let Self { processes, replacement, is_replacement_due, scope_replay, .. } = self;
        let replay = replay_of(scope_replay, base);
        let offered = replacement.as_mut().map(|replacement| &mut replacement.offered);
        if let Some(offered) = offered
            && let Some((tools, _)) = offered.listing.as_mut().filter(|(tools, _)| tools.pending_id() == id)
        {
            match (tools.on_response(outcome, message, body, replay), &mut processes.current) {
                (PageResult::More(request), Some(current)) => drop(current.send(Outgoing::Owned(request))),
                (PageResult::More(_), None) => offered.listing = None,
                (PageResult::Done(tools), _) => {
                    (offered.tools, offered.listing) = (Some(tools), None);
                    *is_replacement_due = true;
                }
            }
            return OwnResponse::Nothing;
        }
        let response = replay.handle_own_response(id, outcome, message, body);
        if response == OwnResponse::ToolsChanged {
            self.forget_tools();
        }
        response
    }

    /// The progress of the replacement, as `sessions` shows it; none where nothing is being replaced.
    pub(crate) fn describe_replacement(&self) -> Option<String> {
        let failure = self.replacement.as_ref().and_then(|replacement| replacement.attempts.failure.clone());
        let mut parts: Vec<String> = failure.into_iter().collect();
        if let Some(successor) = &self.processes.successor {
            parts.push(match successor.standby() {
                Some(_) => "a new process is ready and waits to take over".into(),
                None => "a new process is being started".into(),
            });
        }
        match self.processes.draining.len() {
            0 => {}
            1 => parts.push("one old process finishes its calls".into()),
            count => parts.push(format!("{count} old processes finish their calls")),
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// Sends no further calls to the current process; the next call starts another one.
    pub(crate) fn retire_current(&mut self) {
        self.processes.end_successor();
        self.processes.hand_over(None);
        if let Some(replacement) = &mut self.replacement {
            replacement.offered.forget_tools();
        }
    }

    pub(super) fn on_successor(&mut self, step: Step, base: &mut Replay) -> Option<(ProcessId, Event)> {
        let successor = self.processes.successor.as_mut()?;
        let process = successor.id;
        // The harness makes its handshake with the server's own process, not with that of a scope.
        let agreed = self.replacement.as_ref().and_then(|replacement| replacement.offered.agreed);
        let agreed = agreed.or(self.processes.current.as_ref().and_then(|current| current.agreed));
        let why = match successor.advance(step, replay_of(&mut self.scope_replay, base), agreed) {
            Progress::Event(event) => return Some((process, event)),
            Progress::Pending | Progress::Started => return None,
            Progress::Ready => return Some(self.replacement_due()),
            Progress::Ended { why, .. } => why,
            Progress::NotStarted(error) => error.explain(),
        };
        if let Some(mut replacing) = self.replacing(base) {
            replacing.fail(why);
        }
        Some(self.replacement_due())
    }

    fn replacing<'a>(&'a mut self, base: &'a mut Replay) -> Option<Replacing<'a>> {
        let Self { processes, replacement, scope_replay, .. } = self;
        let replay = replay_of(scope_replay, base);
        Some(Replacing { processes, state: replacement.as_mut()?, replay })
    }
}

/// The parts of a slot that [`Slot::advance_replacements`] works on where its credentials can change.
struct Replacing<'a> {
    processes: &'a mut Processes,
    state: &'a mut Replacement,
    replay: &'a mut Replay,
}

impl Replacing<'_> {
    /// Compares the credentials of the current process with the newest; returns when to check again.
    fn check_credentials(&mut self, context: &AdvanceContext<'_>) -> Option<Instant> {
        let now = context.now;
        self.state.retained.retain(|(until, _)| *until > now);
        if self.state.mode == Replace::Never
            && let Some(launcher) = (context.launcher)()
        {
            self.state.follow(&launcher);
        }
        let process = self.processes.current.as_ref().and_then(Generation::process);
        let state = process.map(|process| self.state.assess(&process.resources.secrets));
        let next = match state {
            None => self
                .processes
                .current
                .as_ref()
                .is_some_and(Generation::is_opening)
                .then_some(now + RECHECK_DELAY),
            Some(CredentialState { expires: Some(expires), .. })
                if expires <= now && self.state.mode != Replace::Never =>
            {
                self.retire_expired();
                Some(now)
            }
            Some(CredentialState { changed, expires }) => {
                let next = match changed.is_empty() {
                    true => {
                        self.state.attempts.record_success();
                        self.state.offered.listing = None;
                        self.processes.end_successor();
                        None
                    }
                    false => self.replace_or_reload(&changed, context),
                };
                let has_expired = expires.is_some_and(|end| end <= now);
                if has_expired {
                    self.state.attempts.failure = Some(KEEPS_EXPIRED.into());
                }
                [next, expires.filter(|_| !has_expired)].into_iter().flatten().min()
            }
        };
        let retained = self.state.retained.iter().map(|(until, _)| *until).min();
        [next, retained].into_iter().flatten().min()
    }

    /// Takes one more step towards new credentials; returns when to check again.
    fn replace_or_reload(&mut self, changed: &[Name], context: &AdvanceContext<'_>) -> Option<Instant> {
        let now = context.now;
        if self.processes.successor.is_some() {
            return self.take_over(context);
        }
        if self.state.attempts.not_before > now {
            return Some(self.state.attempts.not_before);
        }
        // The end of a draining process leads to another call of this function.
        let has_room = self.processes.draining.len() < MAX_DRAINING;
        let launcher = (context.launcher)().filter(|_| has_room)?;
        self.state.follow(&launcher);
        if launcher.can_reload(changed) {
            return self.reload(&launcher, now);
        }
        if self.state.mode == Replace::Never {
            self.state.attempts.failure = Some(KEEPS_FORMER.into());
            return None;
        }
        if !self.state.attempts.allows_start(now) {
            return Some(self.state.attempts.not_before);
        }
        self.state.offered.handshakes_at_start = self.state.offered.handshakes;
        self.processes.successor = Some(Generation::start_successor(launcher));
        self.list_tools(now);
        None
    }

    /// Rewrites the files of the current process.
    fn reload(&mut self, launcher: &Launcher, now: Instant) -> Option<Instant> {
        let process = self.processes.current.as_mut().and_then(Generation::process_mut)?;
        match process.reload(launcher) {
            Ok(before) => {
                self.state.retained.push((now + RELOAD_GRACE, before));
                self.state.attempts.record_success();
                let detail = "the server's files have the new credential".into();
                self.processes.notices.push(Notice::Report(ReplacementOutcome::Reloaded, detail));
                Some(now)
            }
            Err(error) => {
                self.fail(error.to_string());
                Some(self.state.attempts.not_before)
            }
        }
    }

    /// Requests the tools of the current process, unless all of them are known.
    fn list_tools(&mut self, now: Instant) {
        if self.state.offered.tools.is_some_and(ToolFingerprint::is_complete) {
            return;
        }
        let Some(current) = &mut self.processes.current else { return };
        if let Some((tools, request)) = Fingerprinting::begin(self.replay) {
            current.send(Outgoing::Owned(request));
            self.state.offered.listing = Some((tools, now + LIST_TIMEOUT));
        }
    }

    /// Lets the successor take over, if it may; otherwise returns when to check again.
    fn take_over(&mut self, context: &AdvanceContext<'_>) -> Option<Instant> {
        let now = context.now;
        let successor = self.processes.successor.as_ref()?;
        let (from, tools) = successor.standby()?;
        if from > now {
            return Some(from);
        }
        let offered = &mut self.state.offered;
        if let Some((_, deadline)) = offered.listing.as_ref().filter(|(_, deadline)| *deadline > now) {
            return Some(*deadline);
        }
        offered.listing = None;
        if self.replay.has_open_handshake() {
            return Some(now + RECHECK_DELAY);
        }
        if tools.zip(offered.tools).is_some_and(|(new, old)| !new.matches(old)) {
            let why = "the tools of the new process differ from those of the old one".into();
            self.fail(why);
            return Some(self.state.attempts.not_before);
        }
        if offered.handshakes != offered.handshakes_at_start {
            self.processes.end_successor();
            return Some(now);
        }
        let is_busy = self.processes.current.as_ref().is_some_and(|current| (context.is_busy)(current.id));
        if self.state.mode == Replace::Idle && is_busy {
            return None;
        }
        let mut successor = self.processes.successor.take()?;
        successor.promote(self.replay, CheckTools::No);
        let pid_before = self.processes.pid();
        self.processes.hand_over(Some(successor));
        self.state.offered.tools = tools;
        self.state.attempts.record_success();
        let pid = |pid: Option<u32>| pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
        let detail = format!("process {} took over from {}", pid(self.processes.pid()), pid(pid_before));
        self.processes.notices.push(Notice::Report(ReplacementOutcome::Replaced, detail));
        Some(now)
    }

    /// The credential of the current process expired: it gets no new calls, whether a replacement is ready or not.
    fn retire_expired(&mut self) {
        let mut next = self.processes.successor.take();
        if let Some(successor) = &mut next {
            successor.promote(self.replay, CheckTools::Yes);
        }
        self.processes.hand_over(next);
        self.state.offered.forget_tools();
        let detail = "the credential of the process has expired; the next call starts another process".into();
        self.processes.notices.push(Notice::Report(ReplacementOutcome::Retired, detail));
    }

    /// Ends the successor after a failed attempt; another attempt is made later.
    fn fail(&mut self, why: String) {
        self.state.offered.listing = None;
        self.processes.end_successor();
        let wait = self.state.attempts.record_failure(&why).as_secs();
        let detail = format!("{why}; the old process keeps serving, and the next attempt is in {wait} s");
        self.processes.notices.push(Notice::Report(ReplacementOutcome::Failed, detail));
    }
}
