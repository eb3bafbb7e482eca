//! Confined servers as real processes: what they see, what they cannot reach, and that their namespaces end with them.

#[path = "process/support.rs"]
mod support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use cofferdam_process::{
    self as process, Access, Ended, Entry, EntryKind, Exit, Launch, LaunchError, Missing, Network, Walls,
};
use support::{TemporaryDirectory, all_gone, read_line, read_to_end};

const SHORT: Duration = Duration::from_millis(200);

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
fn walls() -> Walls {
    let memory = EntryKind::Memory { mode: 0o700, bytes: 1024 * 1024, files: 64 };
    let devices = ["/dev/null", "/dev/urandom"]
        .map(|path| Entry { path: path.into(), kind: EntryKind::Device { source: path.into() } });
    let mut entries = vec![show("/usr"), Entry { path: "/tmp".into(), kind: memory }];
    // Links on a Debian whose /bin and /lib are merged into /usr.
    for name in ["bin", "sbin", "lib", "lib64"] {
        match std::fs::read_link(format!("/{name}")) {
            Ok(target) => entries.push(link(&format!("/{name}"), target.to_str().unwrap())),
            Err(_) if Path::new(&format!("/{name}")).is_dir() => entries.push(show(&format!("/{name}"))),
            Err(_) => {}
        }
    }
    entries.extend(devices);
    Walls { entries, ..Walls::default() }
}

fn python(script: &str, walls: Walls) -> Launch {
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
