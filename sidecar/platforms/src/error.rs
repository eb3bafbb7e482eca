//! Why a sandbox cannot be reached, and whether a retry may help.

use std::time::Duration;

use crate::Suspension;

/// A failed request to a platform or a sandbox. The text names the action that failed, and never contains a token or a key.
#[derive(Debug, thiserror::Error)]
pub enum PlatformError {
    /// The platform refused the API key.
    #[error("{action}: the platform refused the API key (HTTP {status})")]
    Unauthorized { action: &'static str, status: u16 },
    /// There is no such sandbox, or it belongs to another account.
    #[error("{action}: the platform has no sandbox `{sandbox}` for this API key")]
    NoSandbox { action: &'static str, sandbox: String },
    /// The platform knows the sandbox by another id. A sandbox has one id, so that two attachments of it are recognised.
    #[error("{action}: the id of the sandbox `{given}` is `{id}`; attach it by that id")]
    OtherId { action: &'static str, given: String, id: String },
    /// Resuming the sandbox was not requested.
    #[error("{action}: the sandbox is {suspension}")]
    Suspended { action: &'static str, suspension: Suspension },
    /// A limit of the account is reached.
    #[error("{action}: the platform's limit is reached: {why}")]
    Quota { action: &'static str, why: String },
    /// A temporary failure of the network, the platform or the sandbox.
    #[error("{action}: {why}")]
    Unavailable { action: &'static str, why: String, retry_after: Option<Duration> },
    /// The response is not as the platform documents it, or an address is invalid: a retry does not help.
    #[error("{action}: {why}")]
    Protocol { action: &'static str, why: String },
    /// The sandbox cannot run the shim: no such architecture, no writable directory, a missing program.
    #[error("{action}: {why}")]
    Sandbox { action: &'static str, why: String },
}

impl PlatformError {
    /// Whether the same request may succeed later without a change by the operator.
    pub fn may_succeed_later(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Quota { .. } | Self::Suspended { .. })
    }
}
