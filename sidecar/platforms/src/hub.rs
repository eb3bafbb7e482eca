//! The shim that is uploaded into a sandbox, and how its hub is started there.

use std::sync::Arc;

use bytes::Bytes;

use crate::HarnessSettings;

/// The processor of a sandbox.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Architecture {
    Aarch64,
    X86_64,
}

/// A static shim and its digest.
#[derive(Clone)]
pub struct ShimBinary {
    pub bytes: Bytes,
    /// SHA-256, lower-case hexadecimal.
    pub digest: String,
}

/// Returns the static shim for an architecture; the error is a message that says what to do.
pub type ShimSource = Arc<dyn Fn(Architecture) -> Result<ShimBinary, String> + Send + Sync>;

/// What a client needs in order to start a hub.
#[derive(Clone)]
pub struct HubSetup {
    pub shim: ShimSource,
    /// The public key of the sidecar, the only one that the hub accepts. Not secret.
    pub pin: String,
    /// The settings file of the harness in the sandbox, if entries are to be added to it.
    pub harness: Option<Arc<dyn HarnessSettings>>,
}

impl Architecture {
    /// Parses the output of `uname -m`, or the name that container images use.
    pub fn from_machine(name: &str) -> Option<Self> {
        match name {
            "aarch64" | "arm64" => Some(Self::Aarch64),
            "x86_64" | "amd64" => Some(Self::X86_64),
            _ => None,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Aarch64 => "aarch64",
            Self::X86_64 => "x86_64",
        }
    }
}
