//! Why Vault gave no answer: what was asked, what came instead, what to do next.
//!
//! What must stay true: the method and the path of a request may be told, its body and its token never. Of an answer only
//! the sentences of Vault's `errors` are told, after everything secret that was sent, and everything that looks like a
//! token, was taken out of them.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use ::http::Method;
use cofferdam_base::metrics::VaultFailure;
use serde::Deserialize;

/// How many of Vault's sentences are kept, and how much of each.
const MAX_SENTENCES: usize = 3;
const MAX_SENTENCE: usize = 200;
/// What is shorter is found everywhere.
const MIN_HIDDEN: usize = 4;
/// A token has at least this many characters after its prefix.
const MIN_TOKEN_TAIL: usize = 16;

/// Why a call has no result. Say the chain of sources too, then [`VaultError::next_step`]; or [`VaultError::explained`].
#[derive(Clone, Debug, thiserror::Error)]
#[error("ask Vault for {asked}")]
pub struct VaultError {
    pub asked: RequestLine,
    #[source]
    pub problem: Problem,
}

/// The method and path of a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RequestLine {
    pub method: Method,
    pub path: String,
}

/// What came instead of a result.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Problem {
    /// Something of ours, before anything was sent.
    #[error("read the credential `{}`: {why}", file.display())]
    Credential { file: PathBuf, why: String },
    /// A lease that Vault does not know: expired, revoked or never there; it does not say which.
    #[error("Vault does not know this lease any more{messages}")]
    Gone { messages: VaultMessages },
    #[error("Vault's answer cannot be read: {why}")]
    Malformed { why: &'static str },
    /// It was sent and may have been done.
    #[error("Vault did not answer, it may have done what was asked: {why}")]
    NoAnswer { why: String },
    #[error("a standby pointed elsewhere (HTTP {status}{}); redirects are not followed", at(host.as_deref()))]
    Redirect { status: u16, host: Option<String> },
    #[error("{}{messages}", meaning(*status))]
    Status { status: u16, messages: VaultMessages, retry_after: Option<Duration> },
    #[error("the sidecar's login has ended")]
    Stopped,
    #[error("Vault's answer has more than {limit} bytes")]
    TooLarge { limit: usize },
    /// Nothing was sent.
    #[error("Vault cannot be reached: {why}")]
    Unreachable { why: String },
    /// A response-wrapped secret that was not made where it should have been.
    #[error(
        "ALERT: the wrapped secret-id was not made by `{expected}`: another party wrapped something else"
    )]
    WrapForeign { expected: String },
    /// A response-wrapped secret that is not there any more.
    #[error("{}", spent(*by))]
    WrapSpent { by: UnwrappedBy },
}

/// Who may have opened a wrap that is gone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum UnwrappedBy {
    /// We asked for it once and never saw the answer.
    PerhapsSidecar,
    /// We never asked.
    AnotherParty,
}

/// What a caller decides by.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// A security matter: a wrap that another party opened or made. Report it; do not try again.
    Alert,
    /// Try again, not before this time where one is given.
    Busy {
        retry_after: Option<Duration>,
    },
    /// A credential of the sidecar's own that cannot be read.
    Credential,
    /// The token is dead, or its policies do not allow this.
    Denied,
    /// Vault, or what stands behind it, failed.
    Failed,
    /// The lease is over.
    Gone,
    /// RequestLine wrongly: again will not help.
    Invalid,
    /// An answer that is none of Vault's, or too large a one.
    Malformed,
    /// There is nothing at this path.
    Missing,
    Sealed,
    /// This node does not serve.
    Standby,
    Stopped,
    /// Vault has not been set up.
    Uninitialised,
    Unreachable,
}

/// The sentences of Vault's `errors`, safe to show.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct VaultMessages(Vec<String>);

