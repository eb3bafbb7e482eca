//! Screens of `sessions`, `doctor`, `audit tail` and of the live view at 80 and 200 columns, with and without colours, compared
//! with the files beside this one. `UPDATE_SCREENS=1` writes them.

mod normalised;

use std::path::{Path, PathBuf};
use std::process::Command;

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::harness::Harness;
use cofferdam_tests::process::built;
use cofferdam_tests::sandbox_files::enroll;
use cofferdam_tests::server::Server;
use cofferdam_tests::tmux::{Capture, Tmux};
use cofferdam_tests::world::World;
use normalised::normalised;
use serde_json::json;

/// Ten days, so that the shown time left is the same for an hour.
const LEASE: &str = "printf '{\"fields\": {\"token\": \"CANARY-screens-0123456789\"}, \"expires\": \"%s\"}' \
                     $(date -u -d '+10 days' +%Y-%m-%dT%H:%M:%SZ)";
/// Rows of the window of a command that prints and ends.
const TALL: u16 = 70;
/// Rows of the live view.
const USUAL: u16 = 24;

/// Two sandboxes with names, and a link of the shared socket. A call was allowed, one denied.
struct Busy {
    world: World,
    _shims: Vec<Harness>,
    pids: Vec<String>,
}

impl Busy {
    fn start() -> Self {
        let world = World::new()
            .secret("github", &format!("exec = {:?}\nformat = \"expiring\"", ["sh", "-c", LEASE]))
            .server("github", Server::fixture().env("TOKEN", "{github.token}").allow(&["echo"]))
            .server("wiki", Server::fixture().allow(&["*"]))
            .grant("ttl = \"9h\"")
            .start();
        let mut shims = Vec::new();
        for (number, (name, server)) in
            [("build-agent", "github"), ("build-agent", "wiki"), ("review-agent-team-9", "wiki")]
                .into_iter()
                .enumerate()
        {
            let directory = world.layout().root().join(name);
            let link = match directory.exists() {
                true => format!("unix:{}", directory.join("relay.sock").display()),
                false => enroll(
                    &world,
                    &[
                        "--name",
                        name,
                        "--ttl",
                        "9h",
                        "--socket",
                        directory.to_str().expect("temporary paths are UTF-8"),
                    ],
                ),
            };
            let mut shim = world.bare_shim_command();
            shim.args(["--relay", &link, "--server", server]);
            let mut shim = Harness::start(shim, "cofferdam-shim");
            shim.initialize();
            // One after the other, so that they are listed in this order.
            wait_until("the link is open", || {
                world.sessions().as_array().is_some_and(|all| all.len() == number + 1)
            });
            shims.push(shim);
        }
        // Each outcome is recorded before the next call, so that the order of the records is the same in each run.
        shims[0].call_text("echo", json!({"text": "hello"}));
        wait_until("the first outcome is recorded", || world.outcomes().len() == 1);
        shims[0].call("write_file", json!({"path": "/etc/passwd"}));
        shims[1].call_text("echo", json!({"text": "hello"}));
        wait_until("the second outcome is recorded", || world.outcomes().len() == 2);
        let expires = |session: &serde_json::Value| {
            session["expires-in-seconds"].as_u64().is_some_and(|left| left < 9 * 3600)
        };
        wait_until("a second has passed", || {
            world.sessions().as_array().expect("it is a list").iter().all(expires)
        });
        let pids = world
            .sessions()
            .as_array()
            .expect("it is a list")
            .iter()
            .map(|session| session["pid"].to_string())
            .collect();
        Self { world, _shims: shims, pids }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.world.cofferdam_command();
        command.arg("-c").arg(&self.world.layout().config).args(arguments);
        command
    }
}

/// Compares a screen with a file, or writes the file.
#[track_caller]
fn compare(name: &str, shown: &str) {
    let path = folder().join(name);
    if std::env::var_os("UPDATE_SCREENS").is_some() {
        std::fs::write(&path, shown).expect("the workspace is writable");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        shown == expected,
        "{} differs (UPDATE_SCREENS=1 writes it); expected:\n{expected}\nshown:\n{shown}",
        path.display()
    );
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/screens")
}

