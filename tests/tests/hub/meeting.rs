//! Where a hub and the shims of a sandbox meet if nothing is configured, as root and as the usual user, and what happens
//! when another user has prepared that place.

use std::os::unix::fs::{MetadataExt as _, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

use super::*;

/// A sandbox with its own `/run` and `/tmp`, which every command in it shares.
struct Guest {
    bubblewrap: PathBuf,
    root: tempfile::TempDir,
}

/// The usual user of E2B's and Daytona's sandboxes.
const USER: u32 = 1000;
const OTHER_USER: u32 = 1001;

impl Guest {
    /// `None` where the test cannot be another user.
    fn new() -> Option<Self> {
        let bubblewrap = Tool::Bubblewrap.path()?;
        if !nix::unistd::geteuid().is_root() {
            eprintln!("not run: only root can start processes of other users");
            return None;
        }
        let root = tempfile::tempdir().expect("a temporary directory can be made");
        for (name, mode) in [("run", 0o755), ("tmp", 0o1777)] {
            let path = root.path().join(name);
            std::fs::create_dir(&path).expect("a temporary directory is writable");
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
                .expect("a temporary directory is writable");
        }
        Some(Self { bubblewrap, root })
    }

    fn path(&self, inside: &str) -> PathBuf {
        self.root.path().join(inside.trim_start_matches('/'))
    }

    /// Makes a directory that belongs to this user.
    fn directory(&self, inside: &str, owner: u32, mode: u32) -> PathBuf {
        let path = self.path(inside);
        std::fs::create_dir_all(&path).expect("a temporary directory is writable");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))
            .expect("a temporary directory is writable");
        chown(&path, Some(owner), Some(owner)).expect("a temporary directory is writable");
        path
    }

    /// The words that run the shim as this user.
    fn words(&self, user: u32, arguments: &[&str]) -> Vec<String> {
        let text = |path: &Path| path.display().to_string();
        let (run, tmp) = (text(&self.path("run")), text(&self.path("tmp")));
        let (shim, user) = (text(&shim_binary()), user.to_string());
        let mut words = vec![text(&self.bubblewrap)];
        let layout = [
            &["--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib"][..],
            &["--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--cap-add", "ALL"],
            &["--bind", &run, "/run", "--bind", &tmp, "/tmp", "--ro-bind", &shim, "/shim", "--"],
            &["/usr/bin/setpriv", "--reuid", &user, "--regid", &user, "--clear-groups", "--", "/shim"],
            arguments,
        ];
        words.extend(layout.concat().into_iter().map(str::to_owned));
        words
    }

    fn attach(&self, world: &World, user: u32, runtime: &str) -> Attach {
        let mut arguments =
            ["exec", "--grant", "dev", "--", "env", "-i", runtime].map(str::to_owned).to_vec();
        arguments.extend(self.words(user, &["hub", "--pin", "{pin}"]));
        Attach::start(world, &arguments)
    }

    fn call(&self, user: u32, runtime: &str) -> Output {
        self.run(user, runtime, &["call", "tools", "add", r#"{"a": 1, "b": 2}"#])
    }

    fn run(&self, user: u32, runtime: &str, arguments: &[&str]) -> Output {
        let words = self.words(user, arguments);
        let mut command: Command = command("env");
        command.args(["-i", runtime]).args(words);
        output_of(command, "cofferdam-shim")
    }
}

const NO_RUNTIME: &str = "XDG_RUNTIME_DIR=";

#[test]
fn hub_and_shim_meet_without_configuration_as_root_and_as_the_usual_user() {
    let Some(guest) = Guest::new() else { return };
    let scene = Scene::new();
    let missing = guest.run(USER, NO_RUNTIME, &["servers"]);
    let printed = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert_eq!(missing.status.code(), Some(69));
    assert!(
        printed.contains("there is no socket at unix:/run/cofferdam/relay/relay.sock, unix:/tmp"),
        "{printed}"
    );
    guest.directory("/run/user/1000", USER, 0o700);
    for (user, runtime, socket) in [
        (0, NO_RUNTIME, "/run/cofferdam/relay/relay.sock"),
        (USER, "XDG_RUNTIME_DIR=/run/user/1000", "/run/user/1000/cofferdam/relay.sock"),
        (USER, NO_RUNTIME, "/tmp/cofferdam-1000/relay.sock"),
    ] {
        let attach = guest.attach(&scene.world, user, runtime);
        attach.wait_until_output_has(&format!("shims can connect to unix:{socket}"));
        let directory = std::fs::metadata(guest.path(socket).parent().unwrap()).unwrap();
        assert_eq!((directory.mode() & 0o7777, directory.uid()), (0o700, user), "{socket}");
        let called = guest.call(user, runtime);
        assert_eq!(String::from_utf8_lossy(&called.stdout), "3\n", "{socket}: {called:?}");
        attach.stop();
    }
}

/// Another user of the sandbox has made the directory before; neither hub nor shim goes there.
#[test]
fn a_directory_that_another_user_prepared_is_not_trusted() {
    let Some(guest) = Guest::new() else { return };
    let scene = Scene::new();
    let prepared = guest.path("/tmp/cofferdam-1000");
    let theirs = guest.directory("/tmp/theirs", OTHER_USER, 0o755);
    for kind in ["directory", "open directory", "link"] {
        let place = match kind {
            "directory" => guest.directory("/tmp/cofferdam-1000", OTHER_USER, 0o755),
            "open directory" => guest.directory("/tmp/cofferdam-1000", USER, 0o777),
            _ => {
                symlink("/tmp/theirs", &prepared).unwrap();
                theirs.clone()
            }
        };
        let listener = UnixListener::bind(place.join("relay.sock")).unwrap();
        std::fs::set_permissions(place.join("relay.sock"), std::fs::Permissions::from_mode(0o666)).unwrap();
        listener.set_nonblocking(true).unwrap();

        let attach = guest.attach(&scene.world, USER, NO_RUNTIME);
        attach.wait_until_output_has("serve `/tmp/cofferdam-1000/relay.sock`");
        attach.wait_until_output_has("choose another path with --socket");
        assert_eq!(attach.times_attached(), 0, "{kind}");
        drop(attach);

        let called = guest.run(USER, NO_RUNTIME, &["servers"]);
        let printed = String::from_utf8_lossy(&called.stderr).into_owned();
        assert_eq!(called.status.code(), Some(69), "{kind}: {printed}");
        assert!(printed.contains("not trusted") && printed.contains("--relay"), "{kind}: {printed}");
        assert!(listener.accept().is_err(), "{kind}: it was never connected to");
        std::fs::remove_file(place.join("relay.sock")).unwrap();
        match kind {
            "link" => std::fs::remove_file(&prepared).unwrap(),
            _ => std::fs::remove_dir_all(&prepared).unwrap(),
        }
    }
}

/// A directory that was mounted into the sandbox is the host's choice, whichever user of the host it belongs to.
#[test]
fn a_mounted_directory_of_another_user_is_trusted() {
    let Some(guest) = Guest::new() else { return };
    let scene = Scene::with(
        World::new().server("tools", Server::fixture()).relay(&format!("unix-uids = [{USER}, 0]")).start(),
    );
    guest.directory("/run/cofferdam", 0, 0o755);
    let relay = scene.world.layout().relay.parent().unwrap().to_owned();
    chown(&relay, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    std::fs::set_permissions(&relay, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut words = guest.words(USER, &["call", "tools", "add", r#"{"a": 1, "b": 2}"#]);
    let mount = ["--bind".to_owned(), relay.display().to_string(), "/run/cofferdam/relay".to_owned()];
    let place = words.iter().position(|word| word == "--").unwrap();
    words.splice(place..place, mount);
    let mut call = command(&words[0]);
    call.env_clear().args(&words[1..]);
    let called = output_of(call, "cofferdam-shim call");
    assert_eq!(String::from_utf8_lossy(&called.stdout), "3\n", "{called:?}");
}
