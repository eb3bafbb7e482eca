//! Clients of the platforms that run sandboxes: E2B and Daytona, and what is compatible with them.
//!
//! A client finds a sandbox, puts the shim into it, starts the hub there and returns the pipe that leads to that hub. What
//! travels in the pipe is TLS between the sidecar and the hub; the platform only carries it.
//!
//! What must stay true: the platform's API key goes to the control API only, never into a sandbox nor to a service inside
//! one; nothing secret is in an argument, an environment variable or a URL, because platforms log them; a paused sandbox is
//! not woken unless the operator asked for it; no redirect is followed; every response is bounded. Nothing here knows the
//! configuration, enrolments or links.
//!
//! | module | what it holds |
//! |---|---|
//! | `error` | why a sandbox cannot be reached, and whether trying again may help |
//! | `guest` | what every client can do in a running sandbox |
//! | `harness_settings` | adds MCP servers to a harness's settings file |
//! | `hub` | the shim to upload, and how its hub is started |
//! | `install` | puts the shim into a sandbox |
//! | `prepared` | a sandbox that connects to the sidecar by itself |
//! | `redactor` | the secrets of a client, and texts of the platform without them |
//! | `rest` | requests to a platform's HTTP services, and what a refusal means |
//! | `sandbox_id` | the id of a sandbox, safe to put into a URL |
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
mod prepared;
mod redactor;
mod rest;
mod sandbox_id;

use http::{HeaderValue, Uri};
use relay_carriage::BoxedStream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use error::PlatformError;
pub use harness_settings::{HarnessSettings, MergedSettings};
pub use hub::{Architecture, HubSetup, ShimBinary, ShimSource};
pub use prepared::{EarlierKey, PreparedSandbox};
pub use sandbox_id::{InvalidSandboxId, SandboxId};

/// Which protocol a platform speaks. Compatible platforms are of the same kind at another address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PlatformKind {
    Daytona,
    E2b,
}

/// Where a platform is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PlatformSettings {
    pub kind: PlatformKind,
    /// The control API; None: the platform's own public address.
    pub api_url: Option<Uri>,
    /// Replaces the whole address of the services inside a sandbox; None: as the platform says.
    pub sandbox_url: Option<Uri>,
}

/// The platform's API key, ready to be sent as a header. Its `Debug` prints nothing of it.
#[derive(Clone)]
pub struct ApiKey(HeaderValue);

/// The state of a sandbox, as the control API reports it. Asking does not wake the sandbox.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SandboxState {
    Running,
    /// Paused, stopped or archived: it exists and can be resumed.
    Suspended,
}

/// What is to be done with a suspended sandbox.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WhenSuspended {
    Refuse,
    Resume,
}

/// Whether an attached sandbox may be suspended by the platform while nothing uses it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KeepAwake {
    No,
    Yes,
}

/// Both directions of the pipe into a sandbox's hub. Dropping it ends the hub's pipe.
pub type Pipe = BoxedStream;

/// A step of attaching that takes long enough to be shown, here and in the JSON of the admin API.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
#[schemars(inline)]
pub enum Progress {
    Finding,
    Resuming,
    /// Bytes of the shim sent so far, of all.
    Uploading {
        sent: u64,
        total: u64,
    },
    StartingHub,
    Connecting,
}

impl ApiKey {
    /// The header's value must be the bare key.
    pub fn new(mut value: HeaderValue) -> Self {
        value.set_sensitive(true);
        Self(value)
    }

    pub(crate) fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiKey(…)")
    }
}
