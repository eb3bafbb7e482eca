//! `serve`: runs the sidecar in the foreground.

use std::num::NonZero;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::available_parallelism;

use cofferdam_audit::AuditError;
use cofferdam_process as process;
use cofferdam_scrub::shared::SharedValues;
use cofferdam_vault::AccessError;

use super::arguments::ServeArguments;
use super::commands::load;
use crate::daemon::admin::tls_port::AdminTlsError;
use crate::daemon::service_manager::{PassedSocketError, PassedSockets};
use crate::daemon::state_format::StateFormatError;
use crate::daemon::while_held::{HoldFiles, Lifetime};
use crate::daemon::{self, ServeError, SocketError};
use crate::terminal::failure::{Failure, Sysexit, creation_exit_code};

pub(super) fn run(file: Option<&Path>, arguments: &ServeArguments) -> Result<ExitCode, Failure> {
    process::harden().map_err(|error| Failure::new(Sysexit::OperatingSystem, error))?;
    let passed = PassedSockets::take().map_err(|error| start_failure(error.into()))?;
    let (path, config) = load(file)?;
    let log = Arc::<SharedValues>::default();
    daemon::logging::start(Arc::clone(&log));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        // An audit write that hangs blocks one thread; at least one other must stay available.
        .worker_threads(available_parallelism().map_or(2, NonZero::get).max(2))
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Sysexit::OperatingSystem, error))?;
    // `cofferdam run` starts a sidecar that stops with the last run; each run holds a lock on a file in the state directory.
    let lifetime = match arguments.while_held {
        true => Lifetime::WhileHeld(HoldFiles::in_state(&config.state_dir)),
        false => Lifetime::UntilSignal,
    };
    runtime.block_on(daemon::serve(path, config, log, lifetime, passed)).map_err(start_failure)?;
    Ok(ExitCode::SUCCESS)
}

/// The failure of a sidecar that could not start.
fn start_failure(error: ServeError) -> Failure {
    let code = exit_code(&error);
    let hint = hint(&error);
    let failure = Failure::new(code, error);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

fn exit_code(error: &ServeError) -> Sysexit {
    match error {
        ServeError::AdminTls(AdminTlsError::Bind { .. })
        | ServeError::Audit(AuditError::Busy { .. })
        | ServeError::HealthPort(_)
        | ServeError::RelayTlsPort(_)
        | ServeError::Socket(SocketError::Live { .. }) => Sysexit::Unavailable,
        ServeError::PathIsolation(_) if creation_exit_code(error) == Sysexit::NoPermission => {
            Sysexit::NoPermission
        }
        ServeError::AdminTls(_)
        | ServeError::PassedSocket(
            PassedSocketError::Connected
            | PassedSocketError::OtherPath { .. }
            | PassedSocketError::TooMany(_),
        )
        | ServeError::PathIsolation(_)
        | ServeError::Vault(AccessError::Settings(_)) => Sysexit::Configuration,
        ServeError::Audit(AuditError::Damaged { .. } | AuditError::Key { .. })
        | ServeError::StateFormat(StateFormatError::Newer { .. } | StateFormatError::Unreadable { .. }) => {
            Sysexit::Data
        }
        ServeError::PassedSocket(PassedSocketError::Unusable(_)) | ServeError::Signals(_) => {
            Sysexit::OperatingSystem
        }
        ServeError::Audit(_)
        | ServeError::Files(_)
        | ServeError::Key(_)
        | ServeError::Lifetime(_)
        | ServeError::Socket(_)
        | ServeError::StateFormat(_)
        | ServeError::Store(_)
        | ServeError::Tokens(_)
        | ServeError::Vault(AccessError::Accessors(_)) => creation_exit_code(error),
    }
}

fn hint(error: &ServeError) -> Option<String> {
    match error {
        ServeError::Audit(error) => error.hint(),
        ServeError::PassedSocket(PassedSocketError::OtherPath { .. }) => Some(
            "make `ListenStream=` of cofferdam.socket and `relay.unix` the same path, or disable cofferdam.socket"
                .to_owned(),
        ),
        ServeError::Socket(SocketError::Live { pid, .. }) => {
            let stop = pid.map(|pid| format!(" (`kill {pid}`)")).unwrap_or_default();
            Some(format!("stop that process{stop}, or give this sidecar another path"))
        }
        ServeError::StateFormat(StateFormatError::Newer { .. } | StateFormatError::Unreadable { .. }) => Some(
            "start the version that wrote it, or restore the backup that was made before that version ran, or give this one \
             another `state-dir`, for which sandboxes have to be enrolled again"
                .to_owned(),
        ),
        ServeError::PathIsolation(_) | ServeError::Socket(SocketError::Io { .. })
            if creation_exit_code(error) == Sysexit::NoPermission =>
        {
            Some(
                "choose a directory that this user may write to in `relay.unix` or `admin.socket`, such as `relay/relay.sock`, which \
                 is beside the configuration; or run the sidecar as a user who may write there"
                    .to_owned(),
            )
        }
        _ => None,
    }
}
