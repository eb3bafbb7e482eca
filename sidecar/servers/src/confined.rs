//! Starts the process of a confined server.
//!
//! What must stay true: a server whose walls cannot be built does not start; without its own `/proc` it starts only where the
//! kernel refuses one, which is logged.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cofferdam_confine::{self as confine, Home, OwnDirectories, Start};
use cofferdam_egress::{AddressPool, Egress, Plan};
use cofferdam_net::SystemResolver;
use cofferdam_process::{self as process, Launch, PathObserver, Proc, ServerProcess, Variable};

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
    /// Where a lasting home directory is made.
    pub(crate) directories: &'a WorkingDirectories,
    pub(crate) limits: &'a ServerLimits,
    pub(crate) observer: Arc<NetworkObserver>,
    pub(crate) path_observer: Option<Arc<dyn PathObserver>>,
}

/// Starts the process and serves its network.
pub(crate) async fn start(
    confinement: &Confinement,
    start: ConfinedStart<'_>,
) -> Result<(ServerProcess, Egress), StartError> {
    // With a resolver also where no name is listed, so that every refused name is reported.
    let plan = Plan::new(&confinement.hosts, AddressPool::default())?.with_resolver();
    let observer = Arc::clone(&start.observer);
    let mut server = start_process(confinement, &plan, start).await?;
    let sockets = std::mem::take(&mut server.sockets);
    let limits = cofferdam_egress::Limits::default();
    let egress = cofferdam_egress::serve(plan, sockets, limits, Arc::new(SystemResolver), observer)?;
    Ok((server, egress))
}

async fn start_process(
    confinement: &Confinement,
    plan: &Plan,
    start: ConfinedStart<'_>,
) -> Result<ServerProcess, StartError> {
    let names: Vec<OsString> = start.injected.iter().map(|(name, _)| name.clone()).collect();
    let environment = confine::environment(process::allowed_environment(start.injected), &names);
    let path = process::program_path(start.program.as_ref())?;
    let written: Vec<OsString> = start.written.iter().map(Into::into).collect();
    let (hosts, resolver) = (plan.hosts_file(), plan.resolv_conf());
    let kept_home = match confinement.profile.home {
        Home::Keep => Some(start.directories.of(&start.observer.server)?),
        Home::Private => None,
    };
    let attempt = |proc: Proc| {
        let (mut walls, program) = confine::walls(
            &confinement.profile,
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
            },
        )?;
        if start.path_observer.is_some() {
            walls.observed_calls = confine::observed_calls();
        }
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
    let launch = |proc| launch(attempt(proc), start.path_observer.clone());
    if PROC_REFUSED.load(Ordering::Relaxed) {
        return launch(Proc::Empty).await;
    }
    match launch(Proc::Own).await {
        Err(StartError::Launch(error)) if error.is_refused_proc() => {
            let server = launch(Proc::Empty).await?;
            PROC_REFUSED.store(true, Ordering::Relaxed);
            tracing::warn!(
                "confined servers have an empty /proc: the kernel refuses to mount one, because a container around the \
                 sidecar hides parts of its own"
            );
            Ok(server)
        }
        other => other,
    }
}

async fn launch(
    launch: Result<Launch, StartError>,
    path_observer: Option<Arc<dyn PathObserver>>,
) -> Result<ServerProcess, StartError> {
    Ok(match path_observer {
        None => process::launch(launch?).await?,
        Some(observer) => process::launch_observed(launch?, observer).await?,
    })
}
