//! Which files and directories of the user the sandbox sees, and which mounts are refused.
//!
//! What must stay true: the home itself is never mounted; the sandbox sees no file that the sidecar keeps private, and can
//! change neither the configuration nor a program or directory that the sidecar starts programs with.

use std::path::{Path, PathBuf};

use cofferdam_secrets::Origin;
use cofferdam_servers::spec::ServerKind;

use super::executable::Executable;
use super::host::Host;
use super::mount::{Access, Mount, is_in_system};
use super::request::RunRequest;
use crate::config::{Config, SHARED_DIRECTORIES};
use crate::terminal::failure::{Failure, Sysexit};

/// A mount, and why it is there.
#[derive(Clone, Debug)]
pub(super) struct VisibleMount {
    pub(super) mount: Mount,
    /// Whether it is the working directory or a `--mount`; otherwise the command needs it to run.
    pub(super) from_user: bool,
}

/// The working directory, the directories of `--mount`, and what the command needs that is not in them.
pub(super) fn mounts(
    request: &RunRequest,
    host: &Host,
    executable: Option<&Executable>,
) -> Result<Vec<VisibleMount>, Failure> {
    let mut mounts = vec![Mount::same(&host.directory, Access::ReadWrite)];
    for mount in &request.mounts {
        let source = mount.source.canonicalize().map_err(|error| {
            Failure::new(Sysexit::NoInput, format!("mount `{}`: {error}", mount.source.display()))
                .hint("name a file or directory that exists")
        })?;
        // Without a target of its own the sandbox sees it where it really is.
        let target = if mount.target == mount.source { source.clone() } else { mount.target.clone() };
        mounts.retain(|other| other.target != target);
        mounts.push(Mount::new(source, target, mount.access));
    }
    for mount in &mounts {
        if host.home.starts_with(&mount.source) {
            let why = format!(
                "`{}` is the home itself, or contains it: the sandbox would see every file of the user",
                mount.source.display()
            );
            return Err(Failure::new(Sysexit::Usage, why)
                .hint("change to the directory of a project, and mount others one by one"));
        }
    }
    let needed = executable.into_iter().flat_map(|executable| &executable.needs);
    let missing: Vec<Mount> = needed
        .filter(|path| {
            !mounts.iter().any(|mount| mount.source == mount.target && path.starts_with(&mount.target))
        })
        .map(|path| Mount::same(path, Access::ReadOnly))
        .collect();
    let from_user = mounts.into_iter().map(|mount| VisibleMount { mount, from_user: true });
    let needed = missing.into_iter().map(|mount| VisibleMount { mount, from_user: false });
    Ok(from_user.chain(needed).collect())
}

/// Refuses mounts through which the sandbox could read the sidecar's private files, or change what the sidecar starts.
pub(super) fn check(
    mounts: &[VisibleMount],
    config: &Config,
    config_file: &Path,
    run_directory: &Path,
) -> Result<(), Failure> {
    // The configuration may be a link: the sandbox could replace the link as well as the file.
    let resolved = real(config_file);
    let mut private: Vec<(String, PathBuf)> = config.private_paths(&resolved);
    private.retain(|(_, path)| path.is_absolute() && real(path) != resolved);
    private.push(("the directory of this run".into(), run_directory.to_owned()));
    private.extend(config.relay.unix.as_ref().map(|unix| ("`relay.unix`".to_owned(), unix.path.clone())));
    private.extend(config.relay.vsock_dir.clone().map(|path| ("`relay.vsock-dir`".to_owned(), path)));
    let started = started_files(config);
    for VisibleMount { mount, .. } in mounts {
        let inside = |path: &Path| real(path).starts_with(&mount.source);
        for (what, path) in &private {
            if inside(path) && (mount.access == Access::ReadWrite || !is_program(what)) {
                return Err(refusal(what, path, &mount.source));
            }
        }
        for (what, path) in &started {
            if mount.access == Access::ReadWrite && inside(path) {
                return Err(refusal(what, path, &mount.source));
            }
        }
        for path in [config_file, &resolved] {
            if path.starts_with(&mount.source) {
                return Err(refusal("the configuration", path, &mount.source));
            }
        }
    }
    Ok(())
}

