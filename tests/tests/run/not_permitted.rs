//! Machines that do not permit what a kind of sandbox needs: real sandboxes fail, and the error has the reason and the next
//! step.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use cofferdam_tests::deadline::{PATIENCE, wait_until};
use cofferdam_tests::fuse_directory::enter_private_mounts;
use cofferdam_tests::other_user::USER;
use cofferdam_tests::process::{Running, command, into_file, output_of};
use cofferdam_tests::sandboxes::RootlessPodman;
use cofferdam_tests::tools::Tool;

use super::text;
use super::unprivileged::Unprivileged;
use super::without_root::MountedSrt;

/// Runs a command as [`USER`] in a user namespace that permits no further ones, as on systems where the administrator has
/// disabled them.
#[track_caller]
fn output_without_user_namespaces(inner: &Command, unprivileged: &Unprivileged) -> Output {
    let mut outer = command(Tool::Unshare.path().expect("it is a part of util-linux"));
    // The first shell has no capabilities, because its ids are not mapped yet when it starts; the second one has.
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && \
                  exec setpriv --reuid \"$0\" --regid \"$0\" --clear-groups \"$@\"";
    outer.args(["--user", "sh", "-c", "read line; exec sh -c \"$0\" \"$@\"", script, &USER.to_string()]);
    outer.arg(inner.get_program()).args(inner.get_args());
    outer.current_dir(inner.get_current_dir().expect("a run has a working directory"));
    for (name, value) in inner.get_envs() {
        value.map(|value| outer.env(name, value));
    }
    let root = unprivileged.user.world.layout().root();
    let (stdout, stderr) = (root.join("stdout"), root.join("stderr"));
    outer.stdin(Stdio::piped()).stdout(into_file(&stdout)).stderr(into_file(&stderr));
    let mut run = Running::spawn(outer, "cofferdam run without user namespaces");
    let namespace = |id: &str| std::fs::read_link(format!("/proc/{id}/ns/user")).ok();
    let id = run.id().to_string();
    wait_until("the process has its own user namespace", || namespace(&id) != namespace("self"));
    for map in ["uid_map", "gid_map"] {
        std::fs::write(Path::new("/proc").join(&id).join(map), "0 0 65536").expect("root may map all ids");
    }
    let mut stdin = run.child.stdin.take().expect("it is a pipe");
    stdin.write_all(b"go\n").expect("the shell reads a line");
    drop(stdin);
    let status = run.wait(PATIENCE);
    let read = |path: &Path| std::fs::read(path).expect("it was written");
    Output { status, stdout: read(&stdout), stderr: read(&stderr) }
}

/// Every kind is installed, and none works: also the other kinds that `run` tries for its hint.
#[test]
fn without_user_namespaces_every_kind_has_the_same_error() {
    let tools =
        [Tool::Bubblewrap, Tool::Runsc, Tool::Podman, Tool::Node, Tool::SandboxRuntime, Tool::Unshare];
    if tools.iter().any(|tool| tool.path().is_none()) {
        return;
    }
    let Some(unprivileged) = Unprivileged::new() else { return };
    // In a thread of its own, whose mounts end with it.
    let runs = std::thread::spawn(move || {
        enter_private_mounts();
        let srt = MountedSrt::new(&unprivileged);
        // As in a login session.
        let runtime = unprivileged.user.home().with_file_name("runtime");
        std::fs::create_dir(&runtime).expect("a temporary directory is writable");
        unprivileged.give_files_to_user();
        let runs: [(&str, &[&str], &str); 5] = [
            ("bubblewrap", &["--sandbox", "bwrap"], "bwrap: Creating new namespace failed"),
            ("gvisor", &["--sandbox", "gvisor"], "Error executing inside namespace"),
            ("srt", &["--sandbox", "srt"], "bwrap: "),
            ("podman", &["--sandbox", "podman"], "cannot re-exec process"),
            ("podman", &["--sandbox", "podman", "--image", "localhost/absent"], "cannot re-exec process"),
        ];
        for (name, options, message) in runs {
            let mut run = unprivileged.command_of_any_user(&[options, &["--", "true"]].concat());
            run.env("PATH", &srt.search_path).env("XDG_RUNTIME_DIR", &runtime);
            let output = output_without_user_namespaces(&run, &unprivileged);
            let stderr = text(&output.stderr);
            assert_eq!(output.status.code(), Some(77), "{options:?}: {stderr}");
            let why = format!(
                "error: {name} cannot create this sandbox on this machine: user namespaces are not permitted for user {USER}: \
                 the kernel's setting `user.max_user_namespaces` is 0; `"
            );
            for expected in [
                why.as_str(),
                message,
                "hint: permit them with `sudo sysctl user.max_user_namespaces=",
                "no other kind of sandbox works here either",
            ] {
                assert!(stderr.contains(expected), "{options:?}: `{expected}` is missing in:\n{stderr}");
            }
            assert!(!stderr.contains("check the name") && !stderr.contains("architecture"), "{stderr}");
            unprivileged.user.assert_nothing_left();
            unprivileged.assert_no_process_left();
        }
    });
    runs.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

#[test]
fn podman_without_subordinate_ids_says_how_to_add_them() {
    let (Some(unprivileged), Some(podman)) = (Unprivileged::new(), RootlessPodman::open(USER)) else {
        return;
    };
    podman.remove_subordinate_ids();
    let run = unprivileged.command_of_any_user(&["--sandbox", "podman", "--", "true"]);
    let output = output_of(podman.command_of(&run), "cofferdam run");
    let expected = [
        "podman cannot create this sandbox on this machine: `/etc/subuid` has no subordinate ids for user 1000",
        "hint: add them with `sudo usermod --add-subuids",
    ];
    assert_not_permitted(&unprivileged, &output, &expected);
}

#[test]
fn podman_without_newuidmap_says_what_to_install() {
    let (Some(unprivileged), Some(podman)) = (Unprivileged::new(), RootlessPodman::open(USER)) else {
        return;
    };
    podman.remove_program("newuidmap");
    let mut run = unprivileged.command_of_any_user(&["--sandbox", "podman", "--", "true"]);
    // `newuidmap` may be installed on the test machine.
    let programs = ["podman", "mount", "umount", "setpriv", "sh", "true"];
    run.env("PATH", unprivileged.search_path_with(&programs));
    let output = output_of(podman.command_of(&run), "cofferdam run");
    let expected = [
        "podman cannot create this sandbox on this machine: `newuidmap` is not on the PATH",
        "hint: install `uidmap`",
        "no other kind of sandbox works here either",
    ];
    assert_not_permitted(&unprivileged, &output, &expected);
}

#[track_caller]
fn assert_not_permitted(unprivileged: &Unprivileged, output: &Output, expected: &[&str]) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(77), "{stderr}");
    for text in expected {
        assert!(stderr.contains(text), "`{text}` is missing in:\n{stderr}");
    }
    assert!(!stderr.contains("architecture"), "{stderr}");
    unprivileged.user.assert_nothing_left();
}
