//! AgentManifest: what a server says that it needs, in eighteen words.
//!
//! A manifest is an upper bound. It gives a server nothing: each of its words is refined by a key of the configuration that names
//! paths, hosts or variables, and what such a key asks for beyond the manifest is an error.
//!
//! | module | what it holds |
//! |---|---|
//! | [`permission`] | the words, and the key that refines each |
//! | [`given`] | the words that a configuration asks for |
//! | [`read`] | a manifest's file |
//!
//! What must stay true: a word that is not known, or written twice, fails the whole manifest, so that nobody reads a bound that
//! is not the one in force; what cannot be told apart inside the walls counts as asked for.

mod given;
mod permission;
mod read;

use std::collections::BTreeSet;

use serde::Serialize;

pub use given::{Asked, Given};
pub use permission::{Key, Permission, Refinement};
pub use read::{ManifestError, read_file};

/// A manifest that was read, or is to be written.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Manifest {
    pub about: About,
    pub permissions: BTreeSet<Permission>,
}

/// What a manifest says of its server besides the permissions, for people.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct About {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Where the server's package comes from: `npm` or `pypi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registry: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub package_name: Option<String>,
}

#[derive(Serialize)]
struct WrittenManifest<'a> {
    #[serde(flatten)]
    about: &'a About,
    permissions: Vec<&'static str>,
}

impl Manifest {
    /// The narrowest manifest for what a server is given.
    pub fn of(given: &Given<'_>, about: About) -> Self {
        Self { about, permissions: given.asked().into_iter().map(|asked| asked.permission).collect() }
    }

    /// What a server is given, or would be, beyond this manifest.
    pub fn exceeded_by(&self, given: &Given<'_>) -> Vec<Asked> {
        let is_missing = |asked: &Asked| !self.permissions.contains(&asked.permission);
        given.asked().into_iter().filter(is_missing).collect()
    }

    /// The permissions that a key of the configuration could refine, and does not.
    pub fn unrefined(&self, given: &Given<'_>) -> Vec<(Permission, Key)> {
        let asked = given.asked();
        let is_asked = |permission: Permission| asked.iter().any(|asked| asked.permission == permission);
        let refinable = self.permissions.iter().filter_map(|permission| match permission.refinement() {
            Refinement::Key(key) => Some((*permission, key)),
            Refinement::Never | Refinement::OwnOnly => None,
        });
        refinable.filter(|(permission, _)| !is_asked(*permission)).collect()
    }

    /// As it is written to a file.
    pub fn to_json(&self) -> String {
        let permissions = self.permissions.iter().map(|permission| permission.word()).collect();
        let written = WrittenManifest { about: &self.about, permissions };
        serde_json::to_string_pretty(&written).expect("a manifest is plain data")
    }
}

#[cfg(test)]
mod tests;
