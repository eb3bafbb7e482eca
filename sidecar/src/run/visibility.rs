//! Which files and directories of the user are mounted, and which mounts are refused.
//!
//! What must stay true: the home directory itself is never mounted; the sandbox can read no private file of the sidecar, and can
//! change neither the configuration, nor a program that the sidecar starts, nor the directory in which one starts.

use std::path::{Path, PathBuf};

use cofferdam_secrets::Origin;
use cofferdam_servers::spec::ServerKind;

use super::executable::Executable;
use super::host::Host;
use super::mount::{Access, Mount, is_in_system_directory};
use super::request::RunRequest;
use crate::config::{Config, SHARED_DIRECTORIES};
use crate::terminal::failure::{Failure, Sysexit};

/// A mount, and whether the user chose it.
#[derive(Clone, Debug)]
pub(super) struct VisibleMount {
    pub(super) mount: Mount,
    /// Whether it is the working directory or a `--mount`; otherwise the command needs it to run.
    pub(super) from_user: bool,
}

/// The working directory, what `--mount` names, and what the command needs in addition.
pub(super) fn mounts(
    request: &RunRequest,
    host: &Host,
    executable: Option<&Executable>,
) -> Result<Vec<VisibleMount>, Failure> {
    let mut mounts = vec![Mount::same(&host.directory, Access::ReadWrite)];
    for mount in &request.mounts {
        let source = mount.source.canonicalize().map_err(|error| {
            Failure::new(Sysexit::NoInput, format!("cannot mount `{}`: {error}", mount.source.display()))
                .hint("name a file or directory that exists")
        })?;
        // A mount without an explicit target appears at its resolved path.
        let target = if mount.target == mount.source { source.clone() } else { mount.target.clone() };
        mounts.retain(|other| other.target != target);
        mounts.push(Mount::new(source, target, mount.access));
    }
    for mount in &mounts {
        if host.home.starts_with(&mount.source) {
            let why = format!(
                "`{}` is your home directory, or contains it: the sandbox could read all your files",
                mount.source.display()
            );
            return Err(Failure::new(Sysexit::Usage, why)
                .hint("change to the directory of a project, and add other directories with --mount"));
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
    let guarded = GuardedFiles::of(config, config_file, run_directory);
    for VisibleMount { mount, .. } in mounts {
        if let Some(refused) = guarded.in_mount(&mount.source, mount.access).into_iter().next() {
            return Err(refused.into_failure(&mount.source));
        }
    }
    Ok(())
}

/// What keeps `run` from starting a sandbox in this directory, which it could write: files of the sidecar that are in it.
pub(crate) fn refused_in(directory: &Path, config: &Config, config_file: &Path) -> Vec<RefusedFile> {
    let nowhere = Path::new("/nonexistent");
    GuardedFiles::of(config, config_file, nowhere).in_mount(&resolve_links(directory), Access::ReadWrite)
}

/// A file that must not be in a mount.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct RefusedFile {
    /// Such as `servers.NAME.command`, in quotes.
    pub(crate) what: String,
    pub(crate) path: PathBuf,
}

/// The files that a sandbox must not read, or not change.
struct GuardedFiles {
    private: Vec<(String, PathBuf)>,
    started: Vec<(String, PathBuf)>,
    /// The configuration, by its path and where that leads to.
    config: [PathBuf; 2],
}

impl GuardedFiles {
    fn of(config: &Config, config_file: &Path, run_directory: &Path) -> Self {
        // The configuration may be a symbolic link: neither the link nor its target may be in a mount.
        let resolved = resolve_links(config_file);
        let mut private: Vec<(String, PathBuf)> = config.private_paths(&resolved);
        private.retain(|(_, path)| path.is_absolute() && resolve_links(path) != resolved);
        private.push(("the directory of this run".into(), run_directory.to_owned()));
        private.extend(config.relay.unix.as_ref().map(|unix| ("`relay.unix`".to_owned(), unix.path.clone())));
        private.extend(config.relay.vsock_dir.clone().map(|path| ("`relay.vsock-dir`".to_owned(), path)));
        Self { private, started: started_files(config), config: [config_file.to_owned(), resolved] }
    }

    /// What must not be accessible through a mount of this source.
    fn in_mount(&self, source: &Path, access: Access) -> Vec<RefusedFile> {
        let inside = |path: &Path| resolve_links(path).starts_with(source);
        let private = self
            .private
            .iter()
            .filter(|(what, path)| inside(path) && (access == Access::ReadWrite || !is_program(what)));
        let started = self.started.iter().filter(|(_, path)| access == Access::ReadWrite && inside(path));
        let config = self.config.iter().filter(|path| path.starts_with(source));
        let found = private.chain(started).map(|(what, path)| (what.as_str(), path));
        let found = found.chain(config.map(|path| ("the configuration", path)));
        found.map(|(what, path)| RefusedFile { what: what.to_owned(), path: path.clone() }).collect()
    }
}

impl RefusedFile {
    fn into_failure(self, mount: &Path) -> Failure {
        let Self { what, path } = self;
        let why = format!(
            "{what} (`{}`) is inside the mounted `{}`, but must not be accessible in the sandbox",
            path.display(),
            mount.display()
        );
        Failure::new(Sysexit::Configuration, why)
            .hint("move it out of the mounted directory, or run from another directory")
    }
}

/// Whether the sandbox of an earlier run could have changed this program. If so, its symbolic links and its first line must not
/// decide what is mounted.
pub(super) fn is_writable(request: &RunRequest, host: &Host, path: &Path) -> bool {
    let writable = request.mounts.iter().filter(|mount| mount.access == Access::ReadWrite);
    let mut directories = writable.map(|mount| mount.source.as_path()).chain([host.directory.as_path()]);
    directories.any(|directory| {
        path.starts_with(directory) || resolve_links(path).starts_with(resolve_links(directory))
    })
}

/// Paths to hide from a sandbox with the file tree of the host: the sidecar's files and sockets, and the directory for
/// temporary files, in which other runs have theirs. A file's parent directory is hidden unless it is used for other things too.
pub(super) fn paths_to_hide(config: &Config, config_file: &Path, host: &Host) -> Vec<PathBuf> {
    let mut paths = vec![host.temporary.clone()];
    let relay = config.relay.unix.as_ref().map(|unix| ("`relay.unix`".to_owned(), unix.path.clone()));
    for (what, path) in config.private_paths(&resolve_links(config_file)).into_iter().chain(relay) {
        if !path.is_absolute() || is_program(&what) {
            continue;
        }
        let path = resolve_links(&path);
        let parent = path.parent().unwrap_or(&path);
        let is_shared = |directory: &Path| {
            is_in_system_directory(directory)
                || directory == Path::new("/etc")
                || SHARED_DIRECTORIES.iter().any(|shared| directory == Path::new(shared))
                || host.directory.starts_with(directory)
        };
        paths.push(if path.is_dir() || is_shared(parent) { path } else { parent.to_owned() });
    }
    paths
}

/// Whether a private path is a program. The sandbox may read programs, but not change them.
fn is_program(what: &str) -> bool {
    what.ends_with(".command`") || what.ends_with(".exec`")
}

/// Files and directories that determine what a server, or the program of a secret, does: the directory in which it starts, and
/// files in its command. A directory in a command may be one that the server works on, such as that of a project, so only a
/// directory that is an interpreter's first argument is included.
fn started_files(config: &Config) -> Vec<(String, PathBuf)> {
    let root = Path::new("/");
    let mut found = Vec::new();
    let mut commands = Vec::new();
    for server in config.servers.values() {
        if let ServerKind::Stdio(stdio) = &server.kind {
            found
                .extend(stdio.directory.clone().map(|path| (format!("`servers.{}.cwd`", server.name), path)));
            // Without `cwd` a server starts in the state directory.
            let directory = stdio.directory.as_deref().unwrap_or(&config.state_dir);
            commands.push((format!("`servers.{}.command`", server.name), stdio.command.words(), directory));
        }
    }
    for secret in config.secrets.values() {
        if let Origin::Exec { command, .. } = &secret.origin {
            commands.push((format!("`secrets.{}.exec`", secret.name), command.as_slice(), root));
        }
    }
    for (what, command, directory) in commands {
        let has_interpreter = command.first().is_some_and(|program| is_interpreter(program));
        for (index, argument) in command.iter().enumerate() {
            let values = [Some(argument.as_str()), argument.split_once('=').map(|(_, value)| value)];
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

/// Resolves the symbolic links in the longest prefix of the path that exists.
fn resolve_links(path: &Path) -> PathBuf {
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
