//! Credentials: where they come from and the one type that holds them.
//!
//! What must stay true: a value cannot be printed, compared, copied or serialised; it leaves its wrapper in
//! [`opened`] only (`.clippy.toml` bans [`Secret::expose`] elsewhere) and its memory is wiped. No error holds any
//! part of one.

mod fields;
mod in_vault;
pub mod opened;
mod own_end;
mod source;
mod spec;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use relay_proto::name::Name;
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::metrics::{self, Outcome};
use crate::scrub::Needle;
use crate::vault::Token;
use crate::vault::leases::Terms;
use crate::vault::login::Trouble;
use crate::vault::session::{Asker, ReadWith, SessionToken, SessionVault};
pub use fields::FieldError;
pub use source::SourceError;
pub(crate) use source::{Readers, read_file};
pub use spec::{InvalidVaultPath, Origin, SecretSpec, SecretSpecs, ShortValues, SourceLimits, VaultPath};

/// A value shorter than this is found everywhere: scrubbing it would destroy what it stands in.
pub const MIN_VALUE: usize = 8;

/// One secret value.
pub struct Secret(Zeroizing<Vec<u8>>);

/// What a source gave: the fields, until when they are good, and how to give them back.
#[derive(Debug)]
pub struct Material {
    pub fields: BTreeMap<String, Secret>,
    /// Fields that the configuration says are not secret: neither scrubbed nor too short.
    pub public: BTreeSet<String>,
    /// Where they are from, for people.
    pub origin: String,
    /// Fields that are there and cannot be used; whoever wants one is told why.
    pub unusable: BTreeMap<String, FieldError>,
    /// Of all who have it: a renewal is for each of them.
    life: Mutex<Life>,
    pub lease: Option<Arc<LeaseUse>>,
    pub end: End,
    /// Which values of its secret these are, counted by whoever keeps them; the same values have the same number.
    pub generation: u64,
}

/// Until when values are good, as far as their source says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Life {
    pub(crate) expires: Option<Instant>,
    /// From when on it is read anew for whoever needs it next.
    pub(crate) refresh: Option<Instant>,
    /// Where it is from Vault.
    pub(crate) read_with: Option<ReadWith>,
}

/// How a secret of Vault's is found again, in our audit and in Vault's.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LeaseUse {
    /// Of the lease's id, where there is a lease.
    pub hash: Option<String>,
    pub request_id: String,
}

/// What has to be done when the last process that uses a secret is over.
pub enum End {
    /// The source lends nothing: there is nothing to give back.
    Nothing,
    /// A lease hangs from this token of the session's, and nothing else does.
    WithToken(Arc<SessionToken>),
}

/// With what a value becomes useless to whoever learns it.
#[derive(Clone)]
pub(crate) enum Tie {
    /// It does not, as far as anybody knows.
    Nothing,
    /// A key-value secret: somebody may have put another one there, and this one may still be good.
    KeyValue,
    /// Vault ends it with this token of a session's.
    Token(Weak<SessionToken>),
    /// A login's own token.
    Login(Weak<Token>),
    /// It ends by itself.
    Until(Instant),
}

/// Hears what must be scrubbed, before it is used.
pub(crate) type Learn<'a> = dyn Fn(&[Needle], Tie) + Send + Sync + 'a;

/// Why a secret cannot be had. Say the chain of sources too, then [`SecretError::next_step`].
#[derive(Debug, thiserror::Error)]
#[error("load the secret `{secret}` from {origin}")]
pub struct SecretError {
    pub secret: Name,
    /// For instance ``file `/etc/cofferdam/dev.json` ``.
    pub origin: String,
    #[source]
    pub cause: SecretProblem,
}

#[derive(Debug, thiserror::Error)]
pub enum SecretProblem {
    #[error(transparent)]
    Field(#[from] FieldError),
    #[error("this sidecar was started without [vault]")]
    NoVault,
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("{}", tried(.0))]
    Vault(Box<Trouble>),
}

/// Reads a source. Bounded in size and time; leaves nothing running.
pub async fn fetch(source: &SecretSpec, limits: SourceLimits) -> Result<Material, SecretError> {
    let material = async {
        let content = source::read(&source.origin, limits).await?;
        let public: BTreeSet<String> = source.public.iter().cloned().collect();
        let fields = fields::parse(&content, &public, source.short)?;
        Ok(Material { public, origin: described(&source.origin), ..Material::of(fields) })
    };
    material.await.map_err(|cause| SecretError::new(source, cause))
}

/// Reads a secret of Vault's for a session; `learn` hears what must be scrubbed before it is used.
pub(crate) async fn fetch_from_vault(
    source: &SecretSpec,
    secret_bytes: usize,
    (session, asker): (&SessionVault, Asker),
    learn: &Learn<'_>,
) -> Result<(Material, Terms), SecretError> {
    let read = in_vault::read(source, secret_bytes, (session, asker), learn).await;
    metrics::vault().read(Outcome::of(&read));
    read.map_err(|cause| SecretError::new(source, cause))
}

