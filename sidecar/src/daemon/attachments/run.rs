//! One attachment: opens pipes into its sandbox, one after the other, for as long as its enrolment is held.
//!
//! What must stay true: every wait has a deadline or ends with the attachment; when a pipe has ended, everything that was
//! started in the sandbox for this pipe alone ends before the next pipe is opened; the hub ends with the attachment; when
//! an enrolment ends or the sidecar stops, the last bytes of the links still reach the hub.

use std::time::Duration;

use cofferdam_base::random;
use cofferdam_platforms::{HubSetup, Pipe, PlatformError, Progress, SandboxState, WhenSuspended};
use tokio::io::{AsyncWriteExt as _, copy, split};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::activity::{ActivityReports, CallCounter, report_activity};
use super::client::{ClientFactory, OpenOptions, PlatformClient, RemainingHub};
use super::keys::KeyUse;
use super::pacing::{AttemptError, History, HubProof, Outcome, Pacing, Step};
use super::request::AttachmentSpec;
use super::status::{AttachmentState, AttachmentStatus};
use crate::daemon::attach::hold::HoldEvent;
use crate::daemon::attach_table::AttachEvent;

/// How long finding and resuming the sandbox, uploading the shim and starting the hub may take together. A stopped sandbox
/// may have to be restored from an archive first.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(600);
/// How long one query of a sandbox's state may take.
const QUERY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the hub has to prove its key, from its start.
const PROOF_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the last bytes may take to reach the hub, after the sidecar has closed the pipe.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the links may take to end when the sidecar stops; longer than the sidecar waits for them.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// How long the client of one pipe may take to end its hub, or to remove what an interrupted attempt left in the sandbox.
pub(super) const FINISH_TIMEOUT: Duration = Duration::from_millis(2500);
/// How long ending the hub that the pipes of an attachment shared may take; `attach end` waits for it. An attempt that left
/// files in the sandbox has not started this hub, so the two times do not add up.
const END_HUB_TIMEOUT: Duration = FINISH_TIMEOUT;

/// The enrolment of an attachment, as its task uses it.
pub(super) trait HeldSandbox: Send {
    /// Serves the sidecar's end of a pipe.
    fn serve(&self, stream: UnixStream);

    /// The next event of the pipe or of the enrolment. Cancel-safe.
    fn next_event(&mut self) -> impl Future<Output = HoldEvent> + Send;

    /// Counts the calls of the sandbox's links.
    fn call_counter(&self) -> CallCounter;
}

/// What one attachment needs to open pipes.
pub(super) struct Attaching<C> {
    pub(super) spec: AttachmentSpec,
    pub(super) clients: C,
    pub(super) setup: HubSetup,
    pub(super) status: watch::Sender<AttachmentStatus>,
    pub(super) pacing: Pacing,
    pub(super) hub: RemainingHub,
    /// Cancelled when the attachment is to end.
    pub(super) stop: CancellationToken,
    /// Cancelled when the sidecar stops.
    pub(super) sidecar_stop: CancellationToken,
}

/// Why no more pipes are opened.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum AttachingEnd {
    /// The enrolment has ended.
    EnrolmentEnded,
    /// No further attempt is made; the state of the attachment has the reason.
    Over,
    /// The attachment was stopped, or the sidecar stops.
    Stopped,
}

/// How an attempt ended.
enum AttemptEnd {
    EnrolmentEnded,
    Outcome(Outcome),
    Stopped,
}

impl<C: ClientFactory> Attaching<C> {
    /// Opens pipes until the attachment ends. Then ends the hub in the sandbox, unless the sidecar stops.
    pub(super) async fn run(&mut self, held: &mut impl HeldSandbox) -> AttachingEnd {
        let end = self.open_pipes(held).await;
        if self.hub == RemainingHub::Possible && !self.sidecar_stop.is_cancelled() {
            self.end_hub().await;
        }
        end
    }

