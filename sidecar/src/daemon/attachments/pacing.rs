//! Decides the next step after each outcome of an attachment: another attempt, a query of the sandbox's state, or the end.
//!
//! What must stay true: there is no clock and no random source here; while a sandbox is suspended, only its state is
//! queried; `Retry-After` is honoured up to a limit; an attempt that fails until an operator changes something is repeated
//! rarely, and ends the attachment of a command whose sandbox was never attached.

use std::time::Duration;

use cofferdam_base::{Backoff, Jitter, JitteredBackoff};
use cofferdam_platforms::{PlatformError, SandboxState};

use super::status::{AttachmentState, Lifetime, OverCause};

/// The delay after a pipe was lost, and after the first failed attempt.
const FIRST_DELAY: Duration = Duration::from_millis(250);
/// The longest delay between attempts. After an outage of the platform a sandbox is attached again within ten seconds.
const MAX_DELAY: Duration = Duration::from_secs(8);
/// The longest `Retry-After` that is honoured.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);
/// The delay between attempts while a limit of the account is reached.
const QUOTA_DELAY: Duration = Duration::from_secs(30);
/// The delay between attempts that will probably fail until an operator changes something, such as the API key.
const REFUSED_DELAY: Duration = Duration::from_secs(300);
/// The first and the longest delay between queries of a suspended sandbox's state. A call in the sandbox waits a minute
/// for its link, so a resumed sandbox is noticed in time.
const FIRST_QUERY_DELAY: Duration = Duration::from_secs(1);
const MAX_QUERY_DELAY: Duration = Duration::from_secs(30);
/// How long a command whose sandbox was never attached retries while the platform is unavailable.
const COMMAND_RETRY_TIME: Duration = Duration::from_secs(30);
/// Spreads the attempts of many attachments that lose their pipes together when a platform fails.
const JITTER: Jitter = Jitter::Earlier(0.5);

/// How an attempt or a query of the state ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// A pipe ended.
    Lost {
        why: String,
        hub: HubProof,
    },
    Failed(AttemptError),
    State(SandboxState),
}

