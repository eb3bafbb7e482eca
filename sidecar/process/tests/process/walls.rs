//! Confined servers as real processes: what they see, what they cannot reach, and that their namespaces end with them.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_process::{
    self as process, Access, Ended, Entry, EntryKind, Exit, Instruction, Launch, LaunchError, Limit, Missing,
    Network, Proc, ServerProcess, Walls,
};

use super::support::{self, TemporaryDirectory, read_line, read_to_end};
use super::{LONG, SHORT, STUBBORN};

/// A filter that refuses one harmless call.
const REFUSE_GETPPID: [Instruction; 4] = [
    Instruction(0x20, 0, 0, 0),
    Instruction(0x15, 0, 1, nix::libc::SYS_getppid as u32),
    Instruction(0x06, 0, 0, nix::libc::SECCOMP_RET_ERRNO | nix::libc::EPERM as u32),
    Instruction(0x06, 0, 0, nix::libc::SECCOMP_RET_ALLOW),
];

fn show(path: &str) -> Entry {
    bind(path, Access::Read)
}

fn bind(path: &str, access: Access) -> Entry {
    let kind = EntryKind::Bind { source: path.into(), access, missing: Missing::Refuse };
    Entry { path: path.into(), kind }
}

fn link(path: &str, target: &str) -> Entry {
    Entry { path: path.into(), kind: EntryKind::Link { target: target.into() } }
}

/// The system's programs and libraries, three devices and a `/tmp`.
pub(crate) fn walls() -> Walls {
    let memory = EntryKind::Memory { mode: 0o700, bytes: 1024 * 1024, files: 64 };
    let devices = ["/dev/null", "/dev/urandom"]
        .map(|path| Entry { path: path.into(), kind: EntryKind::Device { source: path.into() } });
    let mut entries = vec![show("/usr"), Entry { path: "/tmp".into(), kind: memory }];
    // Links on a Debian whose /bin and /lib are merged into /usr.
    for name in ["bin", "sbin", "lib", "lib64"] {
        match std::fs::read_link(format!("/{name}")) {
            Ok(target) => entries.push(link(&format!("/{name}"), target.to_str().expect("a path in UTF-8"))),
            Err(_) if Path::new(&format!("/{name}")).is_dir() => entries.push(show(&format!("/{name}"))),
            Err(_) => {}
        }
    }
    entries.extend(devices);
    Walls { entries, ..Walls::default() }
}

pub(crate) fn python(script: &str, walls: Walls) -> Launch {
    let program = "/usr/bin/python3".into();
    let launch = support::python(script, &[("PATH", "/usr/bin:/bin")]);
    Launch { program, walls: Some(walls), directory: Some("/".into()), ..launch }
}

async fn output(script: &str, walls: Walls) -> String {
    let mut server = process::launch(python(script, walls)).await.expect("launch");
    let text = read_to_end(&mut server.stdout).await;
    let errors = read_to_end(&mut server.stderr).await;
    assert_eq!(server.exited().await, Exit::Code(0), "{text}{errors}");
    text
}

#[tokio::test]
async fn a_confined_server_sees_what_its_walls_name_and_nothing_else() {
    support::prepare();
    let script = "import os; print(sorted(os.listdir('/')), os.listdir('/tmp'), os.getpid(), \
                  sorted(p for p in os.listdir('/proc') if p.isdigit()))";
    let seen = output(script, walls()).await;
    assert!(seen.contains("'proc', "), "{seen}");
    assert!(!seen.contains("'root'") && !seen.contains("'home'") && !seen.contains("'etc'"), "{seen}");
    assert!(seen.ends_with("[] 2 ['1', '2']\n"), "{seen}");
}

#[tokio::test]
async fn a_confined_server_exits_with_its_own_status() {
    support::prepare();
    let mut server = process::launch(python("import sys; sys.exit(7)", walls())).await.unwrap();
    assert_eq!(server.exited().await, Exit::Code(7));
    let killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)";
    let mut server = process::launch(python(killed, walls())).await.unwrap();
    assert_eq!(server.exited().await, Exit::Signal(9));
}

