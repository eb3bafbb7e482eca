//! The one place that revokes tokens of sessions: released ones, those of a session that ends, and those that an
//! earlier sidecar left behind, its login's token included.
//!
//! | module | what it is for |
//! |---|---|
//! | `report` | the report on the end of a session |
//!
//! What must stay true: a token is revoked soon after it is released, and its lease with it; a lease is reported as
//! revoked only after a look-up found nothing; the end of a session is reported before its deadline, with a reason for
//! everything pending; a failed revocation is retried until the token is gone or has expired, or the sidecar stops, and
//! in that case its accessor is on disk; the number of concurrent requests is bounded.

mod report;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_base::Backoff;
use cofferdam_base::metrics::{self, Revocation};
use futures_util::{StreamExt, stream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::accessor_files::{AccessorFiles, AccessorOwner, LeftoverToken};
use crate::api::Vault;
use crate::error::Kind;
use crate::login::Login;
use crate::session_token::{IssuedToken, OutstandingToken, ReleasedToken, SecretLease};
use crate::token::Accessor;
pub use report::{LeaseEnd, Outcome, Revoked};

/// Concurrent revocations of released tokens, of all sessions.
const MAX_CONCURRENT_RELEASED: usize = 8;
/// Concurrent requests for one session that has ended.
const MAX_CONCURRENT_ENDED: usize = 16;

/// The first and the longest pause between two attempts.
type Pauses = (Duration, Duration);
const RELEASED_PAUSES: Pauses = (Duration::from_millis(250), Duration::from_secs(30));
const ENDED_SESSION_PAUSES: Pauses = (Duration::from_millis(50), Duration::from_secs(30));
const LEFTOVER_PAUSES: Pauses = (Duration::from_secs(1), Duration::from_secs(60));

pub(crate) struct Revoker {
    vault: Vault,
    login: Login,
    accessors: Arc<AccessorFiles>,
    /// Handles send their token here when they are dropped.
    released: mpsc::UnboundedSender<ReleasedToken>,
    /// Cancelled when the sidecar stops: failed revocations are then not retried any more.
    stop: CancellationToken,
}

/// One token to revoke, and the lease that ends with it.
struct PendingRevocation {
    token: Arc<IssuedToken>,
    lease: Option<SecretLease>,
    step: Step,
    /// Why the last attempt at this step failed.
    reason: Option<String>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    RevokeToken,
    LookUpLease,
    Done,
}

/// The pauses between attempts to revoke tokens that expire at `expires`.
struct Retries {
    backoff: Backoff,
    expires: Option<Instant>,
    stop: CancellationToken,
}

/// Why there is no further attempt.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum RetriesEnded {
    Expired,
    Stopped,
}

impl Revoker {
    /// Starts to revoke released tokens, and those that an earlier sidecar left behind.
    pub(crate) fn start(
        vault: Vault,
        login: Login,
        (accessors, leftover): (Arc<AccessorFiles>, Vec<LeftoverToken>),
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let (released, receiver) = mpsc::unbounded_channel();
        let revoker = Arc::new(Self { vault, login, accessors, released, stop });
        tasks.spawn(Arc::clone(&revoker).revoke_released(receiver, tasks.clone()));
        if !leftover.is_empty() {
            tracing::warn!(tokens = leftover.len(), "an earlier sidecar left Vault tokens behind");
            tasks.spawn(Arc::clone(&revoker).revoke_leftover(leftover));
        }
        revoker
    }

    /// The channel to which a handle sends its token when it is dropped.
    pub(crate) fn released(&self) -> &mpsc::UnboundedSender<ReleasedToken> {
        &self.released
    }

    /// Writes an accessor to disk, so that the next sidecar can revoke its token after a crash. Blocks.
    pub(crate) fn store_accessor(&self, accessor: &Accessor, session: &str) -> io::Result<()> {
        self.accessors.write(accessor, AccessorOwner::Session(session))
    }

