//! Changes of single entries of a settings file, before they are applied to its text.

use serde_json::Value;

/// One change of a settings file.
#[derive(Clone, Debug)]
pub(crate) enum Edit {
    /// Sets members of an entry, adding the entry if it is absent, and removes its other defining members.
    Define { path: Vec<String>, members: Vec<(&'static str, Value)> },
    /// Removes an entry.
    Remove { path: Vec<String> },
    /// Puts the entry of an earlier document in the place of the present one.
    Restore { path: Vec<String> },
}

/// The entry of one server in a settings file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EntryPath(pub Vec<String>);

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RewriteError {
    #[error("`{}` is written in a form that cannot be changed by itself", .0.join("."))]
    Form(Vec<String>),
    #[error("it has line ends of two kinds")]
    MixedLineEnds,
    #[error("it cannot be changed without a change of other parts")]
    OtherParts,
}

impl Edit {
    pub(crate) fn path(&self) -> &[String] {
        match self {
            Self::Define { path, .. } | Self::Remove { path } | Self::Restore { path } => path,
        }
    }
}

/// Whether an edit sets the member of this name.
pub(crate) fn is_set(members: &[(&str, Value)], name: &str) -> bool {
    members.iter().any(|(member, _)| *member == name)
}

/// `type` is optional in some dialects: it is changed where an entry has it, and written in new entries.
pub(crate) fn is_written(member: &str, is_new: bool, is_present: bool) -> bool {
    member != "type" || is_new || is_present
}
