//! The tree of an npm package, as `package-lock.json` describes it.
//!
//! What must stay true: every package comes from the registry and has a strong digest, or is inside a package that has one; no
//! address is kept, so that the lock names no registry and carries no credential.

use serde_json::{Map, Value, json};

use crate::lock::LockedPackage;
use crate::spec::{PackageSpec, is_npm_version};

/// The format of npm 7 and later.
const LOCKFILE_VERSION: u64 = 3;
const ROOT: &str = "cofferdam-package";
const MODULES: &str = "node_modules/";
const STRONG: [&str; 3] = ["sha512-", "sha384-", "sha256-"];

/// A checked tree.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct NpmTree {
    /// What `npm ci` reads.
    pub(crate) package_lock: Value,
    pub(crate) packages: Vec<LockedPackage>,
    /// The packages that want to run a program while they are installed.
    pub(crate) with_scripts: Vec<String>,
}

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum TreeProblem {
    #[error(
        "npm did not write the `package-lock.json` that was expected: a newer or older npm may be needed"
    )]
    Format,
    #[error("`{0}` does not come from the registry, but from a repository, an address or a directory")]
    Foreign(String),
    #[error("`{0}` has no digest that is strong enough (SHA-1 or none)")]
    Weak(String),
}

/// The `package.json` of an installation, which depends on the package alone.
pub(crate) fn package_json(spec: &PackageSpec) -> Value {
    json!({"name": ROOT, "version": "0.0.0", "private": true, "dependencies": {(spec.name()): spec.version()}})
}

impl NpmTree {
    /// Checks what npm wrote, or what a lock says.
    pub(crate) fn check(spec: &PackageSpec, package_lock: &Value) -> Result<Self, TreeProblem> {
        if package_lock["lockfileVersion"].as_u64() != Some(LOCKFILE_VERSION) {
            return Err(TreeProblem::Format);
        }
        let entries = package_lock["packages"].as_object().ok_or(TreeProblem::Format)?;
        let mut checked = Map::new();
        checked.insert(String::new(), package_json(spec));
        let (mut packages, mut with_scripts) = (Vec::new(), Vec::new());
        for (path, entry) in entries.iter().filter(|(path, _)| !path.is_empty()) {
            let mut entry = entry.as_object().cloned().ok_or(TreeProblem::Format)?;
            let name = name_in_path(path).ok_or_else(|| TreeProblem::Foreign(path.clone()))?;
            let name = entry.get("name").and_then(Value::as_str).unwrap_or(name).to_owned();
            let foreign = || TreeProblem::Foreign(name.clone());
            let resolved = entry.remove("resolved");
            let is_of_registry = match resolved.as_ref().map(Value::as_str) {
                Some(Some(address)) => address.starts_with("https://") || address.starts_with("http://"),
                Some(None) => false,
                None => true,
            };
            if !is_of_registry || entry.get("link").is_some_and(|link| link != false) {
                return Err(foreign());
            }
            let version = entry.get("version").and_then(Value::as_str).ok_or_else(foreign)?.to_owned();
            if !is_npm_version(&version) {
                return Err(foreign());
            }
            if entry.get("hasInstallScript").is_some_and(|has| has == true) {
                with_scripts.push(name.clone());
            }
            // It is in the archive of another package, whose digest covers it.
            if entry.get("inBundle").is_none_or(|bundled| bundled != true) {
                let integrity = entry.get("integrity").and_then(Value::as_str).unwrap_or_default();
                let strong = integrity
                    .split_ascii_whitespace()
                    .find(|digest| STRONG.iter().any(|algorithm| digest.starts_with(algorithm)))
                    .ok_or_else(|| TreeProblem::Weak(name.clone()))?
                    .to_owned();
                entry.insert("integrity".into(), strong.clone().into());
                packages.push(LockedPackage { name, version, integrity: strong });
            }
            checked.insert(path.clone(), entry.into());
        }
        let is_package =
            |package: &LockedPackage| package.name == spec.name() && package.version == spec.version();
        if !packages.iter().any(is_package) {
            return Err(TreeProblem::Format);
        }
        packages.sort_unstable();
        packages.dedup();
        let package_lock = json!({
            "name": ROOT,
            "version": "0.0.0",
            "lockfileVersion": LOCKFILE_VERSION,
            "requires": true,
            "packages": checked,
        });
        Ok(Self { package_lock, packages, with_scripts })
    }
}

