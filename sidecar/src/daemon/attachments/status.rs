//! The state of an attachment, as `attach list`, `sessions` and following commands show it. Plain data.

use cofferdam_base::text::shell_quoted;
use cofferdam_platforms::{PlatformKind, Progress};
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

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
#[schemars(transform = list_every_state)]
pub(crate) enum AttachmentState {
    /// The hub in the sandbox has proven this key.
    Attached {
        key: String,
    },
    /// The pipe was lost or could not be opened; the next attempt follows.
    Waiting {
        why: String,
        retry_in_ms: u64,
    },
    /// The sandbox is paused, stopped or archived and is not resumed by the sidecar.
    Suspended {
        /// Which of these the platform reports.
        why: String,
    },
    /// The platform or the sandbox refuses; an operator has to change something. It is tried again rarely.
    Refused {
        why: String,
        retry_in_ms: u64,
    },
    Over {
        why: String,
        cause: OverCause,
    },
    /// A pipe is being opened; the step is the state.
    #[serde(untagged)]
    Opening(Progress),
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
    /// The state in which an attachment begins.
    pub(crate) const FINDING: Self = Self::Opening(Progress::Finding);

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Opening(Progress::Finding) => "finding",
            Self::Opening(Progress::Resuming) => "resuming",
            Self::Opening(Progress::Uploading { .. }) => "uploading",
            Self::Opening(Progress::StartingHub) => "starting",
            Self::Opening(Progress::Connecting) => "connecting",
            Self::Attached { .. } => "attached",
            Self::Waiting { .. } => "waiting",
            Self::Suspended { .. } => "suspended",
            Self::Refused { .. } => "refused",
            Self::Over { .. } => "over",
        }
    }

    /// Why the sandbox is not attached.
    pub(crate) fn reason(&self) -> Option<&str> {
        match self {
            Self::Waiting { why, .. }
            | Self::Suspended { why }
            | Self::Refused { why, .. }
            | Self::Over { why, .. } => Some(why),
            _ => None,
        }
    }
}

/// The command that ends the attachment with this name, quoted for a shell.
pub(crate) fn end_command(name: &str) -> String {
    let end_of_options = if name.starts_with('-') { "-- " } else { "" };
    format!("cofferdam attach end {end_of_options}{}", shell_quoted(name))
}

/// Lists the steps of opening beside the other states, as they appear in the JSON.
fn list_every_state(schema: &mut Schema) {
    let Some(Value::Array(states)) = schema.remove("anyOf") else { return };
    let steps_of = |state: Value| match state.get("oneOf") {
        Some(Value::Array(steps)) => steps.clone(),
        _ => vec![state],
    };
    let states: Vec<Value> = states.into_iter().flat_map(steps_of).collect();
    schema.insert("oneOf".into(), states.into());
}

impl OverCause {
    /// The cause as in JSON and in the error code of a refusal.
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

    /// The inverse of [`as_str`](Self::as_str).
    pub(crate) fn read(text: &str) -> Option<Self> {
        serde_json::from_value(text.into()).ok()
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
    fn every_cause_is_parsed_from_its_string() {
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

    #[test]
    fn states_are_flat_json_objects() {
        for (state, text) in [
            (AttachmentState::FINDING, r#"{"state":"finding"}"#),
            (
                AttachmentState::Opening(Progress::Uploading { sent: 1, total: 2 }),
                r#"{"state":"uploading","sent":1,"total":2}"#,
            ),
            (AttachmentState::Opening(Progress::StartingHub), r#"{"state":"starting-hub"}"#),
            (
                AttachmentState::Suspended { why: "it is paused".into() },
                r#"{"state":"suspended","why":"it is paused"}"#,
            ),
            (AttachmentState::Attached { key: "k".into() }, r#"{"state":"attached","key":"k"}"#),
        ] {
            assert_eq!(serde_json::to_string(&state).unwrap(), text);
            assert_eq!(serde_json::from_str::<AttachmentState>(text).unwrap(), state);
        }
    }
}
