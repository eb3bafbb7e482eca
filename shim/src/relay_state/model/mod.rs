//! A relay state with a harness, a network and a sidecar around it, all driven by a script of bytes.
//!
//! Shared by a unit test and the fuzz target `relay_state`: every script is a possible sequence of events. At its end,
//! every request has one response, or none if the harness cancelled it; and if the sidecar was honest, every request
//! ran at most once, and none ran that was answered with "did not run".

mod sidecar;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use relay_proto::control::Proof;
use relay_proto::decoder::Decoder;
use relay_proto::envelope::{self, IdValue, Kind, Strictness};
use relay_proto::frame::PREFACE;
use tokio::time::Instant;

use sidecar::{Honesty, Sidecar};

use super::{ConnectionAction, RelayState};
use crate::lines::Line;
use crate::timing::Timing;

/// Runs a script of (event, amount) pairs; panics if an invariant is broken.
pub(crate) fn run_script(script: &[(u8, u8)]) {
    let honesty = match script.first() {
        Some((first, _)) if first % 4 == 3 => Honesty::Hostile,
        _ => Honesty::Honest,
    };
    let mut simulation = Simulation::new(honesty);
    for (event, amount) in script.iter().take(MAX_STEPS) {
        simulation.step(*event, *amount);
    }
    simulation.settle();
}

const MAX_STEPS: usize = 400;

struct Simulation {
    state: RelayState,
    now: Instant,
    wire: Option<Wire>,
    sidecar: Sidecar,
    /// The harness's requests, by number, with the responses they got.
    requests: BTreeMap<u32, RequestOutcome>,
}

#[derive(Default)]
struct RequestOutcome {
    responses: usize,
    cancelled: bool,
    reported_not_run: bool,
}

/// One connection: the bytes under way, and the decoder of each end.
#[derive(Default)]
struct Wire {
    to_sidecar: VecDeque<u8>,
    to_shim: VecDeque<u8>,
    sidecar: Decoder,
    shim: Decoder,
}

impl Simulation {
    fn new(honesty: Honesty) -> Self {
        let now = Instant::now();
        Self {
            state: RelayState::new(None, Timing::default(), now),
            now,
            wire: None,
            sidecar: Sidecar::new(honesty),
            requests: BTreeMap::new(),
        }
    }

