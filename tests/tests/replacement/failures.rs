//! Replacements that do not start, differ or die; old processes that die; links that end during a replacement.

use std::time::Duration;

use cofferdam_tests::deadline::{Deadline, holds_within, wait_until};
use cofferdam_tests::harness::text_of;
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::process::{is_alive, send};
use cofferdam_tests::vault::{leave, prepared, set_certificate_ttl, world_with_tools_server};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::scene::{Scene, process, process_of_scope};

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn a_process_with_other_tools_does_not_take_over_and_the_reason_is_reported() {
    let Some(mut scene) = Scene::with_fixture_that("gains-a-tool") else { return };
    let mut harness = scene.world.connected("tools");
    harness.request("tools/list", json!({}));
    let first = process(&mut harness);
    let an_hour_later = Deadline::after(HOUR);
    scene.change_secret();
    wait_until("three replacements were tried", || scene.replacement_records("not replaced").len() >= 3);
    assert!(
        HOUR - an_hour_later.left() >= Duration::from_secs(3),
        "the delays did not grow to one and two seconds"
    );
    for (record, wait) in scene.replacement_records("not replaced").iter().zip(["in 1 s", "in 2 s", "in 4 s"])
    {
        assert!(record.contains("the tools of the new process differ") && record.ends_with(wait), "{record}");
    }
    assert!(
        scene.shown_in_sessions().contains("the tools of the new process differ"),
        "{}",
        scene.shown_in_sessions()
    );
    assert!(scene.world.log().contains("the tools of the new process differ"));
    assert_eq!(process(&mut harness), first);
    assert!(scene.replacement_records("replaced").is_empty());
    wait_until("the rejected processes have exited", || scene.alive() == [first]);
}

#[test]
fn tools_that_were_never_listed_are_compared_too() {
    assert_not_replaced("gains-a-tool", "the tools of the new process differ");
}

/// Asserts that the second process of a server in this mode, which differs from the first, does not take over.
#[track_caller]
fn assert_not_replaced(mode: &str, words: &str) {
    let Some(mut scene) = Scene::with_fixture_that(mode) else { return };
    let mut harness = scene.world.connected("tools");
    let first = process(&mut harness);
    scene.change_secret();
    wait_until("a replacement was tried", || !scene.replacement_records("not replaced").is_empty());
    assert!(
        scene.replacement_records("not replaced")[0].contains(words),
        "{:?}",
        scene.replacement_records("not replaced")
    );
    assert_eq!(process(&mut harness), first);
    wait_until("the rejected processes have exited", || scene.alive() == [first]);
    assert!(scene.replacement_records("replaced").is_empty());
}

#[test]
fn a_process_with_other_capabilities_does_not_take_over() {
    let Some(mut scene) = Scene::with_scope_and_fixture_that("changes-its-capabilities") else { return };
    let mut harness = scene.world.connected("tools");
    let (base, scope) = (process(&mut harness), process_of_scope(&mut harness));
    for change in [Scene::change_secret, Scene::change_secret_of_scope] {
        let before = scene.replacement_records("not replaced").len();
        change(&mut scene);
        wait_until("a replacement was tried", || scene.replacement_records("not replaced").len() > before);
    }
    assert!(
        scene
            .replacement_records("not replaced")
            .iter()
            .all(|record| { record.contains("the capabilities of the new process differ") })
    );
    wait_until("the replacement in the scope was tried too", || {
        scene.shown_in_sessions().matches("capabilities").count() == 2
    });
    assert_eq!((process(&mut harness), process_of_scope(&mut harness)), (base, scope));
    assert!(scene.replacement_records("replaced").is_empty());
}

#[test]
fn every_page_of_the_tools_is_asked_for_in_both_processes() {
    let Some(mut scene) = Scene::with_fixture_that("lists-in-pages") else { return };
    let mut harness = scene.world.connected("tools");
    harness.request("tools/list", json!({}));
    scene.change_secret_and_wait();
    let pages = |process: usize| {
        scene.methods_received(process).iter().filter(|method| *method == "tools/list").count()
    };
    assert!(pages(1) > 20 && pages(0) > pages(1), "{} {}", pages(0), pages(1));
    assert_eq!(process(&mut harness), *scene.processes().last().unwrap());
}

/// The added tool is alone on the last page.
#[test]
fn a_difference_on_the_last_page_of_the_tools_is_found() {
    assert_not_replaced("gains-a-tool-in-pages", "the tools of the new process differ");
}

#[test]
fn a_replacement_that_does_not_start_is_retried_while_the_old_process_serves() {
    let Some(mut scene) = Scene::with_fixture_that("second-and-third-exit") else { return };
    let mut harness = scene.world.connected("tools");
    let first = process(&mut harness);
    scene.change_secret();
    wait_until("a replacement was tried", || !scene.replacement_records("not replaced").is_empty());
    assert_eq!(process(&mut harness), first);
    wait_until("a later process has taken over", || scene.replacement_records("replaced").len() == 1);
    assert_eq!(scene.replacement_records("not replaced").len(), 2);
    assert_ne!(process(&mut harness), first);
    assert_eq!(scene.shown_in_sessions(), "");
}

