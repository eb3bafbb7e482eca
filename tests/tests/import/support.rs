//! A person with a home and a project, and what a run of the command printed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cofferdam_tests::process::{built, command, output_of};
use cofferdam_tests::run_user::contents;
use cofferdam_tests::terminal::Terminal;

/// Every secret of these tests contains it.
pub(crate) const CANARY: &str = "CANARY";
pub(crate) const TOKEN: &str = "ghp_CANARY0123456789abcdefghij012345678";

/// A home, a project in it, and a configuration that may not exist yet.
pub(crate) struct Person {
    directory: tempfile::TempDir,
}

/// What a run printed, and its exit code; `None` if a signal ended it.
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) printed: String,
    pub(crate) stderr: String,
}

impl Person {
    pub(crate) fn new() -> Self {
        let directory =
            tempfile::Builder::new().prefix("person-").tempdir().expect("a directory can be made");
        let person = Self { directory };
        std::fs::create_dir_all(person.project()).expect("the directory is writable");
        person
    }

    /// With this file in the project.
    pub(crate) fn with(name: &str, text: &str) -> Self {
        let person = Self::new();
        person.write(name, text);
        person
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    pub(crate) fn project(&self) -> PathBuf {
        self.home().join("project")
    }

    pub(crate) fn configuration(&self) -> PathBuf {
        self.home().join("configuration/cofferdam.toml")
    }

    pub(crate) fn write_configuration(&self, text: &str) {
        let path = self.configuration();
        std::fs::create_dir_all(path.parent().expect("a file is in a directory"))
            .expect("the home is writable");
        std::fs::write(path, text).expect("the home is writable");
    }

    /// Where secrets and backups go.
    pub(crate) fn secrets(&self) -> PathBuf {
        self.home().join("configuration/secrets")
    }

    /// Writes a file of the project.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.project().join(name);
        std::fs::create_dir_all(path.parent().expect("a file is in a directory")).expect("it is writable");
        std::fs::write(&path, text).expect("the project is writable");
        path
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.project().join(name)).expect("the project has the file")
    }

    /// `cofferdam ARGUMENTS -c CONFIGURATION` in the project.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.through(command(built("COFFERDAM_BIN", "cofferdam")), arguments)
    }

    /// The same arguments and environment for another program, which starts `cofferdam`.
    pub(crate) fn through(&self, mut command: Command, arguments: &[&str]) -> Command {
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.home());
        command.current_dir(self.project()).args(arguments).arg("-c").arg(self.configuration());
        command
    }

    /// Runs to the end. No secret may be printed.
    #[track_caller]
    pub(crate) fn cofferdam(&self, arguments: &[&str]) -> Run {
        let run = Run::of(&output_of(self.command(arguments), &format!("cofferdam {arguments:?}")));
        assert!(
            !run.printed.contains(CANARY) && !run.stderr.contains(CANARY),
            "{}{}",
            run.printed,
            run.stderr
        );
        run
    }

    /// Imports a file of the project with a rewriting, which must succeed.
    #[track_caller]
    pub(crate) fn import(&self, file: &str) -> Run {
        self.cofferdam(&["import", file, "--yes", "--rewrite"]).assert_code(0)
    }

    /// Everything below the home, to compare.
    pub(crate) fn everything(&self) -> Vec<(PathBuf, Vec<u8>)> {
        contents(&self.home())
    }

    /// The files below the home that contain a secret.
    pub(crate) fn files_with_secrets(&self) -> Vec<PathBuf> {
        let has_secret = |bytes: &[u8]| bytes.windows(CANARY.len()).any(|window| window == CANARY.as_bytes());
        self.everything().into_iter().filter(|(_, bytes)| has_secret(bytes)).map(|(path, _)| path).collect()
    }
}

impl Run {
    pub(crate) fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code(), printed: text(&output.stdout), stderr: text(&output.stderr) }
    }

    #[track_caller]
    pub(crate) fn assert_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}{}", self.printed, self.stderr);
        self
    }

    #[track_caller]
    pub(crate) fn assert_prints(self, text: &str) -> Self {
        assert!(self.printed.contains(text), "`{text}` is not in:\n{}{}", self.printed, self.stderr);
        self
    }

    #[track_caller]
    pub(crate) fn assert_fails_with(self, text: &str) -> Self {
        assert!(self.stderr.contains(text), "`{text}` is not in:\n{}", self.stderr);
        self
    }
}

/// The command on a terminal that is its controlling terminal, so that Ctrl-C reaches it.
pub(crate) fn at_terminal(person: &Person, arguments: &[&str]) -> Terminal {
    let cofferdam = person.command(arguments);
    let mut on_terminal = command("/usr/bin/setsid");
    on_terminal.env_clear().envs(cofferdam.get_envs().filter_map(|(name, value)| Some((name, value?))));
    on_terminal.args(["--ctty", "--wait"]).arg(cofferdam.get_program()).args(cofferdam.get_args());
    on_terminal.current_dir(person.project());
    Terminal::of(on_terminal)
}

/// The permission bits of a file.
pub(crate) fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::symlink_metadata(path).expect("the file exists").permissions().mode() & 0o7777
}

/// Settings with one server whose token is a secret.
pub(crate) fn one_server() -> String {
    format!(
        "{{\n  // of the team\n  \"mcpServers\": {{\n    \"github\": {{\"command\": \"github-mcp-server\", \"env\": {{\"GITHUB_TOKEN\": \"{TOKEN}\"}}, \"timeout\": 60000}}\n  }}\n}}\n"
    )
}
