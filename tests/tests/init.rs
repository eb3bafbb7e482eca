//! `cofferdam init`: a first configuration that works, and nothing half done.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::other_user::{USER, copy_programs};
use cofferdam_tests::process::{Running, built, command, into_file, output_of};
use cofferdam_tests::terminal::Terminal;
use nix::sys::signal::Signal;
use nix::sys::termios::LocalFlags;

/// A home and a runtime directory, with nothing in them.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        let home = tempfile::Builder::new()
            .prefix("cofferdam-")
            .tempdir()
            .expect("the test's own files and processes are at hand");
        fs::create_dir(home.path().join("run")).expect("the test's own files and processes are at hand");
        Self(home)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn program(&self, name: &str, variable: &str) -> Command {
        let mut program = command(built(variable, name));
        program.env_clear().env("HOME", self.path()).env("XDG_RUNTIME_DIR", self.path().join("run"));
        program.env("PATH", "/usr/bin:/bin").current_dir(self.path());
        program
    }

    fn cofferdam(&self, arguments: &[&str]) -> Command {
        let mut cofferdam = self.program("cofferdam", "COFFERDAM_BIN");
        cofferdam.args(arguments);
        cofferdam
    }

    /// Every file and directory below it but the runtime directory.
    fn files(&self) -> Vec<String> {
        fn collect(directory: &Path, found: &mut Vec<String>) {
            for entry in
                fs::read_dir(directory).expect("the test's own files and processes are at hand").flatten()
            {
                found.push(entry.path().display().to_string());
                if entry.file_type().expect("the test's own files and processes are at hand").is_dir() {
                    collect(&entry.path(), found);
                }
            }
        }
        let mut found = Vec::new();
        collect(self.path(), &mut found);
        found.retain(|path| !path.ends_with("/run"));
        found
    }
}

