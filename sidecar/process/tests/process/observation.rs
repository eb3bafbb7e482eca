//! The paths that a confined server asks for, also those that do not exist for it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use cofferdam_process::{self as process, Exit, Instruction, PathObserver, Walls, Wanted, observed_calls};
use tokio::time::{sleep, timeout};

use super::LONG;
use super::support::{self, read_to_end};
use super::walls::{python, walls};

#[derive(Default)]
struct Recorder {
    asked: Mutex<BTreeSet<(PathBuf, Wanted)>>,
    missed: Mutex<u64>,
}

impl PathObserver for Recorder {
    fn asked(&self, path: &Path, wanted: Wanted) {
        self.asked.lock().expect("no holder panics").insert((path.to_owned(), wanted));
    }

    fn missed(&self) {
        *self.missed.lock().expect("no holder panics") += 1;
    }
}

/// A filter that notifies of every observed call.
fn notifying() -> Vec<Instruction> {
    let mut program = vec![Instruction(0x20, 0, 0, 0)];
    for number in observed_calls() {
        program.push(Instruction(0x15, 0, 1, u32::try_from(number).expect("a small number")));
        program.push(Instruction(0x06, 0, 0, nix::libc::SECCOMP_RET_USER_NOTIF));
    }
    program.push(Instruction(0x06, 0, 0, nix::libc::SECCOMP_RET_ALLOW));
    program
}

/// Runs a script to its end, observed.
async fn observed(script: &str) -> (Exit, String, Recorder) {
    support::prepare();
    let recorder = Arc::new(Recorder::default());
    let walls = Walls { observed_calls: notifying(), ..walls() };
    let launched = process::launch_observed(python(script, walls), recorder.clone());
    let mut server = timeout(LONG, launched).await.expect("it starts").expect("launch");
    let text = read_to_end(&mut server.stdout).await + &read_to_end(&mut server.stderr).await;
    let exit = server.exited().await;
    drop(server);
    // The observer's thread drops its reference when no process is left.
    let gone = Arc::downgrade(&recorder);
    let ended = async {
        while Weak::strong_count(&gone) > 1 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LONG, ended).await.expect("the observer ends with the server");
    let Ok(recorder) = Arc::try_unwrap(recorder) else { panic!("it was the last reference") };
    (exit, text, recorder)
}

#[tokio::test]
async fn paths_are_seen_in_every_form_and_the_calls_go_on_unchanged() {
    let script = r"
import ctypes, os, subprocess
def attempt(action, *arguments, **options):
    try: action(*arguments, **options)
    except OSError as error: print(type(error).__name__)
attempt(open, '/nowhere/absolute')
os.chdir('/usr/lib')
attempt(open, '../../nowhere/./relative')
directory = os.open('/usr', os.O_RDONLY)
attempt(os.stat, 'in-directory', dir_fd=directory)
attempt(os.mkdir, '/tmp/made')
attempt(os.rename, '/tmp/made', '/tmp/renamed')
attempt(os.unlink, '/nowhere/removed')
attempt(os.access, '/nowhere/changed', os.W_OK)
attempt(open, '/tmp/' + 'x' * 200, 'w')
subprocess.run(['/usr/bin/true'], check=True)
attempt(subprocess.run, ['/nowhere/program'])
# A path that crosses a page, and one that cannot be read.
libc = ctypes.CDLL(None, use_errno=True)
attempt(open, '/nowhere/' + '/'.join(['d' * 250] * 15))
libc.access(ctypes.c_void_p(1), 0)
print(os.path.exists('/tmp/renamed'))
";
    let (exit, text, recorder) = observed(script).await;
    assert_eq!(exit, Exit::Code(0), "{text}");
    assert_eq!(text.matches("FileNotFoundError").count(), 6, "{text}");
    assert!(text.ends_with("True\n"), "{text}");
    let asked = recorder.asked.into_inner().unwrap();
    let long = format!("/nowhere/{}", [&*"d".repeat(250); 15].join("/"));
    let created = format!("/tmp/{}", "x".repeat(200));
    for (path, wanted) in [
        ("/nowhere/absolute", Wanted::Read),
        ("/nowhere/relative", Wanted::Read),
        ("/usr/lib", Wanted::Read),
        ("/usr/in-directory", Wanted::Read),
        ("/tmp/made", Wanted::Write),
        ("/tmp/renamed", Wanted::Write),
        ("/nowhere/removed", Wanted::Write),
        ("/nowhere/changed", Wanted::Write),
        (&created, Wanted::Write),
        ("/usr/bin/true", Wanted::Execute),
        ("/nowhere/program", Wanted::Execute),
        (&long, Wanted::Read),
    ] {
        assert!(asked.contains(&(path.into(), wanted)), "{path} {wanted:?} in {asked:#?}");
    }
    assert_eq!(recorder.missed.into_inner().unwrap(), 1, "the one whose address is not mapped");
}

#[tokio::test]
async fn descendants_and_threads_are_observed_too() {
    let script = r"
import os, threading
def ask(name):
    try: os.stat('/nowhere/' + name)
    except OSError: pass
threads = [threading.Thread(target=ask, args=('thread-%d' % number,)) for number in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: ask('grandchild')
    os._exit(0)
os.wait()
";
    let (exit, text, recorder) = observed(script).await;
    assert_eq!(exit, Exit::Code(0), "{text}");
    let asked = recorder.asked.into_inner().unwrap();
    let names =
        (0..8).map(|number| format!("/nowhere/thread-{number}")).chain(["/nowhere/grandchild".into()]);
    for path in names {
        assert!(asked.contains(&(path.clone().into(), Wanted::Read)), "{path} in {asked:#?}");
    }
}

#[tokio::test]
async fn an_observed_server_that_cannot_start_says_why() {
    support::prepare();
    let walls = Walls { observed_calls: notifying(), ..walls() };
    let launch =
        process::Launch { program: "/usr/bin/env".into(), args: Vec::new(), ..python("", walls.clone()) };
    let missing = process::Launch { directory: Some("/nowhere".into()), ..launch };
    let recorder = Arc::new(Recorder::default());
    let failed =
        timeout(LONG, process::launch_observed(missing, recorder.clone())).await.expect("it fails in time");
    assert!(failed.is_err_and(|error| error.to_string().contains("/nowhere")));
}