    async fn open_pipes(&mut self, held: &mut impl HeldSandbox) -> AttachingEnd {
        let began = Instant::now();
        let mut key = KeyUse::Held;
        let mut step = Step::Open { after: Duration::ZERO };
        loop {
            let (Step::QueryState { after } | Step::Open { after }) = step else { return AttachingEnd::Over };
            match self.pause(held, after).await {
                None => {}
                Some(end) => return end,
            }
            let end = match step {
                Step::QueryState { .. } => self.query_until_end(held, key).await,
                _ => self.attempt(held, key).await,
            };
            let outcome = match end {
                AttemptEnd::EnrolmentEnded => return AttachingEnd::EnrolmentEnded,
                AttemptEnd::Outcome(outcome) => outcome,
                AttemptEnd::Stopped => return AttachingEnd::Stopped,
            };
            if retries_with_reread_key(&mut key, &outcome) {
                continue;
            }
            step = self.next_step(outcome, began);
        }
    }

    /// Shows and logs the state after this outcome, and returns the next step.
    pub(super) fn next_step(&mut self, outcome: Outcome, began: Instant) -> Step {
        // The command may have detached the attachment meanwhile.
        self.pacing.lifetime = self.status.borrow().lifetime;
        let (state, next) = self.pacing.next(outcome, began.elapsed(), random::fraction());
        // A suspended sandbox is queried again and again.
        let is_news = self.status.borrow().state != state;
        if let Some(why) = state.reason().filter(|_| is_news) {
            tracing::info!(sandbox = self.spec.name, state = state.name(), why, "attachment");
        }
        self.show(state);
        next
    }

    /// Waits for this time. `Some` if the attachment ends meanwhile.
    async fn pause(&self, held: &mut impl HeldSandbox, time: Duration) -> Option<AttachingEnd> {
        let waiting = sleep(time);
        tokio::pin!(waiting);
        loop {
            tokio::select! {
                () = self.await_stop() => return Some(AttachingEnd::Stopped),
                event = held.next_event() => match event {
                    HoldEvent::Ended => return Some(AttachingEnd::EnrolmentEnded),
                    // The pipe of this event has ended already.
                    HoldEvent::Pipe(_) => {}
                },
                () = &mut waiting => return None,
            }
        }
    }

    /// Asks the platform's control API for the state of the sandbox.
    pub(super) async fn query_state(&self, key: KeyUse) -> Result<SandboxState, AttemptError> {
        let client = self.clients.create_client(key).await?;
        let state = timeout(QUERY_TIMEOUT, client.state(&self.spec.sandbox)).await;
        Ok(state.unwrap_or_else(|_| Err(timed_out("query the sandbox's state", QUERY_TIMEOUT)))?)
    }

    async fn query_until_end(&self, held: &mut impl HeldSandbox, key: KeyUse) -> AttemptEnd {
        let state = tokio::select! {
            state = self.query_state(key) => state,
            end = self.await_end(held) => return end,
        };
        AttemptEnd::Outcome(match state {
            Ok(state) => Outcome::State(state),
            Err(error) => Outcome::Failed(error),
        })
    }

    /// Opens a pipe and serves it until it ends.
    async fn attempt(&mut self, held: &mut impl HeldSandbox, key: KeyUse) -> AttemptEnd {
        self.show(AttachmentState::FINDING);
        let client = tokio::select! {
            client = self.clients.create_client(key) => client,
            end = self.await_end(held) => return end,
        };
        let client = match client {
            Ok(client) => client,
            Err(error) => return AttemptEnd::Outcome(Outcome::Failed(error)),
        };
        self.hub = client.hub_after_pipe();
        let end = match self.open(held, &client).await {
            Ok(pipe) => {
                // The settings of the harness are written once: later the user may have changed them on purpose.
                self.setup.harness = None;
                self.serve_pipe(held, &client, pipe).await
            }
            Err(end) => end,
        };
        self.finish(&client).await;
        end
    }