impl VaultError {
    pub fn kind(&self) -> Kind {
        match &self.problem {
            Problem::Credential { .. } => Kind::Credential,
            Problem::Gone { .. } => Kind::Gone,
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
            Problem::WrapForeign { .. } | Problem::WrapSpent { .. } => Kind::Alert,
        }
    }

    /// What a person can do about it.
    pub fn next_step(&self) -> &'static str {
        match (&self.problem, self.kind()) {
            (Problem::WrapForeign { .. }, _) => {
                "do not use what was delivered; find out who wrapped it, then deliver a secret-id that was wrapped where it was made"
            }
            (_, Kind::Alert) => {
                "find out who unwrapped it (Vault's audit log has `sys/wrapping/unwrap`), destroy that secret-id, deliver a new wrapped one"
            }
            (_, Kind::Busy { .. }) => {
                "it is tried again; if this goes on, raise the quota of this path or ask less"
            }
            (_, Kind::Credential) => {
                "correct `auth` in [vault] or the file that it names; it is read again at the next login"
            }
            (_, Kind::Denied) => {
                "is the token alive? if so, allow this path in its policies: `cofferdam check --online` says what they lack"
            }
            (_, Kind::Failed) => "look into Vault's own log, and at what stands behind this path",
            (_, Kind::Gone) => "it is read anew",
            (_, Kind::Invalid) => "correct the path, the role or what is written there",
            (Problem::TooLarge { .. }, _) => "name a path that holds less",
            (_, Kind::Malformed) => {
                "is `address` in [vault] really a Vault or OpenBao, and no page in front of it?"
            }
            (_, Kind::Missing) => "is the path right, mount and all, and is the namespace the right one?",
            (_, Kind::Sealed) => "unseal Vault; what is held stays good until it expires",
            (_, Kind::Standby) => {
                "set `address` in [vault] to the active node, or to a load balancer that finds it"
            }
            (_, Kind::Stopped) => "start the sidecar again",
            (_, Kind::Uninitialised) => "initialise Vault: `vault operator init` or `bao operator init`",
            (_, Kind::Unreachable) => {
                "is Vault up, reachable from this host, and `ca-file` the authority of its certificate?"
            }
        }
    }

    /// What came of it, without what Vault says of the systems behind it: a database's address, the
    /// name of its owner.
    pub(crate) fn outcome(&self) -> String {
        match &self.problem {
            Problem::Gone { .. } => Problem::Gone { messages: VaultMessages::default() }.to_string(),
            Problem::Status { status, .. } => meaning(*status),
            problem => problem.to_string(),
        }
    }

    /// All of it as one line for people.
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
    /// Reads the `errors` of an answer, without `hidden` and without anything like a token.
    pub(crate) fn read<'a>(answer: &[u8], hidden: impl Iterator<Item = &'a str>) -> Self {
        #[derive(Deserialize)]
        struct Errors {
            #[serde(default)]
            errors: Vec<String>,
        }
        let Ok(Errors { errors }) = serde_json::from_slice(answer) else {
            return Self::default();
        };
        let hidden: Vec<&str> = hidden.filter(|text| text.len() >= MIN_HIDDEN).collect();
        Self(errors.into_iter().take(MAX_SENTENCES).map(|sentence| shown(sentence, &hidden)).collect())
    }

    /// A sentence of our own.
    pub(crate) fn of_client(sentence: &str) -> Self {
        Self(vec![sentence.to_owned()])
    }

    pub(crate) fn contains(&self, text: &str) -> bool {
        self.0.iter().any(|sentence| sentence.contains(text))
    }
}

impl fmt::Display for VaultMessages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|sentence| write!(f, ": {sentence}"))
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
        403 => "Vault refuses: the token is dead or its policies do not allow it",
        404 => "Vault has nothing there",
        405 => "Vault does not do that there",
        412 => "this node has not caught up yet",
        429 => "Vault has had too many requests, or this node stands by",
        472 => "this node is a standby for disaster recovery",
        473 => "this node is a performance standby",
        500 => "Vault failed",
        501 => "Vault is not initialised",
        502 => "what stands behind Vault failed",
        503 => "Vault is sealed or down for maintenance",
        _ => "Vault answered with a status that it does not use",
    };
    format!("{meaning} (HTTP {status})")
}

