//! Large messages of a server, which a worker thread scrubs while the link goes on.

use super::calls::outcome;
use super::server::SECRET;
use super::*;

/// The index of a tool that responds at once.
const NOW: u8 = 0;
/// The index of a tool with a response so large that a worker thread scrubs it.
const LARGE: u8 = 12;

#[tokio::test(start_paused = true)]
async fn a_large_response_is_scrubbed_by_a_worker_and_not_overtaken() {
    let mut model = ModelLink::new(Retry::Never);
    model.call(LARGE, MaybeRan::No);
    model.until_responses(&[1]).await;
    model.pass(Duration::from_millis(100)).await;
    assert_eq!(model.arrived, ["1", "notifications/after"]);
    assert!(model.fixture.audit().contains("\"redactions\":1"), "{}", model.fixture.audit());
}

#[tokio::test(start_paused = true)]
async fn a_large_notification_is_scrubbed_by_a_worker_and_arrives() {
    let mut model = ModelLink::running("").await;
    let data = format!("{}{SECRET}", "x".repeat(300 * 1024));
    let notification =
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"data":"{data}"}}}}"#);
    model.script.write(0, &notification);
    let mut turns = 0;
    while model.notifications().is_empty() {
        turns += 1;
        assert!(turns < 100_000, "the notification does not arrive");
        model.pass(Duration::from_millis(1)).await;
    }
    assert_eq!(model.notifications(), ["notifications/message"]);
}

/// Runs `test` with a link that has a large response to request 1, while the only worker thread is busy.
fn while_the_worker_is_busy(test: impl AsyncFnOnce(&mut ModelLink, std::sync::mpsc::Sender<()>)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
    runtime.unwrap().block_on(async {
        let mut model = ModelLink::new(Retry::Never);
        model.call(LARGE, MaybeRan::No);
        // The worker also reads the secret for the first start.
        while model.log.runs(1) == 0 {
            model.pass(Duration::from_millis(1)).await;
        }
        model.until_responses(&[1]).await;
        let (release, released) = std::sync::mpsc::channel();
        let busy = tokio::task::spawn_blocking(move || released.recv());
        model.call(LARGE, MaybeRan::No);
        while model.log.runs(2) == 0 {
            model.pass(Duration::from_millis(1)).await;
        }
        model.run_turns().await;
        assert_eq!(model.responses(), [1, 0], "the response is scrubbed by a worker");
        test(&mut model, release).await;
        let _ = busy.await;
    });
}

/// More sandboxes than there are threads for links have a large response that waits for a worker. If their links scrubbed
/// these by themselves, the responses would arrive although the worker is busy.
#[test]
fn a_neighbour_is_answered_while_large_responses_of_other_sandboxes_wait_for_a_worker() {
    const FLOODS: u32 = 4;
    const CALLS: usize = 50;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(1)
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let mut neighbour = ModelLink::new(Retry::Never);
        neighbour.call(NOW, MaybeRan::No);
        neighbour.until_responses(&[1]).await;
        let mut floods: Vec<ModelLink> = (1..=FLOODS).map(|user| neighbour.of_another_user(user)).collect();
        for flood in &mut floods {
            flood.call(LARGE, MaybeRan::No);
            flood.until_responses(&[1]).await;
        }
        let (release, released) = std::sync::mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking(move || released.recv());
        for flood in &mut floods {
            flood.call(LARGE, MaybeRan::No);
        }
        for flood in &mut floods {
            while flood.log.runs(flood.calls) == 0 {
                flood.pass(Duration::from_millis(1)).await;
            }
        }
        for _ in 0..CALLS {
            neighbour.call(NOW, MaybeRan::No);
        }
        neighbour.until_responses(&[1; CALLS + 1]).await;
        for flood in &mut floods {
            flood.run_turns().await;
            assert_eq!(flood.responses(), [1, 0], "a link scrubbed its large response by itself");
        }
        release.send(()).unwrap();
        for flood in &mut floods {
            flood.until_responses(&[1, 1]).await;
        }
        let _ = busy.await;
    });
}

impl ModelLink {
    /// Runs the link long enough to read what its server wrote, and checks that commands are answered meanwhile.
    async fn run_turns(&mut self) {
        for _ in 0..20 {
            assert!(self.answers_describe().await, "a command was not answered");
        }
    }
}

#[test]
fn while_a_response_is_scrubbed_the_link_goes_on_and_the_id_is_in_use() {
    while_the_worker_is_busy(async |model, release| {
        let ((again, _), message) = model.message(2, LARGE);
        model.shim.push(message.as_bytes(), MaybeRan::No);
        model.run_turns().await;
        assert_eq!((model.responses_without_id, model.log.runs(again)), (1, 0), "the id is in use");
        release.send(()).unwrap();
        model.until_responses(&[1, 1]).await;
    });
}

#[test]
fn a_response_that_is_cancelled_while_it_is_scrubbed_does_not_arrive() {
    while_the_worker_is_busy(async |model, release| {
        model.cancel(2).await;
        model.run_turns().await;
        release.send(()).unwrap();
        // The notification that follows the response arrives: the response was dropped before it.
        while model.notifications().len() < 2 {
            model.pass(Duration::from_millis(1)).await;
        }
        assert_eq!(model.responses(), [1, 0]);
        model.pass(Duration::from_millis(100)).await;
        assert_eq!(model.outcomes("large"), [outcome("result", ""), outcome("cancelled", "")]);
    });
}

#[test]
fn the_end_of_a_link_counts_a_response_that_is_being_scrubbed() {
    while_the_worker_is_busy(async |model, release| {
        assert_eq!(model.end().await.calls_unanswered, 1);
        assert_eq!(
            model.outcomes("large"),
            [outcome("result", ""), outcome("outcome_unknown", "session_ended")]
        );
        release.send(()).unwrap();
    });
}