/// How findings of `doctor` begin that depend on the machine, like all that follow them.
const OF_MACHINE: [&str; 3] = ["  shim: ", "  sidecar at ", "  sandbox bubblewrap: "];

/// Both widths, and each with colours and without.
#[track_caller]
fn compare_printed(name: &str, last_line: &str, pids: &[String], command: impl Fn(&str) -> Command) {
    for columns in [80, 200] {
        for (colour, suffix) in [("auto", "-colour"), ("never", "")] {
            let Some(tmux) = Tmux::run(TALL, columns, &command(colour)) else { return };
            tmux.wait_for(&[last_line]);
            let shown = normalised(&tmux.screen(Capture::WithColours), pids);
            let is_of_machine = |line: &str| OF_MACHINE.iter().any(|start| line.contains(start));
            let shown: String = shown.split_inclusive('\n').take_while(|line| !is_of_machine(line)).collect();
            compare(&format!("{name}-{columns}{suffix}.txt"), &shown);
        }
    }
}

#[test]
fn sessions_reads_well_at_80_and_200_columns() {
    let busy = Busy::start();
    compare_printed("sessions", "review-agent", &busy.pids, |colour| {
        busy.command(&["sessions", "--color", colour])
    });
}

#[test]
fn audit_tail_reads_well_at_80_and_200_columns() {
    let busy = Busy::start();
    compare_printed("audit-tail", "result", &busy.pids, |colour| {
        busy.command(&["audit", "tail", "--color", colour])
    });
}

#[test]
fn doctor_reads_well_at_80_and_200_columns() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let configuration = "state-dir = \"state\"\n[relay]\nunix = \"relay.sock\"\n[servers.github]\ncomand = [\"github\"]\n\
                         [grants.dev]\nservers = [\"github\", \"wiki\"]\n";
    std::fs::write(directory.path().join("cofferdam.toml"), configuration).expect("it is writable");
    let world = World::new().prepare();
    compare_printed("doctor", "error", &[], |colour| {
        let mut command = world.cofferdam_command();
        command.current_dir(directory.path()).args(["doctor", "--color", colour]);
        command
    });
}

/// What works, and a warning.
#[test]
fn doctor_of_a_configuration_that_works_reads_well_at_80_and_200_columns() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let fixture = built("COFFERDAM_FIXTURE_BIN", "fixture-server");
    let configuration = format!(
        "state-dir = \"state\"\n[relay]\nunix = \"relay/relay.sock\"\nunix-grant = \"dev\"\n[admin]\nsocket = \"admin/admin.sock\"\n\
         [servers.github]\ncommand = [{fixture:?}]\ntools = {{ allow = [\"echo\", \"ecko\"] }}\n\
         [grants.dev]\nservers = [\"github\"]\n"
    );
    std::fs::write(directory.path().join("cofferdam.toml"), configuration).expect("it is writable");
    let world = World::new().prepare();
    compare_printed("doctor-working", "nothing is broken", &[], |colour| {
        let mut command = world.cofferdam_command();
        command.current_dir(directory.path()).args(["doctor", "--color", colour]);
        command
    });
}

#[test]
fn the_live_view_reads_well_at_80_and_200_columns() {
    let busy = Busy::start();
    for columns in [80, 200] {
        for (colour, suffix) in [("auto", "-colour"), ("never", "")] {
            let command = busy.command(&["sessions", "--watch", "--color", colour]);
            let Some(tmux) = Tmux::run(USUAL, columns, &command) else { return };
            // The second sample gives the rates.
            tmux.wait_for(&["LAST DECISIONS", "tools/call write_file", "0.0 calls/s", "0.0      "]);
            let shown = normalised(&tmux.screen(Capture::WithColours), &busy.pids);
            compare(&format!("watch-{columns}{suffix}.txt"), &shown);
        }
    }
}
