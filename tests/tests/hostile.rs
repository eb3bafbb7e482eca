//! A hostile sandbox that uses the relay protocol without a shim: its cost to the host is bounded, and other links
//! continue.

use cofferdam_tests::process::{cpu_time, peak_memory_kib};
use cofferdam_tests::relay::{Next, RawRelay, hello};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use relay_proto::control::{Resume, ResumeToken, Welcome};
use relay_proto::delivery::Outbox;
use relay_proto::frame::{Frame, MaybeRan, PREFACE};
use serde_json::json;

const FLOOD_BYTES: usize = 256 * 1024 * 1024;
/// The peak memory that a sidecar with a few links may have.
const MAX_PEAK_KIB: u64 = 96 * 1024;

/// Encodes message after message, as if every one of them had been acknowledged.
fn messages(text: impl Fn(u64) -> String) -> impl FnMut() -> Vec<u8> {
    let mut outbox = Outbox::new(u64::MAX);
    let mut count = 0;
    move || {
        count += 1;
        let seq = outbox.push(text(count).as_bytes(), MaybeRan::No);
        let mut bytes = Vec::new();
        outbox.take_ready(&mut bytes);
        outbox.acknowledge(relay_proto::frame::Ack { seq, window: u64::MAX }).expect("everything was sent");
        bytes
    }
}

/// How many bytes a shim may send that receives no acknowledgement: a link whose shim sends more is ended.
fn usable_credit(welcome: &Welcome) -> usize {
    usize::try_from(welcome.window / 4 * 3).expect("the window fits into memory")
}

#[track_caller]
fn assert_others_are_served(world: &World) {
    let mut shim = world.connected("tools");
    assert_eq!(shim.call_text("echo", json!({"text": "undisturbed"})), "undisturbed");
}

#[test]
fn refusals_that_are_not_read_fill_no_memory() {
    let mut world = World::new().server("tools", Server::fixture()).start();
    let mut relay = RawRelay::connect(&world.layout().relay);
    let credit = usable_credit(&relay.await_welcome("tools"));
    let name = "n".repeat(900);
    let mut message = messages(|id| {
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"x/{name}","params":{{"name":"{name}"}}}}"#)
    });
    relay.flood(&mut message, credit);
    assert_eq!(
        world.sessions()[0]["connected"],
        true,
        "a shim within its credit was refused: {}",
        world.log()
    );
    // Beyond its credit the shim breaks the protocol, and its link is ended.
    let sent = relay.flood(message, FLOOD_BYTES);
    assert!(sent < FLOOD_BYTES, "the sidecar read everything");
    world.wait_until("the link is ended", || world.sessions() == json!([]));
    assert_others_are_served(&world);
    let peak = peak_memory_kib(world.sidecar().id());
    assert!(peak < MAX_PEAK_KIB, "the sidecar's peak memory is {peak} KiB");
}

#[test]
fn pings_of_a_shim_that_does_not_read_fill_no_memory() {
    let mut world = World::new().server("tools", Server::fixture()).start();
    let mut relay = RawRelay::connect(&world.layout().relay);
    relay.await_welcome("tools");
    let mut pings = Vec::new();
    (0..1000).for_each(|_| Frame::Ping.encode(&mut pings));
    relay.flood(|| pings.clone(), FLOOD_BYTES / 2);
    assert_others_are_served(&world);
    let peak = peak_memory_kib(world.sidecar().id());
    assert!(peak < MAX_PEAK_KIB, "the sidecar's peak memory is {peak} KiB");
}

#[test]
fn a_shim_that_does_not_read_costs_no_processor_time() {
    let mut world = World::new().server("tools", Server::fixture()).relay("heartbeat = \"2s\"").start();
    // What one look at the sessions costs while nothing else happens.
    const LOOKS: u32 = 20;
    let before = cpu_time(world.sidecar().id());
    (0..LOOKS).for_each(|_| assert_eq!(world.sessions(), json!([])));
    let idle_cost = (cpu_time(world.sidecar().id()) - before) / LOOKS;
    let mut relay = RawRelay::connect(&world.layout().relay);
    let credit = usable_credit(&relay.await_welcome("tools"));
    // Enough responses to fill the socket, so that nothing more can be written.
    let name = "n".repeat(200);
    let mut requests = 0;
    let mut message = messages(|id| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"x/{name}"}}"#));
    let counted = || {
        requests += 1;
        message()
    };
    relay.flood(counted, credit);
    let before = cpu_time(world.sidecar().id());
    let mut looks = 0;
    world.wait_until("the silent connection is closed", || {
        looks += 1;
        world.sessions().as_array().is_some_and(|all| all.iter().all(|session| session["connected"] == false))
    });
    let cost = (cpu_time(world.sidecar().id()) - before) / looks;
    assert!(
        looks >= 10,
        "the connection was closed after {looks} looks, before the heartbeat could be missed"
    );
    assert!(
        cost < idle_cost * 10,
        "{cost:?} of processor time for each of {looks} looks; idle {idle_cost:?}"
    );
    let mut responses = 0;
    while let Next::Frame(frame) = relay.next_frame() {
        responses += usize::from(matches!(*frame, Frame::Message(_)));
    }
    assert!(responses < requests, "all {requests} responses were written: the socket was never full");
}