/// The processes in the process namespace of a server, by their numbers outside.
fn processes_of(namespace: &Path) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("list the processes");
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    numbers.filter(|process| namespace_of(*process).as_deref() == Some(namespace)).collect()
}

fn namespace_of(process: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/pid")).ok()
}

/// A server with descendants that resist their end, when all of them run.
async fn stubborn(variables: &[(&str, &str)]) -> (ServerProcess, PathBuf) {
    let launch = Launch { walls: Some(walls()), directory: None, ..support::python(STUBBORN, variables) };
    let mut server =
        process::launch(Launch { program: "/usr/bin/python3".into(), ..launch }).await.expect("launch");
    read_line(&mut server.stdout).await;
    let namespace = namespace_of(server.pid()).expect("the server runs");
    // The server with its three descendants, the parent of two of them, which is not reaped, and for root process 1.
    assert!(processes_of(&namespace).len() >= 5);
    (server, namespace)
}

#[tokio::test]
async fn a_confined_server_and_all_its_descendants_die_when_it_is_ended() {
    support::prepare();
    let (server, namespace) = stubborn(&[]).await;
    assert_eq!(server.end(SHORT).await, Ended::All);
    assert!(processes_of(&namespace).is_empty());
}

#[tokio::test]
async fn a_confined_server_dies_with_its_keeper() {
    support::prepare();
    let (mut server, namespace) = stubborn(&[]).await;
    let keeper = i32::try_from(server.handle.keeper_pid()).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(keeper), nix::sys::signal::Signal::SIGKILL).unwrap();
    assert_eq!(server.exited().await, Exit::KeeperLost);
    support::wait_until("all are gone", || processes_of(&namespace).is_empty()).await;
}

#[tokio::test]
async fn a_confined_server_dies_when_its_handle_is_dropped() {
    support::prepare();
    let (server, namespace) = stubborn(&[]).await;
    drop(server);
    support::wait_until("all are gone", || processes_of(&namespace).is_empty()).await;
}

#[tokio::test]
async fn the_descendants_of_a_confined_server_die_when_it_exits() {
    support::prepare();
    let launch = Launch { walls: Some(walls()), ..support::python(STUBBORN, &[("LEAVE", "1")]) };
    let mut server = process::launch(Launch { program: "/usr/bin/python3".into(), ..launch }).await.unwrap();
    assert_eq!(server.exited().await, Exit::Code(3));
    assert_eq!(server.end(LONG).await, Ended::All);
}

#[tokio::test]
async fn signals_reach_a_confined_server_through_process_1() {
    support::prepare();
    let script = "import os, signal, time\n\
                  signal.signal(signal.SIGHUP, lambda *_: os.write(1, b'hung up\\n'))\n\
                  signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'terminated\\n'), os._exit(0)))\n\
                  print('here', flush=True)\nwhile True: time.sleep(0.05)\n";
    let mut server = process::launch(python(script, walls())).await.unwrap();
    assert_eq!(read_line(&mut server.stdout).await, "here");
    server.handle.hang_up();
    assert_eq!(read_line(&mut server.stdout).await, "hung up");
    let ServerProcess { stdin, mut stdout, stderr: _stderr, handle, .. } = server;
    drop(stdin);
    assert_eq!(handle.end(Duration::from_secs(4)).await, Ended::All);
    assert_eq!(read_line(&mut stdout).await, "terminated");
}

