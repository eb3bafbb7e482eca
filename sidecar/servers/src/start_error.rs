//! Why a server did not start.

use cofferdam_base::text::error_chain;
use cofferdam_process::LaunchError;
use cofferdam_secrets::files::FileError;
use cofferdam_secrets::{InjectError, SecretError};
use relay_proto::code::Code;

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
    #[error(transparent)]
    WorkingDirectory(#[from] WorkingDirectoryError),
}

impl StartError {
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Files(FileError::Fill { .. }) | Self::Inject(_) | Self::Secret(_) => {
                Code::CredentialUnavailable
            }
            Self::LimitReached(_) | Self::Files(_) | Self::Launch(_) | Self::WorkingDirectory(_) => {
                Code::ServerUnavailable
            }
        }
    }

    /// Whether the credential's source has its own backoff, so that the slot needs none.
    pub(crate) fn source_has_backoff(&self) -> bool {
        matches!(self, Self::Secret(error) if error.source_has_backoff())
    }

    /// What failed, why and, where there is one, the next step.
    pub(crate) fn explain(&self) -> String {
        match self {
            Self::Secret(error) => explain(error),
            other => error_chain(other),
        }
    }
}

/// Why a secret could not be read, and the next step.
pub(crate) fn explain(error: &SecretError) -> String {
    format!("{}; {}", error_chain(error), error.next_step())
}
