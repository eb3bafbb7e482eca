//! Servers as real processes: how they are started, and that all their processes are killed at the end.

#[path = "process/observation.rs"]
mod observation;
#[path = "process/support.rs"]
mod support;
#[path = "process/walls.rs"]
mod walls;

use std::time::Duration;

use cofferdam_process::{
    self as process, Ended, Exit, LaunchError, RunError, raise_descriptor_limit, run_bounded,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use support::{SidecarProcess, all_gone, launch_python, python, read_line, read_pids, read_to_end};

/// A server that resists its end: it ignores SIGTERM and the end of its stdin, and has a child in its group and two in
/// other sessions. Prints its process ids on one line.
const STUBBORN: &str = r"
import os, signal, sys, time
out = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND) if len(sys.argv) > 1 else 1
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
reader, writer = os.pipe()
def linger():
    os.write(writer, b'%d ' % os.getpid())
    while True: time.sleep(0.05)
if os.fork() == 0: linger()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: linger()
        linger()
    os._exit(0)
pids = b''
while pids.count(b' ') < 3: pids += os.read(reader, 100)
os.write(out, pids + b'%d\n' % os.getpid())
if 'LEAVE' in os.environ: os._exit(3)
while True: time.sleep(0.05)
";
/// How many process ids `STUBBORN` prints.
const STUBBORN_PROCESSES: usize = 4;
const SHORT: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_stubborn_server_and_all_its_descendants_die_when_it_is_ended() {
    support::prepare();
    let mut server = launch_python(STUBBORN, &[]).await;
    let pids = read_pids(&mut server.stdout, STUBBORN_PROCESSES).await;
    assert_eq!(server.end(SHORT).await, Ended::All);
    assert!(all_gone(&pids), "left: {pids:?}");
}

#[tokio::test]
async fn dropping_a_server_ends_it() {
    support::prepare();
    let mut server = launch_python(STUBBORN, &[]).await;
    let mut pids = read_pids(&mut server.stdout, STUBBORN_PROCESSES).await;
    pids.push(server.handle.keeper_pid());
    drop(server);
    support::wait_until("all are gone", || all_gone(&pids)).await;
}

#[tokio::test]
async fn descendants_die_when_the_server_exits() {
    support::prepare();
    let mut server = launch_python(STUBBORN, &[("LEAVE", "1")]).await;
    let pids = read_pids(&mut server.stdout, STUBBORN_PROCESSES).await;
    assert_eq!(server.exited().await, Exit::Code(3));
    support::wait_until("all are gone", || all_gone(&pids)).await;
    assert_eq!(server.exited().await, Exit::Code(3), "a second call must return the same exit");
    assert_eq!(server.end(LONG).await, Ended::All);
}

#[tokio::test]
async fn a_server_that_keeps_forking_is_killed() {
    support::prepare();
    let forking = r"
import os
print(os.getpid(), flush=True)
while True:
    if os.fork(): os._exit(0)
    os.setsid()
    os.environ['FORKED'] = 'yes'
";
    let mut server = launch_python(forking, &[]).await;
    read_line(&mut server.stdout).await;
    server.exited().await;
    // Every forked process holds stdout open, so its end proves that none is left.
    read_to_end(&mut server.stdout).await;
    assert_eq!(server.end(Duration::ZERO).await, Ended::All);
}

#[tokio::test]
async fn a_server_that_exits_when_stdin_closes_may_finish_its_output() {
    support::prepare();
    let polite =
        "import sys\nprint('here', flush=True)\nsys.stdin.read()\nprint('bye', flush=True)\nsys.exit(5)";
    let server = launch_python(polite, &[]).await;
    let process::ServerProcess { stdin, mut stdout, stderr: _stderr, mut handle, .. } = server;
    assert_eq!(read_line(&mut stdout).await, "here");
    drop(stdin);
    assert_eq!(handle.exited().await, Exit::Code(5));
    assert_eq!(handle.end(LONG).await, Ended::All);
    assert_eq!(read_line(&mut stdout).await, "bye");
}

