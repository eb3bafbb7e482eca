//! The sidecar's memory has a ceiling for each sandbox and in total: what a sandbox makes the sidecar hold waits or is
//! refused, and other sandboxes go on.

use std::path::Path;
use std::time::Duration;

use cofferdam_tests::harness::{Harness, refusal_of, text_of};
use cofferdam_tests::own_socket::OwnSocket;
use cofferdam_tests::process::peak_memory_kib;
use cofferdam_tests::relay::{Next, RawRelay};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::{Builder, World};
use relay_proto::delivery::Outbox;
use relay_proto::frame::{Frame, MaybeRan};
use relay_proto::limits::MAX_MESSAGE;
use serde_json::{Value, json};

/// The default of `limits.enrolment-memory`, in MiB.
const DEFAULT_CEILING: u64 = 256;
/// Ceilings in MiB that are as small as messages of 2 MiB and of 8 MiB allow.
const CEILING_FOR_2_MIB: u64 = 56;
const CEILING_FOR_8_MIB: u64 = 184;
/// The sidecar may grow by this much more than what is charged: the allocator keeps freed memory, and each link has a task
/// and buffers for decoding.
const UNCHARGED_PERCENT: u64 = 10;
const UNCHARGED_PER_LINK_KIB: u64 = 256;
const MIB: usize = 1024 * 1024;

#[test]
fn results_that_are_not_read_use_no_more_than_the_ceiling_of_their_sandbox() {
    const LINKS: usize = 40;
    // More than a shim takes from the sidecar while its harness does not read.
    const RESULT: usize = 15 * MIB / 2;
    let mut world = world_with_ceiling(8, CEILING_FOR_8_MIB);
    let before = peak_memory_kib(world.sidecar().id());
    let mut stalled: Vec<(Harness, Value)> = (0..LINKS)
        .map(|_| {
            let mut harness = world.connected("tools");
            harness.stop_reading();
            let id = harness.send_call("big", json!({"bytes": RESULT}));
            (harness, id)
        })
        .collect();
    world.wait_until("all calls have an outcome", || {
        world.outcomes().iter().filter(|outcome| outcome["tool"] == "big").count() == LINKS
    });
    assert_others_are_served(&world, RESULT);
    assert_memory_is_limited(&mut world, before, CEILING_FOR_8_MIB, LINKS);
    let mut refused = 0;
    for (harness, id) in &mut stalled {
        harness.read_again();
        let answer = harness.answer_to(id);
        match answer.get("error") {
            Some(error) => {
                assert_eq!(refusal_of(&answer), "message_too_large");
                let text = error.to_string();
                assert!(
                    text.contains("`limits.enrolment-memory`") && text.contains("the call ran"),
                    "{text}"
                );
                refused += 1;
            }
            None => assert_eq!(text_of(&answer).len(), RESULT, "a delayed response is incomplete"),
        }
        assert_eq!(harness.call_text("echo", json!({"text": "the link goes on"})), "the link goes on");
    }
    assert!((1..LINKS).contains(&refused), "{refused} of {LINKS} responses were refused");
}

#[test]
fn requests_that_are_not_finished_use_no_more_than_the_ceiling_of_their_sandbox() {
    const LINKS: usize = 48;
    const REQUEST: usize = 2000 * 1024;
    let mut world = world_with_ceiling(2, CEILING_FOR_2_MIB);
    let before = peak_memory_kib(world.sidecar().id());
    let mut unfinished = UnfinishedRequests::default();
    unfinished.send(&world.layout().relay, LINKS, REQUEST);
    assert_others_are_served(&world, REQUEST);
    assert_memory_is_limited(&mut world, before, CEILING_FOR_2_MIB, LINKS);
    let finished = unfinished.0.iter().filter(|(_, outbox)| outbox.handed_out() + 1 >= outbox.last()).count();
    assert!((1..LINKS).contains(&finished), "{finished} of {LINKS} links got credit for a whole message");
}