#[test]
fn the_exit_of_a_shim_is_noticed_while_its_server_does_not_read() {
    let world = World::new()
        .server("tools", Server::fixture_that("never-reads"))
        .relay("resume-grace = \"0s\"")
        .relay("heartbeat = \"5m\"")
        .limit("server-start-timeout = \"10m\"")
        .start();
    let mut relay = RawRelay::connect(&world.layout().relay);
    let credit = usable_credit(&relay.await_welcome("tools"));
    let text = "t".repeat(100_000);
    relay.flood(
        messages(|id| {
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"echo","arguments":{{"text":"{text}"}}}}}}"#)
        }),
        credit,
    );
    assert_eq!(world.sessions()[0]["connected"], true, "the link ended before its shim: {}", world.log());
    drop(relay);
    world.wait_until("its session has ended", || world.sessions() == json!([]));
}

#[test]
fn stolen_links_are_refused_and_fill_no_audit() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut owner = RawRelay::connect(&world.layout().relay);
    let welcome = owner.await_welcome("tools");
    for _ in 0..200 {
        let mut thief = RawRelay::connect(&world.layout().relay);
        let resume = Resume { link: welcome.link.clone(), token: ResumeToken("0".repeat(64)), received: 0 };
        thief.send(PREFACE);
        thief.send_frame(&Frame::Hello(relay_proto::control::Hello {
            resume: Some(resume),
            ..hello("tools", &[1])
        }));
        let Next::Frame(refusal) = thief.next_frame() else { panic!("expected a refusal") };
        assert!(matches!(*refusal, Frame::Refusal(refusal) if refusal.code == "clone_refused"));
    }
    let alerts = world.audit().iter().filter(|record| record["event"] == "alert").count();
    assert!((1..=10).contains(&alerts), "{alerts} alerts");
    owner.send_frame(&Frame::Ping);
    assert!(
        matches!(owner.next_frame(), Next::Frame(frame) if *frame == Frame::Pong),
        "the owner lost its link"
    );
}

#[test]
fn audit_lookups_of_requests_that_may_have_run_are_limited() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut relay = RawRelay::connect(&world.layout().relay);
    relay.await_welcome("tools");
    let mut outbox = Outbox::new(1 << 20);
    for id in 1..=20 {
        let origin = relay_proto::frame::Origin { link: format!("l{id}").into(), seq: 1 };
        let call = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/list"}}"#);
        outbox.push(call.as_bytes(), MaybeRan::Yes(origin));
        let mut bytes = Vec::new();
        outbox.take_ready(&mut bytes);
        relay.send(&bytes);
        // One at a time, so that each request would cause its own search.
        loop {
            match relay.next_frame() {
                Next::Frame(frame) if matches!(*frame, Frame::Message(_)) => break,
                Next::Frame(_) => {}
                other => panic!("expected a response, not {other:?}"),
            }
        }
    }
    let denied = world.audit().iter().filter(|decision| decision["rule"] == "maybe-ran").count();
    assert_eq!(denied, 16, "not all but four were denied without a look-up");
}

#[test]
fn a_malformed_message_under_an_id_in_flight_does_not_end_that_request() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut relay = RawRelay::connect(&world.layout().relay);
    relay.await_welcome("tools");
    let mut outbox = Outbox::new(1 << 20);
    let slow = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": {"name": "slow", "arguments": {"ms": 60_000}}});
    outbox.push(slow.to_string().as_bytes(), MaybeRan::No);
    outbox.push(br#"{"jsonrpc":"2.0","id":7,"method":"ping","method":"ping"}"#, MaybeRan::No);
    let mut bytes = Vec::new();
    outbox.take_ready(&mut bytes);
    relay.send(&bytes);
    let response = loop {
        match relay.next_frame() {
            Next::Frame(frame) => match *frame {
                Frame::Message(part) => break String::from_utf8(part.bytes).unwrap(),
                _ => continue,
            },
            other => panic!("expected a response, not {other:?}"),
        }
    };
    assert!(response.contains("message_malformed") && response.contains(r#""id":null"#), "{response}");
}
