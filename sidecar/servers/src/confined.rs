//! Starts the process of a confined server.
//!
//! What must stay true: a server whose walls cannot be built does not start, nor one that would have to be downloaded first and
//! cannot be; without its own `/proc` it starts only where the kernel refuses one, which is logged.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cofferdam_confine::{
    self as confine, Downloader, Home, HostWalls, Landlock, LimitedBy, OwnDirectories, ShownPath, Standing,
    Start,
};
use cofferdam_egress::{AddressPool, Egress, Plan};
use cofferdam_net::SystemResolver;
use cofferdam_process::{self as process, Launch, Proc, RunsAs, ServerProcess, Variable};
use relay_proto::name::Name;

use crate::network_events::NetworkObserver;
use crate::spec::{Confinement, ServerLimits};
use crate::start_error::StartError;
use crate::working_directory::WorkingDirectories;

/// Whether the kernel has refused to mount `/proc` for a confined server. A container around the sidecar that hides parts of its
/// own `/proc` is the cause, and that does not change while the sidecar runs.
static PROC_REFUSED: AtomicBool = AtomicBool::new(false);

/// What a start needs besides the confinement.
pub(crate) struct ConfinedStart<'a> {
    pub(crate) program: &'a str,
    /// As configured; they may name files.
    pub(crate) written: &'a [String],
    /// As the server gets them.
    pub(crate) arguments: Vec<OsString>,
    pub(crate) injected: Vec<Variable>,
    pub(crate) files: Option<&'a Path>,
    pub(crate) directory: Option<&'a Path>,
    /// The directory that the sandbox's grant names.
    pub(crate) workspace: Option<&'a ShownPath>,
    /// Where a lasting home directory is made.
    pub(crate) directories: &'a WorkingDirectories,
    pub(crate) limits: &'a ServerLimits,
    pub(crate) observer: Arc<NetworkObserver>,
}

/// A confined server that runs.
pub(crate) struct ConfinedServer {
    pub(crate) process: ServerProcess,
    pub(crate) network: Egress,
    pub(crate) standing: Standing,
}

/// Starts the process and serves its network.
pub(crate) async fn start(
    confinement: &Confinement,
    start: ConfinedStart<'_>,
) -> Result<ConfinedServer, StartError> {
    if let Some(downloader) = Downloader::of(start.program, start.written)
        && confinement.prevents(downloader)
    {
        return Err(StartError::Downloader { downloader, server: start.observer.server.clone() });
    }
    // With a resolver also where no name is listed, so that every refused name is reported.
    let plan = Plan::new(&confinement.hosts, AddressPool::default())?.with_resolver();
    let observer = Arc::clone(&start.observer);
    let host = HostWalls { group: process::delegated_group(), landlock: landlock() };
    let (mut process, proc) = start_process(confinement, &plan, host, start).await?;
    if let RunsAs::Root { why } = &process.runs_as {
        warn_of_root(&observer.server, why);
    }
    let limits = match host.group {
        Ok(_) => LimitedBy::ControlGroup,
        Err(_) => LimitedBy::Processes,
    };
    let standing = Standing::new(host.landlock, limits, proc, &process.runs_as);
    let sockets = std::mem::take(&mut process.sockets);
    let limits = cofferdam_egress::Limits::default();
    let network = cofferdam_egress::serve(plan, sockets, limits, Arc::new(SystemResolver), observer)?;
    Ok(ConfinedServer { process, network, standing })
}

/// What the kernel has does not change.
fn landlock() -> Landlock {
    static LANDLOCK: OnceLock<Landlock> = OnceLock::new();
    *LANDLOCK.get_or_init(|| match process::has_landlock() {
        true => Landlock::Enforced,
        false => Landlock::Missing,
    })
}

/// Once for each server.
fn warn_of_root(server: &Name, why: &str) {
    static WARNED: Mutex<BTreeSet<Name>> = Mutex::new(BTreeSet::new());
    if WARNED.lock().unwrap_or_else(PoisonError::into_inner).insert(server.clone()) {
        tracing::warn!(
            %server,
            why,
            "a confined server runs as root without capabilities, not as a user of its own: its processes are counted by a control \
             group only"
        );
    }
}

async fn start_process(
    confinement: &Confinement,
    plan: &Plan,
    host: HostWalls,
    start: ConfinedStart<'_>,
) -> Result<(ServerProcess, Proc), StartError> {
    let names: Vec<OsString> = start.injected.iter().map(|(name, _)| name.clone()).collect();
    let environment = confine::environment(process::allowed_environment(start.injected), &names);
    let path = process::program_path(start.program.as_ref())?;
    let written: Vec<OsString> = start.written.iter().map(Into::into).collect();
    let (hosts, resolver) = (plan.hosts_file(), plan.resolv_conf());
    let profile = confinement
        .profile_in(start.workspace)
        .ok_or_else(|| StartError::NoWorkspace { server: start.observer.server.clone() })?;
    let kept_home = match confinement.profile.home {
        Home::Keep => Some(start.directories.of(&start.observer.server)?),
        Home::Private => None,
    };
    let attempt = |proc: Proc| {
        let (walls, program) = confine::walls(
            &profile,
            &Start {
                program: &path,
                arguments: &written,
                directory: start.directory,
                injected: start.files,
                own: OwnDirectories {
                    kept_home: kept_home.as_deref(),
                    memory_bytes: start.limits.confined_directory_bytes,
                    processes: u64::from(start.limits.confined_processes),
                },
                private: &confinement.hidden,
                network: plan.network(),
                hosts: &hosts,
                resolver: &resolver,
                proc,
                host,
            },
        )?;
        let directory = Some(start.directory.unwrap_or(Path::new(confine::HOME)).to_owned());
        let (args, environment) = (start.arguments.clone(), environment.clone());
        Ok::<_, StartError>(Launch {
            program: program.into(),
            args,
            environment,
            directory,
            walls: Some(walls),
        })
    };
    if PROC_REFUSED.load(Ordering::Relaxed) {
        return Ok((process::launch(attempt(Proc::Empty)?).await?, Proc::Empty));
    }
    match process::launch(attempt(Proc::Own)?).await {
        Err(error) if error.is_refused_proc() => {
            let server = process::launch(attempt(Proc::Empty)?).await?;
            PROC_REFUSED.store(true, Ordering::Relaxed);
            tracing::warn!(
                "confined servers have an empty /proc: the kernel refuses to mount one, because a container around the \
                 sidecar hides parts of its own"
            );
            Ok((server, Proc::Empty))
        }
        other => Ok((other?, Proc::Own)),
    }
}
