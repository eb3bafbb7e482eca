//! The program is replaced by a newer one while sandboxes are connected: their shims reconnect, and every call is answered once.
//!
//! The older programs are those of a pinned commit. They are built from its sources, which takes minutes, so this runs in
//! `just slow`. A shim stays in its sandbox when the sidecar is upgraded, so each version of the one has to work with each
//! version of the other.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cofferdam_tests::deadline::{PATIENCE, wait_until};
use cofferdam_tests::harness::{Harness, refusal_of, text_of};
use cofferdam_tests::process::{Running, built, command, into_file, output_of, read};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use serde_json::{Value, json};

/// A commit of the first day. Relay, state and configuration are those of the first commit that has both programs: only `demo` was
/// added in between.
const OLDER_COMMIT: &str = "8f35fb4d34e9fec28964c909c8c2564440a6003f";
/// How many links of each shim are open.
const LINKS: usize = 3;

/// The programs of [`OLDER_COMMIT`].
struct OlderPrograms {
    sidecar: PathBuf,
    shim: PathBuf,
}

/// A connected harness, and the calls that it has sent.
struct Link {
    harness: Harness,
    sent: Vec<(Value, Sent)>,
}

/// When a call was sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Sent {
    /// It runs when the older sidecar is told to end.
    RunsAtTheEnd,
    WhileNoSidecarRuns,
}

impl OlderPrograms {
    /// Builds them in a directory beside the tested program, unless an earlier run has.
    #[track_caller]
    fn build() -> Self {
        let directory = built("COFFERDAM_BIN", "cofferdam").with_file_name(format!("older-{OLDER_COMMIT}"));
        std::fs::create_dir_all(&directory).expect("the directory of the built program is writable");
        let lock = std::fs::File::create(directory.join("lock")).expect("the directory is writable");
        lock.lock().expect("a file can be locked");
        let sources = directory.join("sources");
        if !sources.exists() {
            extract(&sources);
        }
        let log = directory.join("log");
        let mut cargo = command("cargo");
        cargo.args(["build", "--locked", "-p", "cofferdam", "-p", "cofferdam-shim", "--target-dir"]);
        cargo.arg(directory.join("target")).current_dir(&sources).stdin(Stdio::null());
        cargo.env_remove("RUSTFLAGS").stdout(into_file(&log)).stderr(into_file(&log));
        let status = Running::spawn(cargo, "cargo build of the older programs").wait(PATIENCE * 60);
        assert!(status.success(), "{}", String::from_utf8_lossy(&read(&log)));
        let programs = directory.join("target/debug");
        Self { sidecar: programs.join("cofferdam"), shim: programs.join("cofferdam-shim") }
    }
}

