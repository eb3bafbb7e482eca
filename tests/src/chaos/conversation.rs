//! Many calls over one link, each checked at the harness, at the server and in the audit.
//!
//! Every message has a number, and the server records the numbers as it executes them. So "nothing
//! lost, repeated or reordered" is a comparison of lists, and "at most once" is a count.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::random::Random;
use crate::deadline::PATIENCE;
use crate::harness::{Harness, text_of};
use crate::world::World;

/// Generous: a shim that is cut off repeatedly reconnects every two seconds at most, and a long message may need as
/// many connections as it has parts.
const CHAOS_TIMEOUT: Duration = PATIENCE.saturating_mul(3);

/// The server of the conversations.
pub const SERVER: &str = "tools";

/// A harness that sends messages and records what it sent and received.
#[derive(Debug)]
pub struct Conversation {
    pub harness: Harness,
    server: String,
    random: Random,
    /// The messages in the order of sending; a message's number is its index plus 1.
    sent: Vec<Sent>,
    /// Numbers of the requests without a response, by id.
    waiting: BTreeMap<u64, u64>,
    responses: BTreeMap<u64, Value>,
    /// The numbers in the server's notifications, in the order of arrival.
    notified: Vec<u64>,
    most_in_flight: usize,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Sent {
    /// The server sends a request to the harness before it responds.
    Asking,
    /// A call with a text, and a response of this many bytes.
    Call {
        answer: usize,
    },
    Notification,
}

/// What a response says about its call.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum CallOutcome {
    DidNotRun,
    Ran,
    Unknown,
}

impl Conversation {
    /// Begins with the legacy handshake; the connection may be cut during it too.
    #[track_caller]
    pub fn begin(harness: Harness, random: Random) -> Self {
        Self::begin_with(SERVER, harness, random)
    }

    /// Like `begin`, with another server that no other conversation uses.
    #[track_caller]
    pub fn begin_with(server: &str, harness: Harness, random: Random) -> Self {
        Self {
            harness: harness.initialized(),
            server: server.to_owned(),
            random,
            sent: Vec::new(),
            waiting: BTreeMap::new(),
            responses: BTreeMap::new(),
            notified: Vec::new(),
            most_in_flight: 1,
        }
    }

    /// Sends this many messages with one to eight requests in flight, and waits for every response.
    #[track_caller]
    pub fn exchange(&mut self, messages: usize) {
        for _ in 0..messages {
            self.send_random();
            if self.random.percent(10) {
                self.most_in_flight = self.random.within(1..=8) as usize;
            }
            self.wait_until_in_flight(self.most_in_flight - 1);
        }
        self.wait_until_in_flight(0);
    }

    /// Sends one more message, of random kind and size.
    #[track_caller]
    pub fn send_random(&mut self) {
        let sent = match self.random.within(0..=99) {
            0..=2 => Sent::Asking,
            3..=22 => Sent::Notification,
            _ => Sent::Call { answer: self.size() },
        };
        let text_bytes = self.size();
        self.send_this(sent, text_bytes);
    }

    /// Sends one small call.
    #[track_caller]
    pub fn call(&mut self) {
        self.send_this(Sent::Call { answer: 10 }, 10);
    }

    /// Sends one notification.
    #[track_caller]
    pub fn notify(&mut self) {
        self.send_this(Sent::Notification, 10);
    }

    /// Receives messages until at most this many requests wait.
    #[track_caller]
    pub fn wait_until_in_flight(&mut self, count: usize) {
        while self.waiting.len() > count {
            let message = self.harness.next_message_within(CHAOS_TIMEOUT);
            self.receive(&message);
        }
    }

    /// The outcome of the newest request that has a response.
    ///
    /// # Panics
    /// When there was no response yet.
    #[track_caller]
    pub fn last_outcome(&self) -> CallOutcome {
        outcome_of(self.responses.values().next_back().expect("there was a response"))
    }

    /// Asserts that nothing was lost, repeated or reordered, that one link and one process were used, and that the
    /// audit has every decision and outcome once.
    #[track_caller]
    pub fn assert_flawless(&mut self, world: &World) {
        self.wait_for_earlier_messages();
        let all: Vec<u64> = (1..=self.sent.len() as u64).collect();
        assert_eq!(self.executed(world), all, "the server executed everything once and in order");
        let is_call = |number: &u64| matches!(self.sent[*number as usize - 1], Sent::Call { .. });
        let calls: Vec<u64> = all.iter().copied().filter(is_call).collect();
        assert_eq!(self.notified, calls, "the server's notifications come once and in order");
        for (number, answer) in &self.responses {
            assert_eq!(outcome_of(answer), CallOutcome::Ran, "{number}: {answer}");
        }
        assert_eq!(world.fixture_processes(&self.server).len(), 1, "on one process");
        let requests = self.sent.iter().filter(|sent| **sent != Sent::Notification).count();
        assert_eq!(self.responses.len(), requests, "not every request has a response");
        for (what, records) in [("decision", world.decisions()), ("outcome", world.outcomes())] {
            let ours = records.iter().filter(|record| record["server"] == *self.server);
            let mut positions: Vec<(String, u64)> = ours.map(position).collect();
            let count = positions.len();
            positions.sort();
            positions.dedup();
            assert_eq!((count, positions.len()), (requests, requests), "one {what} for each request");
            positions.dedup_by_key(|(link, _)| link.clone());
            assert_eq!(positions.len(), 1, "on one link");
        }
    }

