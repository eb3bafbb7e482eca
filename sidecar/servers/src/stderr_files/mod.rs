//! The files with the stderr of each server, for `cofferdam logs`.
//!
//! | module | what it holds |
//! |---|---|
//! | `queue` | lines on their way to the thread that writes, bounded |
//! | `read` | reading the lines of a server, and following them across rotations |
//! | `record` | one line of a file |
//! | `write` | the files: opening, rotating, writing |
//!
//! What must stay true: a line that arrives here was scrubbed and has no control characters; each server has at most two
//! files, which together stay within the limit and which only the sidecar's user can read; a disk that is slow, full or
//! gone never blocks a server or a link: its lines are dropped, and counted in the file as soon as that can be written.

mod queue;
mod read;
mod record;
#[cfg(test)]
mod tests;
mod write;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use relay_proto::name::Name;

use queue::Queue;
pub use read::{StderrFollower, StderrReadError};
pub use record::{Origin, StderrRecord};
use write::ServerFiles;

/// The directory below the state directory.
const DIRECTORY: &str = "stderr";

/// Writes lines to the files of the servers, on a thread of its own. Cheap to clone; the thread ends with the last clone.
#[derive(Clone)]
pub struct StderrFiles(Arc<Writer>);

struct Writer {
    queue: Arc<Queue>,
}

/// How the lines of one session reach the files.
#[derive(Clone)]
pub struct StderrSink {
    pub files: StderrFiles,
    pub session: Arc<str>,
}

/// The directory of the files in a state directory.
pub fn stderr_directory(state_dir: &Path) -> PathBuf {
    state_dir.join(DIRECTORY)
}

impl StderrFiles {
    /// Files below this state directory, of at most `bytes` for each server. Nothing is created before the first line.
    pub fn in_state(state_dir: &Path, bytes: u64) -> Self {
        let queue = Arc::new(Queue::default());
        let mut files = ServerFiles::new(stderr_directory(state_dir), bytes);
        let lines = Arc::clone(&queue);
        let thread = std::thread::Builder::new().name("stderr-write".to_owned());
        let started = thread.spawn(move || {
            while let Some(batch) = lines.wait() {
                for line in batch {
                    files.write(&lines, line);
                }
                lines.batch_written();
            }
        });
        if let Err(error) = started {
            queue.close();
            tracing::error!(%error, "no thread for the servers' stderr: `cofferdam logs` will show nothing new");
        }
        Self(Arc::new(Writer { queue }))
    }

    /// Queues a line, or counts it as dropped. Never blocks.
    pub fn write(&self, server: &Name, record: StderrRecord) {
        self.0.queue.push(server, record);
    }

    /// Waits until what was queued is written, at most this long. Blocks.
    pub fn finish(&self, limit: Duration) {
        self.0.queue.wait_until_empty(limit);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The thread is not joined: it may be in a write to a disk that hangs.
        self.queue.close();
    }
}