    /// Revokes the tokens of a session that has ended. The report is sent after every step.
    pub(crate) async fn revoke_session(
        &self,
        tokens: Vec<OutstandingToken>,
        began: Instant,
        report: &watch::Sender<Option<Revoked>>,
    ) {
        let last_expiry = tokens.iter().map(|one| one.token.expires).max().flatten();
        let mut retries = self.retries(ENDED_SESSION_PAUSES, last_expiry);
        let mut revoked = Revoked::all_pending(tokens.iter().filter_map(|one| one.lease.as_ref()));
        report.send_replace(Some(revoked.clone()));
        let mut pending: Vec<PendingRevocation> = tokens.into_iter().map(PendingRevocation::from).collect();
        loop {
            // All tokens first: Vault revokes the leases of the first ones meanwhile.
            let each = |one| self.revoke_token(one);
            stream::iter(&mut pending).for_each_concurrent(MAX_CONCURRENT_ENDED, each).await;
            if revoked.token.is_pending() {
                let failed = pending.iter().find(|one| one.step == Step::RevokeToken);
                revoked.token = Outcome::new(failed.and_then(|one| one.reason.as_deref()), began.elapsed());
                report.send_replace(Some(revoked.clone()));
            }
            let each = |one| self.look_up_lease(one);
            stream::iter(&mut pending).for_each_concurrent(MAX_CONCURRENT_ENDED, each).await;
            for one in &pending {
                let reason = match one.step {
                    Step::RevokeToken => Some("its token is not revoked yet"),
                    Step::LookUpLease | Step::Done => one.reason.as_deref(),
                };
                if let Some(lease) = &one.lease {
                    revoked.set_lease(lease, Outcome::new(reason, began.elapsed()));
                }
            }
            report.send_replace(Some(revoked.clone()));
            pending.retain(|one| one.step != Step::Done);
            if pending.is_empty() {
                let (leases, took) = (revoked.leases.len(), began.elapsed());
                metrics::vault().observe_time_to_revoke(took);
                tracing::info!(leases, ?took, "a session's credentials in Vault are revoked");
                return;
            }
            match retries.pause().await {
                Ok(()) => continue,
                Err(RetriesEnded::Expired) => {
                    let expired = pending.iter().filter(|one| one.step == Step::RevokeToken).count();
                    for _ in 0..expired {
                        metrics::vault().count_revocation(Revocation::Expired);
                    }
                    tracing::warn!(
                        tokens = expired,
                        "Vault tokens of a session expired before they could be revoked"
                    );
                }
                Err(RetriesEnded::Stopped) => {
                    tracing::warn!(
                        "stopping before a session's credentials are revoked; the next sidecar revokes them"
                    );
                }
            }
            return;
        }
    }

    /// Looks the lease up with the login's token. An error says why the lease may still exist.
    pub(crate) async fn confirm_gone(&self, lease: &SecretLease) -> Result<(), String> {
        let login = self.login.current().await.map_err(|error| error.explained())?;
        match self.vault.lookup_lease(&login.token, &lease.id).await {
            Ok(_) => Err("Vault is still revoking it".into()),
            Err(error) if error.kind() == Kind::Gone => Ok(()),
            Err(error) => Err(format!("it cannot be looked up: {}", error.explained())),
        }
    }

    async fn revoke_released(
        self: Arc<Self>,
        mut released: mpsc::UnboundedReceiver<ReleasedToken>,
        tasks: TaskTracker,
    ) {
        let permits = Arc::new(Semaphore::new(MAX_CONCURRENT_RELEASED));
        while let Some(Some(token)) = self.stop.run_until_cancelled(released.recv()).await {
            let (revoker, permits) = (Arc::clone(&self), Arc::clone(&permits));
            tasks.spawn(async move {
                let stop = revoker.stop.clone();
                stop.run_until_cancelled(revoker.revoke_one_released(token, &permits)).await;
            });
        }
    }

    async fn revoke_one_released(&self, released: ReleasedToken, permits: &Semaphore) {
        let ReleasedToken { token, outstanding } = released;
        let number = token.number;
        let mut retries = self.retries(RELEASED_PAUSES, token.expires);
        let mut pending = PendingRevocation::from(OutstandingToken { token, lease: None });
        // A token that is not listed any more is revoked and reported by the end of its session.
        while let Some(listed) = outstanding.find(number) {
            pending.lease = listed.lease;
            {
                let _permit = permits.acquire().await;
                self.revoke_token(&mut pending).await;
                self.look_up_lease(&mut pending).await;
            }
            let Some(reason) = &pending.reason else {
                tracing::debug!(number, "revoked a released Vault token");
                outstanding.remove(number);
                return;
            };
            tracing::info!(number, reason, "a released Vault token is not revoked yet");
            match retries.pause().await {
                Ok(()) => {}
                Err(RetriesEnded::Expired) => {
                    metrics::vault().count_revocation(Revocation::Expired);
                    tracing::warn!(number, "a released Vault token expired before it could be revoked");
                    outstanding.remove(number);
                    return;
                }
                Err(RetriesEnded::Stopped) => return,
            }
        }
    }

