//! Reads the MCP servers of harnesses' settings, finds their secrets, and plans how both move to the sidecar.
//!
//! | module | what it is for |
//! |---|---|
//! | `document` | the text of a settings file: JSON with comments, or TOML |
//! | `surroundings` | directories and variables that give settings their meaning |
//! | `dialect` | the harnesses' ways to write servers, and where they are in a file |
//! | `references` | `${VARIABLE}` and the like |
//! | `secret_names`, `shapes`, `recognise` | which part of a text is a secret |
//! | `composer` | splits the texts of a server into literals, secrets and references |
//! | `entry`, `e2b` | reads one server |
//! | `needs`, `registry` | what a server needs inside its walls, and where package managers download from |
//! | `found` | what was found |
//! | `settings` | reads and rewrites a whole settings file |
//! | `definition` | a server as a table of the configuration |
//! | `plan` | what an import adds to the configuration, and which secrets it stores |
//! | `shim_entry` | the entry with which a harness starts the shim, written and recognised |
//! | `edit`, `rewrite`, `json_edit`, `toml_edits` | changes of single entries of a settings file |
//! | `store` | the directory with stored secrets, backups and their record |
//! | `record` | which settings files were rewritten, and their backups |
//! | `file_change` | replaces a file, unless another program has changed it |
//! | `apply` | carries out a plan, step by step |
//! | `discover` | where harnesses keep their settings |
//!
//! What must stay true: a secret is never printed, neither here nor in an error; it is written only to where the plan says;
//! nothing is removed before it is stored elsewhere.

#![forbid(unsafe_code)]

mod apply;
mod composer;
mod definition;
mod dialect;
mod discover;
mod document;
mod e2b;
mod edit;
mod entry;
mod file_change;
mod found;
mod json_edit;
mod needs;
mod plan;
mod recognise;
mod record;
mod references;
mod registry;
mod rewrite;
mod secret_names;
mod settings;
mod shapes;
mod shim_entry;
mod store;
mod surroundings;
mod toml_edits;

pub use apply::{Application, ApplyError, ApplyEvent, SettingsChange, WriteSecret, apply};
pub use dialect::Dialect;
pub use discover::known_files;
pub use document::{Document, DocumentError, Format};
pub use edit::{EntryPath, RewriteError};
pub use file_change::{
    FileState, FileVersion, ReadFileError, ReplaceError, read_version, replace as replace_file,
};
pub use found::{FoundEntry, FoundSecret, FoundServer, FoundShim, Place};
pub use needs::Needs;
pub use plan::{
    Destination, Fields, Held, Plan, PlanError, PlanInput, PlannedSecret, PlannedServer, ServerOrigin,
    Stored, StoredAt, plan,
};
pub use recognise::Reason;
pub use record::{Record, RecordError, Rewriting, Undone};

pub use settings::{HarnessEdit, HarnessEditError, Restored, Settings};
pub use shim_entry::ShimProgram;
pub use store::{Store, StoreError, encode_fields};
pub use surroundings::{Directory, Surroundings, project_of};
