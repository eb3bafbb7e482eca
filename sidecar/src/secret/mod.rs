//! Credentials: where they come from and the one type that holds them.
//!
//! What must stay true: a value cannot be printed, compared, copied or serialised; it leaves its wrapper in
//! [`opened`] only (`.clippy.toml` bans [`Secret::expose`] elsewhere) and its memory is wiped. No error holds any
//! part of one.

mod fields;
pub mod opened;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use relay_proto::name::Name;
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::config::{Limits, Origin, SecretSource};
pub use fields::FieldError;
pub use source::SourceError;
pub(crate) use source::{Readers, read_file};

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
    pub expires: Option<Instant>,
    pub end: End,
}

/// What has to be done when the last process that uses a secret is over.
#[derive(Debug)]
pub enum End {
    /// The source lends nothing: there is nothing to give back.
    Nothing,
}

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
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// Reads a source. Bounded in size and time; leaves nothing running.
pub async fn fetch(source: &SecretSource, limits: &Limits) -> Result<Material, SecretError> {
    let material = async {
        let content = source::read(&source.origin, limits).await?;
        let public: BTreeSet<String> = source.public.iter().cloned().collect();
        let fields = fields::parse(&content, &public, source.short)?;
        Ok(Material { fields, public, expires: None, end: End::Nothing })
    };
    material.await.map_err(|cause| SecretError {
        secret: source.name.clone(),
        origin: described(&source.origin),
        cause,
    })
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
            SecretProblem::Source(_) => format!("correct {key} or its source, then call again"),
        }
    }
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
