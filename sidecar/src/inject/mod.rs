//! Templates such as `Bearer {github.token}`, what fills them, and what a session holds to fill them with.
//!
//! | module | what it holds |
//! |---|---|
//! | [`credentials`] | the secrets of one session, and the scrubber that knows them |
//! | [`files`] | injected files: 0600, in memory, removed with their process |
//! | [`fill`] | templates filled: into variables, files and headers |
//! | [`known`] | which values a session's scrubber looks for |
//! | [`log_scrubber`] | the scrubber of the sidecar's own log |
//! | [`reads`] | which reads of Vault's a call is made with |
//! | [`reread`] | how often a secret is read anew because a server refused it |
//! | [`template`] | their syntax |
//! | [`upkeep`] | renews and reads anew what a session has of Vault's |

pub(crate) mod credentials;
pub mod files;
mod fill;
mod known;
pub(crate) mod log_scrubber;
mod reads;
pub(crate) mod reread;
mod template;
pub(crate) mod upkeep;

pub use fill::{InjectError, Secrets, fill, fill_environment, fill_header};
pub use reads::Reads;
pub(crate) use template::is_field_name;
pub use template::{Encoding, InvalidTemplate, Template, TemplatePart};
