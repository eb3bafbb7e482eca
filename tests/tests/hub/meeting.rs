//! Where a hub and the shims of a sandbox meet if nothing is configured, as root and as the usual user, and what happens
//! when another user has prepared that place.

use std::os::unix::fs::{MetadataExt as _, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

use cofferdam_tests::fuse_directory::{enter_private_mounts, mount_with_owner};
use cofferdam_tests::tools::cannot_run;

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
    /// `None` where the test cannot be another user and may be skipped.
    #[track_caller]
    fn new() -> Option<Self> {
        let bubblewrap = Tool::Bubblewrap.path()?;
        if !nix::unistd::geteuid().is_root() {
            cannot_run("only root can start processes of other users");
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
    assert!(
        printed.contains("is `cofferdam serve` running on the host, and the relay's directory mounted here?"),
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

/// A user can mount a FUSE file system on a directory of its own, and such a file system names any owner.
#[test]
fn a_fuse_file_system_that_names_this_user_as_owner_is_not_trusted() {
    // In a thread of its own, whose mounts end with it.
    std::thread::spawn(|| {
        let Some(guest) = Guest::new() else { return };
        if !Path::new("/dev/fuse").exists() {
            cofferdam_tests::tools::cannot_run("this kernel has no FUSE");
            return;
        }
        let scene = Scene::new();
        enter_private_mounts();
        let place = guest.directory("/tmp/cofferdam-1000", OTHER_USER, 0o755);
        mount_with_owner(&place, USER);
        let claimed = std::fs::metadata(&place).unwrap();
        assert_eq!((claimed.uid(), claimed.mode() & 0o7777), (USER, 0o755), "the owner is not claimed");

        let attach = guest.attach(&scene.world, USER, NO_RUNTIME);
        attach.wait_until_output_has("serve `/tmp/cofferdam-1000/relay.sock`: not trusted");
        attach.wait_until_output_has("is a mounted FUSE file system");
        assert_eq!(attach.times_attached(), 0);
        drop(attach);
        let called = guest.run(USER, NO_RUNTIME, &["servers"]);
        let printed = String::from_utf8_lossy(&called.stderr).into_owned();
        assert_eq!(called.status.code(), Some(69), "{printed}");
        assert!(
            printed.contains("is a mounted FUSE file system") && printed.contains("--relay"),
            "{printed}"
        );
        nix::mount::umount2(&place, nix::mount::MntFlags::MNT_DETACH).unwrap();
    })
    .join()
    .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// In a user namespace all users outside have one owner, and that may be any of them.
#[test]
fn a_directory_of_a_user_outside_the_namespace_is_not_trusted() {
    let Some(guest) = Guest::new() else { return };
    let place = guest.directory("/run/cofferdam/relay", OTHER_USER, 0o755);
    let listener = UnixListener::bind(place.join("relay.sock")).unwrap();
    std::fs::set_permissions(place.join("relay.sock"), std::fs::Permissions::from_mode(0o666)).unwrap();
    listener.set_nonblocking(true).unwrap();
    // The user's own bubblewrap needs access to these.
    std::fs::set_permissions(guest.root.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::copy(shim_binary(), guest.path("shim")).unwrap();
    let mut shim = command("setpriv");
    shim.env_clear()
        .args(["--reuid", "1000", "--regid", "1000", "--clear-groups", "--"])
        .arg(&guest.bubblewrap);
    shim.args(["--unshare-user", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--bind"]);
    shim.arg(guest.path("run")).arg("/run").arg("--ro-bind").arg(guest.path("shim")).arg("/shim");
    for libraries in ["/lib", "/lib64", "/usr/lib"] {
        shim.args(["--ro-bind-try", libraries, libraries]);
    }
    shim.args(["--", "/shim", "servers"]);
    let called = output_of(shim, "cofferdam-shim in a user namespace");
    let printed = String::from_utf8_lossy(&called.stderr).into_owned();
    assert_eq!(called.status.code(), Some(69), "{printed}");
    assert!(printed.contains("belongs to user 65534, who is not known in this user namespace"), "{printed}");
    assert!(listener.accept().is_err(), "the shim connected to it");
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
