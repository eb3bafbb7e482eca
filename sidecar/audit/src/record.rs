//! The records. Names and numbers only: no argument, no result and no credential is ever a field.
//!
//! Method and tool names come from the sandbox, rules from the configuration, details from errors: **the caller
//! scrubs them first**. Here they are only cut and escaped.
//!
//! Other programs read the member names: new ones may be added, none is ever renamed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::chain::Hash;
use super::text::{Members, name};
use cofferdam_base::metrics::RequestOutcome;
use cofferdam_policy::Verdict;

/// Written before a request is forwarded or refused.
#[derive(Clone, Copy, Debug)]
pub struct DecisionRecord<'a> {
    pub call: Call<'a>,
    /// A keyed hash of the arguments, so that calls can be compared without storing arguments.
    pub arguments: Option<&'a Mac>,
    pub verdict: Verdict,
    pub rule: &'a str,
    /// Digest of the policy that was in force.
    pub policy: &'a str,
    /// The pattern of the scope that this tool belongs to, if any.
    pub scope: Option<&'a str>,
    pub secrets: &'a [SecretUse<'a>],
    /// Bytes of the message.
    pub bytes: u64,
    pub followed_by: FollowedBy,
}

/// Whether an outcome record will follow, for which the budget reserves bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FollowedBy {
    /// A notification, or a refusal, which this record already states.
    Nothing,
    Outcome,
}

/// Identifies a message; the same in a decision and its outcome.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    pub caller: &'a Caller,
    pub sent_by: SentBy,
    /// Counts the messages of the harness, or the requests of the link's servers, from 1.
    pub seq: u64,
    pub method: &'a str,
    pub tool: Option<&'a str>,
}

/// Who sent a message. A request of a server is numbered in the member `to_harness` instead of `seq`, so that a search for
/// a message of the harness never finds it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SentBy {
    Harness,
    Server,
}

/// Session, link and server, formatted once for all records of a link by [`Audit::caller`](super::Audit::caller).
#[derive(Clone, Debug)]
pub struct Caller {
    pub(super) session: Arc<str>,
    /// The members of a record that name session and link.
    link: Box<[u8]>,
    /// The member that names the server; empty if no server is concerned.
    server: Box<[u8]>,
}

/// A secret of the server or of the call's scope. Only the first 16 are written.
#[derive(Clone, Copy, Debug)]
pub struct SecretUse<'a> {
    pub name: &'a str,
    /// A hash of the lease id, never the id itself.
    pub lease: Option<&'a str>,
    pub vault_request: Option<&'a str>,
}

/// Written after a response, or when it is clear that there will be none.
#[derive(Clone, Copy, Debug)]
pub struct OutcomeRecord<'a> {
    pub call: Call<'a>,
    pub result: CallResult,
    /// The stable code of a refusal or an error of the sidecar, for instance `server_unavailable`.
    pub code: Option<&'a str>,
    /// Bytes of the response.
    pub bytes: u64,
    pub duration: Duration,
    /// How many values were scrubbed from the response.
    pub redactions: u64,
    /// The secrets that the call was sent with, if they differ from those in its decision; else empty.
    pub secrets: &'a [SecretUse<'a>],
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CallResult {
    Cancelled,
    Error,
    OutcomeUnknown,
    Refused,
    Result,
}

/// Anything else that is recorded.
#[derive(Clone, Copy, Debug)]
pub struct EventRecord<'a> {
    pub event: Event,
    pub session: Option<&'a str>,
    pub link: Option<&'a str>,
    pub server: Option<&'a str>,
    pub detail: Option<&'a str>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    Alert,
    BudgetExhausted,
    /// A connection of a confined server ended.
    ConnectionClosed,
    /// A connection of a confined server could not be made.
    ConnectionFailed,
    /// The configuration does not allow a connection that a confined server tried to make.
    ConnectionRefused,
    /// Connections of a confined server that have no record of their own.
    ConnectionsUnrecorded,
    LinkEnd,
    LinkStart,
    Reload,
    /// A server process was replaced by one with a newer credential, or could not be.
    Replacement,
    SessionEnd,
    SessionStart,
    SidecarStart,
    SidecarStop,
}

/// HMAC-SHA-256 of a call's arguments, shown as hex.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Mac(pub(super) Hash);

impl<'a> EventRecord<'a> {
    pub fn new(event: Event) -> Self {
        Self { event, session: None, link: None, server: None, detail: None }
    }

    /// The length in bytes, with its chain, that is reserved for an event of a link or a session: the ids in it are the
    /// sidecar's own, which are short, and only the detail may be as long as a field may be.
    pub(super) fn reserved_length(max_field_bytes: usize) -> u64 {
        (max_field_bytes + MARK + FRAME) as u64
    }

    pub(super) fn write(&self, members: &mut Members<'_>) {
        members
            .plain(name!("event"), self.event.as_str().as_bytes())
            .optional_text(name!("session"), self.session)
            .optional_text(name!("link"), self.link)
            .optional_text(name!("server"), self.server)
            .optional_text(name!("detail"), self.detail);
    }
}

