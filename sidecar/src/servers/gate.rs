//! How many server processes one grant may have, and how often it may start one or open a link.
//!
//! A sandbox that connects, calls and dies in a loop must not pile up processes, nor keep the host busy starting them.

use std::sync::{Arc, Mutex};

use cofferdam_base::RateLimiter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Bounds of one grant.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct GateLimits {
    /// At once.
    pub(crate) processes: usize,
    pub(crate) links_per_minute: u32,
    pub(crate) starts_per_minute: u32,
}

pub(crate) struct Gate {
    limit: usize,
    places: Arc<Semaphore>,
    links: Mutex<RateLimiter>,
    starts: Mutex<RateLimiter>,
}

/// A place for one process; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    _permit: OwnedSemaphorePermit,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum Crowded {
    #[error("the grant opened as many links within a minute as `limits.links-per-minute` allows")]
    Links,
    #[error("the grant has as many server processes as `limits.processes` allows")]
    Processes,
    #[error("the grant started as many servers within a minute as `limits.starts-per-minute` allows")]
    Starts,
}

impl Gate {
    pub(crate) fn new(limits: GateLimits) -> Self {
        Self {
            limit: limits.processes,
            places: Arc::new(Semaphore::new(limits.processes)),
            links: Mutex::new(RateLimiter::per_minute(limits.links_per_minute)),
            starts: Mutex::new(RateLimiter::per_minute(limits.starts_per_minute)),
        }
    }

    /// How many there are now.
    pub(crate) fn processes(&self) -> usize {
        self.limit.saturating_sub(self.places.available_permits())
    }

    /// One more link: each costs records in the audit, whether it calls anything or not.
    pub(crate) fn admit_link(&self) -> Result<(), Crowded> {
        match self.links.lock().expect("no holder of this lock panics").allows(Instant::now()) {
            true => Ok(()),
            false => Err(Crowded::Links),
        }
    }

    /// A place for a process, at once or not at all: waiting here would hold up the caller's own link.
    pub(crate) fn enter(&self) -> Result<Place, Crowded> {
        let place = self.enter_beside()?;
        match self.starts.lock().expect("no holder of this lock panics").allows(Instant::now()) {
            true => Ok(place),
            false => Err(Crowded::Starts),
        }
    }

    /// A place for a process that takes over from another. Its start is not counted: it is not the sandbox that wants
    /// it but the end of a credential. Short leases must not use up what sandboxes may start, nor may a sandbox that
    /// starts all it can keep the others of its grant from getting their new credentials.
    pub(crate) fn enter_beside(&self) -> Result<Place, Crowded> {
        let permit = Arc::clone(&self.places).try_acquire_owned().map_err(|_| Crowded::Processes)?;
        Ok(Place { _permit: permit })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn places_come_back_and_starts_are_counted_by_the_minute() {
        let gate = Gate::new(GateLimits { processes: 1, starts_per_minute: 2, links_per_minute: 1 });
        let first = gate.enter().unwrap();
        assert_eq!(gate.enter().unwrap_err(), Crowded::Processes);
        drop(first);
        drop(gate.enter().unwrap());
        assert_eq!(gate.enter().unwrap_err(), Crowded::Starts);
        let successor = gate.enter_beside().unwrap();
        assert_eq!(gate.enter_beside().unwrap_err(), Crowded::Processes);
        drop(successor);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(gate.enter().is_ok());
    }
}
