//! Runs of a user who is not root, as on a laptop: user id 1000, whichever user runs the tests.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::harness::Harness;
use cofferdam_tests::other_user::{USER, copy_programs};
use cofferdam_tests::process::{Running, command_line, is_alive, output_of, process_ids};
use cofferdam_tests::run_user::RunUser;
use cofferdam_tests::server::Server;
use cofferdam_tests::tools::Tool;
use cofferdam_tests::world::World;

use super::kinds::assert_tools_work_and_nothing_is_left;
use super::{CANARY, text};

/// A user with copies of the programs: only root may have access to the directories in which they were built.
pub(crate) struct Unprivileged {
    pub(crate) user: RunUser,
    programs: tempfile::TempDir,
}

impl Unprivileged {
    #[track_caller]
    pub(crate) fn new() -> Option<Self> {
        let programs = copy_programs()?;
        let fixture = programs.path().join("fixture-server").display().to_string();
        let server = Server::command([fixture]).env("SECRET", "{local.value}");
        let user = RunUser::new(World::new().secret_file("local", CANARY).server("tools", server));
        let made = Self { user, programs };
        made.give_files_to_user();
        Some(made)
    }

    /// Changes the owner of everything below the user's and the configuration's directories to the user.
    pub(crate) fn give_files_to_user(&self) {
        let directory = self.user.home().parent().expect("it is in a directory").to_owned();
        let mut pending: Vec<PathBuf> = vec![directory, self.user.world.layout().root().to_owned()];
        while let Some(path) = pending.pop() {
            chown(&path, Some(USER), Some(USER)).expect("root may give files away");
            if path.is_dir() {
                pending.extend(
                    std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()),
                );
            }
        }
    }

    /// The command `cofferdam run ARGUMENTS`, run by that user.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.command_of_any_user(arguments);
        command.uid(USER).gid(USER);
        command
    }

    /// The same, run by the user who starts it.
    pub(crate) fn command_of_any_user(&self, arguments: &[&str]) -> Command {
        let mut command = self.user.command_of(&self.programs.path().join("cofferdam"));
        let path = std::env::var("PATH").unwrap_or_default();
        command.args(arguments).env("PATH", format!("{}:{path}", self.programs.path().display()));
        command
    }

    /// Installs a program for every user. Only root may open the directory of the tools.
    pub(crate) fn install(&self, name: &str, program: &Path) {
        let place = self.programs.path().join(name);
        // A copy of a harness takes seconds; a link is not possible to another file system.
        std::fs::hard_link(program, &place)
            .or_else(|_| std::fs::copy(program, &place).map(drop))
            .expect("the program is readable");
    }

    /// A directory for files that every user can read.
    pub(crate) fn shared_directory(&self, name: &str) -> PathBuf {
        let path = self.programs.path().join(name);
        std::fs::create_dir(&path).expect("a temporary directory is writable");
        path
    }

    /// A directory for the PATH with only these programs of the system.
    pub(crate) fn search_path_with(&self, programs: &[&str]) -> PathBuf {
        let directory = self.programs.path().join("some");
        std::fs::create_dir(&directory).expect("a temporary directory is writable");
        for name in programs {
            let program = Path::new("/usr/bin").join(name);
            std::os::unix::fs::symlink(program, directory.join(name)).expect("it is new");
        }
        directory
    }

    /// Asserts that no process remains that was started by a run of this user, also one that hides its command line.
    #[track_caller]
    pub(crate) fn assert_no_process_left(&self) {
        let directory = format!("TMPDIR={}", self.user.temporary().display());
        let is_of_run = |id: &u32| {
            let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
            text(&environment).contains(&directory) && is_alive(*id)
        };
        let left: Vec<(u32, String)> =
            process_ids().filter(is_of_run).map(|id| (id, command_line(id))).collect();
        assert_eq!(left, Vec::new(), "processes of runs");
    }

    /// Writes a program for that user.
    pub(crate) fn program(&self, name: &str, script: &str) -> String {
        let path = self.user.program(name, script);
        self.give_files_to_user();
        path.display().to_string()
    }
}

