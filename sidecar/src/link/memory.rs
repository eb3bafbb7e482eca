//! The memory of one link, charged to its sandbox and to the sidecar.
//!
//! A new link is charged for its window, which its shim may use at any time, and for small buffers. What its buffers hold
//! beyond that is charged as they grow: bytes that the shim sends before it gets the credit for them, messages of servers
//! before they are read. At a ceiling the link gives no credit and reads no server until memory is released.
//!
//! What must stay true: a link that holds nothing beyond its opening charge always goes on, so that no sandbox stops the
//! small messages of another; an idle link, or one with small messages, changes no shared counter.

use std::sync::Arc;

use cofferdam_base::memory::{MEMORY_RETRY_DELAY, MemoryAccount, MemoryCharge};
use tokio::time::Instant;

use crate::config::{self, Limits};

pub(crate) struct LinkMemory {
    account: Arc<MemoryAccount>,
    /// The bytes that the shim may send unacknowledged.
    window: u64,
    /// For the window and [`SMALL_BUFFERS`], until the link ends.
    _opening: MemoryCharge,
    /// For what the link's buffers hold beyond that.
    held: MemoryCharge,
    room: MemoryRoom,
}

/// What the link may take more memory for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum MemoryRoom {
    /// For messages of the shim and of servers.
    Free,
    /// For messages of servers, but not for the rest of a message that the shim has sent in part.
    ForServers,
    /// For nothing beyond small messages: the link, its sandbox or the sidecar has reached its ceiling.
    None,
}

const SMALL_BUFFERS: usize = config::SMALL_BUFFERS as usize;
/// Read from servers, beyond what the link holds, before the charge is adjusted.
const READ_AHEAD: usize = 256 * 1024;
/// A link gets its full window while its sandbox and the sidecar use no more than one part in this many of their memory,
/// so that windows take up little of it.
const FULL_WINDOW_PARTS: usize = 8;

impl LinkMemory {
    /// Charges a new link to the account of its sandbox; `None` where that has reached its ceiling.
    pub(crate) fn open(sandbox: &Arc<MemoryAccount>, limits: &Limits) -> Option<Self> {
        let full = SMALL_BUFFERS + limits.window_bytes as usize;
        let window = match sandbox.would_use_at_most(full, FULL_WINDOW_PARTS) {
            true => limits.window_bytes,
            false => limits.window_bytes.min(config::SMALL_WINDOW),
        };
        let account = sandbox.child(limits.link_memory as usize);
        let mut opening = account.empty_charge();
        opening.try_grow_to(SMALL_BUFFERS + window as usize).then(|| Self {
            window,
            _opening: opening,
            held: account.empty_charge(),
            room: MemoryRoom::Free,
            account,
        })
    }

    pub(crate) fn account(&self) -> &Arc<MemoryAccount> {
        &self.account
    }

    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    /// Bytes charged to the link.
    pub(super) fn used(&self) -> usize {
        self.account.used()
    }

    /// Charges what the link's buffers hold, whatever the ceilings say: they hold it already.
    pub(super) fn count(&mut self, held: usize) {
        let held = held.saturating_sub(SMALL_BUFFERS);
        if held > self.held.bytes() {
            self.held.set(held);
        }
    }

    /// Charges what the buffers may hold before the next call: `held` bytes, `expected` bytes of a message that the shim has
    /// sent in part, and what is read from servers.
    pub(super) fn reserve(&mut self, held: usize, expected: usize) {
        let held = held.saturating_sub(SMALL_BUFFERS);
        if held + expected == 0 {
            self.held.set(0);
        } else if self.held.bytes() > held + expected + 4 * READ_AHEAD {
            self.held.set(held + expected + READ_AHEAD);
        }
        self.room = if self.covers(held + expected) {
            MemoryRoom::Free
        } else if self.covers(held) {
            MemoryRoom::ForServers
        } else {
            MemoryRoom::None
        };
    }

    /// Whether the link may take more memory for messages of the shim, and so give credit for them.
    pub(super) fn allows_credit(&self) -> bool {
        self.room == MemoryRoom::Free
    }

    /// Whether a server may be read while the link's buffers hold this much.
    pub(super) fn allows_reading(&self, held: usize) -> bool {
        self.room != MemoryRoom::None && held <= SMALL_BUFFERS + self.held.bytes()
    }

    /// When the charge should be tried again, where a ceiling allowed no more.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        (self.room != MemoryRoom::Free).then(|| Instant::now() + MEMORY_RETRY_DELAY)
    }

    /// Whether the charge covers this much and some more, after growing where the ceilings allow it.
    fn covers(&mut self, needed: usize) -> bool {
        needed == 0
            || self.held.bytes() >= needed + READ_AHEAD / 2
            || self.held.try_grow_to(needed + READ_AHEAD)
    }
}

#[cfg(test)]
impl LinkMemory {
    /// For tests that are about other limits.
    pub(crate) fn unlimited() -> Self {
        let limits = Limits { link_memory: 1 << 40, ..Limits::default() };
        Self::open(&MemoryAccount::new(1 << 50), &limits).expect("nothing else is charged")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    #[test]
    fn links_get_small_windows_when_memory_is_scarce_and_are_refused_when_there_is_none() {
        let limits = Limits::default();
        let sandbox = MemoryAccount::new(1024 * MIB).child(64 * MIB);
        let mut links = Vec::new();
        while let Some(link) = LinkMemory::open(&sandbox, &limits) {
            links.push(link);
        }
        let full = links.iter().filter(|link| link.window() == limits.window_bytes).count();
        assert_eq!(full, 3, "of 64 MiB an eighth is for full windows of 2 MiB");
        assert!(links.iter().skip(full).all(|link| link.window() == config::SMALL_WINDOW));
        assert!(links.len() > 400 && sandbox.used() <= 64 * MIB, "{} links", links.len());
        drop(links);
        assert_eq!(sandbox.used(), 0);
    }

    #[test]
    fn a_link_with_small_messages_changes_no_shared_counter() {
        let sandbox = MemoryAccount::new(64 * MIB);
        let mut link = LinkMemory::open(&sandbox, &Limits::default()).unwrap();
        let opening = sandbox.used();
        for held in [0, 1000, SMALL_BUFFERS] {
            link.count(held);
            link.reserve(held, 0);
            assert!(sandbox.used() == opening && link.allows_reading(held));
        }
    }

    #[test]
    fn a_full_link_goes_on_when_it_holds_less_or_when_another_releases_memory() {
        let sandbox = MemoryAccount::new(64 * MIB);
        let mut other = sandbox.empty_charge();
        let mut link = LinkMemory::open(&sandbox, &Limits::default()).unwrap();
        assert!(other.try_grow_to(50 * MIB));
        let held = 6 * MIB;
        link.count(held);
        link.reserve(held, 0);
        assert!(!link.allows_credit() && !link.allows_reading(held) && link.retry_at().is_some());
        assert_eq!(link.used(), link.window() as usize + held, "what is held is charged in any case");
        link.reserve(SMALL_BUFFERS, 0);
        assert!(link.allows_reading(SMALL_BUFFERS), "small messages always go on");
        link.reserve(SMALL_BUFFERS, 10 * MIB);
        assert!(!link.allows_credit(), "there is no room for the rest of a large message");
        assert!(link.allows_reading(SMALL_BUFFERS), "servers are read meanwhile");
        drop(other);
        link.reserve(held, 10 * MIB);
        assert!(link.allows_credit() && link.used() >= held + 10 * MIB);
    }
}
