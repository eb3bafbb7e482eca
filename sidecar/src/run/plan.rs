//! What a run will do, decided before any file or process is created; `--dry-run` prints it.
//!
//! What must stay true: the sandbox cannot read the sidecar's private files, and cannot write the programs that the sidecar
//! starts on the host.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use cofferdam_base::elf::Linking;
use relay_proto::name::Name;

use super::executable::{self, Executable};
use super::exposed;
use super::harness::settings::LoginState;
use super::harness::{CopyBack, Harness, LoginLocation};
use super::host::Host;
use super::kinds::{Kind, Network};
use super::mount::{Access, Mount, is_in_system_directory};
use super::request::{LoginArgument, RunRequest};
use super::shim_file::{HOW_TO_BUILD, ShimFile};
use super::visibility;
use crate::config::{Config, suggest};
use crate::terminal::failure::{Failure, Sysexit};

/// Everything that a run will do.
#[derive(Debug)]
pub(super) struct Plan {
    /// The sandbox's name, as the sidecar lists it and as it is in the audit log.
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) tree: FileTree,
    pub(super) network: Network,
    pub(super) grant: Name,
    pub(super) servers: Vec<Name>,
    pub(super) harness: Option<Harness>,
    pub(super) login: Option<LoginLocation>,
    pub(super) files: Files,
    pub(super) paths: PathsInside,
    pub(super) shim: ShimFile,
    /// The directory of this run on the host.
    pub(super) run_directory: PathBuf,
    /// Where the command starts.
    pub(super) directory: PathBuf,
    pub(super) command: Vec<OsString>,
    /// The whole environment of the command.
    pub(super) environment: BTreeMap<OsString, OsString>,
}

/// The files of the host that are in the sandbox, or hidden from it.
#[derive(Debug)]
pub(super) struct Files {
    /// Sorted by the depth of the target, so that a mount comes after those that contain it.
    pub(super) mounts: Vec<Mount>,
    /// The mounts of the working directory, of `--mount` and of what the command needs, for the summary.
    shown: Vec<Mount>,
    /// Paths to hide in addition to the home, for a sandbox with the file tree of the host (srt).
    pub(super) hidden: Vec<PathBuf>,
    /// Files in the mounts that look like credentials.
    exposed: Vec<PathBuf>,
}

/// Where the programs and libraries in the sandbox come from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum FileTree {
    /// The system directories of this machine, read-only.
    Host,
    Image(String),
}

/// The paths of Cofferdam's files in the sandbox.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct PathsInside {
    pub(super) home: PathBuf,
    /// The directory of the relay's socket.
    pub(super) relay: PathBuf,
    /// The directory of the shim, which is on the PATH.
    pub(super) programs: PathBuf,
}

/// The name of the shim in every sandbox.
pub(super) const SHIM: &str = "cofferdam-shim";
/// Environment variables of the user that hold no credential: language, terminal, time zone and user name.
const PLAIN_VARIABLES: [&str; 9] =
    ["COLORTERM", "FORCE_COLOR", "LANG", "LANGUAGE", "LOGNAME", "NO_COLOR", "TERM", "TZ", "USER"];
