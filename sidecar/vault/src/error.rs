//! Why a request to Vault failed, and what an operator can do about it.
//!
//! What must stay true: an error shows the method and the path of its request, never the body or the token. Of the
//! response it shows only the messages in `errors`, each whole or not at all, without any secret that was sent and without
//! anything that looks like a token.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use ::http::Method;
use cofferdam_base::metrics::VaultFailure;
use serde::Deserialize;

/// How many of Vault's messages are shown.
const MAX_MESSAGES: usize = 3;
/// Longer messages of Vault are not shown. None is cut: the rest of a credential that was cut in two would not be recognised
/// by the scrubbers through which an error is shown.
const MAX_MESSAGE_BYTES: usize = 4096;
/// Shorter texts are not hidden, because they would be found in ordinary words.
const MIN_HIDDEN_BYTES: usize = 4;
/// A token has at least this many characters after its prefix.
const MIN_TOKEN_TAIL: usize = 16;

/// A request that failed. Print it with its sources and [`VaultError::next_step`], or use [`VaultError::explained`].
#[derive(Clone, Debug, thiserror::Error)]
#[error("send {request} to Vault")]
pub struct VaultError {
    pub request: RequestLine,
    #[source]
    pub problem: Problem,
}

/// The method and path of a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RequestLine {
    pub method: Method,
    pub path: String,
}

/// Why there is no result.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Problem {
    /// A file of the sidecar's own cannot be used. Nothing was sent.
    #[error("cannot read the credential `{}`: {why}", file.display())]
    Credential { file: PathBuf, why: String },
    /// The lease expired, was revoked or never existed; Vault does not say which.
    #[error("Vault has no such lease{messages}")]
    Gone { messages: VaultMessages },
    /// Nothing was sent.
    #[error("this is not a valid path in Vault; no request was sent")]
    InvalidPath,
    #[error("Vault's response cannot be read: {why}")]
    Malformed { why: &'static str },
    /// The request was sent, and Vault may have executed it.
    #[error("Vault did not answer and may have executed the request: {why}")]
    NoAnswer { why: String },
    #[error(
        "a standby redirected the request (HTTP {status}{}); redirects are not followed",
        at(host.as_deref())
    )]
    Redirect { status: u16, host: Option<String> },
    #[error("{}{messages}", meaning(*status))]
    Status { status: u16, messages: VaultMessages, retry_after: Option<Duration> },
    #[error("the session or the sidecar's login has ended")]
    Stopped,
    #[error("Vault's response has more than {limit} bytes")]
    TooLarge { limit: usize },
    /// Nothing was sent.
    #[error("Vault cannot be reached: {why}")]
    Unreachable { why: String },
    /// The response-wrapped secret-id was not created by the configured role.
    #[error("ALERT: the wrapped secret-id was not made by `{expected}`: another party may have replaced it")]
    WrapNotFromRole { expected: String },
    /// This sidecar has unwrapped the secret-id, at an earlier start or, as a check finds, while it runs. Nothing was
    /// sent.
    #[error(
        "this sidecar has already unwrapped the wrapped secret-id; a wrap is for one start, because the sidecar stores neither the secret-id nor its login"
    )]
    WrapUsedBySidecar,
    /// The response-wrapped secret-id does not exist any more.
    #[error("{}", unwrapped_by(*by))]
    WrapSpent { by: UnwrappedBy },
}

/// Who may have unwrapped a secret-id that is gone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum UnwrappedBy {
    /// The sidecar sent a request to unwrap it and received no response.
    PerhapsSidecar,
    /// The sidecar never sent such a request.
    AnotherParty,
}

/// The kinds of failure that callers distinguish.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// A security incident: another party unwrapped or replaced a secret-id. Report it; do not retry.
    Alert,
    /// Retry, after this pause if Vault requested one.
    Busy {
        retry_after: Option<Duration>,
    },
    /// A credential file of the sidecar cannot be used.
    Credential,
    /// The token is invalid, or its policies do not allow this.
    Denied,
    /// Vault, or a system behind it, failed.
    Failed,
    /// The lease does not exist any more.
    Gone,
    /// The request is wrong: a retry will not help.
    Invalid,
    /// The response is not one of Vault's, or is too large.
    Malformed,
    /// There is nothing at this path.
    Missing,
    Sealed,
    /// This node is a standby.
    Standby,
    Stopped,
    /// Vault is not initialised.
    Uninitialised,
    Unreachable,
}