#[test]
fn a_replacement_does_not_exceed_the_grants_process_limit() {
    let Some(mut scene) = Scene::with_limit("processes = 1") else { return };
    let mut harness = scene.world.connected("tools");
    let first = process(&mut harness);
    scene.change_secret();
    wait_until("a replacement was tried", || !scene.replacement_records("not replaced").is_empty());
    assert!(scene.shown_in_sessions().contains("limits.processes"), "{}", scene.shown_in_sessions());
    assert_eq!(process(&mut harness), first);
}

#[test]
fn starts_of_replacements_do_not_count_towards_the_sandboxs_limit() {
    let Some(mut scene) = Scene::with_limit("starts-per-minute = 1") else { return };
    let mut harness = scene.world.connected("tools");
    for _ in 0..2 {
        scene.change_secret_and_wait();
    }
    assert_eq!(process(&mut harness), *scene.processes().last().unwrap());
}

#[test]
fn a_killed_replacement_is_started_again() {
    let Some(mut scene) = Scene::with_fixture_that("starts-slowly") else { return };
    let mut harness = scene.world.connected("tools");
    scene.change_secret();
    wait_until("another process is being started", || scene.processes().len() == 2);
    send(scene.processes()[1], Signal::SIGKILL);
    wait_until("a later process has taken over", || scene.replacement_records("replaced").len() == 1);
    assert_eq!(scene.replacement_records("not replaced").len(), 1);
    assert_eq!(process(&mut harness), scene.processes()[2]);
}

#[test]
fn the_replacement_takes_over_at_once_when_the_old_process_is_killed() {
    let Some(mut scene) = Scene::with_fixture_that("starts-slowly") else { return };
    let mut harness = scene.world.connected("tools");
    let lost = harness.send_call("slow", json!({"ms": 60_000}));
    scene.change_secret();
    wait_until("another process is being started", || scene.processes().len() == 2);
    send(scene.processes()[0], Signal::SIGKILL);
    assert!(harness.answer_to(&lost).to_string().contains("outcome_unknown"));
    assert_eq!(process(&mut harness), scene.processes()[1]);
    assert_eq!(scene.processes().len(), 2, "another process was started");
    assert_eq!(scene.world.times_executed("tools", "slow"), 1);
}

#[test]
fn killing_either_process_during_draining_is_handled() {
    let Some(mut scene) = Scene::plain() else { return };
    let mut harness = scene.world.connected("tools");
    let long = harness.send_call("slow", json!({"ms": 5000}));
    scene.change_secret_and_wait();
    // The new process is killed: calls in the old one are not affected.
    let lost = harness.send_call("slow", json!({"ms": 60_000}));
    assert_eq!(process(&mut harness), scene.processes()[1]);
    send(scene.processes()[1], Signal::SIGKILL);
    assert!(harness.answer_to(&lost).to_string().contains("outcome_unknown"));
    assert_eq!(text_of(&harness.answer_to(&long)), "late");
    wait_until("the next process runs", || harness.call("process", json!({})).get("result").is_some());
    // The old process is killed: calls in the new one are not affected.
    let old = process(&mut harness);
    let lost = harness.send_call("slow", json!({"ms": 60_000}));
    scene.change_secret_and_wait();
    let survivor_call = harness.send_call("slow", json!({"ms": 1500}));
    send(old, Signal::SIGKILL);
    assert!(harness.answer_to(&lost).to_string().contains("outcome_unknown"));
    assert_eq!(text_of(&harness.answer_to(&survivor_call)), "late");
    assert_eq!(scene.world.times_executed("tools", "slow"), 4);
}

#[test]
fn the_end_of_a_link_ends_all_its_processes() {
    // While the old process finishes its calls, and while the new process is being started.
    for mode in ["plain", "starts-slowly"] {
        let Some(mut scene) = Scene::with_fixture_that(mode) else { return };
        let mut harness = scene.world.connected("tools");
        harness.send_call("slow", json!({"ms": 60_000}));
        scene.change_secret();
        wait_until("there are two processes", || match mode {
            "plain" => scene.replacement_records("replaced").len() == 1,
            _ => scene.processes().len() == 2,
        });
        leave(harness);
        let gone = holds_within(Duration::from_secs(20), || scene.alive().is_empty());
        assert!(gone, "{mode}: {:?} of {:?}", scene.alive(), scene.processes());
        let end = || scene.world.audit().into_iter().rfind(|record| record["event"] == "link_end");
        wait_until("the end is recorded", || end().is_some());
        assert!(end().unwrap()["detail"].as_str().unwrap().contains("server ended"), "{:?}", end());
    }
}

#[test]
fn a_process_with_an_expired_credential_gets_no_calls_and_the_caller_gets_the_reason() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    set_certificate_ttl(&bao, "20s");
    let world = world_with_tools_server(&bao).start();
    let mut harness = world.connected("tools");
    let first = process(&mut harness);
    let long = harness.send_call("slow", json!({"ms": 25_000}));
    bao.freeze();
    wait_until("the credential has expired", || {
        let answer = harness.call("process", json!({})).to_string();
        answer.contains("credential_unavailable")
    });
    assert!(is_alive(first), "the process exited before its call had ended");
    assert_eq!(text_of(&harness.answer_to(&long)), "late");
    wait_until("it is gone", || !is_alive(first));
    bao.thaw();
    wait_until("the next process runs", || harness.call("process", json!({})).get("result").is_some());
}