impl Material {
    /// These values, from a source that lends nothing.
    pub fn of(fields: BTreeMap<String, Secret>) -> Self {
        Self {
            fields,
            public: BTreeSet::new(),
            origin: String::new(),
            unusable: BTreeMap::new(),
            life: Mutex::default(),
            lease: None,
            end: End::Nothing,
            generation: 0,
        }
    }

    /// Whether who has the one before need not have this one: the same values, and nothing was lent for either.
    pub(crate) fn replaces_unnoticed(&self, before: &Self) -> bool {
        !self.has_lease() && !before.has_lease() && opened::are_equal(&self.fields, &before.fields)
    }

    /// When these values end: by themselves, or with the token or the login that they hang from.
    pub fn expires(&self) -> Option<Instant> {
        let token = self.token().and_then(|token| token.ends());
        [self.life().expires, token].into_iter().flatten().min()
    }

    pub(crate) fn life(&self) -> Life {
        *self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// They were renewed, or read again and are the same.
    pub(crate) fn extend(&self, life: Life) {
        *self.life.lock().unwrap_or_else(PoisonError::into_inner) = life;
    }

    /// It is over, whatever time it had.
    pub(crate) fn expire(&self) {
        self.life.lock().unwrap_or_else(PoisonError::into_inner).expires = Some(Instant::now());
    }

    pub(crate) fn is_live(&self) -> bool {
        self.expires().is_none_or(|end| end > Instant::now())
    }

    /// Whether whoever needs it next gets it as it is.
    pub(crate) fn is_fresh(&self) -> bool {
        self.is_live() && self.life().refresh.is_none_or(|refresh| refresh > Instant::now())
    }

    pub(crate) fn has_lease(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.hash.is_some())
    }

    /// With what its values end.
    pub(crate) fn tie(&self) -> Tie {
        let Life { expires, read_with, .. } = self.life();
        match (self.token(), expires, read_with) {
            (Some(token), ..) => Tie::Token(Arc::downgrade(token)),
            (None, Some(end), _) => Tie::Until(end),
            (None, None, Some(_)) => Tie::KeyValue,
            (None, None, None) => Tie::Nothing,
        }
    }

    /// The token of the session's that its lease hangs from.
    pub(crate) fn token(&self) -> Option<&Arc<SessionToken>> {
        match &self.end {
            End::Nothing => None,
            End::WithToken(token) => Some(token),
        }
    }
}

impl Life {
    pub(crate) fn of(terms: &Terms) -> Self {
        let expires = terms.life.map(|life| terms.asked_at + life);
        Self { expires, refresh: terms.due(), read_with: None }
    }
}

impl Tie {
    /// Whether nobody can use the value any more.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        match self {
            Self::Nothing | Self::KeyValue => false,
            Self::Token(token) => token.strong_count() == 0,
            Self::Login(token) => token.strong_count() == 0,
            Self::Until(end) => *end < now,
        }
    }
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "Nothing",
            Self::WithToken(_) => "WithToken(…)",
        })
    }
}

impl Secret {
    pub fn new(value: Zeroizing<Vec<u8>>) -> Self {
        Self(value)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value itself. For [`opened`] only.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl SecretError {
    pub(crate) fn new(source: &SecretSpec, cause: SecretProblem) -> Self {
        Self { secret: source.name.clone(), origin: described(&source.origin), cause }
    }

    /// Whether trying again at once costs nobody anything: who is asked has a pace of its own.
    pub(crate) fn is_paced(&self) -> bool {
        matches!(self.cause, SecretProblem::Vault(_))
    }

    /// What a person can do about it.
    pub fn next_step(&self) -> String {
        let key = format!("[secrets.{}]", self.secret);
        match &self.cause {
            SecretProblem::Field(FieldError::Short { .. }) => {
                format!(
                    "use a longer value, list the field under `public`, or set `short = \"allow\"` in {key}"
                )
            }
            SecretProblem::Field(_) => {
                format!("give a JSON object of plain values, or the value itself, in {key}")
            }
            SecretProblem::Source(SourceError::TooLarge { .. }) => {
                format!("name a smaller source in {key}, or raise `secret-bytes` in [limits]")
            }
            SecretProblem::NoVault => "restart the sidecar: [vault] counts from then on".into(),
            SecretProblem::Vault(trouble) => trouble.error.next_step().into(),
            SecretProblem::Source(_) => format!("correct {key} or its source, then call again"),
        }
    }
}

/// What was asked, what came of it, and when it is tried next. A sandbox hears this: not what Vault said itself.
fn tried(trouble: &Trouble) -> String {
    let wait = trouble.next.saturating_duration_since(Instant::now()).as_secs() + 1;
    let Trouble { error, .. } = trouble;
    format!("{error}: {}; tried again in {wait} s at the earliest", error.outcome())
}

/// Never the arguments of a command: people put things there.
fn described(origin: &Origin) -> String {
    match origin {
        Origin::Env(name) => format!("the environment variable `{name}`"),
        Origin::Exec(command) => format!("the command `{}`", command.first().map_or("", String::as_str)),
        Origin::File(path) => format!("the file `{}`", path.display()),
        Origin::Kv { path, .. } | Origin::Vault { path, .. } => format!("Vault's `{path}`"),
    }
}

#[cfg(test)]
mod tests;
