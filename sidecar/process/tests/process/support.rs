//! Shared by the tests of processes: small servers in Python, a sidecar that may be killed, and waits for processes to end.
//! Every wait has a deadline, and no process is left running.

#[path = "temporary_directory.rs"]
mod temporary_directory;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use cofferdam_process::{self as process, KnownChild, Launch, ServerProcess};
use tokio::io::{AsyncBufReadExt, AsyncReadExt};
use tokio::net::unix::pipe;
use tokio::time::Instant;
use zeroize::Zeroizing;

pub(crate) use temporary_directory::TemporaryDirectory;

/// Long, because machines may be busy and no test is about speed.
const DEADLINE: Duration = Duration::from_secs(30);
const SERVER_SCRIPT: &str = "COFFERDAM_TEST_SERVER_SCRIPT";

/// Prepares this process as the sidecar does, with `test-keeper` as the keeper's program.
pub(crate) fn prepare() {
    process::use_keeper_program(env!("CARGO_BIN_EXE_test-keeper").into());
    process::harden().expect("harden this process");
}

pub(crate) fn python(script: &str, variables: &[(&str, &str)]) -> Launch {
    let environment = variables.iter().map(|(name, value)| (name.into(), Zeroizing::new((*value).into())));
    let args = vec!["-c".into(), script.into()];
    Launch {
        program: "python3".into(),
        args,
        environment: environment.collect(),
        directory: None,
        walls: None,
    }
}

pub(crate) fn plain(program: &str) -> Launch {
    Launch {
        program: program.into(),
        args: Vec::new(),
        environment: Vec::new(),
        directory: None,
        walls: None,
    }
}

pub(crate) async fn launch_python(script: &str, variables: &[(&str, &str)]) -> ServerProcess {
    process::launch(python(script, variables)).await.expect("launch python3")
}

/// The output of a program that runs in `/usr` with this environment.
pub(crate) async fn output_of(program: &str, args: &[&str], variables: &[(&str, &str)]) -> String {
    let args = args.iter().map(Into::into).collect();
    let launch =
        Launch { program: program.into(), args, directory: Some("/usr".into()), ..python("", variables) };
    read_to_end(&mut process::launch(launch).await.expect("launch the program").stdout).await
}

pub(crate) async fn read_line(stdout: &mut pipe::Receiver) -> String {
    let mut line = String::new();
    let mut reader = tokio::io::BufReader::new(stdout);
    tokio::time::timeout(DEADLINE, reader.read_line(&mut line))
        .await
        .expect("timed out before a line came")
        .expect("read a line");
    line.trim_end().to_owned()
}

pub(crate) async fn read_to_end(stdout: &mut pipe::Receiver) -> String {
    let mut text = String::new();
    tokio::time::timeout(DEADLINE, stdout.read_to_string(&mut text))
        .await
        .expect("timed out before stdout was closed")
        .expect("read text");
    text
}

/// The process ids that a server prints on its first line.
pub(crate) async fn read_pids(stdout: &mut pipe::Receiver, count: usize) -> Vec<u32> {
    parse_pids(&read_line(stdout).await, count)
}

/// Whether each of them is neither alive nor a zombie.
pub(crate) fn all_gone(pids: &[u32]) -> bool {
    pids.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}

/// Whether none of them is alive; they may be zombies, if their new parent does not reap them.
pub(crate) fn all_dead(pids: &[u32]) -> bool {
    let state = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    };
    pids.iter().all(|pid| matches!(state(pid), None | Some('Z' | 'X')))
}

pub(crate) fn arguments(pid: u32) -> Vec<String> {
    let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).expect("its command line");
    line.split_terminator('\0').map(str::to_owned).collect()
}

pub(crate) async fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited for {DEADLINE:?} until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) fn wait_until_blocking(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited for {DEADLINE:?} until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// An open file without the close-on-exec flag.
pub(crate) fn inheritable_descriptor() -> OwnedFd {
    let file = File::open("/dev/null").expect("open /dev/null");
    nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()))
        .expect("clear the flag");
    file.into()
}

/// A sidecar in a separate process, with one server.
pub(crate) struct SidecarProcess {
    sidecar: KnownChild,
    lines: mpsc::Receiver<String>,
    pub(crate) keeper: u32,
    pub(crate) servers: Vec<u32>,
}

impl SidecarProcess {
    pub(crate) fn start(script: &str, count: usize) -> Self {
        #[expect(clippy::disallowed_methods, reason = "this sidecar has no keeper")]
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .args(["--exact", "the_sidecar_in_a_process_of_its_own", "--nocapture", "--quiet"])
            .env(SERVER_SCRIPT, script);
        let mut sidecar = process::spawn_known(command.stdin(Stdio::piped()).stdout(Stdio::piped()))
            .expect("start a sidecar");
        let stdout = BufReader::new(sidecar.stdout.take().expect("it is piped"));
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let mut started = Self { sidecar, lines, keeper: 0, servers: Vec::new() };
        started.keeper = started.expect_prefix("keeper: ").parse().expect("a number");
        started.servers = parse_pids(&started.expect_prefix("servers: "), count);
        started
    }

    pub(crate) fn request_end(&mut self) {
        let stdin = self.sidecar.stdin.as_mut().expect("it is piped");
        stdin.write_all(b"end\n").expect("the sidecar reads");
    }

    pub(crate) fn expect_line(&self, expected: &str) {
        let line = self.lines.recv_timeout(DEADLINE).unwrap_or_else(|_| panic!("no line `{expected}` came"));
        assert_eq!(line, expected);
    }

    pub(crate) fn kill_sidecar(&mut self) {
        self.sidecar.kill().expect("kill the sidecar");
    }

    pub(crate) fn signal(&self, pid: u32, name: &str) {
        let signal: nix::sys::signal::Signal = format!("SIG{name}").parse().expect("a signal");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.cast_signed()), signal).expect("send it");
    }

    /// The rest of the next line with this prefix, which may follow output of libtest.
    fn expect_prefix(&self, prefix: &str) -> String {
        loop {
            let line =
                self.lines.recv_timeout(DEADLINE).unwrap_or_else(|_| panic!("no line `{prefix}…` came"));
            if let Some((_, rest)) = line.split_once(prefix) {
                return rest.to_owned();
            }
        }
    }
}

impl Drop for SidecarProcess {
    fn drop(&mut self) {
        let _ = self.sidecar.kill();
        let _ = self.sidecar.wait();
    }
}

/// Runs in the process that [`SidecarProcess::start`] starts; does nothing in others.
#[expect(clippy::print_stdout, reason = "the parent process reads it")]
pub(crate) fn run_sidecar() {
    let Ok(script) = std::env::var(SERVER_SCRIPT) else { return };
    prepare();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut server = launch_python(&script, &[]).await;
        println!("\nkeeper: {}", server.handle.keeper_pid());
        println!("servers: {}", read_line(&mut server.stdout).await);
        let (sender, requested) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            if std::io::stdin().read_line(&mut line).is_ok_and(|length| length > 0) {
                let _ = sender.send(());
            }
            // Otherwise stdin was closed, because the test is over.
        });
        tokio::select! {
            exit = server.exited() => println!("exited: {exit}"),
            Ok(()) = requested => println!("end requested"),
        }
        println!("ended: {:?}", server.end(Duration::from_millis(200)).await);
    });
}

pub(crate) fn parse_pids(line: &str, count: usize) -> Vec<u32> {
    let pids: Vec<u32> = line.split_whitespace().map(|pid| pid.parse().expect("a number")).collect();
    assert_eq!(pids.len(), count, "{line}");
    pids
}
