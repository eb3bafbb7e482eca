//! One attachment: opens pipes into its sandbox, one after the other, for as long as its enrolment is held.
//!
//! What must stay true: every wait has a deadline or ends with the attachment; when a pipe is over, what was started for it
//! alone in the sandbox is ended before the next one is opened; when the attachment is over, so is the hub; at the end of an enrolment or of the sidecar, the last bytes of
//! the links still reach the hub.

use std::time::Duration;

use cofferdam_base::random;
use cofferdam_platforms::{HubSetup, Pipe, PlatformError, Progress, WhenSuspended};
use tokio::io::{AsyncWriteExt as _, copy, split};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::activity::{ActivityReports, CallCounter, report_activity};
use super::client::{Clients, LeftHub, Opening, PlatformClient};
use super::keys::KeyUse;
use super::pacing::{AttemptError, History, HubProof, Outcome, Pacing, Step};
use super::request::AttachmentSpec;
use super::status::{AttachmentState, AttachmentStatus};
use crate::daemon::attach::hold::HoldEvent;
use crate::daemon::attach_table::AttachEvent;

/// For finding, resuming, uploading and starting together. A stopped sandbox may be restored from an archive first.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(600);
/// For one question about the state of a sandbox.
pub(super) const ASK_TIMEOUT: Duration = Duration::from_secs(30);
/// From the hub's start until it has proven its key.
const PROOF_TIMEOUT: Duration = Duration::from_secs(30);
/// For the last bytes to reach the hub, once the sidecar has closed the pipe.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// For the links to end when the sidecar stops; longer than the sidecar waits for them.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// For ending what the client of one pipe started in the sandbox.
const FINISH_TIMEOUT: Duration = Duration::from_secs(8);
/// For ending the hub that the pipes of an attachment shared. `attach end` waits for it.
const END_HUB_TIMEOUT: Duration = Duration::from_secs(5);

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
    pub(super) hub: LeftHub,
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
    /// The status says why.
    Over,
    Stopped,
}

/// How an attempt ended.
enum AttemptEnd {
    EnrolmentEnded,
    Outcome(Outcome),
    Stopped,
}

impl<C: Clients> Attaching<C> {
    /// Opens pipes until the end. Unless the sidecar stops, no hub is left in the sandbox then.
    pub(super) async fn run(&mut self, held: &mut impl HeldSandbox) -> AttachingEnd {
        let end = self.open_pipes(held).await;
        if self.hub == LeftHub::Possible && !self.sidecar_stop.is_cancelled() {
            self.end_hub().await;
        }
        end
    }

    async fn open_pipes(&mut self, held: &mut impl HeldSandbox) -> AttachingEnd {
        let began = Instant::now();
        let mut key = KeyUse::Held;
        let mut step = Step::Open { after: Duration::ZERO };
        loop {
            let (Step::Ask { after } | Step::Open { after }) = step else { return AttachingEnd::Over };
            match self.pause(held, after).await {
                None => {}
                Some(end) => return end,
            }
            let end = match step {
                Step::Ask { .. } => self.ask(held, key).await,
                _ => self.attempt(held, key).await,
            };
            let outcome = match end {
                AttemptEnd::EnrolmentEnded => return AttachingEnd::EnrolmentEnded,
                AttemptEnd::Outcome(outcome) => outcome,
                AttemptEnd::Stopped => return AttachingEnd::Stopped,
            };
            if is_key_to_be_reread(&mut key, &outcome) {
                continue;
            }
            // A command may have left its attachment in the sidecar since.
            self.pacing.lifetime = self.status.borrow().lifetime;
            let (state, next) = self.pacing.next(outcome, began.elapsed(), random::fraction());
            if let Some(why) = state.reason() {
                tracing::info!(sandbox = self.spec.name, state = state.name(), why, "attachment");
            }
            self.show(state);
            step = next;
        }
    }

