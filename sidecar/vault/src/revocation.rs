//! The end of what a session had in Vault: its tokens revoked, each lease looked up until Vault does not know it.
//!
//! What must stay true: the caller is told within its time what is revoked and what is pending, and why; "revoked" is
//! said of a lease only after a lookup found nothing; what is pending is followed up until it is gone, expired by itself,
//! or the sidecar stops, and then its accessor is on disk for the next start.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_base::Backoff;
use cofferdam_base::metrics::{self, Revocation};
use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use crate::access::Access;
use crate::error::Kind;
use crate::lent::{HeldLease, Issued};
use crate::session::{GivenUp, Left, SessionVault};

/// Revocations of one session under way at once.
const AT_ONCE: usize = 16;
/// Between two looks: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What became of a session's credentials in Vault.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Revoked {
    pub token: Outcome,
    pub leases: Vec<LeaseEnd>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LeaseEnd {
    pub secret: String,
    /// A hash of its id, as in the audit.
    pub lease: String,
    pub outcome: Outcome,
}

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Pending { reason: String },
    Revoked { after_ms: u64 },
}

impl SessionVault {
    /// Ends what the session has given up, and says at `deadline` at the latest what became of it. None where there was
    /// nothing.
    pub async fn end(&self, deadline: Instant) -> Option<Revoked> {
        let (report, mut seen) = watch::channel(None);
        let this = self.clone();
        self.inner().access.tasks.spawn(async move { this.revoke(&report).await });
        // The sender is gone when all is done.
        let all = async { while seen.changed().await.is_ok() {} };
        let _ = timeout_at(deadline, all).await;
        seen.borrow_and_update().clone()
    }

    /// A link that failed has left, and nothing waits for the result.
    pub fn abandon(&self) {
        if self.leave() == Left::Last {
            let this = self.clone();
            self.inner().access.tasks.spawn(async move { this.revoke(&watch::Sender::default()).await });
        }
    }

    async fn revoke(&self, report: &watch::Sender<Option<Revoked>>) {
        let began = Instant::now();
        let inner = self.inner();
        let given_up = inner.give_up().await;
        if given_up.is_empty() {
            return;
        }
        let waiting = || Outcome::Pending { reason: "Vault has not answered yet".into() };
        let leases = given_up.iter().filter_map(|one| one.lease.as_ref());
        let mut revoked =
            Revoked { token: waiting(), leases: leases.map(|lease| lease.end(waiting())).collect() };
        report.send_replace(Some(revoked.clone()));
        let mut pending: Vec<Pending> = given_up.into_iter().map(Pending::from).collect();
        let last = pending.iter().map(|one| one.token.expires).max().flatten();
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let done = || Outcome::Revoked { after_ms: began.elapsed().as_millis() as u64 };
            // All tokens first: each takes its lease with it, which Vault sees to while the others go.
            let (tokens, rest) = pending.into_iter().partition(|one| one.step == Step::Token);
            let tokens: Vec<Pending> = in_parallel(tokens, |one: Pending| one.end_token(&inner.access)).await;
            if revoked.token.is_pending() {
                let reason = tokens.iter().find_map(|one| one.reason.clone());
                revoked.token = reason.map_or_else(done, |reason| Outcome::Pending { reason });
            }
            report.send_replace(Some(revoked.clone()));
            let looked = |one: Pending| one.look(&inner.access);
            pending = in_parallel(rest.into_iter().chain(tokens).collect(), looked).await;
            for one in &pending {
                let end = one.lease.as_ref().map(|lease| lease.id.hash());
                if let Some(end) = revoked.leases.iter_mut().find(|known| Some(&known.lease) == end.as_ref())
                {
                    end.outcome = one.reason.clone().map_or_else(done, |reason| Outcome::Pending { reason });
                }
            }
            pending.retain(|one| one.step != Step::Done);
            report.send_replace(Some(revoked.clone()));
            if pending.is_empty() {
                metrics::vault().session_revoked(began.elapsed());
                tracing::info!(leases = revoked.leases.len(), took = ?began.elapsed(), "a session's credentials in Vault are revoked");
                return;
            }
            if last.is_some_and(|last| last < Instant::now()) {
                metrics::vault().revocation(Revocation::Expired);
                tracing::warn!("a session's Vault token was not revoked and has expired by itself");
                return;
            }
            if inner.access.stop.run_until_cancelled(sleep(backoff.next_delay())).await.is_none() {
                tracing::warn!(
                    "the sidecar stops before all credentials of a session are revoked; the next start goes on"
                );
                return;
            }
        }
    }
}

