//! A link that is cut anywhere, at any byte, loses, repeats and reorders nothing.
//!
//! One test for each kind of link. `COFFERDAM_CHAOS_CALLS` is the number of calls (10,000 in `just chaos`),
//! `COFFERDAM_CHAOS_SEED` repeats a run.
//!
//! | module | what it holds |
//! |---|---|
//! | [`descriptor`] | a link that cannot be reconnected |
//! | [`encrypted_bytes`] | cuts at the bytes of connections that are encrypted |
//! | [`every_byte`] | cuts at every byte of handshakes and headers |

mod descriptor;
mod encrypted_bytes;
mod every_byte;

use cofferdam_tests::chaos::conversation::{Conversation, SERVER};
use cofferdam_tests::chaos::kind::LinkKind;
use cofferdam_tests::chaos::plan::{Plan, Plans};
use cofferdam_tests::chaos::proxy::{Proxy, Tally};
use cofferdam_tests::chaos::random::Random;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;

/// The number of calls in `tests/run`.
const CALLS: usize = 500;
/// Calls over one link; then a new one begins.
const CALLS_PER_LINK: usize = 100;
const LINKS_AT_ONCE: usize = 5;

#[test]
fn calls_over_unix_survive_chaos() {
    calls_survive_chaos(&LinkKind::UNIX);
}

#[test]
fn calls_over_tls_survive_chaos() {
    calls_survive_chaos(&LinkKind::TLS);
}

#[test]
fn calls_over_a_web_socket_survive_chaos() {
    calls_survive_chaos(&LinkKind::WEB_SOCKET);
}

#[test]
fn calls_over_a_port_that_the_host_dials_survive_chaos() {
    calls_survive_chaos(&LinkKind::LISTEN);
}

#[test]
fn calls_over_a_machines_socket_survive_chaos() {
    calls_survive_chaos(&LinkKind::VSOCK_DIR);
}

#[test]
fn calls_over_a_hubs_pipe_survive_chaos() {
    calls_survive_chaos(&LinkKind::HUB);
}

#[test]
fn the_host_reconnects_to_a_port_after_every_cut() {
    let kind = &LinkKind::LISTEN;
    let world = (kind.configure)(World::new().server(SERVER, Server::fixture())).start();
    let proxy = Proxy::start(&(kind.front)(&world), (kind.sidecar)(&world), |_| Plan::default());
    let shim = kind.shim(&world, &proxy, SERVER);
    let _host = kind.host(&world, &proxy);
    let mut conversation = Conversation::begin(shim, Random::new(1));
    for _ in 0..10 {
        conversation.call();
        proxy.cut();
        conversation.call();
        conversation.wait_until_in_flight(0);
    }
    conversation.assert_flawless(&world);
}

fn calls_survive_chaos(kind: &LinkKind) {
    let tally = over_many_links(kind.name, |calls, seed| one_link_survives(kind, calls, seed));
    assert!(tally.cut > 0 && tally.truncated > 0 && tally.late > 0, "there was no chaos: {tally:?}");
    assert!(tally.late_bytes > 0, "no bytes arrived late: {tally:?}");
}

/// Distributes the calls of this run among links, each with its own seed.
fn over_many_links(name: &str, one_link: impl Fn(usize, u64) -> Tally + Sync) -> Tally {
    let calls = match std::env::var("COFFERDAM_CHAOS_CALLS") {
        Ok(text) => text.parse().expect("COFFERDAM_CHAOS_CALLS is a number"),
        Err(_) => CALLS,
    };
    let mut seeds = Random::new(Random::seed());
    let (mut done, mut tally) = (0, Tally::default());
    while done < calls {
        // Shims spend most of the time waiting for their next attempt, so several run at once.
        std::thread::scope(|scope| {
            let mut links = Vec::new();
            while links.len() < LINKS_AT_ONCE && done < calls {
                let (count, seed) = (CALLS_PER_LINK.min(calls - done), seeds.next());
                let one_link = &one_link;
                links.push(scope.spawn(move || one_link(count, seed)));
                done += count;
            }
            for link in links {
                tally = tally + link.join().expect("a link failed, see above");
            }
        });
        eprintln!("chaos over {name}: {done} of {calls} calls, {tally:?}");
    }
    tally
}

fn one_link_survives(kind: &LinkKind, calls: usize, seed: u64) -> Tally {
    let servers: Vec<String> = (0..kind.shims).map(server_of).collect();
    let builder = servers.iter().fold(World::new(), |world, name| world.server(name, Server::fixture()));
    let world = (kind.configure)(builder).start();
    let mut plans = Plans::new(kind.sizes, Random::new(seed));
    let proxy = Proxy::start(&(kind.front)(&world), (kind.sidecar)(&world), move |_| plans.next());
    let _host = kind.host(&world, &proxy);
    std::thread::scope(|scope| {
        for (number, server) in servers.iter().enumerate() {
            let (world, proxy) = (&world, &proxy);
            let random = Random::new(!seed ^ number as u64);
            let calls = share(calls, kind.shims, number);
            scope.spawn(move || {
                let shim = kind.shim(world, proxy, server);
                let mut conversation = Conversation::begin_with(server, shim, random);
                conversation.exchange(calls);
                conversation.assert_flawless(world);
            });
        }
    });
    proxy.tally()
}

/// Each shim has its own server, so that its executions can be checked separately.
fn server_of(shim: usize) -> String {
    match shim {
        0 => SERVER.to_owned(),
        more => format!("{SERVER}-{more}"),
    }
}

/// How many of all calls the link with this number makes, if they are shared among `of` links.
fn share(calls: usize, of: usize, number: usize) -> usize {
    calls / of + usize::from(number < calls % of)
}
