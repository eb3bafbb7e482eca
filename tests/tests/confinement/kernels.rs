//! What hosts give that lack something: no Landlock, no user namespaces, a masked `/proc`, no capability, no control group. Each
//! wall that is missing is named, and the server starts with the others, or not at all, as its profile says.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use cofferdam_tests::process::built;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::{Builder, World};
use serde_json::{Value, json};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/confinement/attacks.py");
const WITHOUT_LANDLOCK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/confinement/without_landlock.py");
/// The first three are those of every confined server.
const REQUIRE: &str = "require = [\"files\", \"processes\", \"network\"";

/// A sidecar that is started by a shell script, in which `"$@"` is its command.
struct Host {
    directory: tempfile::TempDir,
    script: String,
}

impl Host {
    fn new(script: &str) -> Self {
        let directory = tempfile::tempdir().expect("make a directory");
        Self { directory, script: script.to_owned() }
    }

    /// A world with a confined server of this profile, whose sidecar runs on this host.
    fn world(&self, profile: &str) -> World {
        let server = Server::command(["/usr/bin/python3", SCRIPT]).env("MARK", "unused").confine(profile);
        self.start(World::new().server("server", server))
    }

    fn start(&self, builder: Builder) -> World {
        builder.program(self.program()).start()
    }

    fn program(&self) -> PathBuf {
        let sidecar = built("COFFERDAM_BIN", "cofferdam");
        let path = self.directory.path().join("sidecar");
        let text = format!("#!/bin/sh -e\nset -- {} \"$@\"\n{}\n", sidecar.display(), self.script);
        std::fs::write(&path, text).expect("write a script");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("it is the test's");
        path
    }
}

fn attempt(world: &World, attack: &str) -> String {
    world.connected("server").call_text("attack", json!({"name": attack, "with": {}}))
}

/// What the sidecar says in its log of a server that it does not start.
#[track_caller]
fn assert_refused(world: &World, parts: &[&str]) {
    let mut shim = world.shim("server");
    let answer = shim.request("initialize", json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}));
    let text = answer.to_string();
    assert!(text.contains("server_unavailable"), "{text}");
    let log = world.log();
    let missing: Vec<_> = parts.iter().filter(|part| !log.contains(**part)).collect();
    assert!(missing.is_empty(), "not in the log: {missing:#?}");
}

/// The walls of the one server that runs, as `sessions` shows them.
fn walls(world: &World) -> Value {
    let sessions = world.sessions();
    let walls = sessions[0]["walls"].as_array().expect("they are listed");
    let named =
        |wall: &Value| (wall["name"].as_str().expect("it has a name").to_owned(), wall["made-of"].clone());
    walls.iter().map(named).collect()
}

#[test]
fn the_walls_of_a_server_are_in_the_log_and_in_sessions() {
    let host = Host::new("exec \"$@\"");
    let world = host.world("pids = 100");
    let mut shim = world.connected("server");
    shim.call_text("attack", json!({"name": "leave_a_file_at_home", "with": {}}));
    let user = if nix::unistd::geteuid().is_root() { "unused" } else { "the sidecar's" };
    let expected = json!({
        "files": ["namespace", "landlock"], "limits": ["process limits"], "network": ["namespace"],
        "processes": ["namespace"], "system-calls": ["filter"], "user": [user],
    });
    assert_eq!(walls(&world), expected);
    let table = world.cofferdam_text(&["sessions"]);
    let line = "confined: files (landlock), limits, network, processes, system-calls, user";
    assert!(table.contains(line), "{table}");
    assert!(world.log().contains("files: namespace and landlock, limits: process limits"), "{}", world.log());
}

