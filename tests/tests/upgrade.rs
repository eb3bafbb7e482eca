//! Files of an earlier version still load: configuration, audit, enrolments and the state of sandboxes.
//!
//! `tests/upgrade` holds the files, one folder per version, with keys that were made for this test alone. `@ROOT@`,
//! `@PORT@` and `@SERVER@` stand for paths and the port of the test, and an enrolment's end is moved into the future;
//! the rest is as it was written.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cofferdam_tests::deadline::{PATIENCE, wait_until};
use cofferdam_tests::harness::{Harness, refusal_of};
use cofferdam_tests::port::free_address;
use cofferdam_tests::process::{Running, built, command, into_file, output_of, read};
use cofferdam_tests::run_user::contents;
use cofferdam_tests::sandbox_files::SandboxFiles;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const TOKEN: &str = "test-token-7f3Kq9Zx18";
/// The audit's last number in the old state.
const OLD_RECORDS: u64 = 44;

/// A sidecar of the current version with the files of version 0.1.0.
struct Upgraded {
    root: tempfile::TempDir,
    sandbox: SandboxFiles,
    sidecar: Running,
}

impl Upgraded {
    #[track_caller]
    fn start() -> Self {
        let root = tempfile::tempdir().expect("a temporary directory can be made");
        let old = old_files();
        copy(&old.join("state"), &root.path().join("state"));
        for directory in ["relay", "admin"] {
            std::fs::create_dir(root.path().join(directory)).expect("a temporary directory is writable");
        }
        std::fs::copy(old.join("api.json"), root.path().join("api.json")).expect("the fixture is there");
        let sandbox = SandboxFiles::new();
        copy(&old.join("sandbox"), &sandbox.state());
        let port = free_address().port();
        sandbox.edit(|state| state["relay"] = json!(format!("tls://127.0.0.1:{port}")));

        let text = std::fs::read_to_string(old.join("cofferdam.toml")).expect("the fixture is there");
        let server = built("COFFERDAM_FIXTURE_BIN", "fixture-server");
        let text = text
            .replace("@ROOT@", &root.path().display().to_string())
            .replace("@PORT@", &port.to_string())
            .replace("@SERVER@", &server.display().to_string());
        std::fs::write(root.path().join("cofferdam.toml"), text).expect("a temporary directory is writable");
        for file in files(&root.path().join("state/enrolments")) {
            let mut enrolment: Value = serde_json::from_slice(&read(&file)).expect("an enrolment is JSON");
            enrolment["expires"] = json!(4_102_444_800_000_u64);
            std::fs::write(&file, enrolment.to_string()).expect("a temporary directory is writable");
        }

        let mut serve = cofferdam(root.path(), &["serve"]);
        let log = root.path().join("log");
        serve.env("COFFERDAM_LOG", "cofferdam=debug");
        serve.stdin(Stdio::null()).stdout(into_file(&log)).stderr(into_file(&log));
        let mut sidecar = Running::spawn(serve, "cofferdam serve");
        let admin = root.path().join("admin/admin.sock");
        wait_until("the sidecar is ready", || admin.exists() || !sidecar.is_running());
        let upgraded = Self { root, sandbox, sidecar };
        assert!(admin.exists(), "the sidecar exited");
        upgraded
    }

    #[track_caller]
    fn cofferdam(&self, arguments: &[&str]) -> String {
        let output = output_of(cofferdam(self.root.path(), arguments), "cofferdam");
        let (stdout, stderr) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{arguments:?}: {stdout}{stderr}");
        stdout.into_owned()
    }

    #[track_caller]
    fn shim(&self) -> Harness {
        let mut command = self.sandbox.command();
        command.args(["--server", "tools"]);
        Harness::start(command, "cofferdam-shim").initialized()
    }

    fn audit(&self) -> Vec<Value> {
        let files = files(&self.root.path().join("state/audit"));
        let records = files.iter().filter(|file| file.extension().is_some_and(|end| end == "jsonl"));
        let text: String = records.map(|file| String::from_utf8_lossy(&read(file)).into_owned()).collect();
        text.lines().map(|line| serde_json::from_str(line).expect("a record is JSON")).collect()
    }
}

impl Drop for Upgraded {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("=== sidecar's log\n{}", String::from_utf8_lossy(&read(&self.root.path().join("log"))));
        }
    }
}

