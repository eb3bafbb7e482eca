//! How many server processes the links of one grant may have, and how often they may start one or open a link.
//!
//! A sandbox that connects, calls and dies in a loop must not pile up processes, nor keep the host busy starting them.

use std::sync::{Arc, Mutex};

use cofferdam_base::RateLimiter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Bounds of one grant.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GrantBounds {
    /// Server processes at the same time.
    pub processes: usize,
    pub links_per_minute: u32,
    pub starts_per_minute: u32,
}

pub struct GrantLimits {
    max_processes: usize,
    permits: Arc<Semaphore>,
    links: Mutex<RateLimiter>,
    starts: Mutex<RateLimiter>,
}

/// Permission for one process; released when this is dropped.
#[derive(Debug)]
pub struct ProcessPermit {
    _permit: OwnedSemaphorePermit,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum LimitReached {
    #[error("the grant opened as many links within a minute as `limits.links-per-minute` allows")]
    Links,
    #[error("the grant has as many server processes as `limits.processes` allows")]
    Processes,
    #[error("the grant started as many servers within a minute as `limits.starts-per-minute` allows")]
    Starts,
}

impl GrantLimits {
    pub fn new(limits: GrantBounds) -> Self {
        Self {
            max_processes: limits.processes,
            permits: Arc::new(Semaphore::new(limits.processes)),
            links: Mutex::new(RateLimiter::per_minute(limits.links_per_minute)),
            starts: Mutex::new(RateLimiter::per_minute(limits.starts_per_minute)),
        }
    }

    /// How many processes the grant has now.
    pub fn processes(&self) -> usize {
        self.max_processes.saturating_sub(self.permits.available_permits())
    }

    /// Admits one more link. Links are limited because each writes audit records, even without a call.
    pub fn admit_link(&self) -> Result<(), LimitReached> {
        match self.links.lock().expect("no holder of this lock panics").allows(Instant::now()) {
            true => Ok(()),
            false => Err(LimitReached::Links),
        }
    }

    /// Admits one process, without waiting: a wait here would block the caller's link.
    pub fn admit_process(&self) -> Result<ProcessPermit, LimitReached> {
        let permit = self.admit_successor()?;
        match self.starts.lock().expect("no holder of this lock panics").allows(Instant::now()) {
            true => Ok(permit),
            false => Err(LimitReached::Starts),
        }
    }

    /// Admits a process that takes over from another. Its start is not counted: a changed credential causes it, not
    /// the sandbox. So short leases do not use up the starts of the grant, and a sandbox that uses up those starts
    /// does not keep other sandboxes of the grant from getting new credentials.
    pub fn admit_successor(&self) -> Result<ProcessPermit, LimitReached> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().map_err(|_| LimitReached::Processes)?;
        Ok(ProcessPermit { _permit: permit })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn permits_are_released_when_dropped_and_starts_are_limited_per_minute() {
        let limits =
            GrantLimits::new(GrantBounds { processes: 1, starts_per_minute: 2, links_per_minute: 1 });
        let first = limits.admit_process().unwrap();
        assert_eq!(limits.admit_process().unwrap_err(), LimitReached::Processes);
        drop(first);
        drop(limits.admit_process().unwrap());
        assert_eq!(limits.admit_process().unwrap_err(), LimitReached::Starts);
        let successor = limits.admit_successor().unwrap();
        assert_eq!(limits.admit_successor().unwrap_err(), LimitReached::Processes);
        drop(successor);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(limits.admit_process().is_ok());
    }
}