#[track_caller]
fn with_bubblewrap() -> Option<Unprivileged> {
    Tool::Bubblewrap.path()?;
    Unprivileged::new()
}

#[test]
fn tools_work_in_bubblewrap_without_root() {
    let Some(unprivileged) = with_bubblewrap() else { return };
    let command = unprivileged.command(&["--", "cofferdam-shim", "--server", "tools"]);
    assert_tools_work_and_nothing_is_left(&unprivileged.user, Harness::start(command, "cofferdam run"));
}

#[test]
fn files_that_the_sandbox_writes_belong_to_the_user() {
    let Some(unprivileged) = with_bubblewrap() else { return };
    let output = output_of(unprivileged.command(&["--", "sh", "-c", "id -u; touch new"]), "cofferdam run");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "1000\n");
    let written = unprivileged.user.project().join("new").metadata().expect("the sandbox wrote it");
    assert_eq!(written.uid(), USER);
}

/// A sandbox can clear the permissions of directories in its home; the copy of the login must be removed nevertheless.
#[test]
fn a_sandbox_cannot_keep_the_copy_of_the_login() {
    let Some(unprivileged) = with_bubblewrap() else { return };
    let user = &unprivileged.user;
    user.write(".claude/.credentials.json", r#"{"claudeAiOauth":{"accessToken":"login-of-the-user"}}"#);
    let script = r#"#!/bin/sh
mkdir -p ~/hidden/deeper && cp ~/.claude/.credentials.json ~/hidden/deeper/copy
cd / && chmod 0 ~/hidden/deeper ~/hidden ~/.claude ~ && echo locked
"#;
    let program = unprivileged.program("claude", script);
    let output = output_of(unprivileged.command(&["--network", "none", "--", &program]), "cofferdam run");
    let stderr = text(&output.stderr);
    assert!(output.status.success() && text(&output.stdout) == "locked\n", "{stderr}");
    assert!(stderr.contains("the login in the sandbox changed and was not copied back"), "{stderr}");
    user.assert_nothing_left();
    let login = std::fs::read_to_string(user.home().join(".claude/.credentials.json"));
    assert!(login.is_ok_and(|login| login.contains("login-of-the-user")), "the user's own login is lost");
}

/// Also after `kill -9` of a run: the next run removes the copy.
#[test]
fn a_sandbox_cannot_keep_the_copy_of_the_login_of_a_killed_run() {
    let Some(unprivileged) = with_bubblewrap() else { return };
    let user = &unprivileged.user;
    user.write(".claude/.credentials.json", r#"{"claudeAiOauth":{"accessToken":"login-of-the-user"}}"#);
    let script = "#!/bin/sh\nexec 3> state; cd /; chmod 0 ~/.claude ~; echo locked >&3; exec sleep 1000\n";
    let program = unprivileged.program("claude", script);
    let command = unprivileged.command(&["--network", "none", "--", &program]);
    let mut run = Running::spawn(command, "cofferdam run");
    wait_until("the sandbox has locked its home", || {
        std::fs::read(user.project().join("state")).is_ok_and(|state| state == b"locked\n")
    });
    run.kill9();
    wait_until("the sidecar ends", || user.sidecars().is_empty());
    assert!(std::fs::read_dir(user.temporary()).is_ok_and(|mut left| left.next().is_some()));
    let output = output_of(unprivileged.command(&["--", "true"]), "cofferdam run");
    assert!(output.status.success(), "{}", text(&output.stderr));
    user.assert_nothing_left();
}

#[test]
fn the_home_of_the_user_may_be_read_only() {
    let Some(unprivileged) = with_bubblewrap() else { return };
    let user = &unprivileged.user;
    let read_only = std::fs::Permissions::from_mode(0o555);
    std::fs::set_permissions(user.home(), read_only).expect("root may change it");
    let script = "touch ~/written && touch here && echo both";
    let output = output_of(unprivileged.command(&["--", "sh", "-c", script]), "cofferdam run");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "both\n");
    assert!(user.project().join("here").exists() && !user.home().join("written").exists());
    user.assert_nothing_left();
}