#[test]
fn sixty_four_links_with_large_results_at_once_stay_within_the_ceiling() {
    const LINKS: usize = 64;
    /// More bytes than the fixture writes around the text of a result.
    const ENVELOPE: usize = 256;
    let mut world =
        World::new().server("tools", Server::fixture()).limit("processes = 256\nlinks = 65").start();
    let mut links: Vec<Harness> = (0..LINKS).map(|_| world.connected("tools")).collect();
    let before = peak_memory_kib(world.sidecar().id());
    for _ in 0..3 {
        let calls: Vec<(&mut Harness, Value)> = links
            .iter_mut()
            .map(|link| {
                let id = link.send_call("big", json!({"bytes": MIB}));
                (link, id)
            })
            .collect();
        for (link, id) in calls {
            assert_eq!(text_of(&link.answer_to(&id)).len(), MIB, "a result is missing");
        }
    }
    let largest = MAX_MESSAGE - ENVELOPE;
    let calls: Vec<(&mut Harness, Value)> = links
        .iter_mut()
        .take(8)
        .map(|link| {
            let id = link.send_call("big", json!({"bytes": largest}));
            (link, id)
        })
        .collect();
    for (link, id) in calls {
        assert_eq!(text_of(&link.answer_to(&id)).len(), largest, "a large result is missing");
    }
    // Not much more is refused.
    let refused = links[0].call("big", json!({"bytes": largest + ENVELOPE}));
    assert_eq!(refusal_of(&refused), "message_too_large", "{refused}");
    assert_memory_is_limited(&mut world, before, DEFAULT_CEILING, LINKS);
}

/// Scrubbing takes several times the memory of a message, with runs that are base64, base32 and hexadecimal at once the
/// most. It counts against the ceilings too, whether a worker scrubs a large message or a link a smaller one.
#[test]
fn results_that_take_much_to_scrub_stay_within_the_ceiling() {
    const LINKS: usize = 4;
    /// What a link holds of a response, as a multiple of it.
    const HELD: usize = 4;
    /// `SCRUBBING_COPIES` of the sidecar.
    const SCRUBBED: usize = 9;
    let texts = ["%5C", "&", ".", " "].map(|end| format!("{}{end}", "4".repeat(32)));
    for bytes in [8 * MIB - 4096, 250 * 1024] {
        for text in &texts {
            let mut world = World::new()
                .secret_file("local", "value-of-the-server-11")
                .server("tools", Server::fixture().env("SECRET", "{local.value}"))
                .limit("message-bytes = \"8MiB\"")
                .limit(&format!("link-memory = \"{CEILING_FOR_8_MIB}MiB\""))
                .limit(&format!("enrolment-memory = \"{CEILING_FOR_8_MIB}MiB\""))
                .limit(&format!("total-memory = \"{}MiB\"", 2 * CEILING_FOR_8_MIB))
                .limit("window-bytes = \"256KiB\"")
                .limit("requests-in-flight = 16")
                .start();
            let enrolled = ["first", "second"].map(|name| OwnSocket::enrolled(&world, name));
            let mut links: Vec<Harness> =
                (0..LINKS).map(|number| enrolled[number % 2].connected("tools")).collect();
            let before = peak_memory_kib(world.sidecar().id());
            let ids: Vec<Value> = links
                .iter_mut()
                .map(|link| link.send_call("big", json!({"part": text, "bytes": bytes})))
                .collect();
            for (link, id) in links.iter_mut().zip(&ids) {
                let answer = link.answer_to(id);
                assert!(answer.get("result").is_some(), "{text}: {answer:.300}");
            }
            let grown = peak_memory_kib(world.sidecar().id()).saturating_sub(before);
            let processors = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
            let scrubbed_at_once = if bytes > MIB { (processors / 2).clamp(1, 2) } else { LINKS };
            let charged = bytes * (HELD * LINKS + SCRUBBED * scrubbed_at_once) / 1024;
            let limit = charged as u64 + UNCHARGED_PER_LINK_KIB * LINKS as u64;
            eprintln!("{text}, {bytes} bytes: the sidecar grew by {grown} KiB of {limit} KiB");
            assert!(grown <= limit, "{text}, {bytes} bytes: the sidecar grew by {grown} KiB of {limit} KiB");
        }
    }
}

