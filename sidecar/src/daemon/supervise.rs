//! Restarts a task that panics, for tasks that must run until the sidecar stops.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The time between a panic and the restart of the task.
const RESTART_DELAY: Duration = Duration::from_secs(10);

/// Runs `task` until it ends by itself or `stop` is cancelled; calls `on_panic` and restarts it after each panic.
pub(super) async fn supervise<T: Future<Output = ()> + Send + 'static>(
    tasks: &TaskTracker,
    stop: &CancellationToken,
    mut task: impl FnMut() -> T,
    mut on_panic: impl FnMut(),
) {
    while let Err(error) = tasks.spawn(task()).await {
        if !error.is_panic() {
            return;
        }
        on_panic();
        if stop.run_until_cancelled(sleep(RESTART_DELAY)).await.is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_reported_and_restarted() {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let (mut starts, mut reports) = (0, 0);
        let task = || {
            starts += 1;
            let count = starts;
            async move { assert!(count > 2, "on purpose") }
        };
        supervise(&tasks, &stop, task, || reports += 1).await;
        assert_eq!((starts, reports), (3, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_after_the_stop_is_not_restarted() {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        stop.cancel();
        let mut starts = 0;
        let task = || {
            starts += 1;
            async { panic!("on purpose") }
        };
        supervise(&tasks, &stop, task, || {}).await;
        assert_eq!(starts, 1);
    }
}
