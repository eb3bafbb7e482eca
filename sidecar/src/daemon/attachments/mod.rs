//! Attachments: sandboxes on platforms that the sidecar itself connects to and keeps connected.
//!
//! An attachment is requested by a command, which follows or detaches it, or by the configuration. Each attachment has one
//! task, which holds the sandbox's enrolment and opens pipes into the sandbox, one after the other. If the sandbox dials
//! out, the task opens no pipes.
//!
//! | module | what it holds |
//! |---|---|
//! | [`request`] | requests for attachments, and their checked form |
//! | [`status`] | the state of an attachment, as commands show it |
//! | `keeper` | starts, holds and ends attachments |
//! | `wanted` | starts and ends those that are stored or configured |
//! | `table` | all attachments by name |
//! | `run` | one attachment's pipes |
//! | `pacing` | the next step after each outcome, and its delay |
//! | `activity` | reports to a platform that a sandbox is in use |
//! | `client` | the platforms' clients |
//! | `awaited` | sandboxes that dial out, whose commands have to come back after a restart of the sidecar |
//! | `keys` | the platforms' API keys |
//! | `dial_out` | one attachment whose sandbox connects to the sidecar itself |
//! | `records` | the attachments that are stored |
//! | `follow` | a command that follows its attachment |
//!
//! What must stay true: an attachment that was ended does not start again, except a configured one at the next reload or
//! restart; when a command disconnects, its attachment ends unless the command has detached it; a restart does not
//! prolong an enrolment; a token can attach only sandboxes of platforms whose `grants` name its grant.

mod activity;
mod awaited;
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
pub(crate) mod status;
mod table;
mod wanted;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use cofferdam_platforms::Architecture;
use cofferdam_platforms::e2b::E2b;
use relay_proto::name::Name;
use tokio::sync::Notify;

use crate::config::{Config, Platform};
use crate::session::Context;
use crate::shims::ShimFiles;
use awaited::AwaitedCommands;
pub(crate) use follow::{Detach, Follower};
pub(crate) use keeper::AttachmentKeeper;
use keys::PlatformKeys;
use records::AttachmentRecord;
use request::{AttachmentRequest, InvalidRequest, RequestedBy};
use status::{AttachmentStatus, Kind, Lifetime, OverCause};
pub(crate) use table::EndReason;
use table::{AttachmentTable, NotEntered};

/// The attachments of a daemon.
pub(crate) struct Attachments {
    table: AttachmentTable,
    keys: Arc<PlatformKeys>,
    shims: Arc<ShimFiles>,
    /// The directory of the stored attachments.
    directory: PathBuf,
    /// Attachments that were stored when the sidecar started, until they are started.
    stored: Mutex<Vec<AttachmentRecord>>,
    awaited: AwaitedCommands,
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
    /// The same error if the platform does not exist, so that a client with a token cannot find out which platforms there
    /// are.
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
    /// Reads the stored attachments, which blocks on the disk: a command may request its attachment again as soon as the
    /// sidecar accepts requests.
    pub(super) fn new(context: &Context) -> Self {
        let directory = records::directory(&context.config.load().state_dir);
        let (followed, stored): (Vec<_>, Vec<_>) = records::read_all(&directory)
            .into_iter()
            .partition(|record| record.lifetime == Lifetime::Followed);
        Self {
            table: AttachmentTable::default(),
            keys: Arc::default(),
            shims: Arc::default(),
            directory,
            stored: Mutex::new(stored),
            awaited: AwaitedCommands::new(followed),
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

/// Chooses the platform of a request, among the platforms that permit the request's grant: the platform that the request
/// names, the platform that is named like its kind, or the only platform of that kind.
fn choose_platform(
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
        RequestedBy::Token => platform.permits_for_api_tokens(&grant),
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
    /// The cause of the error, which determines the exit code of the command.
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

/// The lines to add to an E2B template so that its sandboxes contain the shim and no upload is needed. The error is a
/// sentence with the next step.
pub(crate) fn e2b_template(shim: Option<PathBuf>) -> Result<String, String> {
    // The sandboxes of E2B run on this processor.
    let shim = ShimFiles::default().find(shim.as_deref(), Architecture::X86_64)?;
    Ok(E2b::template(&shim))
}
