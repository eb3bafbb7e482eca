//! An attempt that is cancelled at any step leaves no hub behind.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_platforms::{Progress, WhenSuspended};
use cofferdam_tests::deadline::{PATIENCE, wait_until};
use cofferdam_tests::e2b_double::{Fault, Side};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::support::{ECHO, Scene, read, setup};

/// A hub that starts but never sends its first byte, so that the client keeps waiting.
const SILENT: &str = "#!/bin/sh\nexec cat > /dev/null\n";

impl Scene {
    /// Starts to attach, and cancels that when `is_reached` is true for a step.
    async fn cancel_at(&self, shim: &str, is_reached: impl Fn(Progress) -> bool + Send + Sync) {
        let reached = Arc::new(Notify::new());
        let told = Arc::clone(&reached);
        let progress = move |step| {
            if is_reached(step) {
                told.notify_one();
            }
        };
        let hub = setup(shim.to_owned());
        let opening = self.client.open(&self.id, WhenSuspended::Refuse, &hub, &progress);
        tokio::select! {
            opened = opening => assert!(opened.is_ok(), "{:?}", opened.err()),
            () = reached.notified() => {}
        }
    }

    fn assert_no_hub(&self, when: &str) {
        wait_until(&format!("no process is left: {when}"), || {
            self.double.processes(self.box_id()).is_empty()
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_is_cancelled_at_any_step_leaves_no_hub() {
    let Some(scene) = Scene::new() else { return };
    scene.cancel_at(ECHO, |step| step == Progress::Finding).await;
    scene.assert_no_hub("cancelled while the sandbox was looked up");
    scene.cancel_at(ECHO, |step| matches!(step, Progress::Uploading { .. })).await;
    scene.assert_no_hub("cancelled during the upload");
    for shim in [ECHO, SILENT] {
        scene.cancel_at(shim, |step| step == Progress::StartingHub).await;
        scene.assert_no_hub("cancelled before the hub was started");
        // The request to start the hub is on its way, or the hub runs and has sent nothing yet.
        for delay in [1, 5, 20, 100, 300].map(Duration::from_millis) {
            let hub = setup(shim);
            let _ = timeout(delay, scene.client.open(&scene.id, WhenSuspended::Refuse, &hub, &|_| {})).await;
            scene.assert_no_hub(&format!("cancelled after {delay:?}"));
        }
    }
    scene.cancel_at(ECHO, |step| step == Progress::Connecting).await;
    scene.assert_no_hub("cancelled when the hub had sent its first byte");
    timeout(PATIENCE, scene.client.finish()).await.expect("no task of the client is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_whose_input_is_refused_is_ended_by_the_next_attempt() {
    let Some(scene) = Scene::new() else { return };
    scene.double.plan(Side::Envd, "/StreamInput", Fault::Status(503), 1);
    // The attempt fails at once, or the pipe after the hub's first byte; either way the hub may still run.
    let first = scene.open(&setup(ECHO)).await;
    drop(first);
    sleep(Duration::from_millis(50)).await;
    let mut pipe = scene.open(&setup(ECHO)).await.unwrap();
    assert_eq!(read(&mut pipe, 6).await, b"hello ");
    assert_eq!(scene.double.processes(scene.box_id()).len(), 1, "the previous hub still runs");
    drop(pipe);
    scene.assert_no_hub("the pipe was dropped");
}