/// The search path in an image, whose own `PATH` is not known here.
const IMAGE_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Plan {
    pub(super) fn new(
        request: &RunRequest,
        config: &Config,
        config_file: &Path,
        host: &Host,
        run_directory: &Path,
        name: String,
    ) -> Result<Self, Failure> {
        let program = request.command.first().map_or(OsStr::new(""), OsString::as_os_str);
        let harness = Harness::of(program);
        let tree = match &request.image {
            Some(image) => FileTree::Image(image.clone()),
            None => FileTree::Host,
        };
        request.kind.check_options(&tree, request.network)?;
        let network = request.network.unwrap_or_else(|| request.kind.default_network(harness));
        let shim = ShimFile::find(request.shim.as_deref(), run_directory)?;
        if shim.linking == Linking::Dynamic && tree != FileTree::Host {
            let why = format!(
                "the shim `{}` needs the libraries of this machine, which an image does not have",
                shim.path.display()
            );
            return Err(Failure::new(Sysexit::NoInput, why).hint(HOW_TO_BUILD));
        }
        let (grant, servers) = find_grant(request, config)?;
        let executable = find_executable(program, &tree, host, request)?;
        let paths = request.kind.paths_inside(host, run_directory);

        let visible = visibility::mounts(request, host, executable.as_ref())?;
        visibility::check(&visible, config, config_file, run_directory)?;
        let searched: Vec<PathBuf> =
            visible.iter().filter(|mount| mount.from_user).map(|mount| mount.mount.source.clone()).collect();
        let mut mounts: Vec<Mount> = visible.into_iter().map(|visible| visible.mount).collect();
        let shown = mounts.clone();
        mounts.push(Mount::new(run_directory.join(super::directory::HOME), &paths.home, Access::ReadWrite));
        mounts.push(Mount::new(run_directory.join(super::directory::RELAY), &paths.relay, Access::ReadOnly));
        mounts.push(Mount::new(&shim.path, paths.shim(), Access::ReadOnly));
        mounts.sort_by_key(|mount| mount.target.components().count());
        request.kind.check_paths_and_arguments(&mounts, host, &request.command)?;

        let mut command = request.command.clone();
        if let (Some(executable), Some(first)) = (&executable, command.first_mut()) {
            *first = executable.path.clone().into();
        }
        let environment = environment(request, host, harness, &tree, &paths, &mounts);
        let hidden = visibility::paths_to_hide(config, config_file, host);
        let files = Files { mounts, shown, hidden, exposed: exposed::find_credential_files(&searched) };
        let login = harness.map(|harness| harness.login(&host.home, |name| host.variable(name)));
        let login = login.filter(|place| place.outside.exists()).map(|place| match request.login {
            LoginArgument::CopyBack => place,
            LoginArgument::Discard => LoginLocation { copy_back: CopyBack::Never, ..place },
        });
        Ok(Self {
            name,
            kind: request.kind,
            tree,
            network,
            grant,
            servers,
            harness,
            login,
            files,
            paths,
            shim,
            run_directory: run_directory.to_owned(),
            directory: host.directory.clone(),
            command,
            environment,
        })
    }

    /// A summary of the sandbox for the user, as lines of text.
    pub(super) fn summary(&self) -> Vec<String> {
        let network = match self.network {
            Network::None => "none",
            Network::Host => "host, loopback services of this machine included",
            Network::Hosts(_) => "only the hosts that the harness needs",
        };
        let login = match (self.harness, self.login_state()) {
            (None, _) => "",
            (Some(_), LoginState::Copied) => " · harness login: inside",
            (Some(_), LoginState::Variable) => " · harness login: inside, in a variable",
            (Some(_), LoginState::Absent) => " · harness login: none",
        };
        let harness = self.harness.map(|harness| format!(" for {}", harness.name())).unwrap_or_default();
        let tools: Vec<&str> = self.servers.iter().map(Name::as_str).collect();
        let mut lines = vec![
            format!("sandbox {}{harness} ({}, grant {})", self.name, self.kind.name(), self.grant),
            format!(
                "network: {network} · home: hidden{login} · tools: {} through the relay",
                tools.join(", ")
            ),
        ];
        let files: Vec<String> = self
            .files
            .shown
            .iter()
            .map(|mount| match mount.access {
                Access::ReadOnly => format!("{} (read-only)", mount.target.display()),
                Access::ReadWrite => mount.target.display().to_string(),
            })
            .collect();
        lines.push(format!("files: {}", files.join(", ")));
        if !self.files.exposed.is_empty() {
            let named: Vec<String> =
                self.files.exposed.iter().map(|path| path.display().to_string()).collect();
            lines.push(format!(
                "warning: the sandbox can read files that look like credentials: {}",
                named.join(", ")
            ));
        }
        lines
    }

    /// How the harness in the sandbox gets its login.
    pub(super) fn login_state(&self) -> LoginState {
        let is_login = |name: &OsString| self.harness.is_some_and(|harness| is_login_variable(harness, name));
        match &self.login {
            Some(_) => LoginState::Copied,
            None if self.environment.keys().any(is_login) => LoginState::Variable,
            None => LoginState::Absent,
        }
    }

    /// The command of a trial: it needs only the shim, which is in every sandbox, and exits at once.
    pub(super) fn trial_command(&self) -> Vec<OsString> {
        vec![self.paths.shim().into(), "--version".into()]
    }

    /// The address to which the shims in the sandbox connect.
    pub(super) fn relay_address(&self) -> String {
        self.paths.relay_address()
    }
}