/// Each sandbox holds as much as it gets, and all together no more than the total.
#[test]
fn greedy_sandboxes_use_no_more_than_the_total_and_two_leave_room_for_a_third() {
    const LINKS: usize = 24;
    const REQUEST: usize = 2000 * 1024;
    // As little as two ceilings allow.
    const TOTAL: u64 = 2 * CEILING_FOR_2_MIB;
    let mut world =
        builder_with_ceiling(2, CEILING_FOR_2_MIB).limit(&format!("total-memory = \"{TOTAL}MiB\"")).start();
    let before = peak_memory_kib(world.sidecar().id());
    let mut unfinished = UnfinishedRequests::default();
    for (number, name) in ["first", "second", "third", "fourth", "fifth"].into_iter().enumerate() {
        if number == 2 {
            assert_others_are_served(&world, REQUEST);
        }
        let greedy = OwnSocket::enrolled(&world, name);
        unfinished.send(greedy.path(), LINKS, REQUEST);
    }
    let links = unfinished.0.len();
    assert_memory_is_limited(&mut world, before, TOTAL, links);
}

/// Requests that are sent except for their last part, each on a link of its own.
#[derive(Default)]
struct UnfinishedRequests(Vec<(RawRelay, Outbox)>);

impl UnfinishedRequests {
    /// Opens links and sends on each as far as it gets credit.
    fn send(&mut self, socket: &Path, links: usize, bytes: usize) {
        let first = self.0.len();
        for _ in 0..links {
            let mut relay = RawRelay::connect(socket);
            let welcome = relay.await_welcome("tools");
            let mut outbox = Outbox::new(welcome.window);
            outbox.push(&vec![b' '; bytes], MaybeRan::No);
            self.0.push((relay, outbox));
        }
        let mut idle_rounds = 0;
        while idle_rounds < 20 {
            idle_rounds += 1;
            for (relay, outbox) in &mut self.0[first..] {
                if send_unless_last(relay, outbox) {
                    idle_rounds = 0;
                }
            }
        }
    }
}

/// A world with messages up to `message_mib`, and as little memory as they need.
fn world_with_ceiling(message_mib: u64, ceiling_mib: u64) -> World {
    builder_with_ceiling(message_mib, ceiling_mib).start()
}

fn builder_with_ceiling(message_mib: u64, ceiling_mib: u64) -> Builder {
    World::new()
        .server("tools", Server::fixture())
        .limit(&format!("message-bytes = \"{message_mib}MiB\""))
        .limit("window-bytes = \"256KiB\"")
        .limit("requests-in-flight = 16")
        .limit(&format!("link-memory = \"{ceiling_mib}MiB\""))
        .limit(&format!("enrolment-memory = \"{ceiling_mib}MiB\""))
        .limit("memory-wait = \"2s\"")
}

/// Sends what credit allows, but not the last part; returns whether something was sent.
fn send_unless_last(relay: &mut RawRelay, outbox: &mut Outbox) -> bool {
    while let Next::Frame(frame) = relay.next_within(Duration::from_millis(2)) {
        if let Frame::Ack(ack) = *frame {
            outbox.acknowledge(ack).expect("the acknowledgement is valid");
        }
    }
    let before = outbox.handed_out();
    while outbox.handed_out() + 1 < outbox.last() {
        let mut bytes = Vec::new();
        outbox.take_ready_up_to(1, &mut bytes);
        if bytes.is_empty() {
            break;
        }
        relay.send(&bytes);
    }
    outbox.handed_out() > before
}

/// Another sandbox of the grant gets a large result.
#[track_caller]
fn assert_others_are_served(world: &World, bytes: usize) {
    let mut other = OwnSocket::enrolled(world, "other").connected("tools");
    assert_eq!(text_of(&other.call("big", json!({"bytes": bytes}))).len(), bytes);
    assert_eq!(other.call_text("echo", json!({"text": "undisturbed"})), "undisturbed");
}

#[track_caller]
fn assert_memory_is_limited(world: &mut World, before: u64, ceiling_mib: u64, links: usize) {
    let grown = peak_memory_kib(world.sidecar().id()).saturating_sub(before);
    let uncharged = UNCHARGED_PER_LINK_KIB * links as u64;
    let limit = ceiling_mib * 1024 * (100 + UNCHARGED_PERCENT) / 100 + uncharged;
    eprintln!("the sidecar grew by {grown} KiB; {ceiling_mib} MiB may be charged to a sandbox");
    assert!(grown < limit, "the sidecar grew by {grown} KiB, {limit} KiB are allowed");
}