#[tokio::test]
async fn a_server_that_exits_only_on_sigterm_receives_it_within_the_grace() {
    support::prepare();
    let script = r"
import os, signal, time
def leave(*_):
    os.write(1, b'terminated\n')
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
print('here', flush=True)
while True: time.sleep(0.05)
";
    let mut server = launch_python(script, &[]).await;
    assert_eq!(read_line(&mut server.stdout).await, "here");
    let process::ServerProcess { stdin, mut stdout, stderr: _stderr, handle, .. } = server;
    drop(stdin);
    assert_eq!(handle.end(Duration::from_secs(4)).await, Ended::All);
    assert_eq!(read_line(&mut stdout).await, "terminated");
}

#[test]
fn everything_dies_with_a_keeper_that_is_killed() {
    let sidecar = SidecarProcess::start(STUBBORN, STUBBORN_PROCESSES);
    sidecar.signal(sidecar.keeper, "KILL");
    sidecar.expect_line("exited: its keeper died");
    sidecar.expect_line("ended: All");
    assert!(all_gone(&sidecar.servers), "left: {:?}", sidecar.servers);
    assert!(all_gone(&[sidecar.keeper]), "the keeper was not reaped");
}

#[test]
fn everything_dies_with_a_keeper_that_was_stopped() {
    let mut sidecar = SidecarProcess::start(STUBBORN, STUBBORN_PROCESSES);
    sidecar.signal(sidecar.keeper, "STOP");
    sidecar.request_end();
    sidecar.expect_line("end requested");
    sidecar.expect_line("ended: All");
    assert!(all_gone(&sidecar.servers), "left: {:?}", sidecar.servers);
}

#[test]
fn everything_dies_with_a_sidecar_that_is_killed() {
    let mut sidecar = SidecarProcess::start(STUBBORN, STUBBORN_PROCESSES);
    sidecar.kill_sidecar();
    let left: Vec<u32> = sidecar.servers.iter().copied().chain([sidecar.keeper]).collect();
    support::wait_until_blocking("all are dead", || support::all_dead(&left));
}

#[test]
fn a_keeper_blocks_every_signal_but_sigkill() {
    let mut sidecar = SidecarProcess::start(STUBBORN, STUBBORN_PROCESSES);
    for signal in ["TERM", "INT", "HUP", "USR1", "PIPE", "ALRM"] {
        sidecar.signal(sidecar.keeper, signal);
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", sidecar.keeper)).unwrap();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap();
    let expected = [15, 2, 1, 10, 13, 14].iter().fold(0_u64, |mask, signal| mask | 1 << (signal - 1));
    assert_eq!(
        u64::from_str_radix(pending.trim(), 16).unwrap() & expected,
        expected,
        "a signal was not blocked"
    );
    sidecar.request_end();
    sidecar.expect_line("end requested");
    sidecar.expect_line("ended: All");
}

#[tokio::test]
async fn a_server_gets_exactly_its_environment_arguments_and_directory() {
    support::prepare();
    let variables = [("COFFERDAM_TEST_TOKEN", "s3cr3t=value\nwith lines"), ("LC_ALL", "C.UTF-8")];
    let output = support::output_of("env", &["--null"], &variables).await;
    assert_eq!(output, "COFFERDAM_TEST_TOKEN=s3cr3t=value\nwith lines\0LC_ALL=C.UTF-8\0");
    let output = support::output_of("cat", &["/proc/self/cmdline", "", "two words"], &[]).await;
    assert_eq!(output, "cat\0/proc/self/cmdline\0\0two words\0");
    assert_eq!(support::output_of("readlink", &["/proc/self/cwd"], &[]).await, "/usr\n");
}

#[tokio::test]
async fn a_server_inherits_no_descriptor_and_no_signal_state_and_leads_its_session() {
    support::prepare();
    // A descriptor that a child would inherit. Another test may call `prepare` meanwhile, which sets close-on-exec on it;
    // in either case the server must not get it.
    let leaked = support::inheritable_descriptor();
    // 3 is the directory `/proc/self/fd`, which `ls` has open.
    assert_eq!(support::output_of("ls", &["/proc/self/fd"], &[]).await, "0\n1\n2\n3\n");
    drop(leaked);
    let status = support::output_of("cat", &["/proc/self/status"], &[]).await;
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    assert_eq!(field("SigBlk:"), "0000000000000000");
    // No signal may be ignored, except 32 and 33, which the C library uses itself.
    let ignored = u64::from_str_radix(&field("SigIgn:"), 16).unwrap();
    assert_eq!(ignored & !(0b11 << 31), 0);
    let stat = support::output_of("cat", &["/proc/self/stat"], &[]).await;
    let fields: Vec<&str> = stat.split(' ').collect();
    assert_eq!([fields[4], fields[5]], [fields[0]; 2], "the server does not lead its group and session");
}

#[tokio::test]
async fn a_server_has_the_descriptor_limit_that_the_sidecar_was_started_with() {
    support::prepare();
    let (_, maximum) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 500, maximum).unwrap();
    raise_descriptor_limit().unwrap();
    assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (maximum, maximum));
    assert_eq!(
        support::output_of("sh", &["-c", "ulimit -Sn; ulimit -Hn"], &[]).await,
        format!("500\n{maximum}\n")
    );
}

