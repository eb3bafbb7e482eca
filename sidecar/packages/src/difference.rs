//! What a new lock of a server adds, removes and changes.

use std::collections::BTreeMap;
use std::fmt;

use crate::lock::{LockedPackage, LockedServer};

/// The changes from one lock of a server to another, in the order of names.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Difference {
    pub changes: Vec<Change>,
}

#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Change {
    Added {
        name: String,
        version: String,
    },
    /// The only version of a package is another one.
    Moved {
        name: String,
        from: String,
        to: String,
    },
    Removed {
        name: String,
        version: String,
    },
    /// The same version has other content. A registry should never do this.
    Replaced {
        name: String,
        version: String,
    },
    /// Something besides the packages, such as the platform.
    Setting {
        what: &'static str,
        from: String,
        to: String,
    },
}

impl Difference {
    /// `old` is `None` for a server that is not locked yet.
    pub fn between(old: Option<&LockedServer>, new: &LockedServer) -> Self {
        let mut changes = Vec::new();
        if let Some(old) = old {
            let scripts = |locked: &LockedServer| format!("{:?}", locked.install_scripts).to_lowercase();
            for (what, from, to) in [
                ("package", old.package.clone(), new.package.clone()),
                ("install-scripts", scripts(old), scripts(new)),
                ("platform", old.platform.clone(), new.platform.clone()),
            ] {
                if from != to {
                    changes.push(Change::Setting { what, from, to });
                }
            }
        }
        let before = by_name(old.map_or(&[], |locked| &locked.packages));
        let after = by_name(&new.packages);
        let mut names: Vec<&str> = before.keys().chain(after.keys()).copied().collect();
        names.sort_unstable();
        names.dedup();
        let none = Versions::new();
        for name in names {
            let versions = |side| BTreeMap::get(side, name).unwrap_or(&none);
            changes.extend(changes_of(name, versions(&before), versions(&after)));
        }
        if changes.is_empty() && old.is_some_and(|old| old.key() != new.key()) {
            let what = "arrangement of the same packages";
            changes.push(Change::Setting { what, from: "before".into(), to: "now".into() });
        }
        Self { changes }
    }

    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Added { name, version } => write!(f, "+ {name} {version}"),
            Self::Moved { name, from, to } => write!(f, "~ {name} {from} -> {to}"),
            Self::Removed { name, version } => write!(f, "- {name} {version}"),
            Self::Replaced { name, version } => {
                write!(f, "! {name} {version}: the same version now has other content")
            }
            Self::Setting { what, from, to } => write!(f, "~ {what}: {from} -> {to}"),
        }
    }
}

/// The versions of one package, each with its digest.
type Versions = BTreeMap<String, String>;

fn by_name(packages: &[LockedPackage]) -> BTreeMap<&str, Versions> {
    let mut names: BTreeMap<&str, Versions> = BTreeMap::new();
    for LockedPackage { name, version, integrity } in packages {
        names.entry(name).or_default().insert(version.clone(), integrity.clone());
    }
    names
}

fn changes_of(name: &str, before: &Versions, after: &Versions) -> Vec<Change> {
    let name = name.to_owned();
    let gone: Vec<&String> = before.keys().filter(|version| !after.contains_key(*version)).collect();
    let new: Vec<&String> = after.keys().filter(|version| !before.contains_key(*version)).collect();
    let replaced =
        before.iter().filter(|(version, digest)| after.get(*version).is_some_and(|now| now != *digest));
    let mut changes: Vec<Change> = replaced
        .map(|(version, _)| Change::Replaced { name: name.clone(), version: version.clone() })
        .collect();
    match (&gone[..], &new[..]) {
        ([from], [to]) => changes.push(Change::Moved { name, from: (*from).clone(), to: (*to).clone() }),
        _ => {
            let added = |version: &&String| Change::Added { name: name.clone(), version: (*version).clone() };
            let removed =
                |version: &&String| Change::Removed { name: name.clone(), version: (*version).clone() };
            changes.extend(gone.iter().map(removed));
            changes.extend(new.iter().map(added));
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::tests::server;

    fn lines(old: Option<&LockedServer>, new: &LockedServer) -> Vec<String> {
        Difference::between(old, new).changes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn packages_are_added_removed_and_moved() {
        let old = server(&[("a", "1.0.0"), ("b", "1.0.0"), ("c", "1.0.0"), ("c", "2.0.0")]);
        let new = server(&[("a", "1.1.0"), ("c", "2.0.0"), ("d", "1.0.0")]);
        assert_eq!(lines(Some(&old), &new), ["~ a 1.0.0 -> 1.1.0", "- b 1.0.0", "- c 1.0.0", "+ d 1.0.0"]);
        assert_eq!(lines(None, &new), ["+ a 1.1.0", "+ c 2.0.0", "+ d 1.0.0"]);
        assert!(Difference::between(Some(&new), &new).is_empty());
    }

    #[test]
    fn other_content_of_the_same_version_stands_out() {
        let old = server(&[("a", "1.0.0")]);
        let mut new = old.packages.clone();
        new[0].integrity = "sha512-other".into();
        let new =
            LockedServer::new(old.package.clone(), old.install_scripts, old.platform.clone(), new, None);
        assert_eq!(lines(Some(&old), &new), ["! a 1.0.0: the same version now has other content"]);
    }

    #[test]
    fn no_change_of_the_digest_goes_unnamed() {
        let old = server(&[("a", "1.0.0")]);
        let (package, platform) = (old.package.clone(), old.platform.clone());
        let moved = LockedServer::new(package, old.install_scripts, platform, old.packages.clone(), None);
        assert_eq!(lines(Some(&old), &moved), ["~ arrangement of the same packages: before -> now"]);
    }
}