    /// Waits until the client has ended what it started in the sandbox and removed what it left there.
    pub(super) async fn finish(&self, client: &PlatformClient) {
        if timeout(FINISH_TIMEOUT, client.finish()).await.is_err() {
            tracing::warn!(
                sandbox = self.spec.name,
                "the hub or files in the sandbox may be left: no result in time"
            );
        }
    }

    async fn open(&self, held: &mut impl HeldSandbox, client: &PlatformClient) -> Result<Pipe, AttemptEnd> {
        let progress = |progress: Progress| self.show(AttachmentState::Opening(progress));
        let opened = tokio::select! {
            opened = timeout(OPEN_TIMEOUT, client.open(self.open_options(&progress))) => opened,
            end = self.await_end(held) => return Err(end),
        };
        let opened =
            opened.unwrap_or_else(|_| Err(timed_out("open the pipe into the sandbox", OPEN_TIMEOUT)));
        opened.map_err(|error| AttemptEnd::Outcome(Outcome::Failed(error.into())))
    }

    /// How the next pipe is to be opened. A sandbox that was attached once is not resumed again.
    pub(super) fn open_options<'a>(
        &'a self,
        progress: &'a (dyn Fn(Progress) + Send + Sync),
    ) -> OpenOptions<'a> {
        let when_suspended = match self.pacing.history() {
            History::Attached => WhenSuspended::Refuse,
            History::NeverAttached => self.spec.when_suspended,
        };
        OpenOptions {
            sandbox: &self.spec.sandbox,
            when_suspended,
            keep_awake: self.spec.keep_awake,
            via: self.spec.via,
            setup: &self.setup,
            progress,
        }
    }

    /// Copies bytes between the sidecar and the hub until the pipe or the attachment ends.
    async fn serve_pipe(
        &mut self,
        held: &mut impl HeldSandbox,
        client: &PlatformClient,
        pipe: Pipe,
    ) -> AttemptEnd {
        let (near, far) = match UnixStream::pair() {
            Ok(pair) => pair,
            Err(error) => {
                let error = PlatformError::Unavailable {
                    action: "create a socket for the pipe",
                    why: error.to_string(),
                    retry_after: None,
                };
                return AttemptEnd::Outcome(Outcome::Failed(error.into()));
            }
        };
        held.serve(near);
        let mut hub = HubProof::NotSeen;
        let mut reason = None;
        let proof_deadline = Instant::now() + PROOF_TIMEOUT;
        let mut copying = std::pin::pin!(copy_both_ways(pipe, far));
        let sandbox = self.spec.sandbox.clone();
        let reports = ActivityReports::of(&self.spec, client);
        let mut reporting = std::pin::pin!(report_activity(reports, client, &sandbox, held.call_counter()));
        loop {
            tokio::select! {
                ended = copying.as_mut() => {
                    // The event with the reason may arrive shortly after the end of the pipe.
                    while reason.is_none()
                        && let Ok(HoldEvent::Pipe(event)) = timeout(Duration::from_millis(100), held.next_event()).await
                    {
                        match event {
                            AttachEvent::Lost { why } | AttachEvent::Over { why } => reason = Some(why),
                            AttachEvent::Attached { .. } => hub = HubProof::Seen,
                        }
                    }
                    let why = reason.unwrap_or_else(|| ended.to_owned());
                    return AttemptEnd::Outcome(Outcome::Lost { why, hub });
                }
                event = held.next_event() => match event {
                    HoldEvent::Pipe(AttachEvent::Attached { key }) => {
                        hub = HubProof::Seen;
                        // A reason so far is of an earlier pipe.
                        reason = None;
                        self.pacing.record_attached();
                        tracing::info!(sandbox = self.spec.name, "attached");
                        self.show(AttachmentState::Attached { key });
                    }
                    HoldEvent::Pipe(AttachEvent::Lost { why } | AttachEvent::Over { why }) => reason = Some(why),
                    HoldEvent::Ended => {
                        let _ = timeout(CLOSE_TIMEOUT, copying.as_mut()).await;
                        return AttemptEnd::EnrolmentEnded;
                    }
                },
                never = reporting.as_mut() => match never {},
                () = self.stop.cancelled() => return AttemptEnd::Stopped,
                () = self.sidecar_stop.cancelled() => {
                    // The links end first, then the sidecar closes the pipe.
                    let _ = timeout(STOP_TIMEOUT, copying.as_mut()).await;
                    return AttemptEnd::Stopped;
                }
                () = sleep_until(proof_deadline), if hub == HubProof::NotSeen => {
                    let error = timed_out("wait for the hub in the sandbox", PROOF_TIMEOUT);
                    return AttemptEnd::Outcome(Outcome::Failed(error.into()));
                }
            }
        }
    }

    /// Ends the hub in the sandbox. If the platform or the sandbox cannot be reached, the hub runs on until the sandbox is
    /// suspended.
    async fn end_hub(&self) {
        let ending = async {
            let client = self.clients.create_client(KeyUse::Held).await?;
            client.end_hub(&self.spec.sandbox, &self.setup).await.map_err(AttemptError::from)
        };
        let why = match timeout(END_HUB_TIMEOUT, ending).await {
            Ok(Ok(()) | Err(AttemptError::Platform(PlatformError::NoSandbox { .. }))) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no result within {} ms", END_HUB_TIMEOUT.as_millis()),
        };
        tracing::warn!(sandbox = self.spec.name, why, "the hub in the sandbox may still run");
    }

    /// Waits until the attachment is to end.
    async fn await_end(&self, held: &mut impl HeldSandbox) -> AttemptEnd {
        loop {
            tokio::select! {
                () = self.await_stop() => return AttemptEnd::Stopped,
                event = held.next_event() => if let HoldEvent::Ended = event {
                    return AttemptEnd::EnrolmentEnded;
                },
            }
        }
    }

    async fn await_stop(&self) {
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = self.sidecar_stop.cancelled() => {}
        }
    }

    pub(super) fn show(&self, state: AttachmentState) {
        self.status.send_if_modified(|status| {
            let is_new = status.state != state;
            status.state = state;
            is_new
        });
    }
}

