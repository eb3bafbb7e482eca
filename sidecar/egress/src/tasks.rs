//! The tasks of one server's network, with one owner.

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

#[derive(Clone, Default)]
pub(crate) struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Tasks {
    /// Runs a task until it ends or all are stopped; then it is dropped with all that it owns, and returns `None`.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<Option<T>> {
        self.tracker.spawn(self.stop.clone().run_until_cancelled_owned(task))
    }

    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Stops all tasks and waits for them.
    pub(crate) async fn end(&self) {
        self.stop();
        self.tracker.close();
        self.tracker.wait().await;
    }
}
