//! How many bytes the audit may still write: what `audit-total-bytes` and the disk leave.
//!
//! Measuring lists the directory, so the result is used for a while, less what was written since.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use super::files;

pub(super) struct Room {
    /// `audit-total-bytes`
    total_bytes: u64,
    /// At the last measurement, less what was written since.
    left: u64,
    /// When a new measurement is allowed; `None` before the first.
    next: Option<Instant>,
}

/// A measurement is used at least this long.
const MIN_INTERVAL: Duration = Duration::from_millis(20);
/// And this many times as long as the measurement took, so that measuring takes at most one percent of the time.
const INTERVAL_PER_COST: u32 = 100;

impl Room {
    pub(super) fn new(total_bytes: u64) -> Self {
        Self { total_bytes, left: 0, next: None }
    }

    /// The bytes that are left.
    pub(super) fn left(&mut self, directory: &Path, now: Instant) -> u64 {
        if self.next.is_none_or(|next| next <= now) {
            let in_directory = self.total_bytes.saturating_sub(bytes_in(directory));
            self.left = in_directory.min(free_on_disk(directory));
            let cost = now.elapsed();
            self.next = Some(now + (cost * INTERVAL_PER_COST).max(MIN_INTERVAL));
        }
        self.left
    }

    pub(super) fn count_written(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
    }
}

/// The size of all audit files. A file that cannot be examined counts as empty: writing reports what is wrong.
fn bytes_in(directory: &Path) -> u64 {
    let indices = files::list(directory).unwrap_or_default();
    let sizes = indices.into_iter().filter_map(|index| fs::metadata(files::file_path(directory, index)).ok());
    sizes.map(|file| file.len()).sum()
}

/// What an ordinary user can still write to the disk. Unlimited if unknown: writing reports what is wrong.
fn free_on_disk(directory: &Path) -> u64 {
    match nix::sys::statvfs::statvfs(directory) {
        Ok(disk) => disk.blocks_available().saturating_mul(disk.fragment_size()),
        Err(_) => u64::MAX,
    }
}
