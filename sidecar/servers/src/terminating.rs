//! Processes of one slot that are being ended and may not have exited yet.
//!
//! What must stay true: the resources of a process, above all its permit in the grant, are released only after its
//! last descendant is dead; the task that waits for that has an owner.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cofferdam_process::Ended;
use relay_proto::name::Name;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::start_error::StartError;
use crate::upstream::Upstream;

/// A start that is under way.
pub(crate) type StartFuture = Pin<Box<dyn Future<Output = Result<Upstream, StartError>> + Send>>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Terminating {
    ends: TaskTracker,
    /// Some are still alive after SIGKILL: they hang in the kernel.
    stuck: Arc<AtomicBool>,
}

/// How a process is ended and within which times, with the names for the log.
#[derive(Clone, Debug)]
pub(crate) struct EndPolicy {
    /// Owns the task that waits for the end.
    pub(crate) tasks: TaskTracker,
    pub(crate) grace: Duration,
    /// How long the server may take to answer its first request.
    pub(crate) start_timeout: Duration,
    /// How long the process may finish its calls once another has taken over.
    pub(crate) drain: Duration,
    pub(crate) server: Name,
    pub(crate) link: Arc<str>,
}

/// How long a process whose pipes closed may take to exit by itself, so that the log can say how it ended.
const EXIT_TIMEOUT: Duration = Duration::from_millis(200);

impl Terminating {
    /// Ends a process in the background.
    pub(crate) fn end(&self, upstream: Upstream, policy: EndPolicy) {
        // An HTTP server is not ended: dropping this value closes the connections to it.
        let Upstream::Stdio(mut process) = upstream else { return };
        let EndPolicy { tasks, grace, server, link, .. } = policy;
        let stuck = Arc::clone(&self.stuck);
        tasks.spawn(self.ends.track_future(async move {
            if let Ok(exit) = timeout(EXIT_TIMEOUT, process.pipes.exited()).await {
                tracing::info!(%server, %link, %exit, "the server's process exited");
            }
            if Upstream::Stdio(process).end(grace).await == Ended::NotYet {
                tracing::error!(%server, %link, "processes of a server were killed and have not exited yet");
                stuck.store(true, Ordering::Relaxed);
            }
        }));
    }

    /// Waits in the background for a start to finish, and ends the process if there is one.
    pub(crate) fn end_starting(&self, start: StartFuture, policy: EndPolicy) {
        let EndPolicy { tasks, grace, start_timeout, .. } = policy;
        tasks.spawn(self.ends.track_future(async move {
            if let Ok(Ok(upstream)) = timeout(start_timeout, start).await {
                upstream.end(grace).await;
            }
        }));
    }

    /// Whether all of these processes are dead.
    pub(crate) fn are_all_dead(&self) -> bool {
        self.ends.is_empty() && !self.stuck.load(Ordering::Relaxed)
    }

    /// Waits until no process is being ended any more, and returns whether all are dead.
    pub(crate) async fn wait_until_dead(&self) -> Ended {
        self.ends.close();
        self.ends.wait().await;
        match self.stuck.load(Ordering::Relaxed) {
            true => Ended::NotYet,
            false => Ended::All,
        }
    }
}
