//! What one session sends neither reveals the values of another nor delays its calls.

use std::time::Duration;

use cofferdam_tests::encodings::{base64, hex};
use cofferdam_tests::harness::{Harness, text_of};
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

/// Each response takes long to scrub. The sessions that flood share the workers for large messages, so a neighbour's
/// calls, small and large, do not wait until the flood is over.
#[test]
fn sessions_that_flood_with_layered_escapes_do_not_delay_their_neighbours() {
    const PART: &str = r"%5Cu0025&#52;&#x31;%255Cu0034";
    const BYTES: usize = 9_500_000;
    const FLOODS: usize = 2;
    const RESPONSES: usize = 2;
    /// Of what scrubbing takes, and the buffers of server and link.
    const MEMORY_FACTOR: usize = 50;
    let mut world = World::new()
        .secret_file("local", "value-of-the-server-11")
        .server("tools", Server::fixture().env("SECRET", "{local.value}").line("call-timeout = \"10m\""))
        .start();
    let mut neighbour = world.connected("tools");
    let memory_before = peak_memory_kib(world.sidecar().id());
    let mut floods: Vec<(Harness, Vec<Value>)> = (0..FLOODS)
        .map(|_| {
            let mut harness = world.connected("tools");
            let arguments = json!({"part": PART, "bytes": BYTES});
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
    let grown = peak_memory_kib(world.sidecar().id()) - memory_before;
    let limit = (MEMORY_FACTOR * FLOODS * BYTES / 1024) as u64;
    assert!(grown < limit, "the sidecar's memory grew by {grown} KiB");
}

fn echoed(harness: &mut Harness, text: &str) -> String {
    harness.call_text("echo", json!({"text": text}))
}