#[tokio::test]
async fn the_sockets_of_a_confined_server_are_bound_inside_and_served_outside() {
    support::prepare();
    let pool = Ipv4Addr::new(29, 18, 0, 0);
    let listeners = ["29.18.0.7:443", "10.0.0.5:5432", "[2001:db8::1]:80"].map(|text| text.parse().unwrap());
    let network = Network {
        pool: Some((pool, 16)),
        addresses: vec!["10.0.0.5".parse().unwrap(), "2001:db8::1".parse().unwrap()],
        listeners: listeners.to_vec(),
        resolver: Some("127.0.0.53:53".parse().unwrap()),
    };
    let script = "import socket\n\
                  for host, port in [('29.18.0.7', 443), ('10.0.0.5', 5432), ('2001:db8::1', 80)]:\n\
                  \x20   peer = socket.create_connection((host, port), 10)\n\
                  \x20   print(peer.makefile().readline(), end='', flush=True)\n\
                  for host, port in [('29.18.0.7', 80), ('29.18.0.8', 443), ('127.0.0.1', 443), ('1.1.1.1', 443)]:\n\
                  \x20   try: socket.create_connection((host, port), 10)\n\
                  \x20   except OSError as error: print(error.errno)\n";
    let mut server = process::launch(python(script, Walls { network, ..walls() })).await.unwrap();
    let mut sockets = std::mem::take(&mut server.sockets);
    assert_eq!(sockets.len(), 4);
    let resolver = std::net::UdpSocket::from(sockets.pop().unwrap());
    assert_eq!(resolver.local_addr().unwrap().to_string(), "127.0.0.53:53");
    for (socket, expected) in sockets.into_iter().zip(listeners) {
        let listener = TcpListener::from(socket);
        let (mut peer, _) = listener.accept().unwrap();
        let local: SocketAddr = peer.local_addr().unwrap();
        assert_eq!(local, expected);
        writeln!(peer, "served at {local}").unwrap();
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = peer.read(&mut [0]);
    }
    let text = read_to_end(&mut server.stdout).await;
    let (refused, unreachable) =
        (nix::errno::Errno::ECONNREFUSED as i32, nix::errno::Errno::ENETUNREACH as i32);
    let expected = format!(
        "served at 29.18.0.7:443\nserved at 10.0.0.5:5432\nserved at [2001:db8::1]:80\n{refused}\n{refused}\n{refused}\n{unreachable}\n"
    );
    assert_eq!(text, expected);
}

#[tokio::test]
async fn what_is_shown_for_reading_cannot_be_written() {
    support::prepare();
    let directory = TemporaryDirectory::new();
    let shown = directory.executable("shown", "");
    let shown = shown.parent().unwrap();
    let path = shown.to_str().unwrap();
    let script = format!("open('{path}/new', 'w').write('x')");
    let mut server = walls();
    server.entries.push(show(path));
    let mut process = process::launch(python(&script, server)).await.unwrap();
    assert!(read_to_end(&mut process.stderr).await.contains("Read-only file system"));
    let mut server = walls();
    server.entries.push(bind(path, Access::Write));
    output(&script, server).await;
    assert_eq!(std::fs::read_to_string(shown.join("new")).unwrap(), "x");
}

#[tokio::test]
async fn limits_the_filter_and_an_empty_proc_hold() {
    support::prepare();
    let script = "import os\ntry: os.getppid(); bytearray(400_000_000)\n\
                  except MemoryError: print('no memory')\nprint(os.listdir('/proc'), os.getppid())";
    let limited = Walls {
        limits: vec![(Limit::Data, 256 * 1024 * 1024)],
        system_calls: REFUSE_GETPPID.to_vec(),
        proc: Proc::Empty,
        ..walls()
    };
    assert_eq!(output(script, limited).await, "no memory\n[] -1\n");
}

#[tokio::test]
async fn a_wall_that_cannot_be_built_fails_the_start_and_is_named() {
    support::prepare();
    let directory = TemporaryDirectory::new();
    let there = directory.executable("there", "");
    let (missing, link) = (there.with_file_name("missing"), there.with_file_name("link"));
    std::os::unix::fs::symlink("/usr", &link).unwrap();
    for (path, cause) in [(&missing, "No such file"), (&link, "Too many levels of symbolic links")] {
        let mut server = walls();
        server.entries.push(show(path.to_str().unwrap()));
        let error = process::launch(python("", server)).await.unwrap_err();
        let expected = format!("cannot confine `/usr/bin/python3`: cannot show it `{}`", path.display());
        assert_eq!(error.to_string(), expected);
        let LaunchError::Confine { source, .. } = error else { panic!("{error}") };
        assert!(source.to_string().contains(cause), "{source}");
    }
}
