//! The shim that is uploaded into a sandbox, and how its hub is started there.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

/// In a harness's file: the path of the shim in the sandbox.
const SHIM_PLACEHOLDER: &str = "{shim}";

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

/// Finds the static shim for an architecture; the error is a sentence with the next step.
pub type ShimSource = Arc<dyn Fn(Architecture) -> Result<ShimBinary, String> + Send + Sync>;

/// What a client needs in order to start a hub.
#[derive(Clone)]
pub struct HubSetup {
    pub shim: ShimSource,
    /// The public key of the sidecar, which the hub accepts alone. Not secret.
    pub pin: String,
    /// Files for the harness in the sandbox: path and content. A relative path is below the home of the sandbox's user. In
    /// a content, `{shim}` stands for the path of the shim in the sandbox. They hold no secret.
    pub harness_files: Vec<(PathBuf, Bytes)>,
}

impl HubSetup {
    /// The harness's files for a sandbox in which the shim has this path.
    pub(crate) fn harness_files_for(&self, shim: &str) -> impl Iterator<Item = (&Path, Bytes)> {
        self.harness_files.iter().map(move |(path, content)| {
            let content = match std::str::from_utf8(content) {
                Ok(text) if text.contains(SHIM_PLACEHOLDER) => text.replace(SHIM_PLACEHOLDER, shim).into(),
                _ => content.clone(),
            };
            (path.as_path(), content)
        })
    }
}

impl Architecture {
    /// As `uname -m` prints it.
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
