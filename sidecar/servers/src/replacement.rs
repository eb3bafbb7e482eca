//! The state of replacing a slot's process because a credential changed: what to compare, when to try again.
//!
//! The steps themselves are in [`crate::slot`].

use std::future::pending;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_base::{Backoff, RateLimiter};
use cofferdam_secrets::credentials::Credentials;
use cofferdam_secrets::{RegisteredUses, Secrets};
use relay_proto::name::Name;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::event::ProcessId;
use crate::launcher::Launcher;
use crate::spec::Replace;
use crate::tool_fingerprint::{Fingerprinting, ToolFingerprint, agreement};

pub(crate) struct Replacement {
    pub(crate) credentials: Arc<Credentials>,
    pub(crate) mode: Replace,
    /// Tells the session whether new values of the secrets have a user here.
    uses: RegisteredUses,
    /// Completes when a secret of the session gets new values.
    change: Change,
    pub(crate) offered: Offered,
    pub(crate) attempts: Attempts,
    /// Secrets from before a rewrite of the process's files, each with the time until which it is kept.
    pub(crate) retained: Vec<(Instant, Arc<Secrets>)>,
}

type Change = Pin<Box<dyn Future<Output = watch::Receiver<u64>> + Send>>;

/// What the current process offers to the harness, which its successor must offer too.
#[derive(Default)]
pub(crate) struct Offered {
    /// A hash of the protocol version and capabilities in the response to the harness's handshake.
    pub(crate) agreed: Option<u64>,
    /// How many handshakes the harness made.
    pub(crate) handshakes: u64,
    /// The value of `handshakes` when the successor was started.
    pub(crate) handshakes_at_start: u64,
    /// The tools of the current process; `None` if they are unknown or were announced as changed.
    pub(crate) tools: Option<ToolFingerprint>,
    /// The listing of the current process's tools, while it is in progress, and its deadline.
    pub(crate) listing: Option<(Fingerprinting, Instant)>,
}

/// When the next attempt may be made, and why the last one failed.
pub(crate) struct Attempts {
    backoff: Backoff,
    pub(crate) not_before: Instant,
    limit: RateLimiter,
    /// As `sessions` shows it.
    pub(crate) failure: Option<String>,
}

/// How the credentials of a process compare with the newest ones.
pub(crate) struct CredentialState {
    /// Secrets that have new values.
    pub(crate) changed: Vec<Name>,
    /// When the first of the process's credentials expires.
    pub(crate) expires: Option<Instant>,
}

/// What the pipeline has to do about a replacement.
#[derive(Debug, Eq, PartialEq)]
pub enum Notice {
    /// This process was ended before all its requests had a response.
    CutOff { process: ProcessId, why: String },
    /// This process gets no new calls: its open-ended listeners have to be opened on another one.
    HandedOver(ProcessId),
    /// This process is ended, and no call waited for it.
    Ended(ProcessId),
    /// For the log, the metrics and the audit.
    Report(ReplacementOutcome, String),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReplacementOutcome {
    Failed,
    Reloaded,
    Replaced,
    /// The credential of the process expired before another process took over.
    Retired,
}

/// Starts of successors in one slot. Enough for leases of a few seconds.
const STARTS_PER_MINUTE: u32 = 60;
/// The wait after the first failure; it doubles.
pub(crate) const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait between two attempts.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl Replacement {
    /// None where no credential of the launcher's processes can change.
    pub(crate) fn of(launcher: &Launcher) -> Option<Box<Self>> {
        let credentials = &launcher.secrets.credentials;
        launcher.credentials_may_change().then(|| {
            Box::new(Self {
                credentials: Arc::clone(credentials),
                mode: launcher.server().replace,
                uses: credentials.register_uses(launcher.secret_uses()),
                change: next_change(credentials.changes()),
                offered: Offered::default(),
                attempts: Attempts {
                    backoff: Backoff::new(FIRST_WAIT, LONGEST_WAIT),
                    not_before: Instant::now(),
                    limit: RateLimiter::per_minute(STARTS_PER_MINUTE),
                    failure: None,
                },
                retained: Vec::new(),
            })
        })
    }

    /// Resets the state when a process is started for a request: it gets the newest credentials.
    pub(crate) fn on_start(&mut self, launcher: &Launcher) {
        self.follow(launcher);
        self.offered.forget_tools();
        self.attempts.record_success();
    }

    /// Takes over the setting of `replace`, which a reload of the configuration may have changed.
    pub(crate) fn follow(&mut self, launcher: &Launcher) {
        self.mode = launcher.server().replace;
        self.uses = self.credentials.register_uses(launcher.secret_uses());
    }

    /// Waits until a secret of the session gets new values. Cancel-safe.
    pub(crate) async fn changed(&mut self) {
        let receiver = self.change.as_mut().await;
        self.change = next_change(receiver);
    }

    pub(crate) fn assess(&self, secrets: &Secrets) -> CredentialState {
        let newest = self.credentials.newest();
        let mut state = CredentialState { changed: Vec::new(), expires: None };
        for (name, own) in secrets {
            let same = newest.get(name).filter(|newest| newest.version == own.version);
            if newest.contains_key(name) && same.is_none() {
                state.changed.push(name.clone());
            }
            // A renewed secret expires later than the process's copy says.
            let expires = same.unwrap_or(own).expires();
            state.expires = [state.expires, expires].into_iter().flatten().min();
        }
        state
    }
}

impl Offered {
    /// The response to the harness's own handshake.
    pub(crate) fn on_handshake(&mut self, message: &[u8], body: Option<Range<usize>>) {
        self.agreed = agreement(message, body);
        self.handshakes += 1;
        self.tools = None;
    }

    /// The response to the harness's own `tools/list`.
    pub(crate) fn on_tool_list(&mut self, message: &[u8], body: Option<Range<usize>>) {
        let listed = body.and_then(|result| ToolFingerprint::of_first_page(message, result));
        // The first page adds nothing to a list that is already known as a whole.
        if listed.is_some_and(ToolFingerprint::is_complete) || self.tools.is_none() {
            self.tools = listed;
        }
    }

    pub(crate) fn forget_tools(&mut self) {
        (self.tools, self.listing) = (None, None);
    }
}

impl Attempts {
    pub(crate) fn record_success(&mut self) {
        self.backoff.reset();
        self.failure = None;
    }

    /// Records why an attempt failed; returns the wait until the next one.
    pub(crate) fn record_failure(&mut self, why: &str) -> Duration {
        let wait = self.backoff.next_delay();
        self.not_before = Instant::now() + wait;
        self.failure = Some(format!("not replaced: {why}"));
        wait
    }

    /// Whether one more successor may be started.
    pub(crate) fn allows_start(&mut self, now: Instant) -> bool {
        let allows = self.limit.allows(now);
        if !allows {
            self.not_before = now + FIRST_WAIT;
        }
        allows
    }
}

fn next_change(mut receiver: watch::Receiver<u64>) -> Change {
    Box::pin(async move {
        match receiver.changed().await {
            Ok(()) => receiver,
            // The session has ended, and this slot with it.
            Err(_) => pending().await,
        }
    })
}
