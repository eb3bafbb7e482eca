//! What one session sends neither reveals the values of another nor delays its calls.

use std::time::Duration;

use cofferdam_tests::encodings::{base64, hex};
use cofferdam_tests::harness::{Harness, text_of};
use cofferdam_tests::own_socket::OwnSocket;
use cofferdam_tests::process::{environment_variable, peak_memory_kib};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use serde_json::{Value, json};

#[test]
fn a_value_of_another_session_is_redacted_without_its_name() {
    let world = World::new()
        .secret_exec("minted", &["cat", "/proc/sys/kernel/random/uuid"])
        .server("minting", Server::fixture().env("SECRET", "{minted.value}"))
        .server("tools", Server::fixture())
        .capturing()
        .start();
    let mut first = world.connected("minting");
    let value = environment_variable(world.fixture_processes("minting")[0], "SECRET");
    assert_eq!(echoed(&mut first, &value), "[redacted:minted.value]");
    let mut same_server = world.connected("minting");
    let mut other_server = world.connected("tools");
    assert_eq!(echoed(&mut same_server, &value), "[redacted]");
    assert_eq!(echoed(&mut other_server, &value), "[redacted]");
    first.close_stdin();
    first.wait_for_exit();
    let sessions = || world.sessions().as_array().map_or(0, Vec::len);
    world.wait_until("the session that read the value has ended", || sessions() == 2);
    assert_eq!(echoed(&mut other_server, &value), "[redacted]", "the value is forgotten too early");
    world.assert_secret_not_leaked(&value);
}

#[test]
fn a_value_that_is_not_utf8_is_redacted_in_the_forms_that_json_can_carry() {
    const VALUE: &[u8] = b"\xff\xfe-key-\x80-of-some-bytes";
    let world = World::new()
        .secret_exec("binary", &["printf", r"\377\376-key-\200-of-some-bytes"])
        .server("tools", Server::fixture().env("KEY", "{binary.value}"))
        .start();
    let mut shim = world.connected("tools");
    let as_characters: String = VALUE.iter().map(|byte| char::from(*byte)).collect();
    for text in [as_characters, String::from_utf8_lossy(VALUE).into_owned(), base64(VALUE), hex(VALUE)] {
        let output = echoed(&mut shim, &format!("<{text}>"));
        assert!(output.contains("[redacted:binary.value]") && output.len() < 40, "{text}: {output}");
    }
}

/// A server that runs as the sidecar's user can read these files.
#[test]
fn the_sidecars_own_keys_are_redacted() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut shim = world.connected("tools");
    for file in ["key", "audit/key"] {
        let key = std::fs::read(world.layout().state.join(file)).unwrap();
        for text in [base64(&key), hex(&key)] {
            let output = echoed(&mut shim, &text);
            // White space at the ends of the key does not count.
            assert!(output.contains("[redacted]") && output.len() < 20, "{file}: {output}");
        }
    }
}

/// Takes long to scrub: each escape needs bytes that are escaped in another way.
const LAYERED_ESCAPES: &str = r"%5Cu0025&#52;&#x31;%255Cu0034";

/// Base64 of base64 of text, which takes as long to scrub as anything of this length that is not removed.
const ENCODED_TWICE: &str = "VkdobGMyVWdkMjl5WkhNZ1lYSmxJR1Z1WTI5a1pXUWdkSGRwWTJVc0lHRnNZWE11";

/// Nearly the largest message.
const LARGE: usize = 9_500_000;

