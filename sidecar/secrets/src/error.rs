//! Why a secret is not available, and what can be done about it.

use std::io;

use cofferdam_base::clock::Rfc3339;
use cofferdam_base::text::error_chain;
use cofferdam_process::RunError;
use relay_proto::name::Name;
use tokio::time::Instant;

use super::fields::FieldError;
use super::spec::SecretSpec;

/// Why a secret is not available. Print it with its causes, then [`SecretError::next_step`].
#[derive(Debug, thiserror::Error)]
#[error("load the secret `{secret}` from {origin}")]
pub struct SecretError {
    pub secret: Name,
    /// For instance ``the file `/etc/cofferdam/dev.json` ``.
    pub origin: String,
    #[source]
    pub cause: SecretProblem,
}

#[derive(Debug, thiserror::Error)]
pub enum SecretProblem {
    #[error(transparent)]
    Expiring(#[from] ExpiringError),
    #[error(transparent)]
    Field(#[from] FieldError),
    #[error("this sidecar was started without [vault]")]
    NoVault,
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The source may return the secret later.
    #[error("{}", .0.with_next_attempt(&.0.0.detail))]
    Unavailable(Unavailable),
}

/// A [`SourceFailure`]. The field is private, so that other crates read it through [`SecretError`].
#[derive(Clone, Debug)]
pub struct Unavailable(Box<SourceFailure>);

/// Why the output of a command with `format = "expiring"` was refused.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ExpiringError {
    #[error("it printed both `fields` and a credential in AWS's format")]
    Ambiguous,
    #[error("the credential that it printed expired at {at}")]
    Expired { at: Rfc3339 },
    #[error("it printed no `{key}`: a credential of this format must have an expiry")]
    NoExpiry { key: &'static str },
    #[error("it printed neither an object with `fields` and `expires` nor a credential in AWS's format")]
    UnknownFormat,
    #[error("its `{key}` is not a time in RFC 3339, such as `2026-11-18T09:30:00Z`")]
    UnreadableExpiry { key: &'static str },
    #[error("its `Version` is not 1")]
    Version,
}

/// Why a file, variable or command on this host could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("it is in Vault, not on this host")]
    NotLocal,
    #[error("cannot run it")]
    Exec(#[from] RunError),
    #[error("it is not a regular file")]
    NotAFile,
    #[error("cannot read it")]
    Read(#[source] io::Error),
    #[error("it holds more than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("it takes too long")]
    TooSlow,
    #[error("it is not set in the sidecar's environment")]
    Unset,
}

/// Why a source returned no credential this time.
#[derive(Clone, Debug)]
pub struct SourceFailure {
    /// What was tried and why it failed. Sandboxes see this, so it neither quotes the source nor names a path of the host
    /// or of the source.
    pub message: String,
    /// The same for the host: with paths, addresses and the source's own error message.
    pub detail: String,
    pub next_step: String,
    /// Callers do not retry before this time.
    pub next_attempt: Instant,
    /// The source asked for no retry before this time.
    pub not_before: Option<Instant>,
}

impl SecretError {
    pub fn new(spec: &SecretSpec, cause: SecretProblem) -> Self {
        Self { secret: spec.name.clone(), origin: spec.origin.description(), cause }
    }

    /// Whether the source has its own backoff, so that callers may retry at once.
    pub fn source_has_backoff(&self) -> bool {
        self.failure().is_some()
    }

    /// The failure of the source, if the secret may be available later.
    pub fn failure(&self) -> Option<&SourceFailure> {
        match &self.cause {
            SecretProblem::Unavailable(Unavailable(failure)) => Some(failure),
            _ => None,
        }
    }

    /// What a sandbox is told: the secret, why it is not available, and the next step. No path, program or variable of
    /// the host.
    pub fn for_sandbox(&self) -> String {
        format!("load the secret `{}`: {}; {}", self.secret, self.cause.for_sandbox(), self.next_step())
    }

    /// What an operator can do about the error.
    pub fn next_step(&self) -> String {
        self.cause.next_step(&format!("[secrets.{}]", self.secret))
    }
}

impl SourceFailure {
    /// What failed and the next step, for the host.
    pub(super) fn explained(&self) -> String {
        format!("{}; {}", self.detail, self.next_step)
    }
}

impl SecretProblem {
    /// The problem with its causes, without the name of a program and without what the source says on the host only.
    pub(super) fn for_sandbox(&self) -> String {
        match self {
            Self::Unavailable(unavailable) => unavailable.with_next_attempt(&unavailable.0.message),
            Self::Source(SourceError::Exec(RunError::Start(_))) => "its command cannot be started".into(),
            other => error_chain(other),
        }
    }

    /// What an operator can do about the problem; `key` names the secret's key in the configuration.
    pub fn next_step_in(&self, key: &str) -> String {
        self.next_step(&format!("`{key}`"))
    }

    /// `key` names the secret's table in the configuration.
    pub(super) fn next_step(&self, key: &str) -> String {
        match self {
            Self::Expiring(_) => format!(
                "make the command in {key} print `{{\"fields\": {{…}}, \"expires\": \"RFC 3339\"}}` or AWS's `credential_process` format"
            ),
            Self::Field(FieldError::TooShort { .. }) => {
                format!(
                    "use a longer value, list the field under `public`, or set `short = \"allow\"` in {key}"
                )
            }
            Self::Field(_) => {
                format!("give a JSON object of plain values, or the value itself, in {key}")
            }
            Self::Source(SourceError::TooLarge { .. }) => {
                format!("name a smaller source in {key}, or raise `secret-bytes` in [limits]")
            }
            Self::NoVault => "restart the sidecar: [vault] takes effect when it starts".into(),
            Self::Unavailable(Unavailable(failure)) => failure.next_step.clone(),
            Self::Source(_) => format!("correct {key} or its source, then call again"),
        }
    }
}

impl From<SourceFailure> for SecretProblem {
    fn from(failure: SourceFailure) -> Self {
        Self::Unavailable(Unavailable(Box::new(failure)))
    }
}

impl Unavailable {
    /// What failed, and when the next attempt is due.
    fn with_next_attempt(&self, failed: &str) -> String {
        let wait = self.0.next_attempt.saturating_duration_since(Instant::now()).as_secs() + 1;
        format!("{failed}; tried again in {wait} s at the earliest")
    }
}
