//! Credentials: where they come from, the type that holds them, what a session holds, and the templates filled with them.
//!
//! | module | what it is for |
//! |---|---|
//! | [`spec`] | what the configuration says about a secret |
//! | [`value`] | one secret value |
//! | [`exposed_values`] | the only module that reads the bytes of a secret value |
//! | [`fields`] | parses the content of a source into fields |
//! | [`error`] | why a secret is not available |
//! | [`source`] | the interface of sources: [`Source`], [`Lease`] and [`Hold`] |
//! | [`local`] | sources on this host: files, variables, commands |
//! | [`expiring`] | the output of commands whose credentials expire |
//! | [`embedded_expiry`] | the expiry that a credential states itself |
//! | [`material`] | the values of one secret, and how long they are valid |
//! | [`renewal`] | when a credential is renewed or read again |
//! | [`known`] | which values a session's scrubber searches for |
//! | [`outliving`] | values that are valid after their session |
//! | [`reread`] | how often a secret is read again because a server refused it |
//! | [`store`] | what a session holds: values, failures, the scrubber |
//! | [`renewal_task`] | the task that keeps one secret of a session valid |
//! | [`credentials`] | the secrets of one session, as its servers obtain them |
//! | [`template`] | the syntax of templates such as `Bearer {github.token}` |
//! | [`fill`] | fills templates for variables, files and headers |
//! | [`files`] | injected files: 0600, in memory, removed with their process |
//! | [`reads`] | which reads of Vault a call's credentials come from |
//! | [`uses`] | which servers use a secret, and whether they can take a new value |
//!
//! What must stay true: a value cannot be printed, compared, copied or serialised; only [`exposed_values`] reads its bytes
//! (`.clippy.toml` bans [`Secret::expose`] elsewhere), and its memory is wiped when it is dropped. No error contains
//! any part of a value.

#![forbid(unsafe_code)]

pub mod credentials;
pub mod embedded_expiry;
mod error;
mod expiring;
mod exposed_values;
pub mod fields;
pub mod files;
mod fill;
mod known;
mod local;
mod material;
mod outliving;
mod reads;
pub mod renewal;
mod renewal_task;
pub mod reread;
mod source;
mod spec;
mod store;
mod template;
#[cfg(test)]
mod tests;
mod uses;
mod value;

pub use credentials::SecretStatus;
pub use error::{ExpiringError, SecretError, SecretProblem, SourceError, SourceFailure};
pub use exposed_values::{occurs_in, variable};
pub use fields::FieldError;
pub use fill::{InjectError, Secrets, fill, fill_arguments, fill_environment, fill_header};
pub use local::{FileContent, LocalFields, LocalSource, fetch, local_fields, read_file};
pub use material::Material;
pub use outliving::{OutlivingValues, ValidUntil};
pub use reads::SecretReads;
pub use source::{AddToScrubbers, Hold, Lease, ReadId, Requester, Source, SourceRequest, Validity, ValueEnd};
pub use spec::{
    ExecFormat, InvalidVaultPath, Origin, SecretSpec, SecretSpecs, ShortValues, SourceLimits, VaultOrigin,
    VaultPath,
};
pub use store::Reading;
pub use template::{Encoding, InvalidTemplate, Template, TemplatePart, is_field_name};
pub use uses::{RegisteredUses, SecretUse};
pub use value::{MIN_VALUE_BYTES, Secret};