impl DecisionRecord<'_> {
    pub(super) fn write(&self, members: &mut Members<'_>) {
        self.call.write(members);
        if let Some(mac) = self.arguments {
            members.plain(name!("args"), mac.0.as_bytes());
        }
        members
            .plain(name!("verdict"), verdict_text(self.verdict).as_bytes())
            .text(name!("rule"), self.rule)
            .text(name!("policy"), self.policy)
            .optional_text(name!("scope"), self.scope);
        write_secrets(members, self.secrets, |_| true);
        members.number(name!("bytes"), self.bytes);
    }
}

impl OutcomeRecord<'_> {
    /// The maximum length of an outcome record in bytes, with its chain: a decision reserves this much for it.
    pub(super) fn max_length(max_field_bytes: usize) -> u64 {
        const TEXTS: usize = 6; // session, link, server, method, tool, code
        const SECRET: usize = 3 * MAX_ID_BYTES + 64; // name, lease and request, and their member names
        (TEXTS * (max_field_bytes + MARK) + MAX_SECRETS * SECRET + FRAME) as u64
    }

    pub(super) fn write(&self, members: &mut Members<'_>) {
        self.call.write(members);
        members
            .plain(name!("result"), self.result.as_str().as_bytes())
            .optional_text(name!("code"), self.code)
            .number(name!("bytes"), self.bytes)
            .number(name!("duration_us"), u64::try_from(self.duration.as_micros()).unwrap_or(u64::MAX))
            .number(name!("redactions"), self.redactions);
        // The reservation assumes short texts; a longer one would be a bug elsewhere.
        write_secrets(members, self.secrets, |text| {
            text.len() <= MAX_ID_BYTES && text.bytes().all(is_visible_plain)
        });
    }
}

impl Caller {
    pub(super) fn new(session: &str, link: &str, server: Option<&str>, max_field_bytes: usize) -> Self {
        let (mut link_members, mut server_member) = (Vec::new(), Vec::new());
        Members::new(&mut link_members, max_field_bytes)
            .text(name!("session"), session)
            .text(name!("link"), link);
        Members::new(&mut server_member, max_field_bytes).optional_text(name!("server"), server);
        Self { session: session.into(), link: link_members.into(), server: server_member.into() }
    }
}

impl Call<'_> {
    /// Link and sequence number are adjacent, because `lookup` searches for both together.
    fn write(&self, members: &mut Members<'_>) {
        members.formatted(&self.caller.link);
        match self.sent_by {
            SentBy::Harness => members.number(name!("seq"), self.seq),
            SentBy::Server => members.number(name!("to_harness"), self.seq),
        };
        members
            .formatted(&self.caller.server)
            .text(name!("method"), self.method)
            .optional_text(name!("tool"), self.tool);
    }
}

impl CallResult {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::Error => "error",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::Refused => "refused",
            Self::Result => "result",
        }
    }
}

impl Event {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Alert => "alert",
            Self::BudgetExhausted => "budget_exhausted",
            Self::ConnectionClosed => "connection_closed",
            Self::ConnectionFailed => "connection_failed",
            Self::ConnectionRefused => "connection_refused",
            Self::ConnectionsUnrecorded => "connections_unrecorded",
            Self::LinkEnd => "link_end",
            Self::LinkStart => "link_start",
            Self::Reload => "reload",
            Self::Replacement => "replacement",
            Self::SessionEnd => "session_end",
            Self::SessionStart => "session_start",
            Self::SidecarStart => "sidecar_start",
            Self::SidecarStop => "sidecar_stop",
        }
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// `… (18446744073709551615 bytes)`
const MARK: usize = 40;
/// Names of members, numbers, time and chain.
const FRAME: usize = 512;
/// How many secrets a record names: bounds the line; servers have far fewer.
const MAX_SECRETS: usize = 16;
/// The maximum length in bytes of a secret's name, a lease's hash or a request id of Vault.
const MAX_ID_BYTES: usize = 64;

/// Leaves out texts for which `may_be_written` is false.
fn write_secrets(
    members: &mut Members<'_>,
    secrets: &[SecretUse<'_>],
    may_be_written: impl Fn(&&str) -> bool,
) {
    members.objects(name!("secrets"), &secrets[..secrets.len().min(MAX_SECRETS)], |members, secret| {
        members
            .text(name!("name"), Some(secret.name).filter(&may_be_written).unwrap_or_default())
            .optional_text(name!("lease"), secret.lease.filter(&may_be_written))
            .optional_text(name!("vault_request"), secret.vault_request.filter(&may_be_written));
    });
}

/// Whether a byte is visible ASCII that is written without an escape.
fn is_visible_plain(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\')
}

fn verdict_text(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allow",
        Verdict::Ask => "ask",
        Verdict::Deny => "deny",
    }
}

impl From<CallResult> for RequestOutcome {
    fn from(result: CallResult) -> Self {
        match result {
            CallResult::Cancelled => Self::Cancelled,
            CallResult::Error => Self::Error,
            CallResult::OutcomeUnknown => Self::Unknown,
            CallResult::Refused => Self::Refused,
            CallResult::Result => Self::Result,
        }
    }
}
