//! Commands to a link, and its replies.

use cofferdam_confine::Standing;
use cofferdam_process as process;
use cofferdam_servers as servers;
use cofferdam_servers::spec::{ServerKind, ServerSpec};
use cofferdam_vault::Revoked;
use relay_proto::control::Resume;
use tokio::sync::oneshot;

use super::connection::Connection;
use super::describe::Credential;
use super::not_revocable::NotRevocable;

/// A command of the registry to a link.
pub(crate) enum Command {
    /// The shim reconnected.
    Attach {
        connection: Box<Connection>,
        resume: Resume,
    },
    Describe(oneshot::Sender<Description>),
    End {
        reason: EndReason,
        ended: oneshot::Sender<Ended>,
    },
}

/// Why a link ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum EndReason {
    /// The shim broke the protocol.
    Broken,
    /// Another copy of its key is used instead.
    Cloned,
    Expired,
    Goodbye,
    GraceOver,
    Killed,
    Stopped,
}

/// The result of ending a link.
#[derive(Clone, Debug, schemars::JsonSchema, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Ended {
    pub(crate) calls_unanswered: usize,
    pub(crate) processes: Processes,
    /// How long it took until the processes ended.
    pub(crate) server_ended_ms: u64,
    /// The revocation of the session's credentials in Vault, where it had some and this was its last link.
    #[serde(default)]
    pub(crate) vault: Option<Revoked>,
    /// Credentials of the session that are still valid and cannot be revoked, where this was its last link.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) not_revocable: Vec<NotRevocable>,
}

/// Whether the server's processes have ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq, schemars::JsonSchema, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Processes {
    AllEnded,
    /// They were killed, but not all were known to be dead when the timeout expired.
    StillDying,
}

/// A link as `cofferdam sessions` shows it.
#[derive(Clone, Debug, schemars::JsonSchema, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Description {
    pub(crate) session: String,
    pub(crate) link: String,
    /// The sandbox's enrolment and name. Links of the shared socket have none.
    #[serde(default)]
    pub(crate) enrolment: Option<String>,
    #[serde(default)]
    pub(crate) name: Option<String>,
    pub(crate) grant: String,
    pub(crate) server: String,
    pub(crate) connected: bool,
    pub(crate) pid: Option<u32>,
    /// Whether the server's processes are confined. HTTP servers have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) confine: Option<Confine>,
    /// The progress of replacing the processes after a credential changed, if that is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) replacement: Option<String>,
    /// The additional processes that run tools of scopes.
    #[serde(default)]
    pub(crate) scopes: Vec<ScopeProcess>,
    /// The walls around the server's own process. Empty: it is not confined, or does not run.
    #[serde(default)]
    pub(crate) walls: Vec<Wall>,
    pub(crate) in_flight: usize,
    /// Sidecar memory that is charged to the link.
    #[serde(default)]
    pub(crate) memory_bytes: u64,
    pub(crate) calls: u64,
    pub(crate) refused: u64,
    pub(crate) redactions: u64,
    pub(crate) began: String,
    pub(crate) expires_in_seconds: u64,
    pub(crate) secrets: Vec<String>,
    /// The status of each of these secrets that the session has read or tried to read.
    #[serde(default)]
    pub(crate) credentials: Vec<Credential>,
}

/// Whether there are walls around the processes of a server.
#[derive(Clone, Copy, Debug, Eq, PartialEq, schemars::JsonSchema, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Confine {
    /// `confine = "off"`: it can reach all that the sidecar's user can.
    Off,
    On,
}

/// A process that runs tools of a scope.
#[derive(Clone, Debug, schemars::JsonSchema, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct ScopeProcess {
    /// The scope's tools as configured.
    pub(crate) tools: String,
    pub(crate) pid: u32,
}

/// A wall around a confined server.
#[derive(Clone, Debug, schemars::JsonSchema, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Wall {
    /// What it is around, such as `files`.
    pub(crate) name: String,
    /// What it is made of, such as `namespace`.
    pub(crate) made_of: Vec<String>,
}

impl Confine {
    /// `None` for HTTP servers.
    pub(crate) fn of(server: &ServerSpec) -> Option<Self> {
        match &server.kind {
            ServerKind::Http(_) => None,
            ServerKind::Stdio(stdio) if stdio.confinement.is_some() => Some(Self::On),
            ServerKind::Stdio(_) => Some(Self::Off),
        }
    }
}

impl Wall {
    pub(crate) fn all(standing: &Standing) -> Vec<Self> {
        let owned = |means: &[&str]| means.iter().map(|&name| name.to_owned()).collect();
        standing
            .by_wall()
            .map(|(name, means)| Self { name: name.to_owned(), made_of: owned(means) })
            .collect()
    }
}

impl From<servers::ScopeProcess> for ScopeProcess {
    fn from(servers::ScopeProcess { tools, pid }: servers::ScopeProcess) -> Self {
        Self { tools, pid }
    }
}

impl From<process::Ended> for Processes {
    fn from(ended: process::Ended) -> Self {
        match ended {
            process::Ended::All => Self::AllEnded,
            process::Ended::NotYet => Self::StillDying,
        }
    }
}

impl EndReason {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Broken => "broken",
            Self::Cloned => "cloned",
            Self::Expired => "expired",
            Self::Goodbye => "goodbye",
            Self::GraceOver => "grace-over",
            Self::Killed => "killed",
            Self::Stopped => "stopped",
        }
    }
}