#[test]
fn without_landlock_the_other_walls_stand_unless_it_is_required() {
    let host = Host::new(&format!("exec /usr/bin/python3 {WITHOUT_LANDLOCK} \"$@\""));
    let world = host.world("pids = 100");
    for attack in ["core_pattern", "write_to_the_system", "user_namespace", "mount_a_file_system"] {
        let text = attempt(&world, attack);
        assert!(text.starts_with("STOPPED"), "{attack}: {text}");
    }
    let mut shim = world.connected("server");
    shim.call_text("attack", json!({"name": "leave_a_file_at_home", "with": {}}));
    assert_eq!(walls(&world)["files"], json!(["namespace"]));
    let world = host.world(&format!("{REQUIRE}, \"landlock\"]"));
    assert_refused(&world, &["the wall `landlock` does not stand, which its `require` names", "`lsm=`"]);
}

#[test]
fn without_user_namespaces_no_server_is_confined_and_the_way_out_is_named() {
    let limit = "echo 0 > /proc/sys/user/max_user_namespaces; exec \"$0\" \"$@\"";
    let host = Host::new(&format!("exec unshare --user --map-root-user -- /bin/sh -ec '{limit}' \"$@\""));
    let world = host.world("pids = 100");
    assert_refused(
        &world,
        &[
            "none of the walls `files`, `processes` and `network`",
            "`sysctl user.max_user_namespaces=15000`",
            "`confine = \\\"off\\\"`",
        ],
    );
}

/// As in a container whose runtime covers a part of `/proc`.
#[test]
fn where_proc_is_masked_servers_have_an_empty_one() {
    let host = Host::new(
        "exec unshare --mount -- /bin/sh -ec 'mount -t tmpfs none /proc/fs; exec \"$0\" \"$@\"' \"$@\"",
    );
    let world = host.world("pids = 100");
    let mut shim = world.connected("server");
    let text = shim.call_text("attack", json!({"name": "environment_of_another_server", "with": {}}));
    assert!(text.starts_with("STOPPED"), "{text}");
    assert_eq!(walls(&world)["processes"], json!(["namespace", "no /proc"]));
    assert!(world.log().contains("confined servers have an empty /proc"), "{}", world.log());
}

/// A sidecar of root in a container without privileges.
#[test]
fn without_the_rights_for_a_user_of_its_own_a_server_is_root_without_capabilities_unless_that_is_required() {
    if !nix::unistd::geteuid().is_root() {
        cofferdam_tests::tools::cannot_run("only root can be without the rights of root");
        return;
    }
    let host = Host::new("exec setpriv --bounding-set -sys_admin --inh-caps -sys_admin -- \"$@\"");
    let world = host.world("pids = 100");
    for attack in ["capabilities", "core_pattern", "become_another_user", "environment_of_another_server"] {
        let text = attempt(&world, attack);
        assert!(text.starts_with("STOPPED"), "{attack}: {text}");
    }
    let mut shim = world.connected("server");
    shim.call_text("attack", json!({"name": "leave_a_file_at_home", "with": {}}));
    assert_eq!(walls(&world)["user"], json!(["root without capabilities"]));
    let log = world.log();
    assert_eq!(
        log.matches("runs as root without capabilities, not as a user of its own").count(),
        1,
        "{log}"
    );
    let world = host.world(&format!("{REQUIRE}, \"user\"]"));
    assert_refused(
        &world,
        &["the wall `user` of `/usr/bin/python3` does not stand", "run the sidecar as an ordinary user"],
    );
}

#[test]
fn without_any_capability_root_cannot_confine_and_is_told_so() {
    if !nix::unistd::geteuid().is_root() {
        cofferdam_tests::tools::cannot_run("only root can be without capabilities");
        return;
    }
    let host = Host::new("exec setpriv --bounding-set -all --inh-caps -all -- \"$@\"");
    let world = host.world("pids = 100");
    assert_refused(&world, &["none of the walls `files`, `processes` and `network`", "`CAP_SETFCAP`"]);
}

#[test]
fn without_a_control_group_what_needs_one_is_refused() {
    let host = Host::new("exec \"$@\"");
    for (profile, key) in [
        ("cpu = 0.5".to_owned(), "its `cpu` needs a control group"),
        (format!("{REQUIRE}, \"limits\"]"), "needs a control group"),
    ] {
        let world = host.world(&profile);
        assert_refused(&world, &[key, "`Delegate=yes`"]);
    }
}
