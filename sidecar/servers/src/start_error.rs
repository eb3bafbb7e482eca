//! Why a server did not start.

use cofferdam_base::text::error_chain;
use cofferdam_confine::{Downloader, WallsError};
use cofferdam_egress::{PlanError, ServeError};
use cofferdam_packages::NotReady;
use cofferdam_process::LaunchError;
use cofferdam_secrets::files::FileError;
use cofferdam_secrets::{InjectError, SecretError};
use relay_proto::code::Code;
use relay_proto::name::Name;

use crate::grant_limits::LimitReached;
use crate::working_directory::WorkingDirectoryError;

/// In every case nothing was sent to the server.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0}")]
    LimitReached(#[from] LimitReached),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Inject(#[from] InjectError),
    #[error(transparent)]
    Files(#[from] FileError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error("plan the server's network")]
    NetworkPlan(#[from] PlanError),
    #[error("serve the server's network")]
    Network(#[from] ServeError),
    #[error("{0}")]
    Package(NotReady),
    #[error(
        "`{downloader}` downloads the server when it starts it, and the server's walls leave no network or no place for that; {}",
        downloader.next_step(server.as_str())
    )]
    Downloader { downloader: Downloader, server: Name },
    #[error(transparent)]
    Walls(#[from] WallsError),
    #[error(
        "the profile of `servers.{server}` shows it `{{workspace}}`, and the sandbox's grant has no `workspace`: add it to the grant"
    )]
    NoWorkspace { server: Name },
    #[error(transparent)]
    WorkingDirectory(#[from] WorkingDirectoryError),
}

impl StartError {
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Files(FileError::Fill { .. }) | Self::Inject(_) | Self::Secret(_) => {
                Code::CredentialUnavailable
            }
            Self::LimitReached(_)
            | Self::Downloader { .. }
            | Self::Files(_)
            | Self::Launch(_)
            | Self::Network(_)
            | Self::NetworkPlan(_)
            | Self::NoWorkspace { .. }
            | Self::Package(_)
            | Self::Walls(_)
            | Self::WorkingDirectory(_) => Code::ServerUnavailable,
        }
    }

    /// Whether the credential's source has its own backoff, so that the slot needs none.
    pub(crate) fn source_has_backoff(&self) -> bool {
        matches!(self, Self::Secret(error) if error.source_has_backoff())
    }

    /// What a sandbox is told: the secret and the next step, but no path, program or variable of the host.
    pub(crate) fn for_sandbox(&self) -> String {
        const ADMINISTRATOR: &str = "tell the host's administrator";
        match self {
            Self::LimitReached(reached) => reached.to_string(),
            Self::Secret(error) => error.for_sandbox(),
            Self::Inject(error) | Self::Files(FileError::Fill { source: error, .. }) => {
                format!("{}; correct the server's configuration or the secret", error.for_sandbox())
            }
            Self::Files(_) => format!("its files cannot be written on the host; {ADMINISTRATOR}"),
            Self::Package(not_ready) => format!(
                "its package is not ready on the host; the host's administrator runs `cofferdam install {}`",
                not_ready.server()
            ),
            Self::Downloader { .. } => {
                format!("its profile on the host does not let it be downloaded; {ADMINISTRATOR}")
            }
            Self::Network(_) | Self::NetworkPlan(_) | Self::NoWorkspace { .. } | Self::Walls(_) => {
                format!("it cannot be confined on the host; {ADMINISTRATOR}")
            }
            Self::Launch(_) => format!("its program cannot be started on the host; {ADMINISTRATOR}"),
            Self::WorkingDirectory(_) => {
                format!("its working directory cannot be made on the host; {ADMINISTRATOR}")
            }
        }
    }

    /// For the log: what failed, why and, where there is one, the next step.
    pub(crate) fn explain(&self) -> String {
        match self {
            Self::Secret(error) => explain(error),
            other => error_chain(other),
        }
    }
}

/// For the log: why a secret could not be read, and the next step.
pub(crate) fn explain(error: &SecretError) -> String {
    format!("{}; {}", error_chain(error), error.next_step())
}