    /// Asserts that each request has one response and ran at most once: once if the response says so, never if it says
    /// not.
    #[track_caller]
    pub fn assert_at_most_once(&mut self, world: &World) -> BTreeMap<CallOutcome, usize> {
        self.wait_for_earlier_messages();
        let executed = self.executed(world);
        let mut outcomes = BTreeMap::new();
        for (number, sent) in (1..).zip(&self.sent) {
            let times = executed.iter().filter(|other| **other == number).count();
            assert!(times <= 1, "{number} ran {times} times");
            if *sent == Sent::Notification {
                continue;
            }
            let Some(answer) = self.responses.get(&number) else {
                panic!("request {number} has no response")
            };
            let outcome = outcome_of(answer);
            match outcome {
                CallOutcome::DidNotRun => assert_eq!(times, 0, "{number}: {answer}"),
                CallOutcome::Ran => assert_eq!(times, 1, "{number}"),
                CallOutcome::Unknown => {}
            }
            *outcomes.entry(outcome).or_default() += 1;
        }
        outcomes
    }

    #[track_caller]
    fn send_this(&mut self, sent: Sent, text_bytes: usize) {
        self.sent.push(sent);
        let number = self.sent.len() as u64;
        let text = text(number, text_bytes);
        let id = match sent {
            Sent::Notification => {
                return self.harness.notify("notifications/tally", json!({"number": number, "text": text}));
            }
            Sent::Asking => {
                let arguments = json!({"number": number, "text": text, "id": format!("ask-{number}")});
                self.harness.send_call("ask_client", arguments)
            }
            Sent::Call { answer } => {
                self.harness.send_call("tally", json!({"number": number, "text": text, "answer": answer}))
            }
        };
        self.waiting.insert(id.as_u64().expect("ids are numbers here"), number);
    }

    /// A random size in bytes: most are small, some need several frames.
    fn size(&mut self) -> usize {
        let range = match self.random.within(0..=99) {
            0..=69 => 0..=300,
            70..=89 => 300..=10_000,
            90..=96 => 10_000..=100_000,
            _ => 100_000..=400_000,
        };
        self.random.within(range) as usize
    }

    #[track_caller]
    fn receive(&mut self, message: &Value) {
        match message["method"].as_str() {
            Some("notifications/message") => {
                self.notified.push(
                    message["params"]["data"]["number"].as_u64().expect("the notification has a number"),
                );
            }
            Some("roots/list") => {
                self.harness.send(&json!({"jsonrpc": "2.0", "id": message["id"], "result": {"roots": []}}));
            }
            // The sidecar cancels a server's request when the server exits; nothing is to be answered.
            Some("notifications/cancelled") => {}
            Some(method) => panic!("unexpected request {method}"),
            None => self.on_response(message),
        }
    }

    #[track_caller]
    fn on_response(&mut self, message: &Value) {
        let number = message["id"].as_u64().and_then(|id| self.waiting.remove(&id));
        let Some(number) = number else { panic!("a response without a request: {message}") };
        if let Sent::Call { answer } = self.sent[number as usize - 1]
            && message.get("result").is_some()
        {
            assert!(
                text_of(message) == text(number, answer),
                "{number}: the response belongs to another call"
            );
        }
        // Only whether the call succeeded is kept, not its result, which may be long.
        let kept = if message.get("result").is_some() { json!({"result": {}}) } else { message.clone() };
        self.responses.insert(number, kept);
    }

    /// Sends a `ping`: because a link preserves the order, all earlier messages have arrived when its response does.
    #[track_caller]
    fn wait_for_earlier_messages(&mut self) {
        let ping = self.harness.send_request("ping", json!({}));
        loop {
            let message = self.harness.next_message_within(CHAOS_TIMEOUT);
            if message["id"] == ping && message.get("method").is_none() {
                return;
            }
            self.receive(&message);
        }
    }

    /// The numbers that the server executed, in its order, each with the text that was sent.
    #[track_caller]
    fn executed(&self, world: &World) -> Vec<u64> {
        let executions = world.executions(&self.server);
        let mut numbers = Vec::new();
        for execution in executions {
            let number = execution.arguments["number"].as_u64().expect("everything has a number");
            let bytes = execution.arguments["bytes"].as_u64().expect("the fixture measured it");
            assert_eq!(execution.arguments["sum"], sum(&text(number, bytes as usize)), "{number}: changed");
            numbers.push(number);
        }
        numbers
    }
}

/// A text of this length that no other number has.
pub fn text(number: u64, bytes: usize) -> String {
    let mut random = Random::new(number);
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        text.push_str(&format!("{:016x}", random.next()));
    }
    text.truncate(bytes);
    text
}

/// A checksum (FNV-1a), to compare texts.
pub fn sum(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[track_caller]
fn outcome_of(answer: &Value) -> CallOutcome {
    if answer.get("result").is_some() {
        return CallOutcome::Ran;
    }
    match crate::harness::refusal_of(answer) {
        "outcome_unknown" => CallOutcome::Unknown,
        "relay_unavailable" | "server_unavailable" | "session_ended" => CallOutcome::DidNotRun,
        other => panic!("unexpected error {other} in {answer}"),
    }
}

/// The link of an audit record, and the number of its message on that link.
fn position(record: &Value) -> (String, u64) {
    (record["link"].as_str().unwrap_or_default().to_owned(), record["seq"].as_u64().unwrap_or_default())
}
