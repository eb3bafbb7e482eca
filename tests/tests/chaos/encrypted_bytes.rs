//! One cut at each byte of an encrypted connection: TLS, a WebSocket, and the pipe of a hub.
//!
//! The proxy cannot see frames inside TLS, so the cuts are counted in bytes of the connection, from its first byte to
//! the end of the first messages. `tests/run` cuts at a sample of the bytes, another one in each run, so that successive
//! runs cut at every byte; `just slow` cuts at every byte at once. `COFFERDAM_CHAOS_SEED` repeats a run's sample.

use std::time::Duration;

use cofferdam_tests::chaos::conversation::{Conversation, SERVER};
use cofferdam_tests::chaos::kind::LinkKind;
use cofferdam_tests::chaos::plan::{Plan, Position};
use cofferdam_tests::chaos::proxy::Proxy;
use cofferdam_tests::chaos::random::Random;
use cofferdam_tests::deadline::{Deadline, PATIENCE};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::{Builder, World};
use serde_json::json;

use crate::every_byte::Planned;

/// How densely a test cuts, and in how many worlds at once: most of the time a link waits for its next attempt.
#[derive(Clone, Copy, Debug)]
struct Sampling {
    /// The distance of two cuts in bytes. A prime, so that the cuts are not all at the same place of TLS records.
    step: usize,
    worlds: usize,
}

const SAMPLE: Sampling = Sampling { step: 29, worlds: 4 };
/// A pipe is reconnected by the host, which waits longer before each attempt than a shim does.
const SAMPLE_OF_PIPE: Sampling = Sampling { step: 151, worlds: 4 };
/// Each cut in an enrolling connection needs an enrolment and a shim of its own.
const SAMPLE_OF_ENROLMENTS: Sampling = Sampling { step: 101, worlds: 4 };
const EVERY_BYTE: Sampling = Sampling { step: 1, worlds: 4 };
const EVERY_BYTE_OF_PIPE: Sampling = Sampling { step: 1, worlds: 16 };

/// Calls on each connection that is to be cut.
const CALLS: usize = 3;
/// Each direction has at least this many bytes: the handshakes of TLS and of the relay protocol, and the calls.
const SHORTEST_DIRECTION: usize = 1_000;

#[test]
fn cuts_at_a_sample_of_bytes_lose_nothing_over_tls() {
    cut_resumed_links(&LinkKind::TLS, SAMPLE);
}

#[test]
fn cuts_at_a_sample_of_bytes_lose_nothing_over_a_web_socket() {
    cut_resumed_links(&LinkKind::WEB_SOCKET, SAMPLE);
}

#[test]
fn cuts_at_a_sample_of_bytes_lose_nothing_over_a_hubs_pipe() {
    cut_resumed_links(&LinkKind::HUB, SAMPLE_OF_PIPE);
}

#[test]
fn a_sandbox_whose_enrolling_connection_is_cut_is_enrolled_by_the_next() {
    cut_enrolments(&LinkKind::TLS, SAMPLE_OF_ENROLMENTS);
}

#[test]
#[ignore = "minutes: just slow"]
fn a_cut_at_every_byte_loses_nothing_over_tls() {
    cut_resumed_links(&LinkKind::TLS, EVERY_BYTE);
}

#[test]
#[ignore = "minutes: just slow"]
fn a_cut_at_every_byte_loses_nothing_over_a_web_socket() {
    cut_resumed_links(&LinkKind::WEB_SOCKET, EVERY_BYTE);
}

#[test]
#[ignore = "minutes: just slow"]
fn a_cut_at_every_byte_loses_nothing_over_a_hubs_pipe() {
    cut_resumed_links(&LinkKind::HUB, EVERY_BYTE_OF_PIPE);
}

#[test]
#[ignore = "minutes: just slow"]
fn a_cut_at_every_byte_of_the_enrolling_connection_keeps_no_sandbox_out() {
    cut_enrolments(&LinkKind::TLS, EVERY_BYTE);
}

/// The direction in which a cut is counted.
#[derive(Clone, Copy, Debug)]
enum CutDirection {
    TowardsSidecar,
    TowardsShim,
}

impl CutDirection {
    fn plan(self, byte: usize) -> Plan {
        match self {
            Self::TowardsSidecar => Plan::cut_towards_sidecar(Position::Byte(byte)),
            Self::TowardsShim => Plan::cut_towards_shim(Position::Byte(byte)),
        }
    }
}

/// Bytes at which one world cuts: the first, and the distance to the next.
#[derive(Clone, Copy, Debug)]
struct Share {
    first: usize,
    step: usize,
}

impl Sampling {
    /// The share of each world, in the sample that begins at this byte.
    fn shares(self, offset: usize) -> impl Iterator<Item = Share> {
        let Self { step, worlds } = self;
        (0..worlds).map(move |number| Share { first: offset + number * step, step: worlds * step })
    }

    /// The first byte at which a run with this seed cuts.
    fn offset(self, seed: u64) -> usize {
        let step = u64::try_from(self.step).expect("it is small");
        usize::try_from(seed % step).expect("it is less than the step")
    }
}

#[test]
fn the_samples_of_successive_runs_have_every_byte() {
    for sampling in [SAMPLE, SAMPLE_OF_PIPE, SAMPLE_OF_ENROLMENTS, EVERY_BYTE, EVERY_BYTE_OF_PIPE] {
        let mut cuts = [0; SHORTEST_DIRECTION];
        for seed in 0..u64::try_from(sampling.step).expect("it is small") {
            for share in sampling.shares(sampling.offset(seed)) {
                cuts.iter_mut().skip(share.first).step_by(share.step).for_each(|count| *count += 1);
            }
        }
        assert!(cuts.iter().all(|count| *count == 1), "{sampling:?}: {cuts:?}");
    }
}