#[test]
fn an_old_configuration_is_valid() {
    let output = {
        let mut check = command(built("COFFERDAM_BIN", "cofferdam"));
        check.args(["check", "-c"]).arg(old_files().join("full.toml"));
        output_of(check, "cofferdam check")
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(Upgraded::start().cofferdam(&["check"]).contains("1 server, 1 secret, 1 grant"));
}

#[test]
fn a_sandbox_that_an_old_sidecar_enrolled_connects() {
    let upgraded = Upgraded::start();
    let mut shim = upgraded.shim();
    assert_eq!(shim.call_text("echo", json!({"text": "hello"})), "hello");
    assert_eq!(shim.call_text("add", json!({"a": 1, "b": 2})), "3", "the call in the scope failed");
    assert_eq!(shim.call("slow", json!({}))["error"]["code"], -32602, "still denied");
    let named = |record: &Value| {
        record["event"] == "session_start" && record["detail"] == "grant dev, sandbox old-sandbox"
    };
    assert!(
        upgraded.audit()[OLD_RECORDS as usize..].iter().any(named),
        "the enrolment's name is not in the audit"
    );
    // A second link proves that the key's epoch continued from the old one.
    let mut second = upgraded.shim();
    assert_eq!(second.call_text("echo", json!({"text": "again"})), "again");
    cofferdam_tests::encodings::assert_absent("the log", &read(&upgraded.root.path().join("log")), TOKEN);
}

#[test]
fn an_old_enrolment_can_be_killed() {
    let upgraded = Upgraded::start();
    let mut shim = upgraded.shim();
    upgraded.cofferdam(&["kill", "e4c7e24b14b06997a"]);
    let answer = shim.call("echo", json!({"text": "hello"}));
    assert_eq!(refusal_of(&answer), "session_ended", "{answer}");
    // A ticket that was never used is an enrolment too.
    upgraded.cofferdam(&["kill", "eacd87e584135290a"]);
}

#[test]
fn an_old_audit_verifies_and_is_continued() {
    let mut upgraded = Upgraded::start();
    let mut shim = upgraded.shim();
    shim.call_text("echo", json!({"text": "hello"}));
    shim.close_stdin();
    shim.wait_for_exit();
    upgraded.sidecar.signal(Signal::SIGTERM);
    assert!(upgraded.sidecar.wait(PATIENCE).success());
    upgraded.cofferdam(&["audit", "verify"]);
    let records = upgraded.audit();
    let numbers: Vec<u64> = records.iter().filter_map(|record| record["number"].as_u64()).collect();
    assert_eq!(
        numbers,
        (1..=records.len() as u64).collect::<Vec<u64>>(),
        "the records' numbers are not consecutive"
    );
    assert!(records.len() as u64 > OLD_RECORDS + 5, "{}", records.len());
    let decisions = |range: &[Value]| range.iter().filter(|record| record["tool"] == "echo").count();
    assert!(decisions(&records[OLD_RECORDS as usize..]) >= 2, "the call was recorded after the old ones");
}

fn cofferdam(root: &Path, arguments: &[&str]) -> Command {
    let mut command = command(built("COFFERDAM_BIN", "cofferdam"));
    command.args(arguments).arg("-c").arg(root.join("cofferdam.toml"));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", root);
    command
}

fn old_files() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("upgrade/0.1.0")
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("the directory is there").flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files
}

/// Copies a directory with the permissions that it had: only its owner has access.
fn copy(from: &Path, to: &Path) {
    let private = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    std::fs::create_dir(to).expect("a temporary directory is writable");
    private(to, 0o700);
    for path in files(from) {
        let target = to.join(path.file_name().expect("an entry has a name"));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(&path, &target).expect("a temporary directory is writable");
            private(&target, 0o600);
        }
    }
}

/// Also a downgrade, from the side of the older version.
#[test]
fn the_state_of_a_newer_version_is_refused_with_the_way_out_and_unchanged() {
    let mut world = World::new().server("tools", Server::fixture()).start();
    let format = world.layout().state.join("format");
    assert!(read(&format).starts_with(b"1 "), "the state directory is not marked");
    world.stop_sidecar();
    std::fs::write(&format, "2 9.9.9\n").expect("the state directory is writable");
    let before = contents(&world.layout().state);
    let refused = world.cofferdam(&["serve"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(65), "{said}");
    assert!(
        said.contains("is of a newer version, 9.9.9: its format is 2, and this version knows 1"),
        "{said}"
    );
    assert!(said.contains("start the version that wrote it, or restore the backup"), "{said}");
    assert_eq!(contents(&world.layout().state), before, "the state was changed");
}
