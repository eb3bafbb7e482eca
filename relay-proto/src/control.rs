//! The control frames that are JSON: `Hello`, `Welcome`, `Refusal`, `Status`, `Goodbye`.
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
    /// What the connection is for.
    #[serde(default, skip_serializing_if = "Purpose::is_link")]
    pub purpose: Purpose,
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

/// What a connection is for.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    #[default]
    Link,
    /// Only to be told how things stand: a [`Status`] answers, and nothing is opened.
    Status,
}

impl Purpose {
    fn is_link(&self) -> bool {
        *self == Self::Link
    }
}

/// How the shim proves who it is.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Proof {
    /// The key that the shim proved in the TLS handshake, which is enrolled already.
    Key {
        /// The latest epoch of that key; none where there never was one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        epoch: Option<Epoch>,
    },
    /// Whoever can open this socket.
    Socket,
    /// A one-time ticket: it enrols the key that the shim proved in the TLS handshake.
    Ticket { ticket: Ticket },
}

/// Turns with every new link of a key, and is kept beside the key: of two copies of that key one falls behind.
#[derive(Clone, Deserialize, Eq, PartialEq, Serialize)]
pub struct Epoch(pub String);

/// Unguessable, 256 bits, in hex.
#[derive(Clone, Deserialize, Eq, PartialEq, Serialize)]
pub struct ResumeToken(pub String);

/// Unguessable, 256 bits, in hex; good for one enrolment.
#[derive(Clone, Deserialize, Eq, PartialEq, Serialize)]
pub struct Ticket(pub String);

/// What lets somebody in is never printed.
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
    /// The key's new epoch, where the shim came with a key or a ticket and the link is fresh. It counts when the shim's
    /// first frame arrives, so it is written down before that frame is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
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

/// How things stand, for whoever asked with [`Purpose::Status`].
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Status {
    /// The sandbox's name, as its enrolment has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub grant: Name,
    /// What the grant names.
    pub servers: Vec<Name>,
    /// The session that this sandbox has now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// How many links it has.
    pub links: u64,
    /// Until the enrolment is over; none on a shared socket, where each link has its own time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<u64>,
    /// The sidecar's own version.
    #[serde(default)]
    pub software: String,
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
