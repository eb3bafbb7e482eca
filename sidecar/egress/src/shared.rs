//! What the tasks of one server's network have in common: the plan, the limits and what was used of them.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_base::RateLimiter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::event::{Ending, LimitReached, Observer, Peer, Refusal, Reports, Traffic};
use crate::limits::Limits;
use crate::lookups::BoundedLookups;
use crate::names::NameTable;
use crate::plan::{Plan, Route};

/// How many directions of a server's connections have a large buffer at a time: 4 MiB of the sidecar's memory.
const LARGE_BUFFERS: usize = 8;

pub(crate) struct Shared {
    pub(crate) plan: Plan,
    pub(crate) limits: Limits,
    pub(crate) lookups: BoundedLookups,
    reports: Reports,
    names: Mutex<NameTable>,
    slots: Arc<Semaphore>,
    large_buffers: Semaphore,
    rate: Mutex<RateLimiter>,
    connections: AtomicU64,
    refusals: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

/// What a server has used of the network so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Usage {
    /// Connections that were made.
    pub connections: u64,
    /// Connections that are open or being made.
    pub open: u64,
    pub refusals: u64,
    pub traffic: Traffic,
}

/// A connection's place among those that a server may have at once.
pub(crate) struct ConnectionSlot(
    #[expect(dead_code, reason = "held until the connection ends")] OwnedSemaphorePermit,
);

impl Shared {
    pub(crate) fn new(
        plan: Plan,
        limits: Limits,
        lookups: BoundedLookups,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self {
            names: Mutex::new(NameTable::new(plan.pool(), plan.names().to_vec())),
            slots: Arc::new(Semaphore::new(limits.connections)),
            large_buffers: Semaphore::new(LARGE_BUFFERS),
            rate: Mutex::new(RateLimiter::per_second(limits.connections_per_second)),
            connections: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            reports: Reports::new(observer),
            lookups,
            limits,
            plan,
        }
    }

    /// Whether the server may have another connection now. It counts from here on.
    pub(crate) fn admit(&self) -> Result<ConnectionSlot, LimitReached> {
        let slot = self.slots.clone().try_acquire_owned().map_err(|_| LimitReached::Connections)?;
        if !self.rate.lock().unwrap_or_else(PoisonError::into_inner).allows(Instant::now()) {
            return Err(LimitReached::ConnectionsPerSecond);
        }
        match self.limits.bytes {
            Some(limit) if self.traffic().total() >= limit => Err(LimitReached::Bytes),
            _ => Ok(ConnectionSlot(slot)),
        }
    }

    /// What a connection that was accepted at this address may be connected to.
    pub(crate) fn route(&self, local: SocketAddr) -> Result<Route, Refusal> {
        let name = match local.ip().to_canonical() {
            IpAddr::V4(address) => self.names().name_at(address, Instant::now()),
            IpAddr::V6(_) => None,
        };
        match name {
            Some(name) => self.plan.route_to_name(name, local.port()),
            None => self.plan.route_to_address(local),
        }
    }

    /// Permission to use a large buffer until it is dropped; `None` if enough are in use.
    pub(crate) fn large_buffer(&self) -> Option<SemaphorePermit<'_>> {
        self.large_buffers.try_acquire().ok()
    }

    pub(crate) fn names(&self) -> MutexGuard<'_, NameTable> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection was made.
    pub(crate) fn opened(&self, peer: Peer) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.reports.opened(peer);
    }

    pub(crate) fn closed(&self, peer: Peer, traffic: Traffic, duration: Duration, ending: Ending) {
        self.reports.closed(peer, traffic, duration, ending);
    }

    pub(crate) fn failed(&self, peer: Peer, error: String) {
        self.reports.failed(peer, error);
    }

    pub(crate) fn refused(&self, refusal: Refusal) {
        self.refusals.fetch_add(1, Ordering::Relaxed);
        self.reports.refused(refusal);
    }

    /// Counts bytes that are about to be passed on; fails if they are beyond the server's limit.
    pub(crate) fn count(&self, bytes: Traffic) -> Result<(), LimitReached> {
        self.sent.fetch_add(bytes.sent, Ordering::Relaxed);
        self.received.fetch_add(bytes.received, Ordering::Relaxed);
        match self.limits.bytes {
            Some(limit) if self.traffic().total() > limit => Err(LimitReached::Bytes),
            _ => Ok(()),
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            connections: self.connections.load(Ordering::Relaxed),
            open: self.limits.connections.saturating_sub(self.slots.available_permits()) as u64,
            refusals: self.refusals.load(Ordering::Relaxed),
            traffic: self.traffic(),
        }
    }

    fn traffic(&self) -> Traffic {
        Traffic { sent: self.sent.load(Ordering::Relaxed), received: self.received.load(Ordering::Relaxed) }
    }
}