/// Whether the hub had proven its key on the pipe.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum HubProof {
    NotSeen,
    Seen,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum AttemptError {
    /// The platform's table is missing, or its API key cannot be read.
    #[error("{0}")]
    Configuration(String),
    /// The source of the API key, such as Vault, does not return it for now.
    #[error("{0}")]
    KeyUnavailable(String),
    #[error(transparent)]
    Platform(#[from] PlatformError),
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Step {
    /// Query the state of the suspended sandbox after this delay.
    QueryState {
        after: Duration,
    },
    /// Open a pipe, or enrol a sandbox that dials out, after this delay.
    Open {
        after: Duration,
    },
    Over,
}

/// Decides what an attachment does next.
#[derive(Debug)]
pub(super) struct Pacing {
    pub(super) lifetime: Lifetime,
    attempts: JitteredBackoff,
    queries: JitteredBackoff,
    history: History,
}

/// Whether the sandbox was attached before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum History {
    Attached,
    NeverAttached,
}

impl Pacing {
    pub(super) fn new(lifetime: Lifetime, history: History) -> Self {
        Self {
            lifetime,
            attempts: Backoff::new(FIRST_DELAY, MAX_DELAY).with_jitter(JITTER),
            queries: Backoff::new(FIRST_QUERY_DELAY, MAX_QUERY_DELAY).with_jitter(JITTER),
            history,
        }
    }

    pub(super) fn history(&self) -> History {
        self.history
    }

    /// Call when the hub has proven its key, or the sandbox has dialled out.
    pub(super) fn record_attached(&mut self) {
        self.history = History::Attached;
        self.attempts.reset();
        self.queries.reset();
    }

    /// Returns the state to show until the next step, and that step. `trying` is the time since the start of the attachment;
    /// `random` is from 0 to 1, 1 excluded.
    pub(super) fn next(
        &mut self,
        outcome: Outcome,
        trying: Duration,
        random: f64,
    ) -> (AttachmentState, Step) {
        match outcome {
            Outcome::State(SandboxState::Running) => {
                self.queries.reset();
                (AttachmentState::FINDING, Step::Open { after: Duration::ZERO })
            }
            Outcome::State(SandboxState::Suspended) => self.suspended(random),
            Outcome::Lost { why, hub } => {
                if hub == HubProof::Seen {
                    self.attempts.reset();
                }
                self.wait(why, Duration::ZERO, random)
            }
            Outcome::Failed(AttemptError::Configuration(why)) => {
                self.refused(why, OverCause::Configuration, random)
            }
            Outcome::Failed(AttemptError::KeyUnavailable(why)) => {
                if self.may_fail() && trying >= COMMAND_RETRY_TIME {
                    return over(why, OverCause::Unavailable);
                }
                self.wait(why, Duration::ZERO, random)
            }
            Outcome::Failed(AttemptError::Platform(error)) => self.failed(error, trying, random),
        }
    }

    fn failed(&mut self, error: PlatformError, trying: Duration, random: f64) -> (AttachmentState, Step) {
        let why = explain(&error);
        match error {
            PlatformError::NoSandbox { .. } => over(why, OverCause::NoSandbox),
            PlatformError::Protocol { .. } | PlatformError::Sandbox { .. } => {
                self.refused(why, OverCause::Unavailable, random)
            }
            PlatformError::Quota { .. } if self.may_fail() => over(why, OverCause::Unavailable),
            PlatformError::Quota { .. } => self.wait(why, QUOTA_DELAY, random),
            PlatformError::Suspended { .. } => self.suspended(random),
            PlatformError::Unauthorized { .. } => self.refused(why, OverCause::Unauthorized, random),
            PlatformError::Unavailable { .. } if self.may_fail() && trying >= COMMAND_RETRY_TIME => {
                over(why, OverCause::Unavailable)
            }
            PlatformError::Unavailable { retry_after, .. } => {
                self.wait(why, retry_after.unwrap_or_default().min(MAX_RETRY_AFTER), random)
            }
        }
    }

    /// A command whose sandbox was never attached ends with an error instead of waiting for an operator.
    fn may_fail(&self) -> bool {
        self.lifetime == Lifetime::Followed && self.history == History::NeverAttached
    }

    fn refused(&self, why: String, cause: OverCause, random: f64) -> (AttachmentState, Step) {
        if self.may_fail() {
            return over(why, cause);
        }
        let after = REFUSED_DELAY.mul_f64(1.0 - 0.5 * random);
        (AttachmentState::Refused { why, retry_in_ms: milliseconds(after) }, Step::Open { after })
    }

    fn suspended(&mut self, random: f64) -> (AttachmentState, Step) {
        (AttachmentState::Suspended, Step::QueryState { after: self.queries.next_delay(random) })
    }

    fn wait(&mut self, why: String, min_delay: Duration, random: f64) -> (AttachmentState, Step) {
        let after = self.attempts.next_delay(random).max(min_delay);
        (AttachmentState::Waiting { why, retry_in_ms: milliseconds(after) }, Step::Open { after })
    }
}

/// The error with its next step.
fn explain(error: &PlatformError) -> String {
    let next_step = match error {
        PlatformError::NoSandbox { .. } => "is the id right, and does the sandbox belong to this account?",
        PlatformError::Quota { .. } => "end sandboxes that are not needed, or raise the account's limit",
        PlatformError::Unauthorized { .. } => {
            "check the secret that `api-key` of the platform's table names, and `api-url`"
        }
        _ => return error.to_string(),
    };
    format!("{error}; {next_step}")
}

fn over(why: String, cause: OverCause) -> (AttachmentState, Step) {
    (AttachmentState::Over { why, cause }, Step::Over)
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATEST: f64 = 0.0;
    const EARLIEST: f64 = 0.999_999;

    fn unavailable(retry_after: Option<Duration>) -> Outcome {
        let error = PlatformError::Unavailable { action: "find the sandbox", why: "503".into(), retry_after };
        Outcome::Failed(error.into())
    }

    fn unauthorized() -> Outcome {
        Outcome::Failed(PlatformError::Unauthorized { action: "find the sandbox", status: 401 }.into())
    }

    fn suspended() -> Outcome {
        Outcome::Failed(PlatformError::Suspended { action: "find the sandbox" }.into())
    }

    fn lost(hub: HubProof) -> Outcome {
        Outcome::Lost { why: "the platform closed the stream".into(), hub }
    }

    fn step(pacing: &mut Pacing, outcome: Outcome, random: f64) -> Step {
        pacing.next(outcome, Duration::ZERO, random).1
    }

    fn opens_after(step: Step) -> Duration {
        match step {
            Step::Open { after } => after,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn delays_grow_to_a_limit_and_are_reset_once_a_hub_has_proven_its_key() {
        let mut pacing = Pacing::new(Lifetime::Configured, History::NeverAttached);
        let delays: Vec<u128> =
            (0..7).map(|_| opens_after(step(&mut pacing, unavailable(None), LATEST)).as_millis()).collect();
        assert_eq!(delays, [250, 500, 1000, 2000, 4000, 8000, 8000]);
        assert!(
            opens_after(step(&mut pacing, unavailable(None), EARLIEST))
                >= Duration::from_secs(4) - FIRST_DELAY
        );
        assert_eq!(opens_after(step(&mut pacing, lost(HubProof::NotSeen), LATEST)), MAX_DELAY);
        assert_eq!(opens_after(step(&mut pacing, lost(HubProof::Seen), LATEST)), FIRST_DELAY);
    }

    #[test]
    fn retry_after_is_honoured_up_to_a_limit() {
        let mut pacing = Pacing::new(Lifetime::Detached, History::Attached);
        for (asked, waited) in [(20, 20), (100_000, 300)] {
            let outcome = unavailable(Some(Duration::from_secs(asked)));
            assert_eq!(opens_after(step(&mut pacing, outcome, EARLIEST)), Duration::from_secs(waited));
        }
    }

    #[test]
    fn the_state_of_a_suspended_sandbox_is_queried_ever_more_rarely_and_a_running_one_is_opened() {
        let mut pacing = Pacing::new(Lifetime::Detached, History::Attached);
        let mut queries = vec![step(&mut pacing, suspended(), LATEST)];
        queries.extend((0..6).map(|_| step(&mut pacing, Outcome::State(SandboxState::Suspended), LATEST)));
        let seconds =
            [1, 2, 4, 8, 16, 30, 30].map(|after| Step::QueryState { after: Duration::from_secs(after) });
        assert_eq!(queries, seconds);
        assert_eq!(
            step(&mut pacing, Outcome::State(SandboxState::Running), LATEST),
            Step::Open { after: Duration::ZERO }
        );
        assert_eq!(step(&mut pacing, suspended(), LATEST), Step::QueryState { after: FIRST_QUERY_DELAY });
    }

    #[test]
    fn a_command_that_was_never_attached_ends_with_the_cause() {
        let sandbox = || PlatformError::NoSandbox { action: "find it", sandbox: "x".into() };
        let quota = || PlatformError::Quota { action: "resume it", why: "20 sandboxes".into() };
        let no_shim = || PlatformError::Sandbox { action: "start the hub", why: "no /tmp".into() };
        let mut pacing = Pacing::new(Lifetime::Followed, History::NeverAttached);
        for (outcome, expected) in [
            (unauthorized(), OverCause::Unauthorized),
            (Outcome::Failed(sandbox().into()), OverCause::NoSandbox),
            (Outcome::Failed(quota().into()), OverCause::Unavailable),
            (Outcome::Failed(no_shim().into()), OverCause::Unavailable),
            (Outcome::Failed(AttemptError::Configuration("no key".into())), OverCause::Configuration),
        ] {
            let (state, step) = pacing.next(outcome, Duration::ZERO, LATEST);
            assert_eq!(step, Step::Over);
            assert!(matches!(state, AttachmentState::Over { cause, .. } if cause == expected), "{state:?}");
        }
        assert_eq!(opens_after(step(&mut pacing, unavailable(None), LATEST)), FIRST_DELAY);
        assert_eq!(pacing.next(unavailable(None), COMMAND_RETRY_TIME, LATEST).1, Step::Over);
    }

    #[test]
    fn an_unavailable_source_of_the_key_is_retried_like_an_unavailable_platform() {
        let no_key = || Outcome::Failed(AttemptError::KeyUnavailable("Vault is sealed".into()));
        let mut pacing = Pacing::new(Lifetime::Followed, History::NeverAttached);
        assert_eq!(opens_after(step(&mut pacing, no_key(), LATEST)), FIRST_DELAY);
        let (state, next) = pacing.next(no_key(), COMMAND_RETRY_TIME, LATEST);
        assert!(matches!(state, AttachmentState::Over { cause: OverCause::Unavailable, .. }), "{state:?}");
        assert_eq!(next, Step::Over);
        let mut pacing = Pacing::new(Lifetime::Detached, History::Attached);
        assert_eq!(opens_after(step(&mut pacing, no_key(), LATEST)), FIRST_DELAY);
    }

    #[test]
    fn an_attachment_that_was_attached_or_is_configured_waits_for_the_operator() {
        for (lifetime, history) in
            [(Lifetime::Followed, History::Attached), (Lifetime::Configured, History::NeverAttached)]
        {
            let mut pacing = Pacing::new(lifetime, history);
            assert_eq!(opens_after(step(&mut pacing, unauthorized(), LATEST)), REFUSED_DELAY);
            let quota = PlatformError::Quota { action: "resume it", why: "20 sandboxes".into() };
            assert_eq!(opens_after(step(&mut pacing, Outcome::Failed(quota.into()), LATEST)), QUOTA_DELAY);
            let trying = 10 * COMMAND_RETRY_TIME;
            assert!(matches!(pacing.next(unavailable(None), trying, LATEST).1, Step::Open { .. }));
            let gone = PlatformError::NoSandbox { action: "find it", sandbox: "x".into() };
            assert_eq!(step(&mut pacing, Outcome::Failed(gone.into()), LATEST), Step::Over);
        }
    }
}
