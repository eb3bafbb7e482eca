//! The process ids of the children that the sidecar started, so that the warden can distinguish them from orphans.
//!
//! What must stay true: a child is started and registered under one lock, which a search for orphans holds too; so the
//! search never finds a child that is not registered yet.

use std::collections::BTreeSet;
use std::io;
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

static KNOWN: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// A child that the warden does not touch as long as this value exists. If it is dropped before the child was waited for,
/// the warden treats the child as an orphan.
#[derive(Debug)]
pub struct KnownChild(Child);

/// Starts a child without a keeper, such as a keeper itself or a sandbox that the user runs. Servers are started by
/// [`launch`](super::launch).
pub fn spawn_known(command: &mut Command) -> io::Result<KnownChild> {
    let mut known = lock();
    let child = command.spawn()?;
    known.insert(child.id());
    Ok(KnownChild(child))
}

/// Runs `search` with the ids of the known children; no child can be added meanwhile.
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
