//! A peer that does not read, floods, or sends faster than is read slows its own link, and costs no more memory than
//! the configuration allows a link.

use std::time::Duration;

use cofferdam_tests::harness::{Harness, text_of};
use cofferdam_tests::process::peak_memory_kib;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::{Builder, World};
use serde_json::{Value, json};

const MESSAGE_KIB: u64 = 256;
const WINDOW_KIB: u64 = 256;
const REQUESTS: u64 = 192;
/// `limits.link-memory` in MiB: as small as the other limits allow.
const LINK_MIB: u64 = 30;
const LINKS: u64 = 2;
/// Nearly a whole message, so that all of the flood is in flight at once.
const RESPONSE_KIB: u64 = 240;
/// The amount that would be buffered without limits: well above the limit.
const FLOOD_KIB: u64 = 88 * 1024;

#[test]
fn a_harness_that_stops_reading_slows_its_own_link_only() {
    let mut world = world_with_small_limits().server("tools", Server::fixture()).start();
    let mut bystander = world.connected("tools");
    let before = peak_memory_kib(world.sidecar().id());
    let mut stalled: Vec<(Harness, Vec<Value>)> = (0..LINKS)
        .map(|_| {
            let mut harness = without_reading(&world, "tools");
            let bytes = RESPONSE_KIB * 1024;
            let calls = FLOOD_KIB * 1024 / bytes / LINKS;
            let ids = (0..calls).map(|_| harness.send_call("big", json!({"bytes": bytes}))).collect();
            (harness, ids)
        })
        .collect();
    assert_others_are_answered(&mut bystander);
    assert_memory_is_limited(&mut world, before);
    for (harness, ids) in &mut stalled {
        harness.read_again();
        for id in ids {
            assert_eq!(
                text_of(&harness.answer_to(id)).len() as u64,
                RESPONSE_KIB * 1024,
                "a delayed response is incomplete"
            );
        }
    }
    assert_memory_is_limited(&mut world, before);
}

#[test]
fn a_server_that_floods_slows_its_own_link_only() {
    let mut world = world_with_small_limits().server("tools", Server::fixture()).start();
    let mut bystander = world.connected("tools");
    let before = peak_memory_kib(world.sidecar().id());
    let bytes = 100 * 1024;
    let messages = FLOOD_KIB * 1024 / bytes / LINKS;
    let mut stalled: Vec<(Harness, Value)> = (0..LINKS)
        .map(|_| {
            let mut harness = without_reading(&world, "tools");
            let id = harness.send_call("flood", json!({"messages": messages, "bytes": bytes}));
            (harness, id)
        })
        .collect();
    assert_others_are_answered(&mut bystander);
    assert_memory_is_limited(&mut world, before);
    for (harness, id) in &mut stalled {
        harness.read_again();
        assert_eq!(text_of(&harness.answer_to(id)), "flooded");
        let received = (0..messages).map(|_| harness.message_with_method("notifications/message")).count();
        assert_eq!(received as u64, messages, "all of the flood arrives, at the harness's pace");
    }
    assert_memory_is_limited(&mut world, before);
}

#[test]
fn a_sandbox_that_sends_faster_than_its_server_reads_slows_its_own_link_only() {
    let mut world = world_with_small_limits()
        .server("tools", Server::fixture())
        .server("stuck", Server::fixture_that("never-reads"))
        .limit("server-start-timeout = \"10m\"")
        .start();
    let mut bystander = world.connected("tools");
    let before = peak_memory_kib(world.sidecar().id());
    let text = "t".repeat(200 * 1024);
    let mut senders: Vec<Harness> = (0..LINKS).map(|_| world.shim("stuck")).collect();
    for harness in &mut senders {
        let mut id = 0;
        let accepted = harness.flood_stdin(Duration::from_secs(2), FLOOD_KIB as usize * 1024, || {
            id += 1;
            let params = json!({"name": "echo", "arguments": {"text": text}});
            format!("{}\n", json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}))
        });
        assert!(
            accepted < FLOOD_KIB as usize * 1024,
            "the shim accepted everything although the server reads nothing"
        );
        assert_others_are_answered(&mut bystander);
    }
    assert_memory_is_limited(&mut world, before);
}

/// A world with small messages and windows, so that the memory limit is soon reached.
fn world_with_small_limits() -> Builder {
    World::new()
        .limit(&format!("message-bytes = \"{MESSAGE_KIB}KiB\""))
        .limit(&format!("window-bytes = \"{WINDOW_KIB}KiB\""))
        .limit(&format!("requests-in-flight = {REQUESTS}"))
        .limit(&format!("link-memory = \"{LINK_MIB}MiB\""))
}

/// A harness that has stopped reading.
fn without_reading(world: &World, server: &str) -> Harness {
    let mut harness = world.connected(server);
    harness.stop_reading();
    harness
}

#[track_caller]
fn assert_others_are_answered(bystander: &mut Harness) {
    for _ in 0..50 {
        assert_eq!(bystander.call_text("echo", json!({"text": "undisturbed"})), "undisturbed");
    }
}

#[track_caller]
fn assert_memory_is_limited(world: &mut World, before: u64) {
    let grown = peak_memory_kib(world.sidecar().id()).saturating_sub(before);
    let limit = LINKS * LINK_MIB * 1024;
    eprintln!("{LINKS} links needed {grown} KiB, their limit is {limit} KiB");
    assert!(grown < limit, "the sidecar grew by {grown} KiB, {limit} KiB are allowed");
}