#[track_caller]
fn run(command: Command) -> Output {
    output_of(command, "cofferdam")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Starts the sidecar with this configuration and lists the tools through a real shim.
#[track_caller]
fn assert_works(home: &Home, config: &str, server: &str, expected: &str) {
    // The state directory of root is that of the host.
    let state = format!("state-dir = {:?}\n", home.path().join("state"));
    let admin = format!("\n[admin]\nsocket = {:?}\n", home.path().join("run/admin/admin.sock"));
    let relay = home.path().join("run/relay/relay.sock");
    let written =
        fs::read_to_string(home.path().join(config)).expect("the test's own files and processes are at hand");
    let unix = written
        .lines()
        .find(|line| line.starts_with("unix = "))
        .expect("the test's own files and processes are at hand")
        .to_owned();
    let moved = written.replace(&unix, &format!("unix = {relay:?}"));
    fs::write(home.path().join(config), format!("{state}{moved}{admin}"))
        .expect("the test's own files and processes are at hand");
    let checked = run(home.cofferdam(&["check", "--strict", "-c", config]));
    assert!(checked.status.success(), "{}{}", text(&checked.stdout), text(&checked.stderr));
    let mut serve = home.cofferdam(&["serve", "-c", config]);
    serve.stdin(Stdio::null()).stdout(Stdio::null()).stderr(into_file(&home.path().join("run/log")));
    let mut sidecar = Running::spawn(serve, "cofferdam serve");
    wait_until("the sidecar accepts links", || UnixStream::connect(&relay).is_ok());
    let mut shim = home.program("cofferdam-shim", "COFFERDAM_SHIM_BIN");
    shim.args(["tools", server, "--relay", &format!("unix:{}", relay.display())]);
    let listed = run(shim);
    sidecar.signal(Signal::SIGTERM);
    sidecar.wait(cofferdam_tests::deadline::PATIENCE);
    assert!(text(&listed.stdout).contains(expected), "{}{}", text(&listed.stdout), text(&listed.stderr));
}

#[test]
fn without_questions_it_writes_a_configuration_that_passes_check_and_serves_a_call() {
    let home = Home::new();
    let made = run(home.cofferdam(&["init", "--yes", "-c", "conf/cofferdam.toml"]));
    assert!(made.status.success(), "{}", text(&made.stderr));
    assert_eq!(text(&made.stdout), format!("{}\n", home.path().join("conf/cofferdam.toml").display()));
    assert!(text(&made.stderr).contains("cofferdam serve -c "), "{}", text(&made.stderr));
    for (path, mode) in [
        ("conf", 0o700),
        ("conf/secrets", 0o700),
        ("conf/cofferdam.toml", 0o600),
        ("conf/secrets/example", 0o600),
    ] {
        assert_eq!(fs::metadata(home.path().join(path)).unwrap().mode() & 0o777, mode, "{path}");
    }
    let written = fs::read_to_string(home.path().join("conf/cofferdam.toml")).unwrap();
    let secret = fs::read_to_string(home.path().join("conf/secrets/example")).unwrap();
    assert!(!written.contains(&secret) && written.contains("# "), "{written}");
    let checked = run(home.cofferdam(&["check", "-c", "conf/cofferdam.toml"]));
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    assert_works(&home, "conf/cofferdam.toml", "example", "list_orders");
}

/// As on a laptop: nothing is named, and what was written is used as it is.
#[test]
fn a_user_without_root_serves_what_was_written_at_the_default_place() {
    let Some(programs) = copy_programs() else { return };
    let home = Home::new();
    for path in [home.path().to_owned(), home.path().join("run")] {
        chown(path, Some(USER), Some(USER)).unwrap();
    }
    let program = |name: &str, arguments: &[&str]| {
        let built = home.program(name, "COFFERDAM_BIN");
        let mut program = command(programs.path().join(name));
        program.env_clear().envs(built.get_envs().filter_map(|(name, value)| Some((name, value?))));
        program.current_dir(home.path()).args(arguments).uid(USER).gid(USER);
        program
    };
    let made = run(program("cofferdam", &["init", "--yes"]));
    let config = home.path().join(".config/cofferdam/cofferdam.toml");
    assert_eq!(text(&made.stdout), format!("{}\n", config.display()), "{}", text(&made.stderr));
    let written = fs::read(&config).unwrap();
    let checked = run(program("cofferdam", &["check", "--strict"]));
    assert!(checked.status.success(), "{}{}", text(&checked.stdout), text(&checked.stderr));
    let mut serve = program("cofferdam", &["serve"]);
    serve.stdin(Stdio::null()).stdout(Stdio::null()).stderr(into_file(&home.path().join("run/log")));
    let mut sidecar = Running::spawn(serve, "cofferdam serve");
    let relay = home.path().join("run/cofferdam-relay/relay.sock");
    wait_until("the sidecar accepts links", || UnixStream::connect(&relay).is_ok());
    // The link is in the commands that were printed.
    let link = format!("unix:{}", relay.display());
    assert!(text(&made.stderr).contains(&link), "{}", text(&made.stderr));
    let listed = run(program("cofferdam-shim", &["tools", "example", "--relay", &link]));
    sidecar.signal(Signal::SIGTERM);
    sidecar.wait(cofferdam_tests::deadline::PATIENCE);
    assert!(text(&listed.stdout).contains("list_orders"), "{}{}", text(&listed.stdout), text(&listed.stderr));
    assert_eq!(fs::read(&config).unwrap(), written);
}

#[test]
fn a_file_that_is_there_is_not_overwritten() {
    let home = Home::new();
    fs::write(home.path().join("cofferdam.toml"), "# mine\n").unwrap();
    let refused = run(home.cofferdam(&["init", "--yes", "-c", "cofferdam.toml"]));
    assert_eq!(refused.status.code(), Some(73));
    assert!(text(&refused.stderr).contains("is there already"), "{}", text(&refused.stderr));
    assert_eq!(fs::read_to_string(home.path().join("cofferdam.toml")).unwrap(), "# mine\n");
    assert_eq!(home.files().len(), 1, "{:?}", home.files());
    // Neither is a secret, and then nothing is left.
    let home = Home::new();
    fs::create_dir(home.path().join("secrets")).unwrap();
    fs::write(home.path().join("secrets/example"), "kept").unwrap();
    let refused = run(home.cofferdam(&["init", "--yes", "-c", "cofferdam.toml"]));
    assert_eq!(refused.status.code(), Some(73));
    assert_eq!(fs::read_to_string(home.path().join("secrets/example")).unwrap(), "kept");
    assert_eq!(home.files().len(), 2, "{:?}", home.files());
}

#[test]
fn where_nothing_can_be_written_nothing_is_left() {
    let home = Home::new();
    fs::write(home.path().join("file"), "").unwrap();
    let refused = run(home.cofferdam(&["init", "--yes", "-c", "file/sub/cofferdam.toml"]));
    assert_eq!(refused.status.code(), Some(73), "{}", text(&refused.stderr));
    assert_eq!(home.files().len(), 1, "{:?}", home.files());
}

#[test]
fn a_full_disk_is_named_with_the_way_out_and_nothing_is_left() {
    let mut outcomes = Vec::new();
    // Each size leaves room for more of the steps: a tmpfs counts pages of 4 KiB.
    for kibibytes in [4, 8, 64] {
        let home = Home::new();
        let place = home.path().join("place");
        fs::create_dir(&place).expect("the home is writable");
        let init = home.cofferdam(&["init", "--yes", "-c"]);
        let script = r#"mount -t tmpfs -o "size=$1k" none "$2" || exit 99
            dd if=/dev/zero of="$2/others" bs=4096 count=1 2>/dev/null || exit 99
            shift 2; "$@"; code=$?
            [ $code = 0 ] || [ "$(ls -A place)" = others ] || exit 98
            exit $code"#;
        let mut small = command("unshare");
        small.arg(if nix::unistd::geteuid().is_root() { "-m" } else { "-rm" });
        small.args(["sh", "-c", script, "sh"]).arg(kibibytes.to_string()).arg(&place);
        small.arg(init.get_program()).args(init.get_args()).arg(place.join("new/cofferdam.toml"));
        small.env_clear().envs(init.get_envs().filter_map(|(name, value)| Some((name, value?))));
        small.current_dir(home.path());
        let output = output_of(small, "cofferdam init on a small disk");
        let said = text(&output.stderr);
        outcomes.push(output.status.success());
        if !output.status.success() {
            assert_eq!(output.status.code(), Some(73), "{kibibytes} KiB: {said}");
            assert!(said.contains("No space left on device") && said.contains("free some space"), "{said}");
        }
    }
    assert!(outcomes[..] == [false, false, true] || outcomes[..] == [false, true, true], "{outcomes:?}");
}

#[test]
fn without_a_terminal_it_asks_nothing_and_names_the_option() {
    let home = Home::new();
    let refused = run(home.cofferdam(&["init"]));
    assert_eq!(refused.status.code(), Some(64));
    assert!(text(&refused.stderr).contains("cofferdam init --yes"), "{}", text(&refused.stderr));
    assert!(home.files().is_empty(), "{:?}", home.files());
}

/// `init` with a terminal as its controlling one, as a shell starts it.
#[track_caller]
fn on_terminal(home: &Home) -> Terminal {
    let init = home.cofferdam(&["init"]);
    let mut session = command("/usr/bin/setsid");
    session.args(["--ctty", "--wait"]).arg(init.get_program()).args(init.get_args()).env_clear();
    session.current_dir(home.path());
    for (name, value) in init.get_envs() {
        value.map(|value| session.env(name, value));
    }
    Terminal::of(session)
}

const SECRET: &str = "typed-canary-3f6b1d";

/// Each question, as it is recognised on the terminal, and its answer.
fn questions() -> [(&'static str, String); 5] {
    let fixture = built("COFFERDAM_FIXTURE_BIN", "fixture-server").display().to_string();
    [
        ("Where to write", "my.toml".to_owned()),
        ("Command?", format!("'{fixture}' plain")),
        ("Its name?", "hub".to_owned()),
        ("Variable?", "SECRET".to_owned()),
        ("Its value (not shown)?", SECRET.to_owned()),
    ]
}

#[test]
fn the_answers_become_a_configuration_that_works() {
    let home = Home::new();
    let mut terminal = on_terminal(&home);
    for (question, answer) in questions() {
        terminal.wait_for(question);
        terminal.type_in(&format!("{answer}\n"));
    }
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.shown());
    assert!(!terminal.shown().contains(SECRET), "the secret was shown: {}", terminal.shown());
    assert_eq!(fs::read_to_string(home.path().join("secrets/hub")).unwrap(), SECRET);
    assert_eq!(fs::metadata(home.path().join("secrets/hub")).unwrap().mode() & 0o777, 0o600);
    assert!(!fs::read_to_string(home.path().join("my.toml")).unwrap().contains(SECRET));
    assert_works(&home, "my.toml", "hub", "echo");
}

#[test]
fn ctrl_c_and_ctrl_d_at_each_question_leave_nothing_and_restore_the_terminal() {
    let answers = ["\u{3}", "\u{4}"];
    for (last, interruption) in (0..questions().len()).flat_map(|last| answers.map(|key| (last, key))) {
        let home = Home::new();
        let mut terminal = on_terminal(&home);
        for (index, (question, answer)) in questions().into_iter().enumerate() {
            terminal.wait_for(question);
            if index == last {
                break;
            }
            terminal.type_in(&format!("{answer}\n"));
        }
        terminal.type_in(interruption);
        wait_until("init has exited", || terminal.has_exited());
        assert_ne!(terminal.exit_code(), Some(0), "{}", terminal.shown());
        assert!(
            terminal.mode().local_flags.contains(LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG)
        );
        assert!(home.files().is_empty(), "after question {last}: {:?}", home.files());
    }
}
