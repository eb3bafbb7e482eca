//! The state of an attachment, as `attach list`, `sessions` and the followers of an attachment get it. Plain data.

use cofferdam_platforms::{PlatformKind, Progress};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One attachment and its state.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct AttachmentStatus {
    /// The sandbox's name.
    pub(crate) name: String,
    /// The name of its platform in the configuration.
    pub(crate) platform: String,
    pub(crate) kind: Kind,
    /// The sandbox's id on its platform.
    pub(crate) sandbox: String,
    pub(crate) grant: String,
    pub(crate) lifetime: Lifetime,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) enrolment: Option<String>,
    /// What the operator should know although the attachment works: entries that could not be added to the settings of the
    /// harness, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) warning: Option<String>,
    #[serde(flatten)]
    pub(crate) state: AttachmentState,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "PlatformKind")]
pub(crate) enum Kind {
    Daytona,
    E2b,
}

/// What an attachment lives with.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Lifetime {
    /// With its table in the configuration.
    Configured,
    /// Until it is ended; it is kept in the state directory.
    Detached,
    /// With the command that asked for it.
    Followed,
}

#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub(crate) enum AttachmentState {
    Finding,
    Resuming,
    /// Bytes of the shim sent so far, of all.
    Uploading {
        sent: u64,
        total: u64,
    },
    StartingHub,
    Connecting,
    /// The hub in the sandbox has proven this key.
    Attached {
        key: String,
    },
    /// The pipe was lost or could not be opened; the next attempt follows.
    Waiting {
        why: String,
        retry_in_ms: u64,
    },
    /// The sandbox is paused or stopped and is not resumed by the sidecar.
    Suspended,
    /// The platform or the sandbox refuses; an operator has to change something. It is tried again rarely.
    Refused {
        why: String,
        retry_in_ms: u64,
    },
    Over {
        why: String,
        cause: OverCause,
    },
}

/// Why an attachment is over, for the exit code of the command that asked for it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OverCause {
    /// Its configuration is missing or its API key cannot be read.
    Configuration,
    /// It was ended, or its enrolment has expired.
    Ended,
    /// The sandbox, or its name, is attached already.
    Taken,
    /// There is no such sandbox.
    NoSandbox,
    /// It could not be saved in the state directory.
    NotSaved,
    /// The platform refused the API key.
    Unauthorized,
    /// The platform or the sandbox failed.
    Unavailable,
}

impl AttachmentState {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Finding => "finding",
            Self::Resuming => "resuming",
            Self::Uploading { .. } => "uploading",
            Self::StartingHub => "starting",
            Self::Connecting => "connecting",
            Self::Attached { .. } => "attached",
            Self::Waiting { .. } => "waiting",
            Self::Suspended => "suspended",
            Self::Refused { .. } => "refused",
            Self::Over { .. } => "over",
        }
    }

    /// Why it is not attached.
    pub(crate) fn reason(&self) -> Option<&str> {
        match self {
            Self::Waiting { why, .. } | Self::Refused { why, .. } | Self::Over { why, .. } => Some(why),
            _ => None,
        }
    }
}

impl OverCause {
    /// As it is written in JSON, and in the code of a refusal.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Ended => "ended",
            Self::Taken => "taken",
            Self::NoSandbox => "no-sandbox",
            Self::NotSaved => "not-saved",
            Self::Unauthorized => "unauthorized",
            Self::Unavailable => "unavailable",
        }
    }

    /// Reads what [`as_str`](Self::as_str) gives.
    pub(crate) fn read(text: &str) -> Option<Self> {
        serde_json::from_value(text.into()).ok()
    }
}

impl From<Progress> for AttachmentState {
    fn from(progress: Progress) -> Self {
        match progress {
            Progress::Finding => Self::Finding,
            Progress::Resuming => Self::Resuming,
            Progress::Uploading { sent, total } => Self::Uploading { sent, total },
            Progress::StartingHub => Self::StartingHub,
            Progress::Connecting => Self::Connecting,
        }
    }
}

impl Kind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Daytona => "daytona",
            Self::E2b => "e2b",
        }
    }
}

impl From<PlatformKind> for Kind {
    fn from(kind: PlatformKind) -> Self {
        match kind {
            PlatformKind::Daytona => Self::Daytona,
            PlatformKind::E2b => Self::E2b,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_read_as_they_are_written() {
        for cause in [
            OverCause::Configuration,
            OverCause::Ended,
            OverCause::Taken,
            OverCause::NoSandbox,
            OverCause::NotSaved,
            OverCause::Unauthorized,
            OverCause::Unavailable,
        ] {
            assert_eq!(OverCause::read(cause.as_str()), Some(cause));
        }
        assert_eq!(OverCause::read("invalid"), None);
    }
}