    /// Waits. `Some` if the attachment ends meanwhile.
    async fn pause(&self, held: &mut impl HeldSandbox, time: Duration) -> Option<AttachingEnd> {
        let waiting = sleep(time);
        tokio::pin!(waiting);
        loop {
            tokio::select! {
                () = self.stopped() => return Some(AttachingEnd::Stopped),
                event = held.next_event() => match event {
                    HoldEvent::Ended => return Some(AttachingEnd::EnrolmentEnded),
                    // About a pipe that is over.
                    HoldEvent::Pipe(_) => {}
                },
                () = &mut waiting => return None,
            }
        }
    }

    async fn ask(&self, held: &mut impl HeldSandbox, key: KeyUse) -> AttemptEnd {
        let asking = async {
            let client = self.clients.client(key).await?;
            let asked = timeout(ASK_TIMEOUT, client.state(&self.spec.sandbox)).await;
            Ok(asked.unwrap_or_else(|_| Err(too_late("ask about the sandbox", ASK_TIMEOUT)))?)
        };
        let asked = tokio::select! {
            asked = asking => asked,
            end = self.ends(held) => return end,
        };
        AttemptEnd::Outcome(match asked {
            Ok(state) => Outcome::Asked(state),
            Err(error) => Outcome::Failed(error),
        })
    }

    /// Opens a pipe and serves it until it ends.
    async fn attempt(&mut self, held: &mut impl HeldSandbox, key: KeyUse) -> AttemptEnd {
        self.show(AttachmentState::FINDING);
        let client = tokio::select! {
            client = self.clients.client(key) => client,
            end = self.ends(held) => return end,
        };
        let client = match client {
            Ok(client) => client,
            Err(error) => return AttemptEnd::Outcome(Outcome::Failed(error)),
        };
        self.hub = client.hub_after_pipe();
        let end = match self.open(held, &client).await {
            Ok(pipe) => {
                // They are written once: later the harness's user may have changed them on purpose.
                self.setup.harness = None;
                self.carry(held, &client, pipe).await
            }
            Err(end) => end,
        };
        if timeout(FINISH_TIMEOUT, client.finish()).await.is_err() {
            tracing::warn!(sandbox = self.spec.name, "the hub in the sandbox did not end in time");
        }
        end
    }

    async fn open(&self, held: &mut impl HeldSandbox, client: &PlatformClient) -> Result<Pipe, AttemptEnd> {
        let progress = |progress: Progress| self.show(AttachmentState::Opening(progress));
        let opened = tokio::select! {
            opened = timeout(OPEN_TIMEOUT, client.open(self.opening(&progress))) => opened,
            end = self.ends(held) => return Err(end),
        };
        let opened = opened.unwrap_or_else(|_| Err(too_late("open the pipe into the sandbox", OPEN_TIMEOUT)));
        opened.map_err(|error| AttemptEnd::Outcome(Outcome::Failed(error.into())))
    }

    /// How the sandbox is to be opened now.
    pub(super) fn opening<'a>(&'a self, progress: &'a (dyn Fn(Progress) + Send + Sync)) -> Opening<'a> {
        let when_suspended = match self.pacing.history() {
            History::Attached => WhenSuspended::Refuse,
            History::NeverAttached => self.spec.when_suspended,
        };
        Opening {
            sandbox: &self.spec.sandbox,
            when_suspended,
            keep_awake: self.spec.keep_awake,
            via: self.spec.via,
            setup: &self.setup,
            progress,
        }
    }

