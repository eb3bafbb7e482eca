//! The sidecar's own children by number, so that the warden can tell them from orphans.
//!
//! What must stay true: a child is started and written down under one lock, the same one that a search for orphans
//! holds; so the search never meets a child of ours that is not written down yet.

use std::collections::BTreeSet;
use std::io;
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

static KNOWN: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// A child that the warden leaves alone for as long as this is held. Dropping it before the child was waited for hands
/// the child to the warden.
#[derive(Debug)]
pub struct KnownChild(Child);

/// Starts a child without a keeper, for what needs none (a sandbox that the user asked for). Servers go through
/// [`launch`](super::launch).
pub fn spawn_known(command: &mut Command) -> io::Result<KnownChild> {
    let mut known = lock();
    let child = command.spawn()?;
    known.insert(child.id());
    Ok(KnownChild(child))
}

/// Runs `search` with the known children while none can be added.
pub(super) fn with_known<T>(search: impl FnOnce(&BTreeSet<u32>) -> T) -> T {
    search(&lock())
}

impl Deref for KnownChild {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for KnownChild {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for KnownChild {
    fn drop(&mut self) {
        lock().remove(&self.0.id());
    }
}

fn lock() -> MutexGuard<'static, BTreeSet<u32>> {
    // A panic cannot leave the set half-changed.
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}
