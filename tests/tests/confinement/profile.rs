//! What the keys of a profile change for a server.

use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use serde_json::json;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/confinement/attacks.py");

/// What a server with this profile says of an attack, each time in a new process.
fn attempts(profile: &str, attack: &str, times: usize) -> Vec<String> {
    let server = Server::command(["/usr/bin/python3", SCRIPT]).env("MARK", "unused").confine(profile);
    let world = World::new().server("server", server).start();
    let attempt = |_| world.connected("server").call_text("attack", json!({"name": attack, "with": {}}));
    (0..times).map(attempt).collect()
}

#[test]
fn with_a_list_of_programs_no_other_is_executed() {
    assert_eq!(attempts("pids = 100", "run_a_program", 1), ["REACHED exit 0"]);
    assert_eq!(attempts("exec = [\"/usr/bin/true\"]", "run_a_program", 1), ["REACHED exit 0"]);
    let refused = &attempts("exec = []", "run_a_program", 1)[0];
    assert!(refused.starts_with("STOPPED PermissionError"), "{refused}");
}

#[test]
fn a_home_is_empty_for_each_process_unless_it_is_kept() {
    assert_eq!(attempts("home = \"private\"", "leave_a_file_at_home", 2), ["REACHED /home/server"; 2]);
    let kept = attempts("home = \"keep\"", "leave_a_file_at_home", 2);
    assert_eq!(kept[0], "REACHED /home/server");
    assert!(kept[1].starts_with("STOPPED FileExistsError"), "{kept:?}");
}
