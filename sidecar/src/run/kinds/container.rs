//! Podman and docker: with an image, or (podman only) with a generated root directory into which the host's system
//! directories are mounted.
//!
//! Of the user's environment variables the command line has only the names; podman and docker read the values from their own
//! environment, so that no credential is in a command line.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::container_removal::container_name;
use super::root_tree::{home_mount_points, root_tree};
use super::{
    CommandLine, GeneratedFile, Kind, LeftContainer, Network, Orphans, Prepared, SignalTarget, StartCheck,
    Stdio, Trial,
};
use crate::run::host::Host;
use crate::run::image::Image;
use crate::run::mount::{Access, Mount};
use crate::run::plan::{FileTree, Plan};

/// The init process that podman uses for `--init`, which may not be installed. Without it the command is process 1 of the
/// container, for which signals have no default action.
const PODMAN_INITS: [&str; 3] =
    ["/usr/libexec/podman/catatonit", "/usr/bin/catatonit", "/usr/lib/podman/catatonit"];

/// Returns why podman and docker cannot mount this, if so: `--mount` takes a list separated by commas, without reliable
/// quoting.
pub(super) fn refuse_mount(mount: &Mount) -> Option<String> {
    let has_separator =
        |path: &&Path| path.as_os_str().as_encoded_bytes().iter().any(|byte| b",\"\n\r".contains(byte));
    let path = [mount.source.as_path(), mount.target.as_path()].into_iter().find(has_separator)?;
    Some(format!("podman and docker cannot mount {path:?}: the path has a comma, a quote or a line end"))
}

pub(super) fn prepare(
    plan: &Plan,
    host: &Host,
    program: PathBuf,
    run_directory: &Path,
    stdio: Stdio,
) -> Prepared {
    let mut files = home_mount_points(plan, run_directory);
    let (walls, environment_of_pull) = walls(plan, host, run_directory, &mut files);
    let mut environment = environment_of_pull.clone();
    if let Some(directory) = temporary_directory(plan, host, run_directory) {
        files.push(GeneratedFile::directory(&directory));
        environment.insert("TMPDIR".into(), directory.into());
    }
    let command_line = |arguments: Vec<OsString>| CommandLine {
        program: program.clone(),
        arguments,
        environment: environment.clone(),
    };
    let short_line = |arguments: &[&str]| command_line(arguments.iter().map(Into::into).collect());
    let id_file = run_directory.join("container-id");
    let mut arguments: Vec<OsString> = vec!["run".into(), "--cidfile".into(), id_file.clone().into()];
    if stdio == Stdio::Terminal {
        arguments.push("--tty".into());
    }
    arguments.extend(walls.iter().cloned());
    arguments.extend(plan.command.iter().cloned());
    let container = container_name(&plan.name);
    let status = short_line(&["container", "inspect", "--format", "{{.State.Status}}", &container]);
    let image = match &plan.tree {
        FileTree::Host => None,
        FileTree::Image(name) => Some(Image {
            name: name.clone(),
            inspect: short_line(&["image", "inspect", "--format", "{{.Architecture}}", name]),
            // Its files may be large. If the user chose a place for temporary files, the run's directory is there too.
            pull: match host.variable("TMPDIR") {
                Some(_) => short_line(&["pull", name]),
                None => CommandLine { environment: environment_of_pull, ..short_line(&["pull", name]) },
            },
        }),
    };
    let trial = match (plan.kind, &plan.tree) {
        (Kind::Podman, FileTree::Host) => {
            let storage = private_storage(run_directory);
            // Without this variable podman creates directories of its own in the directory for temporary files.
            let runtime_directory = run_directory.join("podman-runtime");
            let mut environment = environment.clone();
            if !environment.contains_key(OsStr::new("XDG_RUNTIME_DIR")) {
                files.push(GeneratedFile::directory(&runtime_directory));
                environment.insert("XDG_RUNTIME_DIR".into(), runtime_directory.into());
            }
            let with_storage = |arguments: &[OsString]| CommandLine {
                program: program.clone(),
                arguments: [&storage, arguments].concat(),
                environment: environment.clone(),
            };
            let run = [&["run".into()], &walls[..], &plan.trial_command()].concat();
            let removal = ["rm", "--force", &container].map(Into::into);
            Some(Trial { command: with_storage(&run), removal: Some(with_storage(&removal)) })
        }
        (Kind::Podman, FileTree::Image(_)) => None,
        // No container can be started without an image.
        _ => Some(Trial { command: short_line(&["info"]), removal: None }),
    };
    let advice = match &plan.tree {
        FileTree::Host => {
            "the container or its command could not be started; the message above has the reason"
        }
        FileTree::Image(_) => {
            "the container or its command could not be started; check that the image is for this machine's architecture, and \
             that it contains the command and its libraries"
        }
    };
    Prepared {
        left: LeftContainer::of(plan.kind, &plan.name),
        image,
        command: command_line(arguments),
        files,
        trial,
        signals: SignalTarget::Program,
        orphans: Orphans::Leave,
        start_check: Some(StartCheck { id_file, status }),
        advice: Some(advice),
    }
}

