//! Runs a package manager inside walls: it may write the directories of its installation and nothing else, and connect to the
//! registry and nothing else.
//!
//! What must stay true: a package manager without walls is never run for an installation; its output is bounded, and shown to
//! nobody if a credential is in it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cofferdam_confine::{
    self as confine, Home, HostWalls, InvalidPath, Landlock, OwnDirectories, Profile, ShownPath, Start,
    WallsError,
};
use cofferdam_egress::{
    AddressPool, AllowedHost, Egress, Event, Limits, Observer, Plan, PlanError, ServeError,
};
use cofferdam_net::SystemResolver;
use cofferdam_process::{
    self as process, Access, Entry, EntryKind, Exit, FileAccess, FileRule, Launch, LaunchError, Proc,
    ServerProcess, Variable,
};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::timeout;
use zeroize::Zeroizing;

use crate::store::without_those_around;

/// Of `/tmp` and the home directory in memory; a package manager unpacks into its installation, on the disk.
const MEMORY_BYTES: u64 = 256 * 1024 * 1024;
/// Processes and threads.
const PROCESSES: u64 = 1024;
/// What is kept of the output: its end, where the error is.
const OUTPUT_BYTES: usize = 256 * 1024;
/// How many refused hosts are kept for the error.
const MAX_REFUSED: usize = 5;

