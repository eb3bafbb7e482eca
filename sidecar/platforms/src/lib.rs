//! Clients of the platforms that run sandboxes: E2B and Daytona, and platforms that are compatible with them.
//!
//! A client finds a sandbox, installs the shim, starts the hub there and returns the pipe to that hub. The data in the pipe is
//! TLS between the sidecar and the hub, which the platform cannot read.
//!
//! What must stay true: the platform's API key goes to the control API only, never into a sandbox nor to a service inside
//! one; nothing secret is in an argument, an environment variable or a URL, because platforms log them; a paused sandbox is
//! not resumed unless the operator wants that; no redirect is followed; every response is bounded. This crate knows nothing of
//! the configuration, of enrolments or of links.
//!
//! | module | what it holds |
//! |---|---|
//! | `error` | why a sandbox cannot be reached, and whether a retry may help |
//! | `guest` | what every client can do in a running sandbox |
//! | `harness_settings` | adds MCP servers to a harness's settings file |
//! | `hub` | the shim to upload, and how its hub is started |
//! | `install` | installs the shim in a sandbox |
//! | `multipart` | uploads one file as `multipart/form-data` |
//! | `platform_address` | the address of a platform, and whether two tables of the configuration lead to the same one |
//! | `prepared` | a sandbox that connects to the sidecar by itself |
//! | `redactor` | removes the secrets of a client from texts of the platform |
//! | `rest` | requests to a platform's HTTP services, and the errors for refused requests |
//! | `sandbox_id` | the id of a sandbox, safe to put into a URL |
//! | `temporary_files` | removes what interrupted work has left in a sandbox |
//! | [`daytona`] | Daytona: control API, toolbox, preview links, SSH |
//! | [`e2b`] | E2B: control API, and the Connect protocol of `envd` |

#![forbid(unsafe_code)]

pub mod daytona;
pub mod e2b;
mod error;
mod guest;
mod harness_settings;
mod hub;
mod install;
mod multipart;
mod platform_address;
mod prepared;
mod redactor;
mod rest;
mod sandbox_id;
mod temporary_files;

use http::{HeaderValue, Uri};
use relay_carriage::BoxedStream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use error::PlatformError;
pub use harness_settings::{HarnessSettings, MergedSettings};
pub use hub::{Architecture, HubSetup, ShimBinary, ShimSource};
pub use prepared::{EarlierKey, PreparedSandbox};
pub use sandbox_id::{InvalidSandboxId, SandboxId};

/// Which API a platform has. Compatible platforms are of the same kind at another address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PlatformKind {
    Daytona,
    E2b,
}

/// The kind and the addresses of a platform.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PlatformSettings {
    pub kind: PlatformKind,
    /// The address of the control API. `None`: the platform's public address.
    pub api_url: Option<Uri>,
    /// The address at which the services inside sandboxes are reached. `None`: the address that the platform reports.
    pub sandbox_url: Option<Uri>,
}

/// The platform's API key as the value of a header. Its `Debug` does not print the key.
#[derive(Clone)]
pub struct ApiKey(HeaderValue);

/// The state of a sandbox, as the control API reports it. A client that asks for the state does not resume the sandbox.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SandboxState {
    Running,
    /// It exists and can be resumed.
    Suspended(Suspension),
}

/// In which way a sandbox is suspended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Suspension {
    /// Its files are in an archive, from which the platform restores them when the sandbox is started.
    Archived,
    /// Its processes go on when it is resumed.
    Paused,
    /// Its processes have ended.
    Stopped,
}

/// What to do with a suspended sandbox.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WhenSuspended {
    Refuse,
    Resume,
}

/// Whether an open pipe counts as activity, so that the platform does not suspend an idle sandbox.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KeepAwake {
    No,
    Yes,
}

/// Both directions of the pipe into a sandbox's hub. Dropping it ends the hub's pipe.
pub type Pipe = BoxedStream;

/// A step of attaching that takes long enough for `cofferdam attach` to show it; also part of the admin API's JSON.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
#[schemars(inline)]
pub enum Progress {
    Finding,
    Resuming,
    /// The bytes of the shim that were sent so far, and its size.
    Uploading {
        sent: u64,
        total: u64,
    },
    StartingHub,
    Connecting,
}

impl ApiKey {
    /// `value` must be the key alone, without a scheme such as `Bearer`.
    pub fn new(mut value: HeaderValue) -> Self {
        value.set_sensitive(true);
        Self(value)
    }

    pub(crate) fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

impl std::fmt::Display for Suspension {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Archived => "archived",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
        })
    }
}

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiKey(…)")
    }
}