/// The options of `run`, up to the command, that every container of this plan has, and the environment of podman or docker.
/// Adds the files of the container's root directory to `files`.
fn walls(
    plan: &Plan,
    host: &Host,
    run_directory: &Path,
    files: &mut Vec<GeneratedFile>,
) -> (Vec<OsString>, BTreeMap<OsString, OsString>) {
    let container = container_name(&plan.name);
    let mut arguments: Vec<OsString> =
        ["--rm", "--interactive", "--name", &container, "--hostname", &plan.name].map(Into::into).to_vec();
    if plan.kind == Kind::Docker || PODMAN_INITS.iter().any(|path| Path::new(path).exists()) {
        arguments.push("--init".into());
    }
    arguments.extend(["--network".into(), network_argument(plan.network).into()]);
    arguments.extend(["--cap-drop", "ALL", "--security-opt", "no-new-privileges"].map(Into::into));
    // SELinux, where enabled, would deny the container access to the mounted directories.
    arguments.extend(["--security-opt", "label=disable"].map(Into::into));
    arguments.extend(user_options(plan.kind));
    arguments.extend(["--workdir".into(), plan.directory.clone().into_os_string()]);
    let environment = add_environment(plan, host, &mut arguments);
    let root = run_directory.join("root");
    let mounts = match &plan.tree {
        FileTree::Host => {
            let (tree, mounts) = root_tree(plan, &root);
            files.extend(tree);
            mounts
        }
        FileTree::Image(_) => plan.files.mounts.clone(),
    };
    for mount in &mounts {
        arguments.extend(["--mount".into(), mount_option(mount)]);
    }
    match &plan.tree {
        FileTree::Host => arguments.extend(["--rootfs".into(), root.into_os_string()]),
        // Without this, the image's entry point would get the command as its arguments.
        FileTree::Image(image) => {
            arguments.extend(["--pull=never".into(), "--entrypoint".into(), "".into(), image.into()]);
        }
    }
    (arguments, environment)
}

/// A directory for the temporary files of podman or docker, which an interrupted one leaves behind. `None` where podman would
/// look for its containers there (without root and XDG_RUNTIME_DIR), or where the command gets this variable of the user.
fn temporary_directory(plan: &Plan, host: &Host, run_directory: &Path) -> Option<PathBuf> {
    let has_own_state = nix::unistd::geteuid().is_root() || host.variable("XDG_RUNTIME_DIR").is_some();
    let is_passed_on = plan.environment.contains_key(OsStr::new("TMPDIR"));
    (has_own_state && !is_passed_on).then(|| run_directory.join("engine-tmp"))
}

/// Options with which podman stores nothing in the user's home. Podman refuses a `--runroot` of more than 50 characters.
fn private_storage(run_directory: &Path) -> Vec<OsString> {
    let directories = [
        ("--root", "podman"),
        ("--runroot", "r"),
        ("--tmpdir", "podman-tmp"),
        ("--volumepath", "podman-volumes"),
        ("--network-config-dir", "podman-networks"),
    ];
    let mut options: Vec<OsString> = directories
        .into_iter()
        .flat_map(|(option, name)| [option.into(), run_directory.join(name).into_os_string()])
        .collect();
    options.extend(["--events-backend", "none"].map(Into::into));
    options
}

fn network_argument(network: Network) -> &'static str {
    match network {
        Network::Host => "host",
        // `Network::Hosts` is for `srt` only, so it does not occur here.
        Network::None | Network::Hosts(_) => "none",
    }
}

/// The container runs as the user of this process, who owns the mounted files, not as the user that the image sets.
fn user_options(kind: Kind) -> Vec<OsString> {
    let (user, group) = (nix::unistd::geteuid(), nix::unistd::getegid());
    match kind {
        Kind::Podman if !user.is_root() => vec!["--userns".into(), "keep-id".into()],
        _ => vec!["--user".into(), format!("{user}:{group}").into()],
    }
}

/// Adds the `--env` options to the command line. Returns the environment of podman or docker, from which they read the values
/// of variables that are given by name only.
fn add_environment(plan: &Plan, host: &Host, arguments: &mut Vec<OsString>) -> BTreeMap<OsString, OsString> {
    for (name, value) in &plan.environment {
        let by_name = name.to_str().is_some_and(|name| host.variable(name).as_ref() == Some(value));
        let mut option = name.clone();
        if !by_name {
            // A value that differs from the user's environment was set by `run`, so it is no credential.
            option.push("=");
            option.push(value);
        }
        arguments.extend(["--env".into(), option]);
    }
    host.all_variables()
}

fn mount_option(mount: &Mount) -> OsString {
    let mut text = OsString::from("type=bind,source=");
    text.push(&mount.source);
    text.push(",target=");
    text.push(&mount.target);
    if mount.access == Access::ReadOnly {
        text.push(OsStr::new(",readonly"));
    }
    text
}