    /// Carries bytes between the sidecar and the hub until either closes the pipe.
    async fn carry(
        &mut self,
        held: &mut impl HeldSandbox,
        client: &PlatformClient,
        pipe: Pipe,
    ) -> AttemptEnd {
        let (near, far) = match UnixStream::pair() {
            Ok(pair) => pair,
            Err(error) => {
                let error = PlatformError::Unavailable {
                    doing: "make a socket for the pipe",
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
        let mut carrying = std::pin::pin!(carry(pipe, far));
        let sandbox = self.spec.sandbox.clone();
        let reports = ActivityReports::of(&self.spec, client);
        let mut reporting = std::pin::pin!(report_activity(reports, client, &sandbox, held.call_counter()));
        loop {
            tokio::select! {
                ended = carrying.as_mut() => {
                    // The event that explains the end may be behind it.
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
                        // An earlier event was about another pipe.
                        reason = None;
                        self.pacing.attached();
                        tracing::info!(sandbox = self.spec.name, "attached");
                        self.show(AttachmentState::Attached { key });
                    }
                    HoldEvent::Pipe(AttachEvent::Lost { why } | AttachEvent::Over { why }) => reason = Some(why),
                    HoldEvent::Ended => {
                        let _ = timeout(CLOSE_TIMEOUT, carrying.as_mut()).await;
                        return AttemptEnd::EnrolmentEnded;
                    }
                },
                never = reporting.as_mut() => match never {},
                () = self.stop.cancelled() => return AttemptEnd::Stopped,
                () = self.sidecar_stop.cancelled() => {
                    // The links end first, then the sidecar closes the pipe.
                    let _ = timeout(STOP_TIMEOUT, carrying.as_mut()).await;
                    return AttemptEnd::Stopped;
                }
                () = sleep_until(proof_deadline), if hub == HubProof::NotSeen => {
                    let error = too_late("wait for the hub in the sandbox", PROOF_TIMEOUT);
                    return AttemptEnd::Outcome(Outcome::Failed(error.into()));
                }
            }
        }
    }

    /// Ends the hub in the sandbox. A sandbox or platform that cannot be reached has it until it is suspended.
    async fn end_hub(&self) {
        let ending = async {
            let client = self.clients.client(KeyUse::Held).await?;
            client.end_hub(&self.spec.sandbox, &self.setup).await.map_err(AttemptError::from)
        };
        let why = match timeout(END_HUB_TIMEOUT, ending).await {
            Ok(Ok(()) | Err(AttemptError::Platform(PlatformError::NoSandbox { .. }))) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no result within {} seconds", END_HUB_TIMEOUT.as_secs()),
        };
        tracing::warn!(sandbox = self.spec.name, why, "the hub in the sandbox may still run");
    }

    /// Waits until the attachment is to end.
    async fn ends(&self, held: &mut impl HeldSandbox) -> AttemptEnd {
        loop {
            tokio::select! {
                () = self.stopped() => return AttemptEnd::Stopped,
                event = held.next_event() => if let HoldEvent::Ended = event {
                    return AttemptEnd::EnrolmentEnded;
                },
            }
        }
    }

    pub(super) async fn stopped(&self) {
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

/// Copies in both directions until one of them ends, and describes the end. The protocol needs both.
async fn carry(pipe: Pipe, socket: UnixStream) -> &'static str {
    let (mut from_hub, mut to_hub) = split(pipe);
    let (mut from_sidecar, mut to_sidecar) = split(socket);
    let ended = tokio::select! {
        _ = copy(&mut from_hub, &mut to_sidecar) => "the platform or the hub closed the pipe",
        _ = copy(&mut from_sidecar, &mut to_hub) => "the sidecar closed the pipe",
    };
    // The hub exits at the end of its input; the bytes before it must not be lost.
    let _ = timeout(CLOSE_TIMEOUT, to_hub.shutdown()).await;
    ended
}

/// Whether the next attempt follows at once with the key read again: it may have been replaced at its source since it was
/// read. `key` becomes the key to use in the next attempt.
pub(super) fn is_key_to_be_reread(key: &mut KeyUse, outcome: &Outcome) -> bool {
    let is_refused =
        matches!(outcome, Outcome::Failed(AttemptError::Platform(PlatformError::Unauthorized { .. })));
    let was_held = *key == KeyUse::Held;
    *key = if is_refused { KeyUse::ReadAgain } else { KeyUse::Held };
    is_refused && was_held
}

pub(super) fn too_late(doing: &'static str, limit: Duration) -> PlatformError {
    let why = format!("no result within {} seconds", limit.as_secs());
    PlatformError::Unavailable { doing, why, retry_after: None }
}

#[cfg(test)]
mod tests;