/// Copies in both directions until one of them ends, because the protocol needs both. Returns which side ended.
async fn copy_both_ways(pipe: Pipe, socket: UnixStream) -> &'static str {
    let (mut from_hub, mut to_hub) = split(pipe);
    let (mut from_sidecar, mut to_sidecar) = split(socket);
    let ended = tokio::select! {
        _ = copy(&mut from_hub, &mut to_sidecar) => "the platform or the hub closed the pipe",
        _ = copy(&mut from_sidecar, &mut to_hub) => "the sidecar closed the pipe",
    };
    // The hub exits at the end of its input; the bytes before the end must not be lost.
    let _ = timeout(CLOSE_TIMEOUT, to_hub.shutdown()).await;
    ended
}

/// Sets how `key` is used in the next attempt. Returns whether that attempt follows at once, because the platform refused a
/// key that was read before and that may have been replaced at its source.
pub(super) fn retries_with_reread_key(key: &mut KeyUse, outcome: &Outcome) -> bool {
    let is_refused =
        matches!(outcome, Outcome::Failed(AttemptError::Platform(PlatformError::Unauthorized { .. })));
    let was_held = *key == KeyUse::Held;
    *key = if is_refused { KeyUse::ReadAgain } else { KeyUse::Held };
    is_refused && was_held
}

pub(super) fn timed_out(action: &'static str, after: Duration) -> PlatformError {
    let why = format!("no result within {} seconds", after.as_secs());
    PlatformError::Unavailable { action, why, retry_after: None }
}

#[cfg(test)]
mod tests;