#[tokio::test]
async fn the_arguments_and_environment_of_a_keeper_contain_no_secret() {
    support::prepare();
    let script = "import os; print(os.environ['TOKEN'], flush=True); input()";
    let mut server = launch_python(script, &[("TOKEN", "a-secret-of-the-server")]).await;
    assert_eq!(read_line(&mut server.stdout).await, "a-secret-of-the-server");
    let keeper = server.handle.keeper_pid();
    let arguments = support::arguments(keeper);
    assert_eq!(arguments[1], "keeper");
    // A descriptor limit, if another test has raised that of this process.
    assert!(arguments[2..].iter().all(|argument| argument.parse::<u64>().is_ok()), "{arguments:?}");
    // Root can read the keeper's environment; other users are denied access.
    match std::fs::read(format!("/proc/{keeper}/environ")) {
        Ok(environment) => assert_eq!(environment, b""),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied),
    }
    // Whether another process is dumpable cannot be read by root; the limit of core files is set together with that.
    let limits = std::fs::read_to_string(format!("/proc/{keeper}/limits")).unwrap();
    let core = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().collect::<Vec<_>>(), ["0", "0", "bytes"]);
    assert!(!nix::sys::prctl::get_dumpable().unwrap(), "`prepare` must make this process not dumpable");
    server.end(SHORT).await;
}

#[tokio::test]
async fn a_keeper_holds_none_of_the_servers_pipes() {
    support::prepare();
    let script = "import os, time\nprint('here', flush=True)\nos.close(1)\nwhile True: time.sleep(0.05)";
    let mut server = launch_python(script, &[]).await;
    assert_eq!(read_to_end(&mut server.stdout).await, "here\n", "the keeper holds the server's stdout open");
    server.end(Duration::ZERO).await;
}

#[tokio::test]
async fn a_failed_start_is_reported_with_its_reason() {
    support::prepare();
    let error = process::launch(support::plain("no-such-mcp-server")).await.unwrap_err();
    assert!(error.to_string().starts_with("there is no `no-such-mcp-server`"), "{error}");
    let directory = Some("/no/such/directory".into());
    let error = process::launch(process::Launch { directory, ..support::plain("true") }).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot enter the directory `/no/such/directory` for `true`");

    let directory = support::TemporaryDirectory::new();
    for (content, errno) in [("#!/no/such/interpreter\n", 2), ("\x7fELF no program\n", 8)] {
        let script = directory.executable("server", content);
        let error = process::launch(support::plain(script.to_str().unwrap())).await.unwrap_err();
        let LaunchError::Execute { source, .. } = &error else { panic!("{error:?}") };
        assert_eq!(source.raw_os_error(), Some(errno));
    }
}

