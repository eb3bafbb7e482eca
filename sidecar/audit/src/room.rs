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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    const TOTAL_BYTES: u64 = 10_000;

    /// A directory of its own for one test, removed on drop.
    struct Directory(PathBuf);

    impl Directory {
        fn new(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("cofferdam-room-{test}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn write_file(&self, name: &str, bytes: usize) {
            fs::write(self.0.join(name), vec![b'x'; bytes]).unwrap();
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn audit_files_and_written_bytes_reduce_what_is_left() {
        let directory = Directory::new("reduce");
        directory.write_file("audit-00000001.jsonl", 1000);
        directory.write_file("audit-00000002.jsonl", 500);
        directory.write_file("other", 4000);
        let mut room = Room::new(TOTAL_BYTES);
        assert_eq!(room.left(&directory.0, Instant::now()), 8500);
        room.count_written(300);
        assert_eq!(room.left(&directory.0, Instant::now()), 8200);
        room.count_written(TOTAL_BYTES);
        assert_eq!(room.left(&directory.0, Instant::now()), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_measurement_is_used_for_a_while_and_then_repeated() {
        let directory = Directory::new("repeat");
        let mut room = Room::new(TOTAL_BYTES);
        assert_eq!(room.left(&directory.0, Instant::now()), TOTAL_BYTES);
        directory.write_file("audit-00000001.jsonl", 1000);
        tokio::time::advance(MIN_INTERVAL - Duration::from_millis(1)).await;
        assert_eq!(room.left(&directory.0, Instant::now()), TOTAL_BYTES);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(room.left(&directory.0, Instant::now()), 9000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_measurement_is_used_a_hundred_times_as_long_as_it_took() {
        let directory = Directory::new("slow");
        let mut room = Room::new(TOTAL_BYTES);
        let began = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(room.left(&directory.0, began), TOTAL_BYTES);
        directory.write_file("audit-00000001.jsonl", 1000);
        assert_eq!(room.left(&directory.0, began + Duration::from_secs(99)), TOTAL_BYTES);
        assert_eq!(room.left(&directory.0, began + Duration::from_secs(100)), 9000);
    }
}