/// The name of the package at a path such as `node_modules/a/node_modules/@b/c`.
fn name_in_path(path: &str) -> Option<&str> {
    let mut name = "";
    for part in path.strip_prefix(MODULES)?.split("/node_modules/") {
        let is_segment = |segment: &str| {
            let is_allowed =
                |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
            !segment.is_empty() && !segment.starts_with('.') && segment.bytes().all(is_allowed)
        };
        let is_name = match part.strip_prefix('@') {
            Some(scoped) => {
                scoped.split_once('/').is_some_and(|(scope, name)| is_segment(scope) && is_segment(name))
            }
            None => is_segment(part),
        };
        if !is_name {
            return None;
        }
        name = part;
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spec() -> PackageSpec {
        "npm:@scope/server@1.0.0".parse().unwrap()
    }

    fn entry(version: &str) -> Value {
        json!({"version": version, "resolved": "https://registry.example.com/x.tgz", "integrity": "sha512-AAAA"})
    }

    fn lock(further: &[(&str, Value)]) -> Value {
        let mut packages = Map::new();
        packages.insert("".into(), json!({"dependencies": {"something": "else"}}));
        packages.insert("node_modules/@scope/server".into(), entry("1.0.0"));
        packages.extend(further.iter().map(|(path, entry)| ((*path).to_owned(), entry.clone())));
        json!({"lockfileVersion": 3, "requires": true, "packages": packages})
    }

    #[test]
    fn a_tree_is_kept_without_addresses() {
        let mut with_script = entry("2.0.0");
        with_script["hasInstallScript"] = true.into();
        let bundled = json!({"version": "3.0.0", "inBundle": true});
        let tree = NpmTree::check(
            &spec(),
            &lock(&[
                ("node_modules/JSONStream", with_script),
                ("node_modules/JSONStream/node_modules/@b/c", entry("1.5.0-rc.1")),
                ("node_modules/JSONStream/node_modules/bundled", bundled),
            ]),
        )
        .unwrap();
        let names: Vec<_> = tree.packages.iter().map(|package| package.name.as_str()).collect();
        assert_eq!(names, ["@b/c", "@scope/server", "JSONStream"]);
        assert_eq!(tree.with_scripts, ["JSONStream"]);
        assert!(!tree.package_lock.to_string().contains("registry.example.com"));
        assert_eq!(tree.package_lock["packages"][""]["dependencies"], json!({"@scope/server": "1.0.0"}));
        // What was kept passes the same check, as when it is read from a lock.
        assert_eq!(NpmTree::check(&spec(), &tree.package_lock), Ok(tree));
    }

    #[test]
    fn what_the_registry_did_not_digest_is_refused() {
        let with = |key: &str, value: Value| {
            let mut changed = entry("1.0.0");
            changed[key] = value;
            NpmTree::check(&spec(), &lock(&[("node_modules/x", changed)])).unwrap_err()
        };
        let foreign = TreeProblem::Foreign("x".into());
        assert_eq!(with("resolved", "git+ssh://git@example.com/x.git#0".into()), foreign);
        assert_eq!(with("resolved", "file:../x".into()), foreign);
        assert_eq!(with("link", true.into()), foreign);
        assert_eq!(with("version", "latest".into()), foreign);
        assert_eq!(with("integrity", "sha1-AAAA".into()), TreeProblem::Weak("x".into()));
        assert_eq!(with("integrity", Value::Null), TreeProblem::Weak("x".into()));
        for path in
            ["x", "../x", "node_modules/../x", "node_modules/", "node_modules/.bin", "node_modules/a/b"]
        {
            let result = NpmTree::check(&spec(), &lock(&[(path, entry("1.0.0"))]));
            assert_eq!(result, Err(TreeProblem::Foreign(path.into())), "{path}");
        }
        let without = json!({"lockfileVersion": 3, "packages": {}});
        assert_eq!(NpmTree::check(&spec(), &without), Err(TreeProblem::Format));
        let old = json!({"lockfileVersion": 1, "dependencies": {}});
        assert_eq!(NpmTree::check(&spec(), &old), Err(TreeProblem::Format));
    }

    proptest! {
        #[test]
        fn no_path_of_a_tree_leaves_its_directory(path in "(node_modules/)?[a-z@./~_-]{0,30}") {
            if name_in_path(&path).is_some() {
                prop_assert!(path.starts_with(MODULES));
                prop_assert!(path.split('/').all(|part| !part.is_empty() && !part.starts_with('.')));
            }
        }
    }
}