/// Each response takes long to scrub. All links of the sandbox that floods have one turn at the workers for large
/// messages, so a neighbour's calls, small and large, do not wait until the flood is over; and only one of these
/// responses takes the memory that scrubbing needs.
#[test]
fn links_that_flood_with_layered_escapes_do_not_delay_another_sandbox() {
    const FLOODS: usize = 2;
    const RESPONSES: usize = 2;
    /// Of the messages that the links hold, with what scrubbing one of them takes.
    const MEMORY_FACTOR: usize = 13;
    let mut world = World::new()
        .secret_file("local", "value-of-the-server-11")
        .server("tools", Server::fixture().env("SECRET", "{local.value}").line("call-timeout = \"10m\""))
        .start();
    let sidecar = world.sidecar().id();
    let enrolled = OwnSocket::enrolled(&world, "neighbour");
    let mut neighbour = enrolled.connected("tools");
    let memory_before = peak_memory_kib(sidecar);
    let mut floods: Vec<(Harness, Vec<Value>)> = (0..FLOODS)
        .map(|_| {
            let mut harness = world.connected("tools");
            let arguments = json!({"part": LAYERED_ESCAPES, "bytes": LARGE});
            let ids = (0..RESPONSES).map(|_| harness.send_call("big", arguments.clone())).collect();
            (harness, ids)
        })
        .collect();
    for number in 0..20 {
        assert_eq!(echoed(&mut neighbour, &format!("call {number}")), format!("call {number}"));
    }
    let large = neighbour.call_text("big", json!({"bytes": 300_000}));
    assert_eq!(large.len(), 300_000);
    let answered: usize = floods
        .iter_mut()
        .map(|(harness, ids)| {
            ids.retain(|id| harness.answer_within(id, Duration::from_millis(20)).is_none());
            RESPONSES - ids.len()
        })
        .sum();
    assert!(answered < FLOODS * RESPONSES, "the neighbour was answered only after the whole flood");
    for (harness, ids) in &mut floods {
        for id in ids {
            let answer = harness.answer_within(id, Duration::from_secs(300)).expect("every call is answered");
            assert!(!text_of(&answer).is_empty(), "{answer}");
        }
    }
    let grown = peak_memory_kib(sidecar) - memory_before;
    let limit = (MEMORY_FACTOR * FLOODS * LARGE / 1024) as u64;
    assert!(grown < limit, "the sidecar's memory grew by {grown} KiB");
}

/// While a worker scrubs a response, its link answers what needs no server: a link that scrubbed it itself would answer
/// nothing before the response.
#[test]
fn a_link_goes_on_while_a_large_response_is_scrubbed() {
    /// One call may reach a link that scrubs by itself before it has read the whole response, in each attempt.
    const CALLS: usize = 5;
    /// A busy machine may leave too little time for so many calls.
    const ATTEMPTS: usize = 20;
    let world = World::new()
        .secret_file("local", "value-of-the-server-11")
        .server(
            "tools",
            Server::fixture().env("SECRET", "{local.value}").line("tools = { deny = [\"echo\"] }"),
        )
        .start();
    let mut shim = world.connected("tools");
    assert_eq!(shim.call_text("big", json!({"bytes": 1})), "x");
    let server = world.fixture_processes("tools")[0];
    let mut calls_answered_first = || {
        let written = bytes_written(server);
        let large = shim.send_call("big", json!({"part": ENCODED_TWICE, "bytes": LARGE}));
        // Then all of the response has been read but what a pipe holds.
        world.wait_until("the server has written its response", || bytes_written(server) > written + LARGE);
        let mut answered = 0;
        while shim.answer_within(&large, Duration::ZERO).is_none() {
            let refusal = shim.call("echo", json!({"text": "x"}));
            assert!(refusal.get("error").is_some(), "the sidecar itself answers: {refusal}");
            answered += 1;
        }
        answered
    };
    let most = (0..ATTEMPTS).map(|_| calls_answered_first()).find(|answered| *answered > CALLS);
    assert!(most.is_some(), "in no attempt more than {CALLS} calls were answered before the large response");
}

/// How many bytes a process has written so far.
fn bytes_written(process: u32) -> usize {
    let counts = std::fs::read_to_string(format!("/proc/{process}/io")).expect("the process is alive");
    let written =
        counts.lines().find_map(|line| line.strip_prefix("wchar: ")).expect("all kernels count them");
    written.parse().expect("a number")
}

fn echoed(harness: &mut Harness, text: &str) -> String {
    harness.call_text("echo", json!({"text": text}))
}