/// The messages in `errors` of a response, safe to show.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct VaultMessages(Vec<String>);

impl VaultError {
    pub fn kind(&self) -> Kind {
        match &self.problem {
            Problem::Credential { .. } | Problem::WrapUsedBySidecar => Kind::Credential,
            Problem::Gone { .. } => Kind::Gone,
            Problem::InvalidPath => Kind::Invalid,
            Problem::Malformed { .. } | Problem::TooLarge { .. } => Kind::Malformed,
            Problem::NoAnswer { .. } | Problem::Unreachable { .. } => Kind::Unreachable,
            Problem::Redirect { .. } => Kind::Standby,
            Problem::Status { status, retry_after, .. } => match status {
                403 => Kind::Denied,
                404 => Kind::Missing,
                412 | 429 => Kind::Busy { retry_after: *retry_after },
                472 | 473 => Kind::Standby,
                501 => Kind::Uninitialised,
                503 => Kind::Sealed,
                500.. => Kind::Failed,
                _ => Kind::Invalid,
            },
            Problem::Stopped => Kind::Stopped,
            Problem::WrapNotFromRole { .. } | Problem::WrapSpent { .. } => Kind::Alert,
        }
    }

    /// What an operator can do about it.
    pub fn next_step(&self) -> &'static str {
        match (&self.problem, self.kind()) {
            (Problem::WrapNotFromRole { .. }, _) => {
                "do not use this secret-id; find out who wrapped it, then deliver one that was wrapped when it was created"
            }
            (_, Kind::Alert) => {
                "find out who unwrapped it (Vault's audit log has `sys/wrapping/unwrap`), destroy that secret-id and deliver a new wrapped one"
            }
            (Problem::WrapUsedBySidecar, _) => {
                "deliver a new wrapped secret-id before each start; the file is read again at the next login"
            }
            (_, Kind::Busy { .. }) => "the sidecar retries; if this continues, raise the quota of this path",
            (_, Kind::Credential) => {
                "correct `auth` in [vault] or the file that it names; the file is read again at the next login"
            }
            (_, Kind::Denied) => {
                "check that the token is valid; if it is, allow this path in its policies: `cofferdam check --online` says what they lack"
            }
            (_, Kind::Failed) => "check Vault's log, and the system behind this path",
            (_, Kind::Gone) => "the sidecar reads the secret again",
            (_, Kind::Invalid) => "correct the path, the role or the values in `write`",
            (Problem::TooLarge { .. }, _) => "use a path with less data",
            (_, Kind::Malformed) => {
                "check that `address` in [vault] is Vault or OpenBao itself, not a web page in front of it"
            }
            (_, Kind::Missing) => "check the path, including its mount, and the namespace",
            (_, Kind::Sealed) => {
                "unseal Vault; credentials that were read before stay valid until they expire"
            }
            (_, Kind::Standby) => {
                "set `address` in [vault] to the active node, or to a load balancer in front of the cluster"
            }
            (_, Kind::Stopped) => "start a new session, or restart the sidecar",
            (_, Kind::Uninitialised) => "initialise Vault: `vault operator init` or `bao operator init`",
            (_, Kind::Unreachable) => {
                "check that Vault is up and reachable from this host, and that `ca-file` is the authority of its certificate"
            }
        }
    }

    /// The problem as a sandbox is told it: no file of the host, no path, role or address of Vault, and none of Vault's
    /// own messages, which may describe systems behind it, such as the address of a database.
    pub(crate) fn for_sandbox(&self) -> String {
        match &self.problem {
            Problem::Credential { .. } => "the sidecar's own credential for Vault cannot be read".into(),
            Problem::Gone { .. } => Problem::Gone { messages: VaultMessages::default() }.to_string(),
            Problem::NoAnswer { .. } => "Vault did not answer and may have executed the request".into(),
            Problem::Redirect { status, .. } => Problem::Redirect { status: *status, host: None }.to_string(),
            Problem::Status { status, .. } => meaning(*status),
            Problem::Unreachable { .. } => "Vault cannot be reached".into(),
            Problem::WrapNotFromRole { .. } => {
                "ALERT: the wrapped secret-id was not made by the configured role: another party may have replaced it"
                    .into()
            }
            // These have no text that depends on the configuration, the host or Vault's response.
            problem @ (Problem::InvalidPath
            | Problem::Malformed { .. }
            | Problem::Stopped
            | Problem::TooLarge { .. }
            | Problem::WrapSpent { .. }
            | Problem::WrapUsedBySidecar) => problem.to_string(),
        }
    }

    /// Request, problem and next step in one line, for the host.
    pub fn explained(&self) -> String {
        format!("{self}: {}; {}", self.problem, self.next_step())
    }
}