/// One run of a package manager.
#[derive(Debug)]
pub(crate) struct Command<'a> {
    pub(crate) program: &'a Path,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) variables: Vec<Variable>,
    /// Where it runs: one of the directories that it may write.
    pub(crate) directory: &'a Path,
    /// Directories that it may write: where it sees them, and where they are.
    pub(crate) writable: Vec<(&'a Path, PathBuf)>,
    /// Files that it may read.
    pub(crate) readable: Vec<PathBuf>,
    pub(crate) hosts: &'a [AllowedHost],
    pub(crate) time: Duration,
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) exit: Exit,
    /// The end of what it printed.
    pub(crate) output: Vec<u8>,
    /// Hosts that it tried to reach and may not.
    pub(crate) refused: Vec<String>,
    /// Why connections to allowed hosts failed.
    pub(crate) failed: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum JailError {
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error("plan the network of the installation")]
    Plan(#[from] PlanError),
    #[error("serve the network of the installation")]
    Serve(#[from] ServeError),
    #[error("a file that the settings name cannot be shown to the installation")]
    Shown(#[from] InvalidPath),
    #[error("it did not end within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error(transparent)]
    Walls(#[from] WallsError),
}

/// A variable that is no secret.
pub(crate) fn variable(name: &str, value: OsString) -> Variable {
    (name.into(), Zeroizing::new(value.into_vec()))
}

/// Runs a command to its end. Dropped, it ends the command with all its processes. `private` are the sidecar's own files, which it
/// does not see.
pub(crate) async fn run(command: Command<'_>, private: &[PathBuf]) -> Result<Finished, JailError> {
    let plan = Plan::new(command.hosts, AddressPool::default())?.with_resolver();
    let mut server = start(&command, &plan, private).await?;
    let observed = Arc::new(Observed::default());
    let sockets = std::mem::take(&mut server.sockets);
    let observer = Arc::clone(&observed);
    let egress: Egress =
        cofferdam_egress::serve(plan, sockets, Limits::default(), Arc::new(SystemResolver), observer)?;
    let ServerProcess { stdin, mut stdout, mut stderr, mut handle, sockets: _, runs_as: _ } = server;
    drop(stdin);
    let ended = timeout(command.time, async {
        let (printed, complained) = tokio::join!(last_of(&mut stdout), last_of(&mut stderr));
        (handle.exited().await, [printed, complained].concat())
    })
    .await;
    handle.end(Duration::ZERO).await;
    egress.end().await;
    let (exit, output) = ended.map_err(|_| JailError::Timeout(command.time))?;
    let Hosts { refused, failed } = std::mem::take(&mut *observed.lock());
    Ok(Finished { exit, output, refused, failed })
}

async fn start(command: &Command<'_>, plan: &Plan, private: &[PathBuf]) -> Result<ServerProcess, JailError> {
    match process::launch(launch(command, plan, private, Proc::Own)?).await {
        // In a container that hides parts of its own `/proc`; package managers need none.
        Err(error) if error.is_refused_proc() => {
            Ok(process::launch(launch(command, plan, private, Proc::Empty)?).await?)
        }
        other => Ok(other?),
    }
}

fn launch(command: &Command<'_>, plan: &Plan, private: &[PathBuf], proc: Proc) -> Result<Launch, JailError> {
    let names: Vec<OsString> = command.variables.iter().map(|(name, _)| name.clone()).collect();
    let environment = confine::environment(process::allowed_environment(command.variables.clone()), &names);
    // Environments of Python are shown as a whole, and this one is among the sidecar's files.
    let private = &without_those_around(command.directory, private);
    let read: Vec<ShownPath> = command
        .readable
        .iter()
        .map(|path| ShownPath::new(path.clone(), private))
        .collect::<Result<_, _>>()?;
    let profile = Profile { read, home: Home::Private, ..Profile::default() };
    let (hosts, resolver) = (plan.hosts_file(), plan.resolv_conf());
    let landlock = match process::has_landlock() {
        true => Landlock::Enforced,
        false => Landlock::Missing,
    };
    let (mut walls, program) = confine::walls(
        &profile,
        &Start {
            program: command.program,
            arguments: &command.arguments,
            // It is among those that are added below.
            directory: None,
            injected: None,
            own: OwnDirectories { kept_home: None, memory_bytes: MEMORY_BYTES, processes: PROCESSES },
            private,
            network: plan.network(),
            hosts: &hosts,
            resolver: &resolver,
            proc,
            host: HostWalls { group: process::delegated_group(), landlock },
        },
    )?;
    for (inside, source) in &command.writable {
        let text = |path: &Path| {
            path.to_str().map(str::to_owned).ok_or_else(|| WallsError::NotUtf8(path.to_owned()))
        };
        let kind = EntryKind::Bind { source: text(source)?, access: Access::Write };
        walls.entries.push(Entry { path: text(inside)?, kind });
        if landlock == Landlock::Enforced {
            walls.file_rules.push(FileRule { path: text(inside)?, access: FileAccess::WriteExecute });
        }
    }
    Ok(Launch {
        program: program.into(),
        args: command.arguments.clone(),
        environment,
        directory: Some(command.directory.to_owned()),
        walls: Some(walls),
    })
}

/// Reads to the end, and keeps the last bytes. An error is an end too.
async fn last_of(pipe: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(length @ 1..) = pipe.read(&mut buffer).await {
        kept.extend_from_slice(&buffer[..length]);
        if kept.len() > 2 * OUTPUT_BYTES {
            kept.drain(..kept.len() - OUTPUT_BYTES);
        }
    }
    kept
}

/// What happened in the network, for errors.
#[derive(Default)]
struct Observed(Mutex<Hosts>);

#[derive(Default)]
struct Hosts {
    refused: Vec<String>,
    failed: Vec<String>,
}

impl Observed {
    fn lock(&self) -> std::sync::MutexGuard<'_, Hosts> {
        // A panic cannot leave the lists half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Observed {
    fn event(&self, event: Event) {
        let mut hosts = self.lock();
        let (list, entry) = match event {
            Event::Refused { refusal, .. } => match refusal.entry() {
                Some(entry) => (&mut hosts.refused, entry),
                None => return,
            },
            Event::Failed { peer, error, unreported: _ } => {
                (&mut hosts.failed, format!("{}:{}: {error}", peer.host, peer.port))
            }
            Event::Opened(_) | Event::Closed { .. } | Event::Unreported { .. } => return,
        };
        if list.len() < MAX_REFUSED && !list.contains(&entry) {
            list.push(entry);
        }
    }
}
