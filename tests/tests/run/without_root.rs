//! Every kind of sandbox, and real harnesses, for a user who is not root, as on a laptop.

use std::path::PathBuf;

use cofferdam_tests::agents::{Agent, Report, model_for};
use cofferdam_tests::fuse_directory::enter_private_mounts;
use cofferdam_tests::harness::Harness;
use cofferdam_tests::other_user::USER;
use cofferdam_tests::process::{Running, output_of};
use cofferdam_tests::sandboxes::RootlessPodman;
use cofferdam_tests::tools::Tool;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::json;

use super::kinds::assert_tools_work_and_nothing_is_left;
use super::unprivileged::Unprivileged;
use super::{CANARY, text};

const SHIM: [&str; 4] = ["--", "cofferdam-shim", "--server", "tools"];

/// The container's user has the id of the user outside (`--userns keep-id`), so files belong to the same user on both sides.
#[test]
fn tools_work_in_podman_without_root() {
    let (Some(unprivileged), Some(podman)) = (Unprivileged::new(), RootlessPodman::open(USER)) else {
        return;
    };
    let run = unprivileged.command_of_any_user(&[&["--sandbox", "podman"][..], &SHIM].concat());
    let client = Harness::start(podman.command_of(&run), "cofferdam run");
    assert_tools_work_and_nothing_is_left(&unprivileged.user, client);
    let script = "id -u; touch new ~/new; stat -c %u new ~ ~/project; cat ~/private; ls -A ~";
    unprivileged.user.write("private", CANARY);
    let run = unprivileged.command_of_any_user(&["--sandbox", "podman", "--", "sh", "-c", script]);
    let output = output_of(podman.command_of(&run), "cofferdam run");
    assert_eq!(text(&output.stdout), "1000\n1000\n1000\n1000\nnew\nproject\n", "{}", text(&output.stderr));
    assert!(unprivileged.user.project().join("new").exists());
    unprivileged.user.assert_nothing_left();
    assert_eq!(podman.containers(), "");
}

/// The next run removes the container of a killed one.
#[test]
fn the_container_of_a_killed_run_is_removed_without_root() {
    let (Some(unprivileged), Some(podman)) = (Unprivileged::new(), RootlessPodman::open(USER)) else {
        return;
    };
    let run = |script: &str| {
        podman.command_of(&unprivileged.command_of_any_user(&[
            "--sandbox",
            "podman",
            "--",
            "sh",
            "-c",
            script,
        ]))
    };
    let mut killed = Running::spawn(run("touch ready; exec sleep 1000"), "cofferdam run");
    cofferdam_tests::deadline::wait_until("the command runs", || {
        unprivileged.user.project().join("ready").exists()
    });
    assert!(podman.containers().starts_with("cofferdam-sh-"));
    killed.kill9();
    cofferdam_tests::deadline::wait_until("the sidecar ends", || unprivileged.user.sidecars().is_empty());
    let output = output_of(run("true"), "cofferdam run");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(podman.containers(), "");
    unprivileged.user.assert_nothing_left();
}

#[test]
fn tools_work_in_gvisor_without_root() {
    if Tool::Runsc.path().is_none() {
        return;
    }
    let Some(unprivileged) = Unprivileged::new() else { return };
    let command = unprivileged.command(&[&["--sandbox", "gvisor"][..], &SHIM].concat());
    assert_tools_work_and_nothing_is_left(&unprivileged.user, Harness::start(command, "cofferdam run"));
}

#[test]
fn tools_work_in_srt_without_root() {
    let Some(unprivileged) = Unprivileged::new() else { return };
    if Tool::Node.path().is_none() || Tool::SandboxRuntime.path().is_none() {
        return;
    }
    // In a thread of its own, whose mounts end with it.
    let run = std::thread::spawn(move || {
        enter_private_mounts();
        let srt = MountedSrt::new(&unprivileged);
        let mut command = unprivileged.command(&[&["--sandbox", "srt"][..], &SHIM].concat());
        command.env("PATH", &srt.search_path);
        assert_tools_work_and_nothing_is_left(&unprivileged.user, Harness::start(command, "cofferdam run"));
    });
    run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// Srt, installed for the user in the mount namespace of this thread. Must be dropped before the user's directories are
/// removed: the tools of the tests are mounted into one of them.
pub(crate) struct MountedSrt {
    directory: PathBuf,
    /// A PATH with srt.
    pub(crate) search_path: String,
}

impl MountedSrt {
    pub(crate) fn new(unprivileged: &Unprivileged) -> Self {
        let installed = "srt and node are installed";
        let (node, runtime) =
            (Tool::Node.path().expect(installed), Tool::SandboxRuntime.path().expect(installed));
        let modules = runtime.ancestors().find(|path| path.ends_with("node_modules"));
        let modules = modules.expect("it is an npm package");
        let name = runtime.strip_prefix(modules).expect("it was found above");
        let directory = unprivileged.shared_directory("node_modules");
        for (source, flags) in [
            (Some(modules), MsFlags::MS_BIND),
            (None, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY),
        ] {
            mount(source, &directory, None::<&str>, flags, None::<&str>).expect("root may mount");
        }
        let script = format!("#!/bin/sh\nexec {node:?} {:?} \"$@\"\n", directory.join(name));
        let srt = unprivileged.program("srt", &script);
        let programs = std::path::Path::new(&srt).parent().expect("it is in a directory");
        let search_path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
        Self { directory, search_path }
    }
}

impl Drop for MountedSrt {
    fn drop(&mut self) {
        // No assertion here: the test may be failing already, and the mount is read-only.
        let _ = umount2(&self.directory, MntFlags::MNT_DETACH);
    }
}

#[test]
fn claude_code_in_bubblewrap_without_root() {
    if Tool::Bubblewrap.path().is_some() {
        assert_calls_a_tool(Agent::ClaudeCode, None);
    }
}

#[test]
fn codex_in_bubblewrap_without_root() {
    if Tool::Bubblewrap.path().is_some() {
        assert_calls_a_tool(Agent::Codex, None);
    }
}

#[test]
fn claude_code_in_podman_without_root() {
    if let Some(podman) = RootlessPodman::open(USER) {
        assert_calls_a_tool(Agent::ClaudeCode, Some(&podman));
    }
}

#[test]
fn codex_in_podman_without_root() {
    if let Some(podman) = RootlessPodman::open(USER) {
        assert_calls_a_tool(Agent::Codex, Some(&podman));
    }
}

/// Without podman the sandbox is bubblewrap's.
fn assert_calls_a_tool(agent: Agent, podman: Option<&RootlessPodman>) {
    let (Some(unprivileged), Some(program)) = (Unprivileged::new(), agent.program()) else { return };
    unprivileged.install(agent.command_name(), &program);
    let model = model_for(agent, "tools", "leak", json!({}));
    let options: &[&str] = if podman.is_some() { &["--sandbox", "podman"] } else { &[] };
    let mut run = match podman {
        None => unprivileged.command(options),
        Some(_) => unprivileged.command_of_any_user(options),
    };
    agent.arguments_in_sandbox(&mut run, &model);
    let run = match podman {
        None => run,
        Some(podman) => podman.command_of(&run),
    };
    let report =
        Report { output: output_of(run, &format!("{agent:?} without root")), requests: model.requests() };
    let result = report.tool_result();
    assert!(result.contains("[redacted:local.value]") && !result.contains(CANARY), "{result}");
    report.assert_finished();
    unprivileged.user.assert_nothing_left();
}