fn at(host: Option<&str>) -> String {
    host.map(|host| format!(" to `{host}`")).unwrap_or_default()
}

fn spent(by: UnwrappedBy) -> &'static str {
    match by {
        UnwrappedBy::PerhapsSidecar => {
            "ALERT: the wrapped secret-id is spent; Vault may have given it to us in an answer that was lost, or to another party"
        }
        UnwrappedBy::AnotherParty => {
            "ALERT: the wrapped secret-id was already unwrapped, revoked or left to expire, and not by us: another party may have it"
        }
    }
}

/// A sentence without what is hidden, without tokens, on one line, not too long.
fn shown(mut sentence: String, hidden: &[&str]) -> String {
    for text in hidden {
        sentence = sentence.replace(text, "[hidden]");
    }
    let words: Vec<&str> =
        sentence.split_whitespace().map(|word| if has_token(word) { "[hidden]" } else { word }).collect();
    let mut sentence: String = words.join(" ").chars().filter(|letter| !letter.is_control()).collect();
    if sentence.len() > MAX_SENTENCE {
        sentence.truncate(sentence.floor_char_boundary(MAX_SENTENCE));
        sentence.push('…');
    }
    sentence
}

/// Whether there is anything like `s.XXXX`, `hvs.XXXX`, `hvb.XXXX` in a word.
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
        let asked = RequestLine { method: Method::GET, path: "database/creds/readonly".into() };
        VaultError {
            asked,
            problem: Problem::Status { status, messages: VaultMessages::default(), retry_after: None },
        }
    }

    #[test]
    fn every_status_has_its_meaning() {
        for (code, kind, word) in [
            (400, Kind::Invalid, "did not accept"),
            (403, Kind::Denied, "refuses"),
            (404, Kind::Missing, "nothing there"),
            (405, Kind::Invalid, "does not do that"),
            (412, Kind::Busy { retry_after: None }, "not caught up"),
            (429, Kind::Busy { retry_after: None }, "too many requests"),
            (472, Kind::Standby, "disaster recovery"),
            (473, Kind::Standby, "performance standby"),
            (500, Kind::Failed, "Vault failed"),
            (501, Kind::Uninitialised, "not initialised"),
            (502, Kind::Failed, "behind Vault"),
            (503, Kind::Sealed, "sealed"),
            (504, Kind::Failed, "does not use"),
        ] {
            let error = status(code);
            assert_eq!(error.kind(), kind, "{code}");
            let text = error.explained();
            assert!(text.starts_with("ask Vault for GET `database/creds/readonly`: "), "{text}");
            assert!(text.contains(word) && text.contains(&code.to_string()), "{text}");
        }
    }

    #[test]
    fn what_vault_says_is_told_without_what_was_sent() {
        let answer = br#"{"errors": ["no role my-secret-id-CANARY for hvs.CANARYCANARYCANARY01 or\n\t* b.CANARYCANARY-CANARY_01, sorry"]}"#;
        let messages = VaultMessages::read(answer, ["my-secret-id-CANARY", ""].into_iter());
        assert_eq!(messages.to_string(), ": no role [hidden] for [hidden] or * [hidden] sorry");
        assert!(!format!("{messages:?}").contains("CANARY"));
        assert_eq!(VaultMessages::read(b"<html>CANARY", std::iter::empty()).to_string(), "");
        let long = format!(r#"{{"errors": ["{}", "b", "c", "d"]}}"#, "ä".repeat(4000));
        let messages = VaultMessages::read(long.as_bytes(), std::iter::empty()).to_string();
        assert!(messages.len() < 300 && messages.ends_with(": c"), "{messages}");
    }
}
