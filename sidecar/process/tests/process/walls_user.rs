//! The user of a confined server whose sidecar runs as root: nothing of root's but its files that are shown.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use cofferdam_process::{self as process, Access, Entry, Limit, RunsAs, Walls};
use nix::unistd::geteuid;

use super::support::{self, TemporaryDirectory, read_line, read_to_end};
use super::walls::{bind, output, python, show, walls};

/// The numbers of a process's user for the kernel: real, effective, saved, of files.
fn users_of(process: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).expect("it has a user");
    line.split_whitespace().map(|number| number.parse().expect("a number")).collect()
}

#[tokio::test]
async fn a_confined_server_of_root_is_an_unused_user() {
    support::prepare();
    let script = "import os\ntry: os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY)\n\
                  except OSError as error: refused = type(error).__name__\n\
                  print(os.getresuid(), os.getresgid(), os.getgroups(), refused, flush=True)\nos.read(0, 1)";
    // Without rules for Landlock, which alone would refuse it.
    let mut server = process::launch(python(script, walls())).await.expect("launch");
    let line = read_line(&mut server.stdout).await;
    let users = users_of(server.pid());
    if !geteuid().is_root() {
        assert_eq!(server.runs_as, RunsAs::Sidecar);
        assert_eq!(users, [geteuid().as_raw(); 4]);
        return;
    }
    assert_eq!(server.runs_as, RunsAs::Unused);
    // Root would get `OSError`, because its /proc is read-only.
    assert_eq!(line, "(1000, 1000, 1000) (1000, 1000, 1000) [] PermissionError");
    assert_eq!(users, [users[0]; 4]);
    assert!((65_520..=65_533).contains(&users[0]), "{users:?}");
    let keeper = server.handle.keeper_pid();
    let process_1 = std::fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).unwrap();
    assert_eq!(users_of(process_1.trim().parse().expect("the keeper has one child")), users);
}

#[tokio::test]
async fn files_of_the_sidecars_user_are_the_servers_inside_and_its_new_ones_the_sidecars_outside() {
    support::prepare();
    let directory = TemporaryDirectory::new();
    let file = directory.executable("key", "a key");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    let parent = file.parent().unwrap();
    std::fs::set_permissions(parent, PermissionsExt::from_mode(0o700)).unwrap();
    let path = parent.to_str().unwrap();
    let script = format!(
        "import os; print(open('{path}/key').read(), os.stat('{path}/key').st_uid == os.getuid())\n\
         os.mkdir('{path}/new'); open('{path}/new/file', 'w').write('x'); os.rename('{path}/new/file', '{path}/moved')"
    );
    let mut server = walls();
    server.entries.push(bind(path, Access::Write));
    assert_eq!(output(&script, server).await, "a key True\n");
    for name in ["new", "moved"] {
        let made = std::fs::metadata(parent.join(name)).unwrap();
        let own = (geteuid().as_raw(), nix::unistd::getegid().as_raw());
        assert_eq!((made.uid(), made.gid()), own, "{name}");
    }
}

#[tokio::test]
async fn the_number_of_processes_is_limited_for_root_too() {
    support::prepare();
    let script = "import os, time\ntry:\n\
                  \x20   for count in range(50):\n\
                  \x20       if os.fork() == 0: time.sleep(60)\n\
                  except BlockingIOError: print('refused after', count)";
    let limited = Walls { limits: vec![(Limit::Processes, 8)], ..walls() };
    // The server itself and process 1 count too.
    assert_eq!(output(script, limited).await, "refused after 6\n");
}

#[tokio::test]
async fn a_server_can_open_its_streams_again() {
    support::prepare();
    let script = "open('/proc/self/fd/1', 'w').write('again')";
    assert_eq!(output(script, walls()).await, "again");
}

/// The files of the kernel's own file systems cannot be given another owner.
#[tokio::test]
async fn where_files_cannot_be_given_to_an_unused_user_the_server_is_root_without_capabilities() {
    support::prepare();
    let script = "import os; print(os.getuid(), [line for line in open('/proc/self/status') if line.startswith('CapEff')])\n\
                  try: os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY)\n\
                  except OSError as error: print(error.strerror)";
    let mut server = walls();
    server.entries.push(Entry { path: "/shown".into(), ..show("/sys/kernel") });
    let mut server = process::launch(python(script, server)).await.expect("launch");
    let text = read_to_end(&mut server.stdout).await;
    let (user, runs_as, error) = match geteuid().is_root() {
        true => {
            let why = "cannot show it `/sys/kernel`: Invalid argument (os error 22)".to_owned();
            (1000, RunsAs::Root { why }, "Read-only file system")
        }
        false => (geteuid().as_raw(), RunsAs::Sidecar, "Permission denied"),
    };
    assert_eq!(text, format!("{user} ['CapEff:\\t0000000000000000\\n']\n{error}\n"));
    assert_eq!(server.runs_as, runs_as);
}
