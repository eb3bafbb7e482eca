//! Podman and docker: with an image, or (podman) with a root of our own that shares the host's system.
//!
//! The programs take the values of variables from their own environment by name, so that no value is in a command line.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::root_tree::root_tree;
use super::{CommandLine, Kind, Network, Orphans, Prepared, SignalTarget, Stdio};
use crate::run::host::Host;
use crate::run::image::Image;
use crate::run::mount::{Access, Mount};
use crate::run::plan::{FileTree, Plan};

/// Podman's first process for containers, in a package of its own. Without it the command is the first process, for which
/// signals have no default action.
const PODMAN_INITS: [&str; 3] =
    ["/usr/libexec/podman/catatonit", "/usr/bin/catatonit", "/usr/lib/podman/catatonit"];

/// Why a mount cannot be made: `--mount` takes a list that is separated by commas and has no reliable quoting.
pub(super) fn refuse_mount(mount: &Mount) -> Option<String> {
    let is_unclear =
        |path: &&Path| path.as_os_str().as_encoded_bytes().iter().any(|byte| b",\"\n\r".contains(byte));
    let path = [mount.source.as_path(), mount.target.as_path()].into_iter().find(is_unclear)?;
    Some(format!("podman and docker cannot mount {path:?}: it has a comma, a quote or a line end"))
}

pub(super) fn prepare(
    plan: &Plan,
    host: &Host,
    program: PathBuf,
    run_directory: &Path,
    stdio: Stdio,
) -> Prepared {
    let container = format!("cofferdam-{}", plan.name);
    let mut words: Vec<OsString> =
        ["run", "--rm", "--interactive", "--name", &container, "--hostname", &plan.name]
            .map(Into::into)
            .to_vec();
    if plan.kind == Kind::Docker || PODMAN_INITS.iter().any(|path| Path::new(path).exists()) {
        words.push("--init".into());
    }
    if stdio == Stdio::Terminal {
        words.push("--tty".into());
    }
    words.extend(["--network".into(), network(plan.network).into()]);
    words.extend(["--cap-drop", "ALL", "--security-opt", "no-new-privileges"].map(Into::into));
    // Where SELinux is on, it would keep the container from the mounted directories.
    words.extend(["--security-opt", "label=disable"].map(Into::into));
    words.extend(user(plan.kind));
    words.extend(["--workdir".into(), plan.directory.clone().into_os_string()]);
    let environment = environment(plan, host, &mut words);
    let (files, mounts) = match &plan.tree {
        FileTree::Host => root_tree(plan, &run_directory.join("root")),
        FileTree::Image(_) => (Vec::new(), plan.files.mounts.clone()),
    };
    for mount in &mounts {
        words.extend(["--mount".into(), mounted(mount)]);
    }
    match &plan.tree {
        FileTree::Host => words.extend(["--rootfs".into(), run_directory.join("root").into_os_string()]),
        // An image's own entry point would take the command as its arguments.
        FileTree::Image(image) => {
            words.extend(["--pull=never".into(), "--entrypoint".into(), "".into(), image.into()]);
        }
    }
    words.extend(plan.command.iter().cloned());
    let line = |words: &[&str]| CommandLine {
        program: program.clone(),
        arguments: words.iter().map(Into::into).collect(),
        environment: environment.clone(),
    };
    let image = match &plan.tree {
        FileTree::Host => None,
        FileTree::Image(name) => Some(Image {
            name: name.clone(),
            inspect: line(&["image", "inspect", "--format", "{{.Architecture}}", name]),
            pull: line(&["pull", name]),
        }),
    };
    Prepared {
        removal: Some(line(&["rm", "--force", &container])),
        image,
        command: CommandLine { program, arguments: words, environment },
        files,
        trial: None,
        signals: SignalTarget::Program,
        orphans: Orphans::Leave,
        advice: Some(
            "the container or its command could not be started; is the image there and for this machine's architecture, and \
             does it have the command and its libraries?",
        ),
    }
}

fn network(network: Network) -> &'static str {
    match network {
        Network::Host => "host",
        // Single hosts are for `srt` alone.
        Network::None | Network::Hosts(_) => "none",
    }
}

/// The user of the files in the mounted directories, whatever user the image names.
fn user(kind: Kind) -> Vec<OsString> {
    let (user, group) = (nix::unistd::geteuid(), nix::unistd::getegid());
    match kind {
        Kind::Podman if !user.is_root() => vec!["--userns".into(), "keep-id".into()],
        _ => vec!["--user".into(), format!("{user}:{group}").into()],
    }
}

/// Names the variables on the command line; returns the environment of the program, which has their values.
fn environment(plan: &Plan, host: &Host, words: &mut Vec<OsString>) -> BTreeMap<OsString, OsString> {
    for (name, value) in &plan.environment {
        let by_name = name.to_str().is_some_and(|name| host.variable(name).as_ref() == Some(value));
        let mut word = name.clone();
        if !by_name {
            // Only what is set here, and so is no credential, differs from the user's environment.
            word.push("=");
            word.push(value);
        }
        words.extend(["--env".into(), word]);
    }
    host.all_variables()
}

fn mounted(mount: &Mount) -> OsString {
    let mut text = OsString::from("type=bind,source=");
    text.push(&mount.source);
    text.push(",target=");
    text.push(&mount.target);
    if mount.access == Access::ReadOnly {
        text.push(OsStr::new(",readonly"));
    }
    text
}
