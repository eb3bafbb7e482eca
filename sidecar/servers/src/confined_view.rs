//! What a confined server would get at its next start. Nothing is started, read from a source of secrets, or made.
//!
//! What must stay true: the paths are those of the walls that a start by this user would build; no value of a variable is here.

use std::collections::BTreeSet;
use std::ffi::OsString;

use cofferdam_confine::view::{View, view};
use cofferdam_confine::{self as confine, Home, OWN_VARIABLES, OwnDirectories, Start, WallsError};
use cofferdam_egress::{AddressPool, Plan, PlanError};
use cofferdam_process::{self as process, LaunchError, Proc, Variable};
use relay_proto::name::Name;

use crate::spec::{Confinement, ServerLimits, StdioServer};
use crate::working_directory::WorkingDirectories;

/// What one process of a server would get.
#[derive(Debug)]
pub struct ConfinedView {
    pub files: View,
    /// By name.
    pub variables: Vec<SeenVariable>,
}

/// An environment variable, without its value.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct SeenVariable {
    pub origin: VariableOrigin,
    pub name: OsString,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum VariableOrigin {
    /// The server's table `env`.
    Configured,
    /// Set for every confined server.
    Own,
    /// The same as the sidecar's, if the sidecar has this process's environment.
    Inherited,
}

#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error("plan the server's network")]
    Network(#[from] PlanError),
    #[error(transparent)]
    Walls(#[from] WallsError),
}

/// Describes a start of `server` as this process would make it. The injected files, whose directory is made at each start, are
/// not among its paths.
pub fn confined_view(
    server: &Name,
    stdio: &StdioServer,
    confinement: &Confinement,
    limits: &ServerLimits,
    directories: &WorkingDirectories,
) -> Result<ConfinedView, ViewError> {
    let (program, arguments) = stdio.command.split_first().expect("a checked command is not empty");
    let program = process::program_path(program.as_ref())?;
    let arguments: Vec<OsString> = arguments.iter().map(Into::into).collect();
    let plan = Plan::new(&confinement.hosts, AddressPool::default())?.with_resolver();
    let kept_home = (confinement.profile.home == Home::Keep).then(|| directories.path_of(server));
    let start = Start {
        program: &program,
        arguments: &arguments,
        directory: stdio.directory.as_deref(),
        injected: None,
        own: OwnDirectories {
            kept_home: kept_home.as_deref(),
            memory_bytes: limits.confined_directory_bytes,
            processes: u64::from(limits.confined_processes),
        },
        private: &confinement.hidden,
        network: plan.network(),
        hosts: "",
        resolver: "",
        proc: Proc::Own,
    };
    Ok(ConfinedView { files: view(&confinement.profile, &start)?, variables: variables(stdio) })
}

fn variables(stdio: &StdioServer) -> Vec<SeenVariable> {
    let configured: BTreeSet<OsString> = stdio.env.keys().map(OsString::from).collect();
    let names: Vec<OsString> = configured.iter().cloned().collect();
    let without_value = |name: &OsString| -> Variable { (name.clone(), Vec::new().into()) };
    let injected = names.iter().map(without_value).collect();
    let environment = confine::environment(process::allowed_environment(injected), &names);
    let origin = |name: &OsString| match configured.contains(name) {
        true => VariableOrigin::Configured,
        false if OWN_VARIABLES.iter().any(|(own, _)| name == own) => VariableOrigin::Own,
        false => VariableOrigin::Inherited,
    };
    let mut variables: Vec<SeenVariable> =
        environment.into_iter().map(|(name, _)| SeenVariable { origin: origin(&name), name }).collect();
    variables.sort();
    variables
}
