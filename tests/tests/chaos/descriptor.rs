//! A link over an inherited descriptor: it cannot be reconnected, so a cut ends it, and every call gets a correct
//! response.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;

use cofferdam_tests::chaos::conversation::{CallOutcome, Conversation, SERVER};
use cofferdam_tests::chaos::endpoint::Endpoint;
use cofferdam_tests::chaos::kind::LinkKind;
use cofferdam_tests::chaos::plan::Plan;
use cofferdam_tests::chaos::proxy::{Proxy, Tally};
use cofferdam_tests::chaos::random::Random;
use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::harness::Harness;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use crate::over_many_links;

/// The number of links that are cut.
const CUTS: usize = 12;
/// Calls that are made between two checks whether the link was cut.
const CALLS_AT_ONCE: usize = 5;

#[test]
fn calls_over_an_inherited_descriptor_survive_split_writes_and_delays() {
    let tally = over_many_links("fd", |calls, seed| {
        let world = World::new().server(SERVER, Server::fixture()).start();
        let (shim, proxy) = shim_with_descriptor(&world, Plan::torn(&mut Random::new(seed)));
        let mut conversation = Conversation::begin(shim, Random::new(!seed));
        conversation.exchange(calls);
        conversation.assert_flawless(&world);
        proxy.tally()
    });
    assert_eq!((tally.cut, tally.truncated, tally.late), (0, 0, 0), "{tally:?}");
}

#[test]
fn calls_over_an_inherited_descriptor_that_is_cut_get_correct_responses() {
    let mut seeds = Random::new(Random::seed());
    let mut outcomes = BTreeMap::new();
    let mut tally = Tally::default();
    let seeds: Vec<u64> = (0..CUTS).map(|_| seeds.next()).collect();
    for some in seeds.chunks(4) {
        std::thread::scope(|scope| {
            let links: Vec<_> = some.iter().map(|seed| scope.spawn(|| cut_once(*seed))).collect();
            for link in links {
                let (outcomes_of_link, tally_of_link) = link.join().expect("a link failed, see above");
                tally = tally + tally_of_link;
                for (outcome, count) in outcomes_of_link {
                    *outcomes.entry(outcome).or_insert(0) += count;
                }
            }
        });
    }
    eprintln!("chaos over fd: {CUTS} descriptors, {outcomes:?}, {tally:?}");
    assert_eq!(tally.connections, CUTS, "there was a reconnect: {tally:?}");
    for outcome in [CallOutcome::Ran, CallOutcome::Unknown, CallOutcome::DidNotRun] {
        assert!(
            outcomes.get(&outcome).is_some_and(|count| *count > 0),
            "no call has the outcome {outcome:?}: {outcomes:?}"
        );
    }
}

/// Makes calls over one link until it is cut, at a random point.
fn cut_once(seed: u64) -> (BTreeMap<CallOutcome, usize>, Tally) {
    let mut random = Random::new(seed);
    // The cut comes after the handshakes: without a link there would be no calls.
    let plan = Plan::torn(&mut random).ending(random.within(3_000..=150_000) as usize, &mut random);
    let world = World::new().server(SERVER, Server::fixture()).relay("resume-grace = \"1s\"").start();
    let (shim, proxy) = shim_with_descriptor(&world, plan);
    let mut conversation = Conversation::begin(shim, random);
    while !proxy.has_ended(1) {
        conversation.exchange(CALLS_AT_ONCE);
    }
    conversation.exchange(CALLS_AT_ONCE);
    // Calls in flight may still run until the sidecar ends the link.
    wait_until("the link has ended", || world.sessions().as_array().is_some_and(Vec::is_empty));
    (conversation.assert_at_most_once(&world), proxy.tally())
}

/// Starts a shim whose link is a descriptor connected to a new proxy with this plan.
fn shim_with_descriptor(world: &World, plan: Plan) -> (Harness, Proxy) {
    let kind = &LinkKind::UNIX;
    let proxy = Proxy::start(&(kind.front)(world), (kind.sidecar)(world), move |_| plan.clone());
    let Endpoint::Unix(path) = proxy.front() else { panic!("this kind has a socket") };
    let socket = UnixStream::connect(path).expect("the proxy listens");
    fcntl(&socket, FcntlArg::F_SETFD(FdFlag::empty())).expect("a flag can be cleared");
    let mut command = world.bare_shim_command();
    command.args(["--relay", &format!("fd:{}", socket.as_raw_fd()), "--server", SERVER]);
    (Harness::start(command, "cofferdam-shim"), proxy)
}