    fn step(&mut self, event: u8, amount: u8) {
        match event % 20 {
            0..=3 => self.send_request(amount),
            4 => self.send_line(r#"{"jsonrpc":"2.0","method":"notifications/x"}"#),
            5 => self.cancel(amount),
            6 | 7 => self.connect(),
            8 | 9 => self.carry_to_sidecar(usize::from(amount) * usize::from(amount)),
            10 | 11 => self.carry_to_shim(usize::from(amount) * usize::from(amount)),
            12 | 13 => self.sidecar.respond(),
            14 => self.pass_time(Duration::from_millis(u64::from(amount) * 300)),
            15 => self.disconnect("the connection was cut"),
            16 => self.read_output(),
            17 => self.sidecar.restart(),
            18 => self.sidecar.refuse_or_end(amount, self.wire.as_mut()),
            _ => self.garbage(amount),
        }
        self.state.sidecar.fill();
    }

    /// From now on the network works and the sidecar responds: asserts that every request gets its response.
    fn settle(&mut self) {
        self.disconnect("the last connection was cut");
        self.sidecar.refusal = None;
        self.sidecar.restart();
        for _ in 0..2000 {
            self.read_output();
            if self.requests.values().all(|outcome| outcome.responses > 0 || outcome.cancelled) {
                break;
            }
            self.connect();
            self.carry_to_sidecar(usize::MAX);
            while !self.sidecar.running.is_empty() {
                self.sidecar.respond();
            }
            self.carry_to_shim(usize::MAX);
            self.pass_time(Duration::from_millis(500));
        }
        self.read_output();
        for (number, outcome) in &self.requests {
            assert!(
                outcome.responses == 1 || outcome.cancelled,
                "request {number} has {} responses",
                outcome.responses
            );
            let ran = self.sidecar.ran.get(number).copied().unwrap_or_default();
            if self.sidecar.honesty == Honesty::Honest {
                assert!(ran <= 1, "request {number} ran {ran} times");
                assert!(
                    ran == 0 || !outcome.reported_not_run,
                    "request {number} ran, but its response says that it did not"
                );
            }
        }
    }

    fn send_request(&mut self, amount: u8) {
        let number = self.requests.len() as u32 + 1;
        // Some requests take several frames, most do not.
        let padding = "p".repeat(if amount > 200 { usize::from(amount) * 700 } else { usize::from(amount) });
        let line = format!(r#"{{"jsonrpc":"2.0","id":{number},"method":"tools/call","params":"{padding}"}}"#);
        if self.state.harness.accepts_lines() {
            self.requests.insert(number, RequestOutcome::default());
            self.send_line(&line);
        }
    }

    fn cancel(&mut self, amount: u8) {
        let number = u32::from(amount) + 1;
        if let Some(outcome) = self.requests.get_mut(&number)
            && outcome.responses == 0
        {
            self.send_line(&format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{number}}}}}"#
            ));
            self.read_output();
            if let Some(outcome) = self.requests.get_mut(&number) {
                outcome.cancelled = true;
            }
        }
    }

    fn send_line(&mut self, line: &str) {
        self.state.line(Line::Whole(line.as_bytes()), self.now);
    }

    /// The harness reads all its lines and counts the responses.
    fn read_output(&mut self) {
        let output = self.state.harness.output.waiting().to_vec();
        self.state.harness.output.consume(output.len());
        for line in output.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let envelope =
                envelope::read(line, Strictness::Envelope).expect("the harness gets only messages");
            let Kind::Response { id: Some(id), .. } = envelope.kind else { continue };
            let IdValue::Integer(number) = id.value() else { panic!("an id that the harness never used") };
            let number: u32 = number.parse().expect("the harness uses numbers");
            let outcome = self.requests.get_mut(&number).expect("the request was sent");
            assert!(!outcome.cancelled, "request {number} was cancelled, but got a response");
            outcome.responses += 1;
            assert_eq!(outcome.responses, 1, "request {number} got a second response");
            outcome.reported_not_run = contains(line, r#""code":"relay_unavailable""#)
                || contains(line, r#""code":"session_ended""#);
        }
    }

    fn connect(&mut self) {
        if self.wire.is_none() && self.state.should_connect(self.now) {
            self.state.sidecar.connected(Proof::Socket, self.now);
            self.wire = Some(Wire { to_shim: PREFACE.iter().copied().collect(), ..Wire::default() });
        }
    }

    fn disconnect(&mut self, why: &str) {
        if self.wire.take().is_some() {
            self.state.sidecar.disconnected(why.into(), self.now);
        }
    }

    fn pass_time(&mut self, time: Duration) {
        self.now += time;
        if self.state.tick(self.now) == ConnectionAction::Close {
            self.wire = None;
        }
    }

    fn carry_to_sidecar(&mut self, count: usize) {
        let Some(wire) = &mut self.wire else { return };
        while !self.state.sidecar.output.is_empty() {
            wire.to_sidecar.extend(self.state.sidecar.output.waiting());
            self.state.sidecar.output.consume(self.state.sidecar.output.len());
            self.state.sidecar.fill();
        }
        let some: Vec<u8> = wire.to_sidecar.drain(..count.min(wire.to_sidecar.len())).collect();
        wire.sidecar.feed(&some);
        while let Some(frame) = wire.sidecar.next().expect("a shim sends only frames") {
            self.sidecar.handle_frame(frame, &mut wire.to_shim);
        }
    }

    fn carry_to_shim(&mut self, count: usize) {
        let Some(wire) = &mut self.wire else { return };
        self.sidecar.send_ready(&mut wire.to_shim);
        if !self.state.harness.accepts_frames() {
            return;
        }
        let some: Vec<u8> = wire.to_shim.drain(..count.min(wire.to_shim.len())).collect();
        wire.shim.feed(&some);
        self.state.sidecar.bytes_received();
        loop {
            match wire.shim.next_view() {
                Ok(Some(frame)) => match self.state.frame(frame, self.now) {
                    ConnectionAction::Close => break,
                    ConnectionAction::Keep => {}
                },
                Ok(None) => return,
                Err(error) => {
                    self.state.undecodable(&error, self.now);
                    break;
                }
            }
        }
        self.wire = None;
    }

    /// A hostile sidecar sends bytes that need not be a valid frame.
    fn garbage(&mut self, amount: u8) {
        if let Some(wire) = &mut self.wire
            && self.sidecar.honesty == Honesty::Hostile
        {
            wire.to_shim.extend([0, 0, 0, amount % 16, 0x10 + amount % 5, amount, b'{', b'}']);
        }
    }
}

fn contains(line: &[u8], text: &str) -> bool {
    line.windows(text.len()).any(|window| window == text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fuzz target finds better scripts; these random ones run with every test run.
    #[test]
    fn every_schedule_gives_every_request_exactly_one_response() {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        };
        for _ in 0..200 {
            let length = usize::from(next()) + 20;
            let script: Vec<(u8, u8)> = (0..length).map(|_| (next(), next())).collect();
            run_script(&script);
        }
    }
}
