//! Packages of servers: resolved, locked and installed inside walls, by the real npm and pip, and started from the store.
//!
//! Most tests have a registry of their own on loopback, which can lose a package, change a file or hold an answer back.

mod damaged;
mod npm;
mod public;
mod pypi;
mod registry;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use cofferdam_tests::harness::refusal_of;
use cofferdam_tests::process::{Running, into_file, read};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use registry::Registry;

/// The token of the registry, in the settings of the user who installs.
const TOKEN: &str = "registry-token-4711-c0ffee";

/// The limit for an installation on a busy machine.
const INSTALLATION: Duration = Duration::from_secs(300);

/// A world without a sidecar, the registry that its user's settings name, and that user's home.
struct Scene {
    registry: Registry,
    world: World,
    home: tempfile::TempDir,
}

impl Scene {
    fn new(server: Server) -> Self {
        let registry = Registry::start();
        let home = tempfile::tempdir().expect("make a directory");
        let npmrc = format!("registry={}\n//{}/:_authToken={TOKEN}\n", registry.npm(), registry.address());
        std::fs::write(home.path().join(".npmrc"), npmrc).expect("write the settings");
        Self { registry, world: World::new().server("tools", server).prepare(), home }
    }

    /// With a package of npm that has a dependency with an install script.
    fn npm() -> Self {
        let scene = Self::new(Server::package("npm:@fixture/server@1.0.0"));
        scene.registry.publish_npm();
        scene
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.world.cofferdam_command();
        command.env("HOME", self.home.path()).env("PIP_INDEX_URL", self.registry.index());
        command.args(arguments).arg("-c").arg(&self.world.layout().config);
        command
    }

    #[track_caller]
    fn run(&self, arguments: &[&str]) -> Output {
        to_its_end(self.command(arguments))
    }

    /// Runs `install` with these arguments; it must succeed.
    #[track_caller]
    fn install(&self, arguments: &[&str]) -> String {
        let output = self.run(&[&["install"], arguments].concat());
        assert!(output.status.success(), "{}", text_of(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs `install --yes`, which must fail with this exit code, and returns its messages.
    #[track_caller]
    fn install_fails(&self, code: i32) -> String {
        let output = self.run(&["install", "--yes"]);
        assert_eq!(output.status.code(), Some(code), "{}", text_of(&output));
        assert_eq!(self.installed(), [] as [String; 0], "nothing is installed");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn lock(&self) -> PathBuf {
        self.world.layout().config.with_extension("lock")
    }

    fn lock_text(&self) -> Option<String> {
        std::fs::read_to_string(self.lock()).ok()
    }

    /// The names in the store, without the file that is locked.
    fn installed(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.world.layout().state.join("packages")).into_iter().flatten();
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name != ".lock").collect()
    }

    /// The files of the only installed package.
    #[track_caller]
    fn tree(&self) -> PathBuf {
        let installed = self.installed();
        assert_eq!(installed.len(), 1, "{installed:?}");
        self.world.layout().state.join("packages").join(&installed[0]).join("tree")
    }

    /// The codes that `check` finds.
    #[track_caller]
    fn check(&self) -> Vec<String> {
        let output = self.run(&["check", "--json"]);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error} in {}", text_of(&output)));
        let findings = report["findings"].as_array().expect("a list of findings");
        findings.iter().filter_map(|finding| Some(finding["code"].as_str()?.to_owned())).collect()
    }

    /// The error with which a call is answered because the server does not start.
    #[track_caller]
    fn start_error(&mut self) -> String {
        self.world.start_sidecar();
        let mut shim = self.world.shim("tools");
        let answer = shim.initialize();
        assert_eq!(refusal_of(&answer), "server_unavailable");
        drop(shim);
        self.world.stop_sidecar();
        answer["error"]["message"].as_str().expect("a message").to_owned()
    }
}

/// Runs a command that may download and unpack something.
#[track_caller]
fn to_its_end(mut command: Command) -> Output {
    let directory = tempfile::tempdir().expect("make a directory");
    let (out, err) = (directory.path().join("out"), directory.path().join("err"));
    command.stdin(Stdio::null()).stdout(into_file(&out)).stderr(into_file(&err));
    let status = Running::spawn(command, "cofferdam").wait(INSTALLATION);
    Output { status, stdout: read(&out), stderr: read(&err) }
}

fn text_of(output: &Output) -> String {
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
