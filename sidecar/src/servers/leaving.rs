//! Servers of one link that were given up and may still be dying.
//!
//! What must stay true: what belongs to a process, its place in the grant above all, is given back after its last
//! descendant is dead and not before; the task that waits for that has an owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use relay_proto::name::Name;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::generation::Starting;
use super::upstream::Upstream;
use crate::process::Ended;

#[derive(Clone, Debug, Default)]
pub(crate) struct Leaving {
    ends: TaskTracker,
    /// Some outlived their end: they hang in the kernel.
    stuck: Arc<AtomicBool>,
}

/// What must be known of a server once it has been started: who owns its end, its times, its name for the log.
#[derive(Clone, Debug)]
pub(crate) struct Custody {
    pub(crate) tasks: TaskTracker,
    pub(crate) grace: Duration,
    /// How long a server may take to answer its first question.
    pub(crate) patience: Duration,
    /// How long it may finish its calls once another has taken over.
    pub(crate) drain: Duration,
    pub(crate) server: Name,
    pub(crate) link: Arc<str>,
}

/// How long a process whose pipes closed may take to be over by itself, so that the log can say how it ended.
const LAST_BREATH: Duration = Duration::from_millis(200);

impl Leaving {
    /// Ends a server in the background.
    pub(crate) fn see_off(&self, upstream: Upstream, custody: Custody) {
        // An HTTP server is not ours to end; our session with it ends with this value.
        let Upstream::Stdio(mut process) = upstream else { return };
        let Custody { tasks, grace, server, link, .. } = custody;
        let stuck = Arc::clone(&self.stuck);
        tasks.spawn(self.ends.track_future(async move {
            if let Ok(exit) = timeout(LAST_BREATH, process.upstream.exited()).await {
                tracing::info!(%server, %link, %exit, "the server's process is over");
            }
            if Upstream::Stdio(process).end(grace).await == Ended::NotYet {
                tracing::error!(%server, %link, "processes of a server were killed and are still dying");
                stuck.store(true, Ordering::Relaxed);
            }
        }));
    }

    /// The same for one whose start is not over: where it comes to be, it is ended.
    pub(crate) fn see_off_starting(&self, start: Starting, custody: Custody) {
        let (tasks, grace) = (custody.tasks.clone(), custody.grace);
        tasks.spawn(self.ends.track_future(async move {
            if let Ok(Ok(upstream)) = timeout(custody.patience, start).await {
                upstream.end(grace).await;
            }
        }));
    }

    /// Whether all are dead, and none is on its way.
    pub(crate) fn is_over(&self) -> bool {
        self.ends.is_empty() && !self.stuck.load(Ordering::Relaxed)
    }

    /// Waits until all have ended, and says whether all are dead.
    pub(crate) async fn gone(&self) -> Ended {
        self.ends.close();
        self.ends.wait().await;
        match self.stuck.load(Ordering::Relaxed) {
            true => Ended::NotYet,
            false => Ended::All,
        }
    }
}
