//! Runs `doctor` in a world, and asserts what it found.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cofferdam_tests::process::{is_alive, output_of};
use cofferdam_tests::server::Server;
use cofferdam_tests::world::{Builder, World};
use serde_json::Value;

/// A value that no output may contain.
pub(crate) const CANARY: &str = "canary-71c2e8b04a-of-doctor";

/// A next step or a reason that says something has more than one word.
const SHORTEST_TEXT: usize = 8;

/// The output of `doctor --json`.
pub(crate) struct Examined {
    pub(crate) code: i32,
    pub(crate) report: Value,
}

/// A server with a secret, in which nothing is wrong.
pub(crate) fn sound() -> Builder {
    World::new()
        .secret_file("local", CANARY)
        .server("tools", Server::fixture().env("SECRET", "{local.value}"))
}

/// Writes the world's files with the modes that they need.
#[track_caller]
pub(crate) fn prepared(builder: Builder) -> World {
    let world = builder.prepare();
    protect(&world);
    world
}

/// Leaves the world's secrets and configuration to its owner: no other user can read or change them.
pub(crate) fn protect(world: &World) {
    for file in fs::read_dir(world.layout().root().join("secrets")).expect("it was made").flatten() {
        set_mode(&file.path(), 0o600);
    }
    set_mode(&world.layout().config, 0o600);
}

#[track_caller]
pub(crate) fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it belongs to this user");
}

/// A directory with links to these programs, as a PATH without any other.
#[track_caller]
pub(crate) fn search_path(world: &World, programs: &[&str]) -> PathBuf {
    let directory = world.layout().root().join(format!("programs-{}", programs.join("-")));
    if fs::create_dir(&directory).is_ok() {
        for program in programs {
            let places = ["/usr/bin", "/bin", "/usr/sbin"].map(|place| Path::new(place).join(program));
            let found = places.iter().find(|place| place.exists());
            symlink(found.unwrap_or_else(|| panic!("{program} is not installed")), directory.join(program))
                .expect("the directory is new");
        }
    }
    directory
}

/// The command `doctor --json` for this world, with few programs on its PATH, so that no container engine is tried.
#[track_caller]
pub(crate) fn doctor(world: &World) -> Command {
    let mut command = world.cofferdam_command();
    command.env("PATH", search_path(world, &["sh", "sleep", "true"]));
    command.env("TMPDIR", scratch(world)).current_dir(scratch(world));
    command.args(["doctor", "--json", "-c"]).arg(&world.layout().config);
    command
}

/// The directory for temporary files of `doctor`, which is empty before and after.
#[track_caller]
pub(crate) fn scratch(world: &World) -> PathBuf {
    let directory = world.layout().root().join("scratch");
    fs::create_dir_all(&directory).expect("a temporary directory is writable");
    directory
}

#[track_caller]
pub(crate) fn examine(world: &World) -> Examined {
    examine_with(world, doctor(world))
}

/// Runs this `doctor --json`, and checks that it left nothing.
#[track_caller]
pub(crate) fn examine_with(world: &World, command: Command) -> Examined {
    let examined = Examined::of(&output_of(command, "cofferdam doctor"));
    let left: Vec<_> =
        fs::read_dir(scratch(world)).expect("it was made").flatten().map(|file| file.path()).collect();
    assert!(left.is_empty(), "doctor left files: {left:?}");
    examined
}

/// The processes of the fixture that `doctor` has started and that still run.
pub(crate) fn processes_left(world: &World, server: &str) -> Vec<u32> {
    world.fixture_processes(server).into_iter().filter(|id| is_alive(*id)).collect()
}

impl Examined {
    #[track_caller]
    pub(crate) fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(
            !stdout.contains(CANARY) && !stderr.contains(CANARY),
            "a secret was printed: {stdout}{stderr}"
        );
        assert_eq!(stderr, "", "{stdout}");
        let report =
            serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"));
        Self { code: output.status.code().expect("it was not killed"), report }
    }

    /// The findings with this code.
    pub(crate) fn with_code(&self, code: &str) -> Vec<&Value> {
        let findings = self.report["findings"].as_array().expect("findings are a list");
        findings.iter().filter(|finding| finding["code"] == code).collect()
    }

    #[track_caller]
    pub(crate) fn assert_good(&self, code: &str, about: &str, what: &str) {
        self.assert_found("ok", code, about, what, None);
    }

    /// Asserts a finding, that it says why it matters, and the next step.
    #[track_caller]
    pub(crate) fn assert_warning(&self, code: &str, about: &str, what: &str, next: &str) {
        self.assert_found("warning", code, about, what, Some(next));
    }

    /// The same for an error.
    #[track_caller]
    pub(crate) fn assert_error(&self, code: &str, about: &str, what: &str, next: &str) {
        self.assert_found("error", code, about, what, Some(next));
        assert!(self.report["errors"].as_u64() > Some(0) && self.code != 0, "{:#}", self.report);
    }

    #[track_caller]
    fn assert_found(&self, severity: &str, code: &str, about: &str, what: &str, next: Option<&str>) {
        let contains =
            |finding: &Value, key: &str, part: &str| finding[key].as_str().unwrap_or_default().contains(part);
        let has_text = |finding: &Value, key: &str| {
            finding[key].as_str().is_some_and(|text| text.trim().len() > SHORTEST_TEXT)
        };
        let matches = |finding: &&&Value| {
            finding["severity"] == severity
                && contains(finding, "about", about)
                && contains(finding, "what", what)
                && next.is_none_or(|next| contains(finding, "next", next) && has_text(finding, "next"))
                && next.is_some() == has_text(finding, "why")
        };
        let found = self.with_code(code);
        assert!(
            found.iter().any(|finding| matches(&finding)),
            "no {severity} `{code}` about `{about}` with `{what}` and the next step {next:?} in {:#}",
            self.report
        );
    }

    /// Asserts that nothing is broken.
    #[track_caller]
    pub(crate) fn assert_no_error(&self) {
        assert_eq!((self.code, &self.report["errors"]), (0, &Value::from(0)), "{:#}", self.report);
    }
}
