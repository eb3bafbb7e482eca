//! Servers written in a few lines of shell: what happens if a server stops reading, or is replaced by a new process.

use cofferdam_tests::harness::refusal_of;
use cofferdam_tests::process::{is_alive, peak_memory_kib};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use serde_json::json;

#[test]
fn a_call_does_not_hang_if_the_server_closes_its_stdin() {
    let log = Log::new();
    let world = World::new()
        .server("tools", shell(&log, r#"*slow*) exec 0<&-; note closed; while :; do sleep 1; done;;"#))
        .start();
    let mut shim = world.connected("tools");
    let slow = shim.send_call("slow", json!({}));
    world.wait_until("its stdin is closed", || log.text().contains("closed"));
    let next = shim.call("echo", json!({}));
    assert_eq!(
        refusal_of(&next),
        "server_unavailable",
        "a call that never reached the server is not reported as unavailable"
    );
    assert_eq!(refusal_of(&shim.answer_to(&slow)), "outcome_unknown");
    assert!(
        shim.call("echo", json!({})).get("result").is_some(),
        "the next call did not start the server again"
    );
}

#[test]
fn a_new_process_waits_for_the_end_of_the_old_one() {
    let log = Log::new();
    let leaves = r#"*leave*) trap "" TERM; exec 1>&-; while :; do sleep 1; done;;"#;
    let world = World::new().server("tools", shell(&log, leaves)).limit("processes = 1").start();
    let mut shim = world.connected("tools");
    let process = || world.sessions()[0]["pid"].as_u64().and_then(|id| u32::try_from(id).ok());
    let first = process().expect("the server runs");
    assert_eq!(refusal_of(&shim.call("leave", json!({}))), "outcome_unknown");
    // The old process ignores SIGTERM, so it runs until its grace period ends and counts towards the limit until then.
    assert!(shim.call("echo", json!({})).get("result").is_some());
    assert!(process().is_some_and(|second| second != first) && !is_alive(first));
    assert_eq!(log.text().matches("started").count(), 2, "{}", log.text());
    assert!(!log.text().contains("overlap"), "{}", log.text());
}

#[test]
fn a_new_process_gets_the_second_handshake_only() {
    let log = Log::new();
    let world = World::new().server("tools", shell(&log, "*crash*) exit 9;;")).start();
    let mut shim = world.connected("tools");
    assert_eq!(refusal_of(&shim.call("crash", json!({}))), "outcome_unknown");
    assert!(shim.initialize().get("result").is_some());
    assert!(shim.call("echo", json!({})).get("result").is_some());
    assert_eq!(log.text().matches(r#""method":"initialize""#).count(), 2, "{}", log.text());
    assert!(world.log().contains("it exited with code 9"));
}

#[test]
fn a_server_that_asks_and_never_reads_takes_no_memory() {
    let log = Log::new();
    let floods = r#"*flood*) yes '{"jsonrpc":"2.0","id":7,"method":"roots/list"}';;"#;
    let mut world = World::new().server("tools", shell(&log, floods)).start();
    let mut shim = world.connected("tools");
    shim.send_call("flood", json!({}));
    world.wait_until("notifications are dropped", || world.log().contains("the server does not read"));
    let peak = peak_memory_kib(world.sidecar().id());
    assert!(peak < 100 * 1024, "the sidecar's peak memory is {peak} KiB");
}

/// The log file of a server of [`shell`].
struct Log {
    directory: tempfile::TempDir,
}

impl Log {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("a temporary directory can be made") }
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

/// A server in a few lines of shell: it answers every request unless `case` matches, and logs every line. It holds a lock while
/// one of its processes is left, and logs if an older process still has it.
fn shell(log: &Log, case: &str) -> Server {
    let script = r#"
        note() { echo "$*" >> "$0/log"; }
        exec 9> "$0/lock"
        flock -n 9 || note overlap
        note started
        while read -r line; do
            note "$line"
            id=$(printf '%s' "$line" | sed -n 's/.*"id":\([^,}]*\).*/\1/p')
            case "$line" in
                CASE
                *'"method":"notifications/'*) ;;
                *) printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"shell","version":"1"},"content":[]}}\n' "$id";;
            esac
        done"#;
    let script = script.replace("CASE", case);
    let directory = log.directory.path();
    Server::command(["/bin/sh", "-c", &script, &directory.display().to_string()]).writing(directory)
}
