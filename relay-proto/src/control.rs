//! The control frames that are JSON: `Hello`, `Welcome`, `Refusal`, `Goodbye`.
//!
//! Unknown fields are ignored and new ones are optional, so that a later version can add.

use serde::{Deserialize, Serialize};

use crate::name::Name;

/// The shim's first frame: who I am, what I want, and where I stopped.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Hello {
    /// Protocol versions the shim speaks, best first.
    pub versions: Vec<u16>,
    pub proof: Proof,
    /// Which server; none means the grant's only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<Name>,
    /// The link to take up again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<Resume>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// The shim's own version, for people who read logs.
    #[serde(default)]
    pub software: String,
}

/// Where the shim stopped.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Resume {
    pub link: String,
    pub token: ResumeToken,
    /// The last sequence number received.
    pub received: u64,
}

/// How the shim proves who it is.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Proof {
    /// Whoever can open this socket.
    Socket,
    /// A one-time ticket, with the public key that is to be enrolled.
    Ticket { ticket: String },
    /// The key of the transport's client certificate.
    Key,
}

/// Unguessable, 256 bits, in hex; `Debug` hides it.
#[derive(Clone, Deserialize, Eq, PartialEq, Serialize)]
pub struct ResumeToken(pub String);

impl std::fmt::Debug for ResumeToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ResumeToken(…)")
    }
}

/// The sidecar's yes.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Welcome {
    pub version: u16,
    pub session: String,
    pub link: String,
    pub server: Name,
    pub resumed: Resumed,
    pub token: ResumeToken,
    /// The last sequence number received.
    pub received: u64,
    /// Bytes the shim may have under way unacknowledged.
    pub window: u64,
    /// The largest message, in bytes.
    pub max_message: u64,
    pub heartbeat_ms: u64,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resumed {
    /// A new link: nothing is remembered.
    Fresh,
    /// The same link: both sides replay what the other has not received.
    Resumed,
}

/// The sidecar's no.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Refusal {
    /// A stable code: see [`crate::code::Code`].
    pub code: String,
    pub message: String,
    pub retry: Retry,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Retry {
    AfterMs(u64),
    Never,
}

/// The orderly end of a link, said by either side.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Goodbye {
    /// `done` from a shim whose stdin ended; `session_ended` and the like from a sidecar.
    pub code: String,
    #[serde(default)]
    pub message: String,
    pub retry: Retry,
}