/// Whether the sandbox of an earlier run could have changed this file. If so, the links and the first line of the file must
/// not decide what is mounted.
pub(super) fn is_writable(request: &RunRequest, host: &Host, path: &Path) -> bool {
    let written = request.mounts.iter().filter(|mount| mount.access == Access::ReadWrite);
    let mut directories = written.map(|mount| mount.source.as_path()).chain([host.directory.as_path()]);
    directories.any(|directory| path.starts_with(directory) || real(path).starts_with(real(directory)))
}

/// Paths to hide from a sandbox that shows the file tree of the host: the sidecar's files and sockets, and the files of other
/// runs. Where a directory holds nothing else, the path is that directory.
pub(super) fn private_places(config: &Config, config_file: &Path, host: &Host) -> Vec<PathBuf> {
    let mut places = vec![host.temporary.clone()];
    let relay = config.relay.unix.as_ref().map(|unix| ("`relay.unix`".to_owned(), unix.path.clone()));
    for (what, path) in config.private_paths(&real(config_file)).into_iter().chain(relay) {
        if !path.is_absolute() || is_program(&what) {
            continue;
        }
        let path = real(&path);
        let parent = path.parent().unwrap_or(&path);
        let is_common = |directory: &Path| {
            is_in_system(directory)
                || directory == Path::new("/etc")
                || SHARED_DIRECTORIES.iter().any(|shared| directory == Path::new(shared))
                || host.directory.starts_with(directory)
        };
        places.push(if path.is_dir() || is_common(parent) { path } else { parent.to_owned() });
    }
    places
}

/// Whether a private path is a program. The sandbox may read programs, but not change them.
fn is_program(what: &str) -> bool {
    what.ends_with(".command`") || what.ends_with(".exec`")
}

/// Files and directories that decide what servers and programs of secrets do: the directories they start in, and the files
/// in their commands. A server may also work on a directory that its command names, such as that of a project; so of
/// directories in commands only those count that are an interpreter's first argument.
fn started_files(config: &Config) -> Vec<(String, PathBuf)> {
    let root = Path::new("/");
    let mut found = Vec::new();
    let mut commands = Vec::new();
    for server in config.servers.values() {
        if let ServerKind::Stdio(stdio) = &server.kind {
            found
                .extend(stdio.directory.clone().map(|path| (format!("`servers.{}.cwd`", server.name), path)));
            // Without `cwd` a server starts in the state directory, which has no file of the user.
            let directory = stdio.directory.as_deref().unwrap_or(&config.state_dir);
            commands.push((
                format!("`servers.{}.command`", server.name),
                stdio.command.as_slice(),
                directory,
            ));
        }
    }
    for secret in config.secrets.values() {
        if let Origin::Exec { command, .. } = &secret.origin {
            commands.push((format!("`secrets.{}.exec`", secret.name), command.as_slice(), root));
        }
    }
    for (what, command, directory) in commands {
        let has_interpreter = command.first().is_some_and(|program| is_interpreter(program));
        for (index, word) in command.iter().enumerate() {
            let values = [Some(word.as_str()), word.split_once('=').map(|(_, value)| value)];
            for path in values.into_iter().flatten().map(|value| directory.join(value)) {
                if path.is_file() || (path.is_dir() && index == 1 && has_interpreter) {
                    found.push((what.clone(), path));
                }
            }
        }
    }
    found
}

fn is_interpreter(program: &str) -> bool {
    let name = Path::new(program).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    ["bash", "bun", "deno", "node", "perl", "python", "ruby", "sh", "uv"]
        .iter()
        .any(|known| name.starts_with(known))
}

fn refusal(what: &str, path: &Path, mount: &Path) -> Failure {
    let why = format!(
        "{what} is `{}`, inside `{}`, which the sandbox would see: the sidecar needs it for itself",
        path.display(),
        mount.display()
    );
    Failure::new(Sysexit::Configuration, why)
        .hint("move it out of what is mounted, or run from another directory")
}

/// The path with links resolved, in as many of its leading parts as exist.
fn real(path: &Path) -> PathBuf {
    for existing in path.ancestors() {
        if let Ok(resolved) = existing.canonicalize() {
            return match path.strip_prefix(existing) {
                Ok(rest) if !rest.as_os_str().is_empty() => resolved.join(rest),
                _ => resolved,
            };
        }
    }
    path.to_owned()
}
