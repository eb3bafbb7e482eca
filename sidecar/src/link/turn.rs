//! When a busy link lets other tasks run.
//!
//! What must stay true: a link that lets others run waits in its worker's queue, from which another worker can take it.
//! `tokio::task::yield_now`, and tokio's own limit for busy tasks, set a task aside until its worker has nothing else to
//! do. If that worker hangs in a write of the audit, the task would stay there.

use std::future::poll_fn;
use std::task::Poll;

use tokio::task::coop;

/// Lets other tasks run once this one has used up its turn.
pub(super) async fn next_turn() {
    match coop::has_budget_remaining() {
        true => coop::consume_budget().await,
        false => let_others_run().await,
    }
}

/// Puts this task at the end of its worker's queue.
pub(super) async fn let_others_run() {
    let mut is_queued = false;
    poll_fn(|context| match is_queued {
        true => Poll::Ready(()),
        false => {
            is_queued = true;
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await;
}
