//! The host: sandboxes, disk, descriptors.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use cofferdam_tests::other_user::{USER, copy_programs, open_to_all};
use cofferdam_tests::process::{built, command, output_of};
use cofferdam_tests::server::Server;
use cofferdam_tests::tools::Tool;
use cofferdam_tests::world::World;

use super::examined::{Examined, doctor, examine_with, prepared, search_path, sound};

/// `doctor` of this world as the last words of another command line.
#[track_caller]
fn examine_through(world: &World, outer: &[&str]) -> Examined {
    let inner = doctor(world);
    let mut through = command(outer[0]);
    through.args(&outer[1..]).arg(inner.get_program()).args(inner.get_args()).env_clear();
    copy_environment(&inner, &mut through);
    examine_with(world, through)
}

pub(crate) fn copy_environment(from: &Command, to: &mut Command) {
    to.current_dir(from.get_current_dir().expect("doctor has a working directory"));
    for (name, value) in from.get_envs() {
        value.map(|value| to.env(name, value));
    }
}

#[test]
fn without_bubblewrap_its_package_is_named() {
    let world = prepared(sound());
    let mut without = doctor(&world);
    without.arg("--no-servers");
    let examined = examine_with(&world, without);
    examined.assert_warning(
        "sandbox-missing",
        "sandbox bubblewrap",
        "`bwrap` is not on the PATH",
        "install `bubblewrap`",
    );
    examined.assert_warning("sandbox-none", "sandboxes", "no kind of sandbox works", "attach");
    examined.assert_no_error();
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let mut with = doctor(&world);
    with.arg("--no-servers").env("PATH", search_path(&world, &["sh", "true", "bwrap"]));
    let examined = examine_with(&world, with);
    examined.assert_good("sandbox-ok", "sandbox bubblewrap", "it works here");
    assert!(examined.with_code("sandbox-missing").is_empty(), "one kind is enough: {:#}", examined.report);
}

#[test]
fn forbidden_user_namespaces_are_named_with_the_kernels_setting() {
    let (Some(_), Some(unshare)) = (Tool::Bubblewrap.path(), Tool::Unshare.path()) else { return };
    let world = prepared(sound());
    let path = search_path(&world, &["sh", "true", "bwrap", "sleep"]);
    // In a user namespace that permits no further ones, without capabilities.
    let script = format!(
        "echo 0 > /proc/sys/user/max_user_namespaces && PATH={} exec setpriv --bounding-set -all --inh-caps -all -- \"$@\"",
        path.display()
    );
    let setpriv_path = "/usr/bin:/bin:/usr/sbin";
    let script = script.replacen("exec setpriv", "exec /usr/bin/setpriv", 1);
    let inner = doctor(&world);
    let mut through = command(unshare);
    through.args(["--user", "--map-root-user", "/bin/sh", "-c", &script, "sh"]);
    through.arg(inner.get_program()).args(inner.get_args()).arg("--no-servers").env_clear();
    copy_environment(&inner, &mut through);
    through.env("PATH", setpriv_path);
    let examined = examine_with(&world, through);
    let (what, next) = ("`user.max_user_namespaces` is 0", "sudo sysctl user.max_user_namespaces=15000");
    examined.assert_warning("user-namespaces-forbidden", "limits", what, next);
    examined.assert_warning("sandbox-refused", "sandbox bubblewrap", what, next);
}

/// The kernel's limit of namespaces is that of a namespace around `doctor`; the host of the tests may have control groups.
#[test]
fn walls_that_a_confined_server_lacks_are_errors_with_their_way_out() {
    let Some(unshare) = Tool::Unshare.path() else { return };
    let confined = |profile: &str| prepared(World::new().server("tools", Server::fixture().confine(profile)));
    let world = confined("pids = 100");
    let unshare = unshare.display().to_string();
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" \"$@\"";
    let examined = examine_through(&world, &[&unshare, "--user", "--map-root-user", "/bin/sh", "-c", script]);
    let what = "the walls `files`, `processes` and `network` cannot be built without namespaces";
    examined.assert_error("wall-missing", "confinement", what, "sysctl user.max_user_namespaces");
    let without_landlock = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/confinement/without_landlock.py");
    let python = ["/usr/bin/python3", without_landlock];
    examine_through(&world, &python).assert_good("walls-ok", "confinement", "the kernel has no Landlock");
    let world = confined("require = [\"files\", \"processes\", \"network\", \"landlock\"]");
    let what = "it requires `landlock`, which the kernel does not have";
    examine_through(&world, &python).assert_error(
        "wall-missing",
        "server tools",
        what,
        "leave `landlock` out",
    );
    examine_with(&world, doctor(&world)).assert_good("walls-ok", "confinement", "namespaces and Landlock");
}

