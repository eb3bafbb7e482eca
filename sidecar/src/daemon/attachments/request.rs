//! The request for an attachment, as commands send it and as it is stored, and its checked form.
//!
//! What must stay true: no type here contains a credential.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cofferdam_platforms::{InvalidSandboxId, KeepAwake, SandboxId, WhenSuspended};
use relay_proto::name::{InvalidName, Name};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::status::Kind;
use crate::config::{self, Platforms, is_same_platform};
use crate::harness::Harness;

/// A request to attach a sandbox of a platform. Plain data.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct AttachmentRequest {
    pub(crate) kind: Kind,
    /// The name of the platform's table in the configuration; None: the only one of this kind, or the one named like it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) platform: Option<String>,
    /// The sandbox's id on its platform.
    pub(crate) sandbox: String,
    pub(crate) grant: String,
    /// None: the sandbox's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// None: the grant's `ttl`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ttl_ms: Option<u64>,
    /// Whether a sandbox that is suspended now is resumed.
    #[serde(default)]
    pub(crate) resume: bool,
    #[serde(default)]
    pub(crate) keep_awake: bool,
    #[serde(default)]
    pub(crate) via: Route,
    /// The static shim to upload; None: the one beside the sidecar's program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shim: Option<PathBuf>,
    /// The harness in the sandbox to whose settings the servers of the grant are added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) harness: Option<Harness>,
}

/// How the sandbox is connected. On E2B `preview` and `ssh` mean the exec stream.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "PipeRoute")]
pub(crate) enum Route {
    /// The shims in the sandbox connect to the sidecar's `relay.advertise`, which is a `wss://` link.
    DialOut,
    /// The platform's preview link, by WebSocket.
    #[default]
    Preview,
    Ssh,
}

/// Identifies an attachment. Two grants may use the same name, and clients of one cannot find that out about the other.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct AttachmentKey {
    pub(crate) grant: Name,
    /// The sandbox's name.
    pub(crate) name: String,
}

/// Which kind of client requests an attachment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RequestedBy {
    /// On the admin socket, or with a client certificate.
    Operator,
    /// With a token of the admin API.
    Token,
}

/// A checked request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct AttachmentSpec {
    pub(super) name: String,
    pub(super) platform: Name,
    pub(super) sandbox: SandboxId,
    pub(super) grant: Name,
    pub(super) ttl: Option<Duration>,
    /// For a stored attachment: when its enrolment expires, which a restart of the sidecar does not prolong.
    pub(super) expires: Option<SystemTime>,
    /// For a stored attachment: that enrolment.
    pub(super) enrolment: Option<Arc<str>>,
    pub(super) when_suspended: WhenSuspended,
    pub(super) keep_awake: KeepAwake,
    pub(super) via: Route,
    pub(super) shim: Option<PathBuf>,
    pub(super) harness: Option<Harness>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidRequest {
    #[error("the grant's name is invalid: {0}")]
    Grant(#[source] InvalidName),
    #[error("the platform's name is invalid: {0}")]
    Platform(#[source] InvalidName),
    #[error(transparent)]
    Sandbox(#[from] InvalidSandboxId),
}

impl AttachmentRequest {
    /// Checks the request. `platform` is the platform that was chosen for it.
    pub(super) fn check(&self, platform: Name) -> Result<AttachmentSpec, InvalidRequest> {
        let sandbox: SandboxId = self.sandbox.parse()?;
        Ok(AttachmentSpec {
            name: self.name.clone().unwrap_or_else(|| sandbox.to_string()),
            platform,
            sandbox,
            grant: self.grant.parse().map_err(InvalidRequest::Grant)?,
            ttl: self.ttl_ms.map(Duration::from_millis),
            expires: None,
            enrolment: None,
            when_suspended: match self.resume {
                true => WhenSuspended::Resume,
                false => WhenSuspended::Refuse,
            },
            keep_awake: match self.keep_awake {
                true => KeepAwake::Yes,
                false => KeepAwake::No,
            },
            via: self.via,
            shim: self.shim.clone(),
            harness: self.harness,
        })
    }
}

impl AttachmentSpec {
    pub(super) fn key(&self) -> AttachmentKey {
        AttachmentKey { grant: self.grant.clone(), name: self.name.clone() }
    }

    /// Whether both are for the same sandbox, also through different tables `[platforms.NAME]`.
    pub(super) fn has_same_sandbox(&self, other: &Self, platforms: &Platforms) -> bool {
        self.sandbox == other.sandbox && is_same_platform(platforms, &self.platform, &other.platform)
    }

    /// The spec of a table `[attach.NAME]` of the configuration.
    pub(super) fn configured(name: &Name, attachment: &config::Attachment) -> Self {
        Self {
            name: name.to_string(),
            platform: attachment.platform.clone(),
            sandbox: attachment.sandbox.clone(),
            grant: attachment.grant.clone(),
            ttl: None,
            expires: None,
            enrolment: None,
            when_suspended: attachment.when_suspended,
            keep_awake: attachment.keep_awake,
            via: Route::default(),
            shim: None,
            harness: attachment.harness,
        }
    }

    /// Converts the spec back into a request, to be stored.
    pub(super) fn to_request(&self, kind: Kind) -> AttachmentRequest {
        AttachmentRequest {
            kind,
            platform: Some(self.platform.to_string()),
            sandbox: self.sandbox.to_string(),
            grant: self.grant.to_string(),
            name: Some(self.name.clone()),
            ttl_ms: self.ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
            resume: self.when_suspended == WhenSuspended::Resume,
            keep_awake: self.keep_awake == KeepAwake::Yes,
            via: self.via,
            shim: self.shim.clone(),
            harness: self.harness,
        }
    }
}
