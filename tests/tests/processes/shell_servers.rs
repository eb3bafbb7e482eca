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
    assert_eq!(refusal_of(&shim.call("leave", json!({}))), "outcome_unknown");
    // The old process ignores SIGTERM, so it runs until its grace period ends and counts towards the limit until then.
    assert!(shim.call("echo", json!({})).get("result").is_some());
    let processes = log.processes();
    assert_eq!(processes.len(), 2);
    assert!(!is_alive(processes[0]));
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
    file: tempfile::NamedTempFile,
}

impl Log {
    fn new() -> Self {
        Self { file: tempfile::NamedTempFile::new().expect("a temporary file can be made") }
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.file.path()).expect("it is there")
    }

    fn processes(&self) -> Vec<u32> {
        let text = self.text();
        text.lines().filter_map(|line| line.strip_prefix("process ")?.parse().ok()).collect()
    }
}

/// A server in a few lines of shell: it answers every request unless `case` matches, and logs every line.
fn shell(log: &Log, case: &str) -> Server {
    let script = r#"
        note() { echo "$*" >> "$0"; }
        before=$(sed -n 's/^process //p' "$0" | tail -n 1)
        if [ -n "$before" ] && kill -0 "$before" 2> /dev/null; then note overlap; fi
        note process $$
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
    Server::command(["/bin/sh".to_owned(), "-c".to_owned(), script, log.file.path().display().to_string()])
}
