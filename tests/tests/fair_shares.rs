//! One sandbox takes no more than its share of its grant's limits, whether it was enrolled or uses the shared socket: other
//! sandboxes go on.

use cofferdam_tests::harness::{Harness, refusal_of};
use cofferdam_tests::own_socket::OwnSocket;
use cofferdam_tests::relay::{RawRelay, hello};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use relay_proto::frame::Frame;
use serde_json::json;

#[test]
fn one_sandbox_leaves_processes_for_the_others_of_its_grant() {
    let builder = || World::new().server("tools", Server::fixture()).limit("processes = 8");
    OwnSocket::for_both(builder, assert_leaves_processes);
}

fn assert_leaves_processes(world: &World, sandbox: &OwnSocket<'_>) {
    let mut greedy = Vec::new();
    let refusal = loop {
        let mut harness = sandbox.shim("tools");
        let answer = harness.initialize();
        if answer.get("error").is_some() {
            break answer;
        }
        greedy.push(harness);
        assert!(greedy.len() <= 8, "more processes than the grant may have");
    };
    assert_eq!(greedy.len(), 4, "a sandbox gets its share of 8 processes");
    assert_eq!(refusal_of(&refusal), "server_unavailable");
    let text = refusal.to_string();
    assert!(text.contains("`limits.processes`") && text.contains("end some of its"), "{text}");
    let mut others: Vec<Harness> =
        ["one", "two", "three"].map(|name| OwnSocket::enrolled(world, name).connected("tools")).into();
    for other in &mut others {
        assert_eq!(other.call_text("echo", json!({"text": "others go on"})), "others go on");
    }
    others.iter_mut().chain(greedy.last_mut()).for_each(Harness::close_stdin);
    world.wait_until("the greedy sandbox may start a server again", || {
        sandbox.shim("tools").initialize().get("result").is_some()
    });
}

#[test]
fn one_sandbox_leaves_server_starts_for_the_others_of_its_grant() {
    let builder = || World::new().server("tools", Server::fixture()).limit("starts-per-minute = 8");
    OwnSocket::for_both(builder, assert_leaves_starts);
}

/// Each start is one of a new session, because the link before it has ended.
fn assert_leaves_starts(world: &World, sandbox: &OwnSocket<'_>) {
    let mut starts = 0;
    let refusal = loop {
        let mut harness = sandbox.shim("tools");
        let answer = harness.initialize();
        if answer.get("error").is_some() {
            break answer;
        }
        starts += 1;
        harness.close_stdin();
        world.wait_until("the session has ended", || world.sessions() == json!([]));
    };
    assert_eq!(starts, 4, "a sandbox gets its share of 8 starts");
    let text = refusal.to_string();
    assert!(text.contains("`limits.starts-per-minute`") && text.contains("this sandbox"), "{text}");
    let mut other = OwnSocket::enrolled(world, "other").connected("tools");
    assert_eq!(other.call_text("echo", json!({"text": "others go on"})), "others go on");
}

#[test]
fn one_sandbox_leaves_new_links_for_the_others_of_its_grant() {
    let builder = || World::new().server("tools", Server::fixture()).limit("links-per-minute = 8");
    OwnSocket::for_both(builder, assert_leaves_links);
}

fn assert_leaves_links(world: &World, sandbox: &OwnSocket<'_>) {
    let mut links = 0;
    let refusal = loop {
        let mut relay = RawRelay::connect(sandbox.path());
        match relay.open_with(hello("tools", &[1])) {
            Frame::Welcome(_) => links += 1,
            Frame::Refusal(refusal) => break refusal,
            other => panic!("expected a Welcome or a Refusal, not {other:?}"),
        }
    };
    assert_eq!(links, 4, "a sandbox gets its share of 8 links");
    assert_eq!(refusal.code, "relay_unavailable");
    let message = refusal.message;
    assert!(message.contains("`limits.links-per-minute`") && message.contains("this sandbox"), "{message}");
    let mut other = OwnSocket::enrolled(world, "other").connected("tools");
    assert_eq!(other.call_text("echo", json!({"text": "others go on"})), "others go on");
}