/// Cuts in connections that resume a link, in both directions.
fn cut_resumed_links(kind: &LinkKind, sampling: Sampling) {
    in_several_worlds(kind, sampling, |share| {
        let world = (kind.configure)(World::new().server(SERVER, Server::fixture())).start();
        let planned = Planned::default();
        let proxy = planned.proxy(kind, &world);
        let _host = kind.host(&world, &proxy);
        let mut conversation = Conversation::begin(kind.shim(&world, &proxy, SERVER), Random::new(1));
        let lengths = resumed_lengths(&proxy, &mut conversation);
        let cuts = for_each_cut(share, lengths, |direction, byte| {
            planned.add(direction.plan(byte));
            let connection = proxy.tally().connections + 1;
            proxy.cut();
            cut_during_calls(&proxy, &mut conversation, connection, byte);
        });
        conversation.assert_flawless(&world);
        cuts
    });
}

/// The bytes of a resumed connection on which calls were made, in each direction.
fn resumed_lengths(proxy: &Proxy, conversation: &mut Conversation) -> (usize, usize) {
    proxy.cut();
    (0..CALLS).for_each(|_| conversation.call());
    conversation.wait_until_in_flight(0);
    proxy.bytes_forwarded(proxy.tally().connections)
}

/// Makes calls until the plan of this connection has cut it, then waits for all responses.
fn cut_during_calls(proxy: &Proxy, conversation: &mut Conversation, connection: usize, byte: usize) {
    let deadline = Deadline::after(PATIENCE);
    (0..CALLS).for_each(|_| conversation.call());
    let passed = loop {
        assert!(!deadline.is_over(), "connection {connection} was not cut at byte {byte}");
        if let Some(passed) = proxy.wait_for_the_end_within(Duration::from_millis(200), connection) {
            break passed;
        }
        // Makes the shim retry at once, and adds bytes if this connection has fewer than the measured one.
        conversation.call();
    };
    assert_eq!(passed, byte, "the connection was cut at another byte");
    conversation.call();
    conversation.wait_until_in_flight(0);
}

/// Cuts the first connection of a sandbox, on which it enrols, in both directions. The ticket may be used up by then; the
/// sandbox still gets its link.
fn cut_enrolments(kind: &LinkKind, sampling: Sampling) {
    in_several_worlds(kind, sampling, |share| {
        let world = (kind.configure)(roomy_world()).start();
        let planned = Planned::default();
        let proxy = planned.proxy(kind, &world);
        let call_from_a_new_sandbox = || {
            let mut shim = kind.shim(&world, &proxy, SERVER);
            shim.initialize();
            assert_eq!(shim.call_text("echo", json!({"text": "enrolled"})), "enrolled");
            // In an orderly way: a link that is merely lost would keep its server process for a while.
            shim.close_stdin();
            assert!(shim.wait_for_exit().success());
        };
        call_from_a_new_sandbox();
        let lengths = proxy.bytes_forwarded(1);
        for_each_cut(share, lengths, |direction, byte| {
            planned.add(direction.plan(byte));
            let connection = proxy.tally().connections + 1;
            call_from_a_new_sandbox();
            // Near its end a connection may have fewer bytes than the measured one.
            let passed = proxy.wait_for_the_end_within(Duration::ZERO, connection);
            assert!(passed.is_none_or(|passed| passed == byte), "{direction:?} {byte}: {passed:?}");
        })
    });
}

/// A world that accepts as many links and enrolments as there are cuts.
fn roomy_world() -> Builder {
    let builder = World::new().server(SERVER, Server::fixture());
    let limits = ["links = 8192", "links-per-minute = 100000", "starts-per-minute = 60000"];
    limits.iter().fold(builder, |builder, limit| builder.limit(limit))
}

/// Shares the bytes among several worlds, and asserts that every byte of a connection had its turn.
fn in_several_worlds(kind: &LinkKind, sampling: Sampling, cut_share: impl Fn(Share) -> [usize; 2] + Sync) {
    let offset = sampling.offset(Random::seed());
    let mut cuts = [0, 0];
    std::thread::scope(|scope| {
        let running: Vec<_> = sampling
            .shares(offset)
            .map(|share| {
                let cut_share = &cut_share;
                scope.spawn(move || cut_share(share))
            })
            .collect();
        for world in running {
            let [towards_sidecar, towards_shim] = world.join().expect("a world failed, see above");
            cuts[0] += towards_sidecar;
            cuts[1] += towards_shim;
        }
    });
    eprintln!(
        "{}: {} cuts towards the sidecar, {} towards the shim, from byte {offset}",
        kind.name, cuts[0], cuts[1]
    );
    assert!(cuts.iter().all(|count| *count >= (SHORTEST_DIRECTION - offset) / sampling.step), "{cuts:?}");
}

/// Calls `cut` for each byte of the share in both directions; returns how many there were in each.
fn for_each_cut(
    share: Share,
    lengths: (usize, usize),
    mut cut: impl FnMut(CutDirection, usize),
) -> [usize; 2] {
    let directions = [(CutDirection::TowardsSidecar, lengths.0), (CutDirection::TowardsShim, lengths.1)];
    directions.map(|(direction, length)| {
        let bytes = (share.first..length).step_by(share.step);
        let count = bytes.len();
        bytes.for_each(|byte| cut(direction, byte));
        count
    })
}