/// One token on its way out, with its lease.
struct Pending {
    token: Arc<Issued>,
    lease: Option<HeldLease>,
    step: Step,
    /// Why it is not done yet.
    reason: Option<String>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    /// The token is to be revoked.
    Token,
    /// It is; Vault is asked whether its lease is gone.
    Lease,
    Done,
}

impl Pending {
    async fn end_token(mut self, access: &Access) -> Self {
        self.reason = access.revoke(&self.token).await.err();
        if self.reason.is_none() {
            self.step = if self.lease.is_some() { Step::Lease } else { Step::Done };
        }
        self
    }

    async fn look(mut self, access: &Access) -> Self {
        match (self.step, &self.lease) {
            (Step::Lease, Some(lease)) => {
                self.reason = access.is_gone(lease).await.err();
                if self.reason.is_none() {
                    self.step = Step::Done;
                }
            }
            (Step::Token, _) => self.reason = Some("its token is not revoked yet".into()),
            _ => {}
        }
        self
    }
}

impl From<GivenUp> for Pending {
    fn from(GivenUp { token, lease }: GivenUp) -> Self {
        Self { token, lease, step: Step::Token, reason: None }
    }
}

/// So many at once, in order.
async fn in_parallel<F: Future<Output = Pending>>(
    these: Vec<Pending>,
    each: impl FnMut(Pending) -> F,
) -> Vec<Pending> {
    stream::iter(these).map(each).buffered(AT_ONCE).collect().await
}

impl Access {
    /// Ends a session's token; says why not.
    pub(crate) async fn revoke(&self, token: &Issued) -> Result<(), String> {
        match self.vault.revoke_self(&token.token).await {
            Ok(()) => {}
            // Dead already, or its policies do not let it end itself.
            Err(error) if error.kind() == Kind::Denied => match &token.accessor {
                Some(accessor) => self.revoke_by_accessor(accessor).await?,
                None => return Err(error.explained()),
            },
            Err(error) => return Err(error.explained()),
        }
        metrics::vault().revocation(Revocation::Revoked);
        if let Some(accessor) = &token.accessor {
            self.accessors.forget(accessor);
        }
        Ok(())
    }

    pub(crate) async fn is_gone(&self, lease: &HeldLease) -> Result<(), String> {
        let login = self.login.current().await.map_err(|error| error.explained())?;
        match self.vault.lookup_lease(&login.token, &lease.id).await {
            Ok(_) => Err("Vault is still revoking it".into()),
            Err(error) if error.kind() == Kind::Gone => Ok(()),
            Err(error) => Err(format!("it cannot be looked up: {}", error.explained())),
        }
    }
}

impl HeldLease {
    fn end(&self, outcome: Outcome) -> LeaseEnd {
        LeaseEnd { secret: self.secret.clone(), lease: self.id.hash(), outcome }
    }
}

impl Revoked {
    /// Lines for people.
    pub fn lines(&self) -> Vec<String> {
        let lease =
            |end: &LeaseEnd| format!("lease {} of `{}`: {}", end.lease, end.secret, end.outcome.told());
        let token = format!("Vault token: {}", self.token.told());
        std::iter::once(token).chain(self.leases.iter().map(lease)).collect()
    }

    /// One line for the audit.
    pub fn told(&self) -> String {
        let pending = self.leases.iter().filter(|end| end.outcome.is_pending()).count();
        let leases = self.leases.len();
        format!("Vault token {}; leases: {} revoked, {pending} pending", self.token.told(), leases - pending)
    }
}

impl Outcome {
    fn is_pending(&self) -> bool {
        matches!(self, Self::Pending { .. })
    }

    fn told(&self) -> String {
        match self {
            Self::Pending { reason } => format!("pending ({reason})"),
            Self::Revoked { after_ms } => format!("revoked after {after_ms} ms"),
        }
    }
}
