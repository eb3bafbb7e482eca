//! What one session sends neither reveals the values of another nor delays its calls.

use std::time::Duration;

use cofferdam_tests::encodings::{base64, hex};
use cofferdam_tests::harness::{Harness, text_of};
use cofferdam_tests::own_socket::OwnSocket;
use cofferdam_tests::process::{environment_variable, peak_memory_kib};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
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

/// Runs that are base64, base32 and hexadecimal at once. A large text of them takes long to search, and is removed whole
/// then, so that nothing else of a response takes long.
const AMBIGUOUS: &str = "44444444444444444444444444444444%5C";

/// Base64 of base64 of text, which takes as long to scrub as anything of this length that is not removed.
const ENCODED_TWICE: &str = "VkdobGMyVWdkMjl5WkhNZ1lYSmxJR1Z1WTI5a1pXUWdkSGRwWTJVc0lHRnNZWE11";

/// Nearly the largest message.
const LARGE: usize = 9_500_000;

/// All links of the sandbox that floods have one turn at the threads for large messages, so the neighbour's calls, small
/// and large, are answered while the flood lasts, and only one of the responses takes the memory that scrubbing needs.
///
/// This test alone does not show that no link scrubs a large response by itself: if they did, a busy machine could still
/// serve the neighbour in between. The next test shows that for one link; for a neighbour of several, the unit test
/// `a_neighbour_is_answered_while_large_responses_of_other_sandboxes_wait_for_a_worker` does.
#[test]
fn links_that_flood_with_encoded_text_do_not_delay_another_sandbox() {
    const FLOODS: usize = 4;
    const RESPONSES: usize = 8;
    const CALLS: usize = 100;
    /// What a link holds of its response, and what scrubbing one of them takes, as multiples of a response.
    const HELD: usize = 7;
    const SCRUBBED: usize = 9;
    // Inherited by the sidecar, which starts as many workers as it has processors.
    use_two_processors();
    let mut world = World::new()
        .secret_file("local", "value-of-the-server-11")
        .server("tools", Server::fixture().env("SECRET", "{local.value}").line("call-timeout = \"10m\""))
        .start();
    let sidecar = world.sidecar().id();
    let enrolled = OwnSocket::enrolled(&world, "neighbour");
    let mut neighbour = enrolled.connected("tools");
    assert_eq!(echoed(&mut neighbour, "before"), "before");
    let memory_before = peak_memory_kib(sidecar);
    let before: Vec<u32> = world.fixture_processes("tools");
    let mut floods: Vec<(Harness, Vec<Value>)> = (0..FLOODS)
        .map(|_| {
            let mut harness = world.connected("tools");
            let arguments = json!({"part": AMBIGUOUS, "bytes": LARGE});
            let ids = (0..RESPONSES).map(|_| harness.send_call("big", arguments.clone())).collect();
            (harness, ids)
        })
        .collect();
    let flooding =
        || world.fixture_processes("tools").into_iter().filter(|process| !before.contains(process));
    world.wait_until("each link reads a response", || {
        flooding().count() == FLOODS && flooding().all(|process| bytes_written(process) > LARGE / 2)
    });
    for number in 0..CALLS {
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
    eprintln!("{answered} of {} responses came before the neighbour was answered", FLOODS * RESPONSES);
    assert!(answered < FLOODS * RESPONSES, "the neighbour was answered only after the whole flood");
    for (harness, ids) in &mut floods {
        for id in ids {
            let answer = harness.answer_within(id, Duration::from_secs(300)).expect("every call is answered");
            assert!(!text_of(&answer).is_empty(), "{answer}");
        }
    }
    let grown = peak_memory_kib(sidecar) - memory_before;
    let limit = ((HELD * FLOODS + SCRUBBED) * LARGE / 1024) as u64;
    eprintln!("the sidecar's memory grew by {grown} KiB of {limit}");
    assert!(grown < limit, "the sidecar's memory grew by {grown} KiB");
}

/// Restricts this thread, and the processes that it starts from now on, to two of its processors.
fn use_two_processors() {
    let this_thread = Pid::from_raw(0);
    let all = sched_getaffinity(this_thread).expect("every thread has an affinity");
    let mut two = CpuSet::new();
    for processor in (0..CpuSet::count()).filter(|index| all.is_set(*index).unwrap_or(false)).take(2) {
        two.set(processor).expect("it is a processor");
    }
    sched_setaffinity(this_thread, &two).expect("a thread may use fewer processors");
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