/// Writes the sources of [`OLDER_COMMIT`], as a whole or not at all.
#[track_caller]
fn extract(sources: &Path) {
    let repository = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let git = |arguments: &[&str]| {
        let mut git = command("git");
        git.arg("-C").arg(repository).args(arguments);
        output_of(git, "git")
    };
    let has_commit = git(&["cat-file", "-e", &format!("{OLDER_COMMIT}^{{commit}}")]).status.success();
    assert!(
        has_commit,
        "this clone has no commit {OLDER_COMMIT}, from which the test upgrades. A shallow clone gets it by `git fetch --unshallow`"
    );
    let begun = sources.with_extension("begun");
    let _ = std::fs::remove_dir_all(&begun);
    std::fs::create_dir(&begun).expect("the directory is writable");
    let archive = begun.with_extension("tar");
    let file = archive.display().to_string();
    let output = git(&["archive", "--output", &file, OLDER_COMMIT]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut tar = command("tar");
    tar.arg("-xf").arg(&archive).arg("-C").arg(&begun);
    assert!(output_of(tar, "tar").status.success(), "the archive of the older commit cannot be unpacked");
    std::fs::rename(&begun, sources).expect("both are in one directory");
}

impl Link {
    #[track_caller]
    fn open(world: &World, shim: &Path) -> Self {
        let mut command = command_of_shim(world, shim);
        command.env_clear();
        let mut harness = Harness::start(command, "cofferdam-shim").initialized();
        assert_eq!(harness.call_text("echo", json!({"text": "before"})), "before");
        Self { harness, sent: Vec::new() }
    }

    #[track_caller]
    fn send(&mut self, when: Sent, tool: &str, arguments: Value) {
        let id = self.harness.send_call(tool, arguments);
        self.sent.push((id, when));
    }

    /// Asserts that each call has one answer: the server's, or that its outcome is not known because it was running.
    #[track_caller]
    fn assert_each_call_has_one_answer(&mut self) {
        let sent = std::mem::take(&mut self.sent);
        for (id, when) in &sent {
            let answer = self.harness.answer_to(id);
            if answer.get("error").is_some() {
                assert_eq!((refusal_of(&answer), *when), ("outcome_unknown", Sent::RunsAtTheEnd), "{answer}");
            } else {
                assert!(["late", "ran count"].contains(&text_of(&answer).as_str()), "{answer}");
            }
        }
        // The answer to a later call comes after any second answer to an earlier one.
        assert_eq!(self.harness.call_text("echo", json!({"text": "after"})), "after");
        let received = String::from_utf8_lossy(self.harness.received()).into_owned();
        let answers: Vec<Value> =
            received.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        for (id, _) in sent {
            let count = answers.iter().filter(|answer| answer["id"] == id && answer.get("method").is_none());
            assert_eq!(count.count(), 1, "{id} in {received}");
        }
    }
}

fn command_of_shim(world: &World, shim: &Path) -> Command {
    let mut command = command(shim);
    command.args(["--server", "tools", "--relay", &world.link()]);
    command
}

/// The sidecar of `before` is ended while calls run, and `after` is started with the same configuration and state.
#[track_caller]
fn assert_links_go_on(before: &Path, after: &Path, shims: [&Path; 2]) {
    let mut world = World::new().server("tools", Server::fixture()).program(before.to_owned()).start();
    let mut links: Vec<Link> =
        shims.iter().cycle().take(LINKS * 2).map(|shim| Link::open(&world, shim)).collect();
    for link in &mut links {
        link.send(Sent::RunsAtTheEnd, "slow", json!({"ms": 20}));
        link.send(Sent::RunsAtTheEnd, "slow", json!({"ms": 60_000}));
    }
    wait_until("the calls run", || world.times_executed("tools", "slow") == links.len() * 2);
    world.stop_sidecar();
    world.rewrite(|builder| builder.program(after.to_owned()));
    for link in &mut links {
        link.send(Sent::WhileNoSidecarRuns, "count", json!({}));
    }
    world.start_sidecar();
    for link in &mut links {
        link.assert_each_call_has_one_answer();
    }
    assert_eq!(world.times_executed("tools", "slow"), links.len() * 2, "a call ran twice");
    assert_eq!(world.times_executed("tools", "count"), links.len(), "a call was lost, or ran twice");
    for shim in shims {
        Link::open(&world, shim);
    }
    world.stop_sidecar();
    world.cofferdam_text(&["audit", "verify"]);
}

#[test]
#[ignore = "minutes: just slow"]
fn every_call_of_an_open_link_is_answered_once_when_the_sidecar_is_upgraded() {
    let older = OlderPrograms::build();
    let shims = [older.shim.clone(), built("COFFERDAM_SHIM_BIN", "cofferdam-shim")];
    let newer = built("COFFERDAM_BIN", "cofferdam");
    assert_links_go_on(&older.sidecar, &newer, [&shims[0], &shims[1]]);
}

#[test]
#[ignore = "minutes: just slow"]
fn every_call_of_an_open_link_is_answered_once_when_an_older_sidecar_is_restarted() {
    let older = OlderPrograms::build();
    let shims = [older.shim.clone(), built("COFFERDAM_SHIM_BIN", "cofferdam-shim")];
    assert_links_go_on(&older.sidecar, &older.sidecar, [&shims[0], &shims[1]]);
}