#[test]
fn a_full_disk_under_the_state_directory_is_an_error() {
    let Some(unshare) = Tool::Unshare.path() else { return };
    let world = prepared(sound());
    let state = world.layout().state.display().to_string();
    let script = r#"/bin/mount -t tmpfs -o "size=$0" none "$1" && shift && exec "$@""#;
    for (size, code) in [("4m", "disk-full"), ("64m", "disk-low"), ("512m", "disk-ok")] {
        let unshare = unshare.display().to_string();
        let map = if nix::unistd::geteuid().is_root() { "-m" } else { "-rm" };
        let examined = examine_through(&world, &[&unshare, map, "/bin/sh", "-c", script, size, &state]);
        match code {
            "disk-full" => {
                examined.assert_error(code, &state, "MiB are free", "cofferdam audit prune");
                assert_eq!(examined.code, 73);
            }
            "disk-low" => examined.assert_warning(code, &state, "MiB are free", "cofferdam audit prune"),
            _ => examined.assert_good(code, &state, "MiB are free"),
        }
    }
}

#[test]
fn a_low_limit_of_descriptors_is_a_warning_and_a_very_low_one_an_error() {
    let world = prepared(sound());
    let limited =
        |limit: &str| examine_through(&world, &["/usr/bin/prlimit", &format!("--nofile={limit}:{limit}")]);
    let examined = limited("1024");
    examined.assert_warning("descriptors-low", "limits", "at most 1024 open files", "LimitNOFILE=65536");
    examined.assert_no_error();
    let examined = limited("128");
    examined.assert_error("descriptors-low", "limits", "at most 128 open files", "LimitNOFILE=65536");
    assert_eq!(examined.code, 71);
}

#[test]
fn a_low_limit_of_processes_is_a_warning_for_users_other_than_root() {
    let Some(programs) = copy_programs() else { return };
    let home = tempfile::tempdir().unwrap();
    open_to_all(home.path());
    let limited = |user: u32| {
        let mut doctor = command("/usr/bin/prlimit");
        doctor.arg("--nproc=200:200").arg(programs.path().join("cofferdam")).args(["doctor", "--json"]);
        doctor.env_clear().env("HOME", home.path()).env("PATH", "/nonexistent").current_dir(home.path());
        doctor.uid(user).gid(user);
        Examined::of(&output_of(doctor, "cofferdam doctor with few processes"))
    };
    let what = "at most 200 processes and threads of this user (`ulimit -u`)";
    limited(USER).assert_warning("processes-low", "limits", what, "LimitNPROC=4096");
    // The kernel does not limit root.
    assert!(!limited(0).report.to_string().contains("ulimit -u"));
}

#[test]
fn a_program_without_a_shim_inside_or_beside_it_is_told_so() {
    let world = prepared(sound());
    let alone = world.layout().root().join("alone");
    std::fs::create_dir(&alone).unwrap();
    std::fs::copy(built("COFFERDAM_BIN", "cofferdam"), alone.join("cofferdam")).unwrap();
    let inner = doctor(&world);
    let mut copied = command(alone.join("cofferdam"));
    copied.args(inner.get_args()).arg("--no-servers").env_clear();
    copy_environment(&inner, &mut copied);
    let examined = examine_with(&world, copied);
    examined.assert_warning("shim-missing", "shim", "", "`cofferdam-shim` beside `cofferdam`");
}
