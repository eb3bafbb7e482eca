//! Attachments: sandboxes on platforms that the sidecar itself connects to and keeps connected.
//!
//! An attachment is asked for by a command, which follows it or leaves it in the sidecar, or by the configuration. Each has
//! one task, which holds the sandbox's enrolment and opens pipes into the sandbox, one after the other.
//!
//! | module | what it holds |
//! |---|---|
//! | [`request`] | what is to be attached |
//! | [`status`] | the state of an attachment, as commands show it |
//! | `keeper` | starts, holds and ends attachments |
//! | `wanted` | starts and ends those that are stored or configured |
//! | `table` | all attachments by name |
//! | `run` | one attachment's pipes |
//! | `pacing` | what follows each outcome |
//! | `activity` | tells a platform that a sandbox is in use |
//! | `client` | the platforms' clients |
//! | `keys` | the platforms' API keys |
//! | `dial_out` | one attachment whose sandbox connects to the sidecar by itself |
//! | `records` | the attachments that are stored |
//! | `shim_file` | the static shim for upload |
//! | `follow` | a command that follows its attachment |
//!
//! What must stay true: an attachment that was ended does not come back, except one of the configuration at the next reload
//! or restart; a command that disconnects takes its attachment with it unless that was left in the sidecar on purpose; a
//! restart does not prolong an enrolment; a token attaches sandboxes of those platforms only that name its grant.

mod activity;
mod client;
mod dial_out;
mod follow;
mod keeper;
mod keys;
mod pacing;
mod records;
pub(crate) mod request;
mod run;
#[cfg(test)]
mod scripted;
mod shim_file;
pub(crate) mod status;
mod table;
mod wanted;

use std::path::PathBuf;
use std::sync::Arc;

use cofferdam_platforms::Architecture;
use cofferdam_platforms::e2b::E2b;
use relay_proto::name::Name;
use tokio::sync::Notify;

use crate::config::{Config, Platform};
use crate::session::Context;
pub(crate) use follow::{Detach, Follower};
pub(crate) use keeper::AttachmentKeeper;
use keys::PlatformKeys;
use request::{AttachmentRequest, InvalidRequest, RequestedBy};
use shim_file::ShimFiles;
use status::{AttachmentStatus, Kind, OverCause};
use table::{AttachmentTable, NotEntered};

/// The attachments of a daemon.
pub(crate) struct Attachments {
    table: AttachmentTable,
    keys: Arc<PlatformKeys>,
    shims: Arc<ShimFiles>,
    /// The directory of the stored ones.
    directory: PathBuf,
    /// Signalled when the configuration was reloaded.
    reconfigured: Notify,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachmentError {
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    #[error(transparent)]
    NotEntered(#[from] NotEntered),
    #[error(
        "the configuration has no platform of the kind `{0}`; add a table `[platforms.{0}]` with its `api-key`, then `cofferdam reload`"
    )]
    NoPlatform(&'static str),
    /// The same for a platform that does not exist: a token does not learn which platforms there are.
    #[error(
        "no platform of the kind `{kind}` is for tokens of the grant `{grant}`; an operator has to name the grant in `grants` of the platform's table"
    )]
    NotForToken { kind: &'static str, grant: Name },
    #[error(
        "the platform `{platform}` is not for the grant `{grant}`; name the grant in `grants` of `[platforms.{platform}]`, then `cofferdam reload`"
    )]
    OtherGrants { platform: Name, grant: Name },
    #[error("the platform `{0}` is not of the kind `{1}`")]
    OtherKind(Name, &'static str),
    #[error("there are several platforms of the kind `{0}`; choose one with `--platform`: {1}")]
    SeveralPlatforms(&'static str, String),
    #[error("the sidecar is stopping")]
    Stopping,
}

impl Attachments {
    pub(super) fn new(context: &Context) -> Self {
        Self {
            table: AttachmentTable::default(),
            keys: Arc::default(),
            shims: Arc::default(),
            directory: records::directory(&context.config.load().state_dir),
            reconfigured: Notify::new(),
        }
    }

    /// The configuration was reloaded.
    pub(super) fn reconfigure(&self) {
        self.reconfigured.notify_one();
    }

    pub(crate) fn statuses(&self) -> Vec<AttachmentStatus> {
        self.table.all().iter().map(|entry| entry.status.borrow().clone()).collect()
    }
}

/// The platform of a request: the one that it names, the one with the name of its kind, or the only one of its kind; among
/// those that are for the request's grant.
fn platform_of(
    config: &Config,
    request: &AttachmentRequest,
    requested_by: RequestedBy,
) -> Result<Name, AttachmentError> {
    let kind = request.kind;
    let grant: Name = request.grant.parse().map_err(InvalidRequest::Grant)?;
    let named: Option<Name> =
        request.platform.as_ref().map(|name| name.parse()).transpose().map_err(InvalidRequest::Platform)?;
    let is_candidate = |platform: &&Arc<Platform>| {
        Kind::from(platform.settings.kind) == kind && named.as_ref().is_none_or(|name| *name == platform.name)
    };
    let candidates: Vec<&Arc<Platform>> = config.platforms.values().filter(is_candidate).collect();
    let is_for_request = |platform: &&&Arc<Platform>| match requested_by {
        RequestedBy::Operator => platform.permits(&grant),
        RequestedBy::Token => platform.permits_tokens_of(&grant),
    };
    let usable: Vec<&Name> =
        candidates.iter().filter(is_for_request).map(|platform| &platform.name).collect();
    match (usable.iter().find(|name| name.as_str() == kind.as_str()), usable.as_slice()) {
        (Some(name), _) => Ok((*name).clone()),
        (None, [only]) => Ok((*only).clone()),
        (None, []) => Err(match (requested_by, candidates.first(), named) {
            (RequestedBy::Token, _, _) => AttachmentError::NotForToken { kind: kind.as_str(), grant },
            (_, Some(other), _) => AttachmentError::OtherGrants { platform: other.name.clone(), grant },
            (_, None, Some(name)) => AttachmentError::OtherKind(name, kind.as_str()),
            (_, None, None) => AttachmentError::NoPlatform(kind.as_str()),
        }),
        (None, several) => {
            let names = several.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            Err(AttachmentError::SeveralPlatforms(kind.as_str(), names))
        }
    }
}

impl AttachmentError {
    /// For the exit code of the command.
    pub(crate) fn cause(&self) -> OverCause {
        match self {
            Self::Invalid(InvalidRequest::Sandbox(_)) => OverCause::NoSandbox,
            Self::Invalid(_)
            | Self::NoPlatform(_)
            | Self::NotForToken { .. }
            | Self::OtherGrants { .. }
            | Self::OtherKind(..)
            | Self::SeveralPlatforms(..) => OverCause::Configuration,
            Self::NotEntered(error) if error.is_conflict() => OverCause::Taken,
            Self::NotEntered(_) | Self::Stopping => OverCause::Unavailable,
        }
    }
}

/// What to add to a template of E2B so that nothing is uploaded later. The error is a sentence with the next step.
pub(crate) fn e2b_template(shim: Option<PathBuf>) -> Result<String, String> {
    // E2B's own sandboxes have this processor.
    let shim = ShimFiles::default().find(shim.as_deref(), Architecture::X86_64)?;
    Ok(E2b::template(&shim))
}