impl fmt::Display for RequestLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}`", self.method, self.path)
    }
}

impl VaultMessages {
    /// Reads `errors` of a response, without the texts in `hidden` and without anything that looks like a token.
    pub(crate) fn read<'a>(response: &[u8], hidden: impl Iterator<Item = &'a str>) -> Self {
        #[derive(Deserialize)]
        struct Errors {
            #[serde(default)]
            errors: Vec<String>,
        }
        let Ok(Errors { errors }) = serde_json::from_slice(response) else {
            return Self::default();
        };
        let hidden: Vec<&str> = hidden.filter(|text| text.len() >= MIN_HIDDEN_BYTES).collect();
        Self(errors.into_iter().take(MAX_MESSAGES).map(|message| redacted(message, &hidden)).collect())
    }

    pub(crate) fn contains(&self, text: &str) -> bool {
        self.0.iter().any(|message| message.contains(text))
    }
}

impl fmt::Display for VaultMessages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|message| write!(f, ": {message}"))
    }
}

impl fmt::Debug for VaultMessages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.0).finish()
    }
}

fn meaning(status: u16) -> String {
    let meaning = match status {
        400 => "Vault did not accept the request",
        403 => "Vault refuses: the token is invalid, or its policies do not allow this",
        404 => "Vault has nothing at this path",
        405 => "Vault does not support this operation at this path",
        412 => "replication to this node has not caught up yet",
        429 => "Vault received too many requests, or this node is a standby",
        472 => "this node is a standby for disaster recovery",
        473 => "this node is a performance standby",
        500 => "Vault had an internal error",
        501 => "Vault is not initialised",
        502 => "a system behind Vault failed",
        503 => "Vault is sealed or down for maintenance",
        _ => "Vault returned an unexpected status",
    };
    format!("{meaning} (HTTP {status})")
}

fn at(host: Option<&str>) -> String {
    host.map(|host| format!(" to `{host}`")).unwrap_or_default()
}

fn unwrapped_by(by: UnwrappedBy) -> &'static str {
    match by {
        UnwrappedBy::PerhapsSidecar => {
            "ALERT: the wrapped secret-id is spent; Vault may have sent it to the sidecar in a response that was lost, or to another party"
        }
        UnwrappedBy::AnotherParty => {
            "ALERT: the wrapped secret-id was already unwrapped, revoked or expired, and not by this sidecar: another party may have it"
        }
    }
}

/// A message on one line, without hidden texts and tokens.
fn redacted(mut message: String, hidden: &[&str]) -> String {
    if message.len() > MAX_MESSAGE_BYTES {
        return format!("a message of {} bytes, too long to be shown", message.len());
    }
    for text in hidden {
        message = message.replace(text, "[hidden]");
    }
    let words: Vec<&str> =
        message.split_whitespace().map(|word| if has_token(word) { "[hidden]" } else { word }).collect();
    words.join(" ").chars().filter(|letter| !letter.is_control()).collect()
}

/// Whether a word contains something like `s.XXXX`, `hvs.XXXX` or `hvb.XXXX`.
fn has_token(word: &str) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    ["s.", "b.", "r."].iter().any(|prefix| {
        word.match_indices(prefix).any(|(at, _)| {
            word.as_bytes()[at + 2..].iter().take_while(|byte| is_part(byte)).count() >= MIN_TOKEN_TAIL
        })
    })
}

impl From<Kind> for VaultFailure {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Alert => Self::Alert,
            Kind::Busy { .. } => Self::Busy,
            Kind::Credential => Self::Credential,
            Kind::Denied => Self::Denied,
            Kind::Failed => Self::Failed,
            Kind::Gone => Self::Gone,
            Kind::Invalid => Self::Invalid,
            Kind::Malformed => Self::Malformed,
            Kind::Missing => Self::Missing,
            Kind::Sealed => Self::Sealed,
            Kind::Standby => Self::Standby,
            Kind::Stopped | Kind::Uninitialised => Self::Other,
            Kind::Unreachable => Self::Unreachable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(status: u16) -> VaultError {
        let request = RequestLine { method: Method::GET, path: "database/creds/readonly".into() };
        VaultError {
            request,
            problem: Problem::Status { status, messages: VaultMessages::default(), retry_after: None },
        }
    }

    #[test]
    fn every_status_has_its_meaning() {
        for (code, kind, word) in [
            (400, Kind::Invalid, "did not accept"),
            (403, Kind::Denied, "refuses"),
            (404, Kind::Missing, "nothing at this path"),
            (405, Kind::Invalid, "does not support this"),
            (412, Kind::Busy { retry_after: None }, "not caught up"),
            (429, Kind::Busy { retry_after: None }, "too many requests"),
            (472, Kind::Standby, "disaster recovery"),
            (473, Kind::Standby, "performance standby"),
            (500, Kind::Failed, "internal error"),
            (501, Kind::Uninitialised, "not initialised"),
            (502, Kind::Failed, "behind Vault"),
            (503, Kind::Sealed, "sealed"),
            (504, Kind::Failed, "unexpected status"),
        ] {
            let error = status(code);
            assert_eq!(error.kind(), kind, "{code}");
            let text = error.explained();
            assert!(text.starts_with("send GET `database/creds/readonly` to Vault: "), "{text}");
            assert!(text.contains(word) && text.contains(&code.to_string()), "{text}");
        }
    }

    #[test]
    fn no_problem_names_a_file_a_role_or_an_address_to_a_sandbox() {
        let messages = VaultMessages(vec!["dial hidden-database".into()]);
        let hidden = || "hidden-place".to_owned();
        for problem in [
            Problem::Credential { file: "/hidden-place/secret-id".into(), why: "/hidden-place/key".into() },
            Problem::Gone { messages: messages.clone() },
            Problem::InvalidPath,
            Problem::Malformed { why: "it has no data" },
            Problem::NoAnswer { why: hidden() },
            Problem::Redirect { status: 307, host: Some(hidden()) },
            Problem::Status { status: 403, messages, retry_after: None },
            Problem::Stopped,
            Problem::TooLarge { limit: 5 },
            Problem::Unreachable { why: hidden() },
            Problem::WrapNotFromRole { expected: hidden() },
            Problem::WrapSpent { by: UnwrappedBy::AnotherParty },
            Problem::WrapUsedBySidecar,
        ] {
            let path = "auth/hidden-mount/login/hidden-user".into();
            let error = VaultError { request: RequestLine { method: Method::POST, path }, problem };
            let told = format!("{}; {}", error.for_sandbox(), error.next_step());
            assert!(!told.contains("hidden"), "{:?}: {told}", error.problem);
        }
    }

    #[test]
    fn vaults_messages_are_shown_without_the_secrets_of_the_request() {
        let response = br#"{"errors": ["no role my-secret-id-CANARY for hvs.CANARYCANARYCANARY01 or\n\t* b.CANARYCANARY-CANARY_01, sorry"]}"#;
        let messages = VaultMessages::read(response, ["my-secret-id-CANARY", ""].into_iter());
        assert_eq!(messages.to_string(), ": no role [hidden] for [hidden] or * [hidden] sorry");
        assert!(!format!("{messages:?}").contains("CANARY"));
        assert_eq!(VaultMessages::read(b"<html>CANARY", std::iter::empty()).to_string(), "");
        let long = format!(r#"{{"errors": ["{}", "b", "c", "d"]}}"#, "ä".repeat(4000));
        let messages = VaultMessages::read(long.as_bytes(), std::iter::empty()).to_string();
        assert_eq!(messages, ": a message of 8000 bytes, too long to be shown: b: c");
    }

    #[test]
    fn no_message_ends_within_a_credential() {
        let token = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";
        for before in (0..MAX_MESSAGE_BYTES).step_by(7) {
            let response = format!(r#"{{"errors": ["{} {token}"]}}"#, "x".repeat(before));
            let messages = VaultMessages::read(response.as_bytes(), std::iter::empty()).to_string();
            assert!(messages.contains(token) || !messages.contains("ghp_"), "{before}: {messages}");
        }
    }
}
