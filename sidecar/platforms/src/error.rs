//! Why a sandbox cannot be reached, and whether trying again may help.

use std::time::Duration;

/// A failed step towards a sandbox. The text names what was being done, never a token or a key.
#[derive(Debug, thiserror::Error)]
pub enum PlatformError {
    /// The platform refused the API key.
    #[error("{doing}: the platform refused the API key (HTTP {status})")]
    Unauthorized { doing: &'static str, status: u16 },
    /// There is no such sandbox, or it belongs to another account.
    #[error("{doing}: the platform has no sandbox `{sandbox}` for this API key")]
    NoSandbox { doing: &'static str, sandbox: String },
    /// The sandbox is paused, stopped or archived, and resuming it was not requested.
    #[error("{doing}: the sandbox is suspended")]
    Suspended { doing: &'static str },
    /// A limit of the account.
    #[error("{doing}: the platform's limit is reached: {why}")]
    Quota { doing: &'static str, why: String },
    /// The network, the platform or the sandbox failed for now.
    #[error("{doing}: {why}")]
    Unavailable { doing: &'static str, why: String, retry_after: Option<Duration> },
    /// The answer is not what the platform's contract says: trying again does not help.
    #[error("{doing}: {why}")]
    Protocol { doing: &'static str, why: String },
    /// The sandbox cannot run the shim: no such architecture, no writable directory, a missing program.
    #[error("{doing}: {why}")]
    Sandbox { doing: &'static str, why: String },
}

impl PlatformError {
    /// Whether the same request may succeed later without a change by the operator.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Quota { .. } | Self::Suspended { .. })
    }
}
