//! Decides the next step after each outcome of an attachment: another attempt, a query of the sandbox's state, or the end.
//!
//! What must stay true: there is no clock and no random source here; while a sandbox is suspended, only its state is
//! queried; `Retry-After` is honoured up to a limit; an attempt that fails until an operator changes something is repeated
//! rarely, and ends the attachment of a command whose sandbox was never attached.
//!
//! The delays are bounded, because the time until a sandbox is attached again is promised:
//!
//! | after | longest delay | attached again within |
//! |---|---|---|
//! | a fault of the platform, the network or the sandbox | 8 s | 10 s |
//! | a resume, within ten minutes of the suspension | 8 s | 10 s |
//! | a later resume | 20 s | 30 s |
//!
//! A thousand sandboxes that are suspended for longer than ten minutes cost the platform about 57 requests a second.

use std::time::Duration;

use cofferdam_base::{Backoff, Jitter, JitteredBackoff};
use cofferdam_platforms::{PlatformError, SandboxState, Suspension};

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
/// The first delay between queries of a suspended sandbox's state, and the longest one while its suspension is recent.
const FIRST_QUERY_DELAY: Duration = Duration::from_secs(1);
const MAX_QUERY_DELAY: Duration = Duration::from_secs(8);
/// For how long a suspension is recent: most pauses between two uses of a sandbox are shorter.
const RECENT_SUSPENSION: Duration = Duration::from_secs(600);
/// The longest delay between queries after that. A call in the sandbox waits a minute for its link, so the sandbox is
/// attached again in time.
const RARE_QUERY_DELAY: Duration = Duration::from_secs(20);
/// The earliest of the rare queries comes after this fraction of their longest delay.
const RARE_QUERY_JITTER: f64 = 0.25;
/// How long a command whose sandbox was never attached retries while the platform is unavailable.
const COMMAND_RETRY_TIME: Duration = Duration::from_secs(30);
/// The next step when a command gives up because the platform stays unavailable.
const AFTER_OUTAGE: &str =
    "check the platform's status page and `api-url` of its table, then run the command again";
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
    /// When the sandbox was first found suspended, as the time since the start of the attachment.
    suspended_since: Option<Duration>,
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
            suspended_since: None,
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
        self.end_suspension();
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
                self.end_suspension();
                (AttachmentState::FINDING, Step::Open { after: Duration::ZERO })
            }
            Outcome::State(SandboxState::Suspended(suspension)) => self.suspended(suspension, trying, random),
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
            PlatformError::NoSandbox { sandbox, .. } if self.history == History::Attached => {
                let why =
                    format!("the sandbox `{sandbox}` was deleted; attach its successor by that one's id");
                over(why, OverCause::NoSandbox)
            }
            PlatformError::NoSandbox { .. } | PlatformError::OtherId { .. } => {
                over(why, OverCause::NoSandbox)
            }
            // What has worked before may work again soon: a proxy's error page, a hub that was killed while it started.
            PlatformError::Protocol { .. } | PlatformError::Sandbox { .. }
                if self.history == History::Attached =>
            {
                self.wait(why, Duration::ZERO, random)
            }
            PlatformError::Protocol { .. } | PlatformError::Sandbox { .. } => {
                self.refused(why, OverCause::Unavailable, random)
            }
            PlatformError::Quota { .. } if self.may_fail() => over(why, OverCause::Unavailable),
            PlatformError::Quota { .. } => self.wait(why, QUOTA_DELAY, random),
            PlatformError::Suspended { suspension, .. } => self.suspended(suspension, trying, random),
            PlatformError::Unauthorized { .. } => self.refused(why, OverCause::Unauthorized, random),
            PlatformError::Unavailable { .. } if self.may_fail() && trying >= COMMAND_RETRY_TIME => {
                over(format!("{why}; {AFTER_OUTAGE}"), OverCause::Unavailable)
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

    fn suspended(
        &mut self,
        suspension: Suspension,
        trying: Duration,
        random: f64,
    ) -> (AttachmentState, Step) {
        let since = *self.suspended_since.get_or_insert(trying);
        let after = match trying.saturating_sub(since) < RECENT_SUSPENSION {
            true => self.queries.next_delay(random),
            false => RARE_QUERY_DELAY.mul_f64(1.0 - RARE_QUERY_JITTER * random),
        };
        let why = format!("the platform reports that it is {suspension}");
        (AttachmentState::Suspended { why }, Step::QueryState { after })
    }

    fn end_suspension(&mut self) {
        self.suspended_since = None;
        self.queries.reset();
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
        PlatformError::Protocol { .. } => {
            "check `api-url` and `sandbox-url` of the platform's table; is it the platform of this kind?"
        }
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

    /// Promises of SPECIFICATION.md.
    const BACK_AFTER_FAULT: Duration = Duration::from_secs(10);
    const BACK_AFTER_LONG_SUSPENSION: Duration = Duration::from_secs(30);

    fn unavailable(retry_after: Option<Duration>) -> Outcome {
        let error = PlatformError::Unavailable { action: "find the sandbox", why: "503".into(), retry_after };
        Outcome::Failed(error.into())
    }

    fn unauthorized() -> Outcome {
        Outcome::Failed(PlatformError::Unauthorized { action: "find the sandbox", status: 401 }.into())
    }

    fn suspended() -> Outcome {
        Outcome::Failed(
            PlatformError::Suspended { action: "find the sandbox", suspension: Suspension::Paused }.into(),
        )
    }

    /// As if a proxy in front of the platform responded with its own error page.
    fn protocol_error() -> Outcome {
        let error = PlatformError::Protocol { action: "find the sandbox", why: "not JSON".into() };
        Outcome::Failed(error.into())
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
        queries.extend(
            (0..4).map(|_| {
                step(&mut pacing, Outcome::State(SandboxState::Suspended(Suspension::Paused)), LATEST)
            }),
        );
        let seconds = [1, 2, 4, 8, 8].map(|after| Step::QueryState { after: Duration::from_secs(after) });
        assert_eq!(queries, seconds);
        let still_suspended = Outcome::State(SandboxState::Suspended(Suspension::Paused));
        let rare = pacing.next(still_suspended, RECENT_SUSPENSION, LATEST).1;
        assert_eq!(rare, Step::QueryState { after: RARE_QUERY_DELAY });
        assert_eq!(
            step(&mut pacing, Outcome::State(SandboxState::Running), LATEST),
            Step::Open { after: Duration::ZERO }
        );
        // The next suspension is recent again.
        let first = pacing.next(suspended(), 2 * RECENT_SUSPENSION, LATEST).1;
        assert_eq!(first, Step::QueryState { after: FIRST_QUERY_DELAY });
    }

    /// What remains of the promised time after the longest delay is for the request that finds the fault's end and for
    /// opening the pipe.
    #[test]
    fn every_delay_leaves_time_to_be_attached_again_as_promised() {
        let after_fault =
            || [lost(HubProof::NotSeen), lost(HubProof::Seen), unavailable(None), protocol_error()];
        for random in [0.0, 0.25, 0.5, 0.75, EARLIEST] {
            let mut pacing = Pacing::new(Lifetime::Detached, History::Attached);
            for outcome in (0..100).flat_map(|_| after_fault()) {
                let delay = opens_after(step(&mut pacing, outcome, random));
                assert!(delay + Duration::from_secs(2) <= BACK_AFTER_FAULT, "{delay:?}");
            }
            let mut suspended_for = Duration::ZERO;
            while suspended_for < Duration::from_secs(24 * 3600) {
                let outcome = Outcome::State(SandboxState::Suspended(Suspension::Paused));
                let (_, Step::QueryState { after }) = pacing.next(outcome, suspended_for, random) else {
                    panic!("a suspended sandbox must be queried");
                };
                let (promised, reserve) = match suspended_for < RECENT_SUSPENSION {
                    true => (BACK_AFTER_FAULT, Duration::from_secs(2)),
                    false => (BACK_AFTER_LONG_SUSPENSION, Duration::from_secs(10)),
                };
                assert!(after + reserve <= promised, "{after:?} after {suspended_for:?}");
                suspended_for += after;
            }
        }
    }

    #[test]
    fn a_sandbox_that_is_suspended_for_long_is_queried_rarely() {
        let mut pacing = Pacing::new(Lifetime::Detached, History::Attached);
        step(&mut pacing, suspended(), LATEST);
        for random in [LATEST, 0.5, EARLIEST] {
            let outcome = Outcome::State(SandboxState::Suspended(Suspension::Paused));
            let (_, next) = pacing.next(outcome, 2 * RECENT_SUSPENSION, random);
            assert!(
                matches!(next, Step::QueryState { after } if after >= Duration::from_secs(15)),
                "{next:?}"
            );
        }
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
