//! The control frames that are JSON: `Hello`, `Welcome`, `Refusal`, `Status`, `Goodbye`.
//!
//! Unknown fields are ignored and new ones are optional, so that a later version can add some.

use serde::{Deserialize, Serialize};

use crate::name::Name;

/// The shim's first frame: its proof of identity, what it requests, and the link to resume.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Hello {
    /// Protocol versions the shim speaks, best first.
    pub versions: Vec<u16>,
    pub proof: Proof,
    #[serde(default, skip_serializing_if = "Purpose::is_link")]
    pub purpose: Purpose,
    /// Which MCP server; `None` means the only server of the grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<Name>,
    /// The link to resume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<Resume>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// The shim's name and version, for logs.
    #[serde(default)]
    pub software: String,
}

/// The link to resume, and what the shim has received on it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Resume {
    pub link: String,
    pub token: ResumeToken,
    /// The last sequence number that the shim received.
    pub received: u64,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    #[default]
    Link,
    /// To get a [`Status`]; no link is opened.
    Status,
}

impl Purpose {
    fn is_link(&self) -> bool {
        *self == Self::Link
    }
}

/// How the shim proves its identity.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Proof {
    /// The key that the shim proved in the TLS handshake, which is enrolled already.
    Key {
        /// The latest epoch of that key; `None` before the first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        epoch: Option<Epoch>,
    },
    /// The right to open this socket is the proof.
    Socket,
    /// A one-time ticket: it enrols the key that the shim proved in the TLS handshake.
    Ticket { ticket: Ticket },
}

/// Replaced with every fresh link of a key, and stored with the key in the sandbox: of two copies of a key, one has an
/// outdated epoch.
#[derive(Clone, Deserialize, Eq, PartialEq, Serialize)]
pub struct Epoch(pub String);

/// Unguessable, 256 bits, in hex.
#[derive(Clone, Deserialize, Eq, PartialEq, Serialize)]
pub struct ResumeToken(pub String);

/// Unguessable, 256 bits, in hex; valid for one enrolment.
#[derive(Clone, Deserialize, Eq, PartialEq, Serialize)]
pub struct Ticket(pub String);

/// Epochs, tokens and tickets are credentials: `Debug` does not print them.
macro_rules! hidden {
    ($($name:ident),*) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(concat!(stringify!($name), "(…)"))
            }
        }
    )*};
}

hidden!(Epoch, ResumeToken, Ticket);

/// The sidecar accepts the shim.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Welcome {
    pub version: u16,
    pub session: String,
    pub link: String,
    pub server: Name,
    pub resumed: Resumed,
    pub token: ResumeToken,
    /// The key's new epoch, if the shim presented a key or a ticket and the link is fresh. It becomes valid when the shim's
    /// first frame arrives, so the shim stores it before it sends that frame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
    /// The last sequence number that the sidecar received.
    pub received: u64,
    /// Bytes that the shim may have in flight unacknowledged.
    pub window: u64,
    /// The largest message in either direction, in bytes.
    pub max_message: u64,
    pub heartbeat_ms: u64,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resumed {
    /// A new link: sequence numbers start at 1, and no earlier frame is sent again.
    Fresh,
    /// The same link: both sides send again what the other has not received.
    Resumed,
}

/// The sidecar refuses the shim.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Refusal {
    /// A stable code: see [`crate::code::Code`].
    pub code: String,
    pub message: String,
    pub retry: Retry,
}

/// The response to [`Purpose::Status`].
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Status {
    /// The sandbox's name, as its enrolment has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub grant: Name,
    /// The servers that the grant names.
    pub servers: Vec<Name>,
    /// The sandbox's current session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// How many links the sandbox has.
    pub links: u64,
    /// Until the enrolment expires; `None` on a shared socket, where each link expires by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<u64>,
    /// The sidecar's name and version.
    #[serde(default)]
    pub software: String,
    /// The host's clock, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix_time: Option<u64>,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Retry {
    AfterMs(u64),
    Never,
}

/// The orderly end of a link, sent by either side.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Goodbye {
    /// `done` from a shim whose stdin ended; `session_ended` and the like from a sidecar.
    pub code: String,
    #[serde(default)]
    pub message: String,
    pub retry: Retry,
}
