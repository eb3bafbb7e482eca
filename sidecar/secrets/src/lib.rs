//! Credentials: where they come from, the one type that holds them, what a session keeps, and what is filled with them.
//!
//! | module | what it is for |
//! |---|---|
//! | [`spec`] | what the configuration says of a secret |
//! | [`value`] | one secret value |
//! | [`opened`] | the one module that opens a secret value |
//! | [`fields`] | the fields in what a source gave |
//! | [`source`] | the seam: [`Source`], [`Lease`] and [`Hold`] |
//! | [`local`] | sources on this host: files, variables, commands |
//! | [`expiring`] | commands whose credentials expire |
//! | [`embedded_expiry`] | the end that a credential states itself |
//! | [`material`] | the values of one secret, and until when they are valid |
//! | [`error`] | why a secret is not available |
//! | [`renewal`] | when a credential is renewed or read again |
//! | [`credentials`] | the secrets of one session, and the scrubber that knows them |
//! | [`store`] | what a session holds of its secrets |
//! | [`upkeep`] | the task that keeps one secret of a session |
//! | [`reread`] | how often a secret is read again because a server refused it |
//! | [`known`] | which values a session's scrubber looks for |
//! | [`reads`] | which reads of its secrets a call is made with |
//! | [`template`] | the syntax of templates such as `Bearer {github.token}` |
//! | [`fill`] | filled templates: variables, files and headers |
//! | [`files`] | injected files: 0600, in memory, removed with their process |
//!
//! What must stay true: a value cannot be printed, compared, copied or serialised; it leaves its wrapper in [`opened`]
//! only (`.clippy.toml` bans [`Secret::expose`] elsewhere) and its memory is wiped. No error holds any part of one.

#![forbid(unsafe_code)]

pub mod credentials;
pub mod embedded_expiry;
mod error;
mod expiring;
pub mod fields;
pub mod files;
mod fill;
mod known;
mod local;
mod material;
mod opened;
mod reads;
pub mod renewal;
pub mod reread;
mod source;
mod spec;
mod store;
mod template;
#[cfg(test)]
mod tests;
pub mod upkeep;
mod value;

pub use error::{ExpiringError, SecretError, SecretProblem, SourceError, SourceFailure};
pub use fields::FieldError;
pub use fill::{InjectError, Secrets, fill, fill_environment, fill_header};
pub use local::{LocalSource, Readers, fetch, read_file};
pub use material::Material;
pub use reads::Reads;
pub use source::{Ask, Asker, Hold, Learn, Lease, LeaseUse, RevokedWith, Source, Validity};
pub use spec::{
    ExecFormat, InvalidVaultPath, Origin, SecretSpec, SecretSpecs, ShortValues, SourceLimits, VaultPath,
};
pub use template::{Encoding, InvalidTemplate, Template, TemplatePart, is_field_name};
pub use value::{MIN_VALUE, Secret};
