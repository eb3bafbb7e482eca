//! What was found in a settings file: servers, their secrets, and values that come from elsewhere.
//!
//! What must stay true: the value of a secret is wiped when it is dropped, and nothing here prints it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::dialect::Dialect;
use crate::needs::Needs;
use crate::recognise::Reason;
use crate::shapes;

/// One member of an object with servers.
pub enum FoundEntry {
    /// It already starts the shim.
    Shim(FoundShim),
    /// A server that can be imported.
    Server(FoundServer),
    /// It cannot be imported, and why.
    Skipped { name: String, why: String },
}

/// An entry that starts the shim.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FoundShim {
    pub name: String,
    pub program: String,
    /// The link of `--relay`, or of the variable that has the same meaning.
    pub relay: Option<String>,
    /// The server of `--server`.
    pub server: Option<String>,
}

/// A server as its harness starts it.
#[derive(Debug)]
pub struct FoundServer {
    pub name: String,
    /// The members from the root of the settings to the server.
    pub path: Vec<String>,
    pub dialect: Dialect,
    pub(crate) kind: FoundKind,
    pub secrets: Vec<FoundSecret>,
    pub(crate) sources: Vec<ReferencedSource>,
    /// What its process needs inside its walls.
    pub(crate) needs: Needs,
    /// What is different from before, or has to be done by hand.
    pub notes: Vec<String>,
}

#[derive(Debug)]
pub(crate) enum FoundKind {
    Command {
        /// Never empty; the program is a literal.
        command: Vec<Composed>,
        env: BTreeMap<String, Composed>,
        directory: Option<PathBuf>,
    },
    Url {
        url: String,
        headers: BTreeMap<String, Composed>,
        is_private: bool,
    },
}

/// A text with secrets in it.
#[derive(Debug, Default)]
pub(crate) struct Composed(pub(crate) Vec<Part>);

pub(crate) enum Part {
    Literal(Zeroizing<String>),
    /// The index of a secret of the server.
    Secret(usize),
    /// The index of a source that the server refers to.
    Source(usize),
}

/// A secret in the text of a settings file.
pub struct FoundSecret {
    /// The name of its field among the secrets of the server.
    pub field: String,
    pub value: Zeroizing<String>,
    pub reason: Reason,
    pub place: Place,
    /// Whether the person says that it is not a secret: it is then written into the configuration.
    pub is_refused: bool,
}

/// Where in a server's settings a secret is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Place {
    /// An argument of the command, counted from 1.
    Argument(usize),
    Header(String),
    Url,
    Variable(String),
}

/// A value that the settings name instead of containing it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ReferencedSource {
    pub(crate) origin: ReferencedOrigin,
    /// Whether it is not a secret by its name.
    pub(crate) is_public: bool,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum ReferencedOrigin {
    File(PathBuf),
    Variable(String),
}

impl FoundServer {
    /// The directory in which its process starts, if the settings say so.
    pub fn directory(&self) -> Option<&Path> {
        match &self.kind {
            FoundKind::Command { directory, .. } => directory.as_deref(),
            FoundKind::Url { .. } => None,
        }
    }

    /// The program or the host, for a list. Without arguments and paths, which may be secrets.
    pub fn summary(&self) -> String {
        match &self.kind {
            FoundKind::Command { command, .. } => command.first().map(Composed::literals).unwrap_or_default(),
            FoundKind::Url { url, .. } => {
                let end = url.find("://").map_or(0, |scheme| scheme + 3);
                let length = url[end..].find('/').unwrap_or(url.len() - end);
                url[..end + length].to_owned()
            }
        }
    }

    /// The variables and files that the settings name for values.
    pub fn referenced(&self) -> impl Iterator<Item = String> {
        self.sources.iter().map(|source| match &source.origin {
            ReferencedOrigin::File(path) => format!("the file `{}`", path.display()),
            ReferencedOrigin::Variable(name) => format!("the variable `{name}`"),
        })
    }
}

impl FoundSecret {
    /// The value as it may be shown: the prefix of a known kind, and its length.
    pub fn masked(&self) -> String {
        let prefix = shapes::public_prefix(&self.value).unwrap_or_default();
        format!("{prefix}… ({} characters)", self.value.chars().count())
    }

    pub fn is_in_argument(&self) -> bool {
        matches!(self.place, Place::Argument(_))
    }
}

impl Composed {
    /// The text, with a control character in the place of each part that is filled in later.
    pub(crate) fn with_gaps(&self) -> String {
        let text = |part: &Part| match part {
            Part::Literal(text) => text.to_string(),
            Part::Secret(_) | Part::Source(_) => "\u{1a}".to_owned(),
        };
        self.0.iter().map(text).collect()
    }

    /// The literal parts.
    pub(crate) fn literals(&self) -> String {
        let literals = self.0.iter().filter_map(|part| match part {
            Part::Literal(text) => Some(text.as_str()),
            Part::Secret(_) | Part::Source(_) => None,
        });
        literals.collect()
    }

    pub(crate) fn is_literal(&self) -> bool {
        self.0.iter().all(|part| matches!(part, Part::Literal(_)))
    }
}

impl fmt::Debug for FoundSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FoundSecret")
            .field("field", &self.field)
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // A secret that was not recognised, or refused, is a literal.
            Self::Literal(_) => f.write_str("Literal(…)"),
            Self::Secret(index) => write!(f, "Secret({index})"),
            Self::Source(index) => write!(f, "Source({index})"),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Argument(number) => write!(f, "argument {number}"),
            Self::Header(name) => write!(f, "the header `{name}`"),
            Self::Url => f.write_str("the URL"),
            Self::Variable(name) => write!(f, "the variable `{name}`"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entropy => f.write_str("it looks random"),
            Self::Name => f.write_str("its name says so"),
            Self::Shape(kind) => write!(f, "it looks like {kind}"),
            Self::Url => f.write_str("it is a credential of a URL"),
        }
    }
}