#[tokio::test]
async fn a_server_that_exits_at_once_counts_as_started() {
    support::prepare();
    for _ in 0..20 {
        let mut server = process::launch(support::plain("false")).await.unwrap();
        assert_ne!(server.pid(), 0);
        let keeper = server.handle.keeper_pid();
        assert_eq!(server.exited().await, Exit::Code(1));
        assert_eq!(server.end(LONG).await, Ended::All);
        assert!(all_gone(&[keeper]), "the ended keeper was not reaped");
    }
}

#[tokio::test]
async fn a_large_environment_reaches_the_server_whole_and_a_too_large_one_is_refused() {
    support::prepare();
    let value = "x".repeat(100_000);
    let names: Vec<String> = (0..10).map(|number| format!("LARGE_{number}")).collect();
    let variables: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), value.as_str())).collect();
    let script = "import os; print(sum(map(len, os.environ.values())), flush=True)";
    let mut server = launch_python(script, &variables).await;
    assert!(read_line(&mut server.stdout).await.parse::<usize>().unwrap() >= 1_000_000);
    let too_large = "x".repeat(9 * 1024 * 1024);
    let error = process::launch(python("", &[("LARGE", &too_large)])).await.unwrap_err();
    assert!(matches!(error, LaunchError::TooLarge { .. }), "{error}");
}

#[tokio::test]
async fn a_bounded_command_returns_its_output() {
    support::prepare();
    let output = run(&["sh", "-c", "cat; echo noise >&2; printf 'a value'"], LONG, 7).await.unwrap();
    assert_eq!(&output[..], b"a value");
    let environment = run(&["env"], LONG, 65536).await.unwrap();
    let environment = String::from_utf8(environment.to_vec()).unwrap();
    assert!(environment.contains("PATH="), "{environment}");
    assert!(!environment.contains("CARGO"), "a variable that is not allowed was passed on: {environment}");
}

#[tokio::test]
async fn a_bounded_command_that_fails_or_prints_too_much_is_an_error() {
    support::prepare();
    let error = run(&["sh", "-c", "printf 'a value'"], LONG, 6).await.unwrap_err();
    assert!(matches!(error, RunError::OutputTooLarge { limit: 6 }), "{error}");
    let error = run(&["yes"], LONG, 1000).await.unwrap_err();
    assert!(matches!(error, RunError::OutputTooLarge { .. }), "{error}");
    let error = run(&["sh", "-c", "echo hunter2; exit 4"], LONG, 1000).await.unwrap_err();
    assert!(matches!(error, RunError::Failed(Exit::Code(4))), "{error}");
    assert!(!format!("{error} {error:?}").contains("hunter2"));
    let error = run(&["no-such-command"], LONG, 1000).await.unwrap_err();
    assert!(matches!(error, RunError::Start(LaunchError::NotFound { .. })), "{error}");
    assert!(matches!(run(&[], LONG, 1).await, Err(RunError::NoCommand)));
}

#[tokio::test]
async fn a_bounded_command_dies_with_its_descendants_when_time_runs_out() {
    support::prepare();
    let directory = support::TemporaryDirectory::new();
    let printed = directory.executable("pids", "");
    let command = ["python3", "-c", STUBBORN, printed.to_str().unwrap()];
    // Long enough for the command to print all its process ids.
    let error = run(&command, Duration::from_secs(5), 1000).await.unwrap_err();
    assert!(matches!(error, RunError::Timeout(_)), "{error}");
    let pids = support::parse_pids(&std::fs::read_to_string(printed).unwrap(), STUBBORN_PROCESSES);
    assert!(all_gone(&pids), "left: {pids:?}");
}

async fn run(command: &[&str], time: Duration, max: usize) -> Result<zeroize::Zeroizing<Vec<u8>>, RunError> {
    let command: Vec<String> = command.iter().map(ToString::to_string).collect();
    run_bounded(&command, time, max).await
}

/// Not a test: runs as the sidecar in the process that [`SidecarProcess`] starts.
#[test]
fn the_sidecar_in_a_process_of_its_own() {
    support::run_sidecar();
}
