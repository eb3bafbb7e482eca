//! `confine`: what a confined server gets, and whether that suffices. Needs no running sidecar.
//!
//! | module | what it holds |
//! |---|---|
//! | [`recorded`] | the file with a recorded use |
//! | [`refusals`] | what a server asked for and was refused |
//! | [`report`] | what a server gets, as data that is also the JSON |
//! | [`show`] | `confine show`: the report for a person, as JSON, or as a manifest |
//! | [`test`] | `confine test`: starts a server, replays a use, and lists what was refused |

mod recorded;
mod refusals;
mod report;
mod show;
mod test;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use cofferdam_servers::WorkingDirectories;
use cofferdam_servers::confined_view::{ConfinedView, ViewError, confined_view};
use cofferdam_servers::spec::{Confinement, ServerKind, ServerSpec, StdioServer};
use relay_proto::name::Name;

use super::arguments::ConfineCommand;
use crate::config::{Config, suggest};
use crate::terminal::failure::{Failure, Sysexit};

pub(super) fn run(file: Option<&Path>, command: &ConfineCommand) -> Result<ExitCode, Failure> {
    match command {
        ConfineCommand::Show(arguments) => show::run(file, arguments),
        ConfineCommand::Test(arguments) => test::run(file, arguments),
    }
}

/// A server that runs as a process of this host.
fn stdio_server<'a>(
    name: &str,
    config: &'a Config,
) -> Result<(&'a Arc<ServerSpec>, &'a StdioServer), Failure> {
    let server = name.parse().ok().and_then(|name: Name| config.servers.get(&name)).ok_or_else(|| {
        let hint = suggest::hint(name, "server", config.servers.keys().map(Name::as_str));
        Failure::new(Sysexit::Usage, format!("there is no server `{name}`")).hint(hint)
    })?;
    match &server.kind {
        ServerKind::Stdio(stdio) => Ok((server, stdio)),
        ServerKind::Http(_) => {
            let what =
                format!("`{name}` has a `url`: it does not run on this host, so it cannot be confined");
            Err(Failure::new(Sysexit::Usage, what).hint("name a server that has a `command`"))
        }
    }
}

/// What the server would get, in the state directory of the configuration.
fn view_of(
    server: &ServerSpec,
    stdio: &StdioServer,
    confinement: &Confinement,
    config: &Config,
) -> Result<ConfinedView, Failure> {
    let directories = WorkingDirectories::in_state(&config.state_dir);
    let view = confined_view(&server.name, stdio, confinement, &(&config.limits).into(), &directories);
    view.map_err(|error| {
        let hint = match error {
            ViewError::Launch(_) => {
                format!("correct `servers.{}.command`, or run this as the sidecar's user", server.name)
            }
            ViewError::Network(_) | ViewError::Walls(_) => {
                "the server does not start either: correct the configuration".to_owned()
            }
        };
        Failure::new(Sysexit::Configuration, error).hint(hint)
    })
}

fn not_confined(server: &ServerSpec) -> Failure {
    let what = format!("`{}` is not confined: nothing is refused to it", server.name);
    Failure::new(Sysexit::Configuration, what).hint("confine it with `confine = {}`")
}
