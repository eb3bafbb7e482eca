//! A stored attachment ends with its enrolment, also while the sidecar is not running.

use std::time::Duration;

use cofferdam_tests::deadline::Deadline;
use serde_json::json;

use super::*;

impl E2bSetup {
    /// The files of the stored attachments.
    fn records(&self) -> Vec<PathBuf> {
        let directory = std::fs::read_dir(self.world.layout().state.join("attachments"));
        directory.into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    }
}

#[test]
fn an_attachment_that_expires_while_the_sidecar_is_down_is_not_started_again() {
    let Some(mut setup) = E2bSetup::new() else { return };
    let expiry = Deadline::after(Duration::from_secs(6));
    let mut attach = setup.attach(&["--name", "box1", "--detach", "--ttl", "6s"]);
    assert!(attach.wait().success());
    assert_eq!(setup.records().len(), 1);
    setup.world.stop_sidecar();
    // The enrolment was created after `expiry` was computed, at most as much later as the attach took.
    std::thread::sleep(expiry.left() + Duration::from_secs(3));
    setup.world.start_sidecar();
    let reason = "its enrolment expired while the sidecar was not running";
    wait_until("the log has the reason of the end", || setup.world.log().contains(reason));
    assert_eq!(setup.list(), Vec::<Value>::new());
    wait_until("its file is removed", || setup.records().is_empty());
    assert_eq!(setup.world.cofferdam_text(&["enrolments", "--json"]).trim(), "[]");
}

#[test]
fn a_restart_does_not_prolong_an_attachment() {
    let Some(mut setup) = E2bSetup::new() else { return };
    let mut attach = setup.attach(&["--name", "box1", "--detach", "--ttl", "12s"]);
    assert!(attach.wait().success());
    let enrolment = setup.list()[0]["enrolment"].clone();
    setup.world.kill9_sidecar();
    setup.world.start_sidecar();
    setup.wait_until_state("attached");
    assert_eq!(setup.list()[0]["enrolment"], enrolment);
    setup.assert_nothing_left();
    assert_eq!(setup.records(), Vec::<PathBuf>::new());
}

#[test]
fn a_file_of_an_earlier_version_is_attached_again() {
    let Some(mut setup) = E2bSetup::new() else { return };
    let mut attach = setup.attach(&["--name", "box1", "--detach"]);
    assert!(attach.wait().success());
    setup.world.stop_sidecar();
    let [file] = setup.records().try_into().expect("one attachment is stored");
    let text = std::fs::read_to_string(&file).expect("it is a text file");
    let record: Value = serde_json::from_str(&text).expect("it is JSON");
    std::fs::remove_file(&file).expect("the state directory is writable");
    // Earlier versions wrote the request alone, and named the file by the hash of the name.
    let former = file.with_file_name("21df3653491bd9f7c17801b0c3b9be07.json");
    std::fs::write(&former, record["request"].to_string()).expect("the state directory is writable");
    setup.world.start_sidecar();
    setup.wait_until_state("attached");
    assert_eq!(setup.shim().call_text("echo", json!({"text": "again"})), "again");
    setup.world.cofferdam_text(&["attach", "end", "box1"]);
    setup.assert_nothing_left();
    assert_eq!(setup.records(), Vec::<PathBuf>::new());
}