impl PathsInside {
    pub(super) fn shim(&self) -> PathBuf {
        self.programs.join(SHIM)
    }

    fn relay_address(&self) -> String {
        format!("unix:{}", self.relay.join("relay.sock").display())
    }
}

/// The grant of `--grant`; otherwise the only grant of the configuration, or `relay.unix-grant`.
fn find_grant(request: &RunRequest, config: &Config) -> Result<(Name, Vec<Name>), Failure> {
    let names = || config.grants.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let name = match (&request.grant, &config.relay.unix) {
        (Some(name), _) => name.clone(),
        (None, _) if config.grants.len() == 1 => {
            config.grants.keys().next().cloned().unwrap_or_else(|| unreachable!("the length is 1"))
        }
        (None, Some(unix)) => unix.grant.clone(),
        (None, None) => {
            let why = "the configuration has no grant, or several";
            return Err(
                Failure::new(Sysexit::Usage, why).hint(format!("choose one with --grant: {}", names()))
            );
        }
    };
    match config.grants.get(&name) {
        Some(grant) => Ok((name, grant.servers.clone())),
        None => Err(Failure::new(Sysexit::Usage, format!("there is no grant `{name}`")).hint(suggest::hint(
            name.as_str(),
            "grant",
            config.grants.keys().map(Name::as_str),
        ))),
    }
}

/// Finds the program on the host. `None` if the sandbox has it already: the shim, and programs of the image.
fn find_executable(
    program: &OsStr,
    tree: &FileTree,
    host: &Host,
    request: &RunRequest,
) -> Result<Option<Executable>, Failure> {
    if program == SHIM {
        return Ok(None);
    }
    let found = executable::find(program, &host.search_path, &host.directory);
    match (tree, found) {
        (FileTree::Image(_), None) => Ok(None),
        (FileTree::Image(_), Some(path)) if is_in_system_directory(&path) => Ok(None),
        (_, Some(path)) if visibility::is_writable(request, host, &path) => {
            Ok(Some(Executable::untrusted(path)))
        }
        (_, Some(path)) => Ok(Some(Executable::of(path, &host.home, &host.search_path))),
        (FileTree::Host, None) => Err(Failure::new(
            Sysexit::NoInput,
            format!("the program `{}` was not found", program.to_string_lossy()),
        )
        .hint("install it, put it on the PATH, or give its full path")),
    }
}

fn environment(
    request: &RunRequest,
    host: &Host,
    harness: Option<Harness>,
    tree: &FileTree,
    paths: &PathsInside,
    mounts: &[Mount],
) -> BTreeMap<OsString, OsString> {
    let mut environment: BTreeMap<OsString, OsString> = BTreeMap::new();
    let of_harness = harness.map_or(&[][..], Harness::variables).iter().copied();
    let named = request.variables.iter().map(String::as_str);
    for name in PLAIN_VARIABLES.into_iter().chain(of_harness).chain(named) {
        if let Some(value) = host.variable(name) {
            environment.insert(name.into(), value);
        }
    }
    environment.extend(host.locale_variables());
    let is_inside = |path: &PathBuf| {
        is_in_system_directory(path) && *tree == FileTree::Host
            || mounts.iter().any(|mount| path.starts_with(&mount.target))
    };
    let mut search_path: Vec<PathBuf> = vec![paths.programs.clone()];
    search_path.extend(
        std::env::split_paths(&host.search_path).filter(|path| path.is_absolute() && is_inside(path)),
    );
    if *tree != FileTree::Host {
        search_path.extend(std::env::split_paths(IMAGE_PATH));
    }
    // A directory with a colon in its name cannot be on a search path.
    search_path.retain(|path| !path.as_os_str().as_encoded_bytes().contains(&b':'));
    environment
        .insert("PATH".into(), std::env::join_paths(search_path).unwrap_or_else(|_| IMAGE_PATH.into()));
    environment.insert("HOME".into(), paths.home.clone().into());
    environment.insert("COFFERDAM_RELAY".into(), paths.relay_address().into());
    for (name, value) in harness.map_or(&[][..], Harness::fixed_variables) {
        environment.insert((*name).into(), (*value).into());
    }
    environment
}

fn is_login_variable(harness: Harness, name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    harness.variables().contains(&&*name) && (name.contains("KEY") || name.contains("TOKEN"))
}
