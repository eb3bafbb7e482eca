//! A task that must not end before the stop: where it fails it is told, and begun anew.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// One that fails at once each time is told as often as this.
const PAUSE: Duration = Duration::from_secs(10);

/// Runs what `task` makes until it ends by itself or the stop comes; `failed` is called when it panicked.
pub(super) async fn keep<T: Future<Output = ()> + Send + 'static>(
    tasks: &TaskTracker,
    stop: &CancellationToken,
    mut task: impl FnMut() -> T,
    mut failed: impl FnMut(),
) {
    while let Err(error) = tasks.spawn(task()).await {
        if !error.is_panic() {
            return;
        }
        failed();
        if stop.run_until_cancelled(sleep(PAUSE)).await.is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_fails_is_told_and_begun_anew() {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let (mut begun, mut told) = (0, 0);
        let task = || {
            begun += 1;
            let count = begun;
            async move { assert!(count > 2, "on purpose") }
        };
        keep(&tasks, &stop, task, || told += 1).await;
        assert_eq!((begun, told), (3, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn after_the_stop_nothing_is_begun_anew() {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        stop.cancel();
        let mut begun = 0;
        let task = || {
            begun += 1;
            async { panic!("on purpose") }
        };
        keep(&tasks, &stop, task, || {}).await;
        assert_eq!(begun, 1);
    }
}
