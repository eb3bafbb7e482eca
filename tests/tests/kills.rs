//! Whatever is killed, stopped or restarted under load: each request gets one response and runs at most once.

use std::collections::BTreeMap;

use cofferdam_tests::chaos::conversation::{CallOutcome, Conversation, SERVER};
use cofferdam_tests::chaos::random::Random;
use cofferdam_tests::harness::Harness;
use cofferdam_tests::process::{built, command, is_stopped, send};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::{Builder, World};
use nix::sys::signal::Signal;

const ROUNDS: usize = 8;
/// Fewer: a server that dies repeatedly is restarted with growing delays.
const SERVER_ROUNDS: usize = 4;

#[test]
fn a_sidecar_that_is_killed_under_load_runs_nothing_twice() {
    let mut random = Random::new(Random::seed());
    let mut world = world_with_strict_server().start();
    let mut conversation = Conversation::begin(world.shim(SERVER), Random::new(random.next()));
    for _ in 0..ROUNDS {
        conversation.exchange(15);
        (0..random.within(1..=8)).for_each(|_| conversation.send_random());
        sleep_briefly(&mut random);
        world.kill9_sidecar();
        (0..random.within(0..=3)).for_each(|_| conversation.send_random());
        world.start_sidecar();
    }
    conversation.wait_until_in_flight(0);
    conversation.exchange(5);
    let outcomes = conversation.assert_at_most_once(&world);
    eprintln!("sidecar killed {ROUNDS} times: {outcomes:?}");
    assert!(ran_count(&outcomes) >= ROUNDS * 10, "{outcomes:?}");
    assert_eq!(
        outcomes.get(&CallOutcome::DidNotRun),
        None,
        "a call was refused although a sidecar ran again in time"
    );
}

#[test]
fn a_server_that_is_killed_under_load_runs_nothing_twice() {
    let mut random = Random::new(Random::seed());
    let world = world_with_strict_server().start();
    let mut conversation = Conversation::begin(world.shim(SERVER), Random::new(random.next()));
    for _ in 0..SERVER_ROUNDS {
        conversation.exchange(15);
        (0..random.within(1..=8)).for_each(|_| conversation.send_random());
        sleep_briefly(&mut random);
        if let Some(server) = world.fixture_processes(SERVER).last() {
            send(*server, Signal::SIGKILL);
        }
        conversation.wait_until_in_flight(0);
        // A server that keeps failing is not started again at once.
        wait_until_calls_run(&world, &mut conversation);
    }
    let outcomes = conversation.assert_at_most_once(&world);
    eprintln!("server killed {SERVER_ROUNDS} times: {outcomes:?}");
    assert!(ran_count(&outcomes) >= SERVER_ROUNDS * 10, "{outcomes:?}");
    assert!(
        world.fixture_processes(SERVER).len() > SERVER_ROUNDS,
        "the server was not started after each kill"
    );
}

#[test]
fn a_stopped_sidecar_runs_nothing_that_was_answered_meanwhile() {
    let mut world = world_with_strict_server().relay("heartbeat = \"1s\"").start();
    let mut conversation = Conversation::begin(quick_shim(&world), Random::new(1));
    conversation.exchange(10);
    let sidecar = world.sidecar().id();
    send(sidecar, Signal::SIGSTOP);
    world.wait_until("every thread of the sidecar has stopped", || is_stopped(sidecar));
    // These were sent, and it is unknown whether they were received.
    (0..5).for_each(|_| conversation.call());
    conversation.wait_until_in_flight(0);
    // The link is lost by now: these never leave the shim.
    (0..5).for_each(|_| conversation.call());
    conversation.wait_until_in_flight(0);
    send(sidecar, Signal::SIGCONT);
    wait_until_calls_run(&world, &mut conversation);
    let outcomes = conversation.assert_at_most_once(&world);
    eprintln!("sidecar stopped: {outcomes:?}");
    assert_eq!(outcomes.get(&CallOutcome::Unknown), Some(&5), "{outcomes:?}");
    assert!(outcomes.get(&CallOutcome::DidNotRun).is_some_and(|count| *count >= 5), "{outcomes:?}");
}

#[test]
fn a_shim_that_is_stopped_longer_than_the_heartbeat_continues_its_requests() {
    let world = world_with_strict_server().relay("heartbeat = \"1s\"").start();
    let mut conversation = Conversation::begin(world.shim(SERVER), Random::new(1));
    for _ in 0..2 {
        conversation.exchange(10);
        conversation.harness.signal(Signal::SIGSTOP);
        (0..5).for_each(|_| conversation.call());
        world.wait_until("the silent connection is closed", || {
            world.sessions().as_array().is_some_and(|all| all.iter().all(|link| link["connected"] == false))
        });
        conversation.harness.signal(Signal::SIGCONT);
        conversation.wait_until_in_flight(0);
    }
    conversation.assert_flawless(&world);
}

/// A world whose server needs its handshake first: the handshake must be replayed to a new process.
fn world_with_strict_server() -> Builder {
    World::new().server(SERVER, Server::fixture_that("demands-handshake"))
}

/// A shim whose requests time out after two seconds instead of sixty.
fn quick_shim(world: &World) -> Harness {
    let mut shim = command(built("COFFERDAM_QUICK_SHIM_BIN", "quick-shim"));
    shim.env_clear().arg("--relay").arg(world.link()).args(["--server", SERVER]);
    Harness::start(shim, "quick-shim")
}

#[track_caller]
fn wait_until_calls_run(world: &World, conversation: &mut Conversation) {
    world.wait_until("calls run again", || {
        conversation.call();
        conversation.wait_until_in_flight(0);
        conversation.last_outcome() == CallOutcome::Ran
    });
}

fn ran_count(outcomes: &BTreeMap<CallOutcome, usize>) -> usize {
    outcomes.get(&CallOutcome::Ran).copied().unwrap_or_default()
}

/// A random delay, so that the kill hits the calls at different points; nothing depends on it.
fn sleep_briefly(random: &mut Random) {
    std::thread::sleep(std::time::Duration::from_micros(random.within(0..=4000)));
}