    async fn revoke_leftover(self: Arc<Self>, mut leftover: Vec<LeftoverToken>) {
        let mut retries = self.retries(LEFTOVER_PAUSES, None);
        loop {
            let mut remaining = Vec::new();
            for token in leftover {
                let session = token.session.as_deref().unwrap_or("none: the sidecar's login");
                match self.revoke_by_accessor(&token.accessor).await {
                    Ok(()) => {
                        tracing::info!(session, "revoked a Vault token that was left behind");
                        token.remove_file();
                    }
                    Err(reason) => {
                        tracing::warn!(
                            session,
                            reason,
                            "a Vault token that was left behind is not revoked yet"
                        );
                        remaining.push(token);
                    }
                }
            }
            leftover = remaining;
            if leftover.is_empty() || retries.pause().await.is_err() {
                return;
            }
        }
    }

    /// The first step; does nothing if it is done.
    async fn revoke_token(&self, pending: &mut PendingRevocation) {
        if pending.step == Step::RevokeToken {
            let revoked = self.revoke(&pending.token).await;
            pending.advance(revoked, Step::LookUpLease);
        }
    }

    /// The second step; does nothing before the first or if it is done.
    async fn look_up_lease(&self, pending: &mut PendingRevocation) {
        if pending.step == Step::LookUpLease {
            let gone = match &pending.lease {
                Some(lease) => self.confirm_gone(lease).await,
                None => Ok(()),
            };
            pending.advance(gone, Step::Done);
        }
    }

    async fn revoke(&self, token: &IssuedToken) -> Result<(), String> {
        match self.vault.revoke_self(&token.token).await {
            Ok(()) => {}
            // The token is revoked already, or its policies do not allow it to revoke itself.
            Err(error) if error.kind() == Kind::Denied => match &token.accessor {
                Some(accessor) => self.revoke_by_accessor(accessor).await?,
                None => return Err(error.explained()),
            },
            Err(error) => return Err(error.explained()),
        }
        metrics::vault().count_revocation(Revocation::Revoked);
        if let Some(accessor) = &token.accessor {
            self.accessors.remove(accessor);
        }
        Ok(())
    }

    /// Also succeeds if Vault has no such accessor: then its token is gone.
    async fn revoke_by_accessor(&self, accessor: &Accessor) -> Result<(), String> {
        let login = self.login.current().await.map_err(|error| error.explained())?;
        match self.vault.revoke_accessor(&login.token, accessor).await {
            Ok(()) => Ok(()),
            Err(error) if matches!(error.kind(), Kind::Gone | Kind::Invalid | Kind::Missing) => Ok(()),
            Err(error) => Err(error.explained()),
        }
    }

    fn retries(&self, (first, longest): Pauses, expires: Option<Instant>) -> Retries {
        Retries { backoff: Backoff::new(first, longest), expires, stop: self.stop.clone() }
    }
}

impl Retries {
    /// Waits before the next attempt, or returns why there is none.
    async fn pause(&mut self) -> Result<(), RetriesEnded> {
        if self.expires.is_some_and(|end| end < Instant::now()) {
            return Err(RetriesEnded::Expired);
        }
        let pause = sleep(self.backoff.next_delay());
        self.stop.run_until_cancelled(pause).await.ok_or(RetriesEnded::Stopped)
    }
}

impl PendingRevocation {
    /// Goes on to `next` if the current step succeeded.
    fn advance(&mut self, result: Result<(), String>, next: Step) {
        if result.is_ok() {
            self.step = next;
        }
        self.reason = result.err();
    }
}

impl From<OutstandingToken> for PendingRevocation {
    fn from(OutstandingToken { token, lease }: OutstandingToken) -> Self {
        Self { token, lease, step: Step::RevokeToken, reason: None }
    }
}
