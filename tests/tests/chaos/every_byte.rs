//! One cut at each byte of a handshake and at each byte of a header.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cofferdam_tests::chaos::conversation::{Conversation, SERVER};
use cofferdam_tests::chaos::frames::{HEADER, MESSAGE_HEADER};
use cofferdam_tests::chaos::kind::LinkKind;
use cofferdam_tests::chaos::plan::{Plan, Position};
use cofferdam_tests::chaos::proxy::Proxy;
use cofferdam_tests::chaos::random::Random;
use cofferdam_tests::deadline::{Deadline, PATIENCE};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use relay_proto::control::{Hello, Resume, ResumeToken};
use relay_proto::frame::{Frame, PREFACE};
use serde_json::json;

#[test]
fn a_cut_at_every_byte_of_the_handshake_and_of_headers_loses_nothing_over_unix() {
    every_byte_is_cut(&LinkKind::UNIX);
}

/// Cuts at each byte of a first handshake, of a resuming one, and of the first messages' headers, in both directions.
fn every_byte_is_cut(kind: &LinkKind) {
    let first = cut_first_handshakes(kind);
    let (resuming, headers) = cut_resumes(kind);
    let count = first.0 + first.1 + resuming.0 + resuming.1 + headers;
    eprintln!(
        "{}: {count} cuts: {} and {} in first handshakes towards the sidecar and the shim, {} and {} in resuming handshakes, {headers} in headers",
        kind.name, first.0, first.1, resuming.0, resuming.1
    );
    // At least each byte of the shim's handshake, and of a Welcome, which is longer than its token.
    assert!(first.0 > hello_bytes(None) && resuming.0 > hello_bytes(Some(())), "{first:?} {resuming:?}");
    assert!(first.1.min(resuming.1) > PREFACE.len() + HEADER + TOKEN_BYTES, "{first:?} {resuming:?}");
    assert_eq!(headers, 2 * MESSAGES * (HEADER + MESSAGE_HEADER + 1));
}

/// Messages in each direction whose headers are cut.
const MESSAGES: usize = 3;
const TOKEN_BYTES: usize = 64;

/// Plans for the next connections; all later connections are undisturbed.
#[derive(Clone, Default)]
pub(crate) struct Planned(Arc<Mutex<VecDeque<Plan>>>);

impl Planned {
    pub(crate) fn add(&self, plan: Plan) {
        self.0.lock().expect("no holder of the lock panics").push_back(plan);
    }

    pub(crate) fn proxy(&self, kind: &LinkKind, world: &World) -> Proxy {
        let plans = Arc::clone(&self.0);
        Proxy::start(&(kind.front)(world), (kind.sidecar)(world), move |_| {
            plans.lock().expect("no holder of the lock panics").pop_front().unwrap_or_default()
        })
    }
}

/// Cuts the connections of a shim that has no link yet. Returns the number of cuts in each direction.
fn cut_first_handshakes(kind: &LinkKind) -> (usize, usize) {
    // Each lost Welcome leaves a link behind.
    let builder = World::new().server(SERVER, Server::fixture());
    let builder = builder.limit("links = 8192").limit("links-per-minute = 100000");
    let world = (kind.configure)(builder).start();
    let planned = Planned::default();
    let proxy = planned.proxy(kind, &world);
    let (hello, welcome) = {
        let _shim = kind.shim(&world, &proxy, SERVER);
        proxy.wait_for_handshake_lengths(1)
    };
    let towards_sidecar = (0..=hello).map(Position::Byte).map(Plan::cut_towards_sidecar);
    // The last byte is not cut: with the whole Welcome there is a link.
    let towards_shim = (0..welcome).map(Position::Byte).map(Plan::cut_towards_shim);
    let plans: Vec<Plan> = towards_sidecar.chain(towards_shim).collect();
    plans.iter().for_each(|plan| planned.add(plan.clone()));
    let mut shim = kind.shim(&world, &proxy, SERVER);
    for number in 2..plans.len() + 2 {
        // Without a waiting request the shim would retry late; a new message makes it retry at once.
        let deadline = Deadline::after(PATIENCE);
        while proxy.tally().connections < number {
            assert!(!deadline.is_over(), "the shim does not reconnect");
            shim.notify("notifications/nudge", json!({}));
            std::thread::sleep(Duration::from_millis(2));
        }
        proxy.wait_for_the_end_of(number);
    }
    shim.initialize();
    assert_eq!(shim.call_text("echo", json!({"text": "at last"})), "at last");
    (hello + 1, welcome)
}

/// Cuts connections that resume a link, and in the first messages after that. Returns the number of cuts in the
/// handshake in each direction, and in headers.
fn cut_resumes(kind: &LinkKind) -> ((usize, usize), usize) {
    let world = (kind.configure)(World::new().server(SERVER, Server::fixture())).start();
    let planned = Planned::default();
    let proxy = planned.proxy(kind, &world);
    let mut conversation = Conversation::begin(kind.shim(&world, &proxy, SERVER), Random::new(1));
    proxy.cut();
    conversation.call();
    conversation.wait_until_in_flight(0);
    let (hello, welcome) = proxy.wait_for_handshake_lengths(2);
    // The counters in the handshakes grow by a few digits during the test.
    let (hello, welcome) = (hello + 8, welcome + 8);
    let in_headers = || {
        (0..MESSAGES).flat_map(|number| {
            (0..=HEADER + MESSAGE_HEADER).map(move |byte| Position::Message { number, byte })
        })
    };
    let towards_sidecar = (0..=hello).map(Position::Byte).chain(in_headers()).map(Plan::cut_towards_sidecar);
    let towards_shim = (0..=welcome).map(Position::Byte).chain(in_headers()).map(Plan::cut_towards_shim);
    for plan in towards_sidecar.chain(towards_shim) {
        let number = proxy.tally().connections + 1;
        planned.add(plan.clone());
        proxy.cut();
        (0..MESSAGES).for_each(|_| conversation.call());
        let passed = proxy.wait_for_the_end_of(number);
        for end in [plan.towards_sidecar.end, plan.towards_shim.end].into_iter().flatten() {
            if let Position::Byte(byte) = end.at {
                assert_eq!(passed, byte, "the connection was cut at another byte");
            }
        }
        // A new message makes the shim retry at once.
        conversation.call();
        conversation.wait_until_in_flight(0);
    }
    conversation.assert_flawless(&world);
    ((hello + 1, welcome + 1), 2 * in_headers().count())
}

/// The length of a shim's handshake, with and without a link to resume.
fn hello_bytes(resume: Option<()>) -> usize {
    let resume = resume.map(|()| Resume {
        link: "l0123456789abcdef".into(),
        token: ResumeToken("0".repeat(TOKEN_BYTES)),
        received: 1,
    });
    let mut bytes = PREFACE.to_vec();
    let hello = Hello { software: String::new(), resume, ..cofferdam_tests::relay::hello(SERVER, &[1]) };
    Frame::Hello(hello).encode(&mut bytes);
    bytes.len()
}
