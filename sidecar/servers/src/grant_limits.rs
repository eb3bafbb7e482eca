//! How many server processes the sandboxes of one grant may have, and how often they may start one or open a link.
//!
//! A sandbox that connects, calls and dies in a loop must not pile up processes, nor keep the host busy starting them, nor
//! take all places of its grant: each limit is shared fairly among the grant's sandboxes (see [`FairShare`]).
//!
//! What must stay true: the counters belong to the enrolment, or to the user of the shared socket, so that a new session
//! does not get a new share; a place is released when its process has ended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cofferdam_base::{FairRateLimiter, FairShare, LimitOwner, ShareRefused};
use tokio::time::Instant;

/// Bounds of one grant.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GrantBounds {
    /// Server processes at the same time.
    pub processes: usize,
    pub links_per_minute: u32,
    pub starts_per_minute: u32,
}

/// The counters of one grant.
pub struct GrantLimits {
    processes: Mutex<FairShare>,
    links: Mutex<FairRateLimiter>,
    starts: Mutex<FairRateLimiter>,
}

/// The limits of a grant, as they apply to one of its sandboxes.
#[derive(Clone)]
pub struct SandboxLimits {
    grant: Arc<GrantLimits>,
    owner: LimitOwner,
}

/// Permission for one process; released when this is dropped.
pub struct ProcessPermit {
    sandbox: SandboxLimits,
}

/// A limit of the grant that allows no more, to this sandbox or to any.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum LimitReached {
    #[error(
        "the sandboxes of this grant opened as many links within a minute as `limits.links-per-minute` allows; try again in a minute"
    )]
    Links,
    #[error(
        "this sandbox opened its share of the new links within a minute that `limits.links-per-minute` allows the grant; try again in a minute"
    )]
    LinksOfSandbox,
    #[error(
        "the sandboxes of this grant have as many server processes as `limits.processes` allows; try again when some have ended"
    )]
    Processes,
    #[error(
        "this sandbox has its share of the server processes that `limits.processes` allows the grant; end some of its harnesses or servers first"
    )]
    ProcessesOfSandbox,
    #[error(
        "the sandboxes of this grant started as many servers within a minute as `limits.starts-per-minute` allows; try again in a minute"
    )]
    Starts,
    #[error(
        "this sandbox made its share of the server starts within a minute that `limits.starts-per-minute` allows the grant; try again in a minute"
    )]
    StartsOfSandbox,
}

impl GrantLimits {
    pub fn new(bounds: GrantBounds) -> Self {
        Self {
            processes: Mutex::new(FairShare::new(bounds.processes)),
            links: Mutex::new(FairRateLimiter::per_minute(bounds.links_per_minute)),
            starts: Mutex::new(FairRateLimiter::per_minute(bounds.starts_per_minute)),
        }
    }

    /// How many processes the grant has now.
    pub fn processes(&self) -> usize {
        lock(&self.processes).taken()
    }

    /// These limits, as they apply to one sandbox.
    pub fn of_sandbox(self: &Arc<Self>, owner: LimitOwner) -> SandboxLimits {
        SandboxLimits { grant: Arc::clone(self), owner }
    }
}

impl SandboxLimits {
    /// Admits one more link. Links are limited because each writes audit records, even without a call.
    pub fn admit_link(&self) -> Result<(), LimitReached> {
        lock(&self.grant.links).admit(&self.owner, Instant::now()).map_err(|refused| match refused {
            ShareRefused::AllTaken => LimitReached::Links,
            ShareRefused::OwnShare => LimitReached::LinksOfSandbox,
        })
    }

    /// Admits one process, without waiting: a wait here would block the caller's link.
    pub fn admit_process(&self) -> Result<ProcessPermit, LimitReached> {
        let permit = self.permit(lock(&self.grant.processes).take(&self.owner))?;
        match lock(&self.grant.starts).admit(&self.owner, Instant::now()) {
            Ok(()) => Ok(permit),
            Err(ShareRefused::AllTaken) => Err(LimitReached::Starts),
            Err(ShareRefused::OwnShare) => Err(LimitReached::StartsOfSandbox),
        }
    }

    /// Admits a process that takes over from another. Its start is not counted: a changed credential causes it, not
    /// the sandbox. So short leases do not use up the starts of the grant, and a sandbox that uses up those starts
    /// does not keep other sandboxes of the grant from getting new credentials. It may exceed the sandbox's share,
    /// because the process that it takes over from ends, but it does not use the places kept for other sandboxes.
    pub fn admit_successor(&self) -> Result<ProcessPermit, LimitReached> {
        self.permit(lock(&self.grant.processes).take_beyond_share(&self.owner))
    }

    fn permit(&self, taken: Result<(), ShareRefused>) -> Result<ProcessPermit, LimitReached> {
        match taken {
            Ok(()) => Ok(ProcessPermit { sandbox: self.clone() }),
            Err(ShareRefused::AllTaken) => Err(LimitReached::Processes),
            Err(ShareRefused::OwnShare) => Err(LimitReached::ProcessesOfSandbox),
        }
    }
}

impl Drop for ProcessPermit {
    fn drop(&mut self) {
        lock(&self.sandbox.grant.processes).release(&self.sandbox.owner);
    }
}

/// Ignores poisoning: no holder of these locks can panic halfway through a change.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn sandbox(grant: &Arc<GrantLimits>, id: &str) -> SandboxLimits {
        grant.of_sandbox(LimitOwner::Enrolment(id.into()))
    }

    #[tokio::test(start_paused = true)]
    async fn permits_are_released_when_dropped_and_starts_are_limited_per_minute() {
        let bounds = GrantBounds { processes: 1, starts_per_minute: 2, links_per_minute: 1 };
        let grant = Arc::new(GrantLimits::new(bounds));
        let (one, other) = (sandbox(&grant, "e1"), sandbox(&grant, "e2"));
        let first = one.admit_process().expect("a place is free");
        assert_eq!(other.admit_process().err(), Some(LimitReached::Processes));
        assert_eq!(one.admit_successor().err(), Some(LimitReached::Processes));
        drop(first);
        assert_eq!(one.admit_process().err(), Some(LimitReached::StartsOfSandbox));
        drop(other.admit_process().expect("the place was released"));
        assert_eq!(other.admit_process().err(), Some(LimitReached::Starts));
        drop(one.admit_successor().expect("a successor's start is not counted"));
        assert_eq!(grant.processes(), 0);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(one.admit_process().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_greedy_sandbox_leaves_places_for_the_others() {
        let bounds = GrantBounds { processes: 16, starts_per_minute: 1000, links_per_minute: 16 };
        let grant = Arc::new(GrantLimits::new(bounds));
        let (greedy, other) = (sandbox(&grant, "e1"), sandbox(&grant, "e2"));
        let mut held: Vec<ProcessPermit> =
            std::iter::from_fn(|| greedy.admit_process().ok()).take(100).collect();
        assert_eq!(greedy.admit_process().err(), Some(LimitReached::ProcessesOfSandbox));
        held.extend(std::iter::from_fn(|| greedy.admit_successor().ok()).take(100));
        assert!(other.admit_process().is_ok(), "{} of 16 are held by one", held.len());
        while greedy.admit_link().is_ok() {}
        assert_eq!(greedy.admit_link(), Err(LimitReached::LinksOfSandbox));
        assert_eq!(other.admit_link(), Ok(()));
    }
}
