//! Resolves and installs packages of npm.
//!
//! What must stay true: install scripts never have the network or the registry's credential; they run only where the
//! configuration allows them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use cofferdam_process::Exit;
use serde_json::Value;

use crate::failure::{InstallError, Problem};
use crate::jail::{self, Command, Finished, variable};
use crate::lock::{InstallScripts, LockedServer};
use crate::npm_tree::{NpmTree, TreeProblem, package_json};
use crate::programs::ProgramProblem;
use crate::settings::RegistrySettings;
use crate::spec::{PackageKind, PackageSpec};
use crate::store::Pending;
use crate::tools::NodeTools;

const RESOLVE: &str = "resolve the package";
const INSTALL: &str = "install the package";
const SCRIPTS: &str = "run the install scripts";
/// A tree of a thousand packages over a slow network.
const TIMEOUT: Duration = Duration::from_secs(15 * 60);
const LOCK_FILE: &str = "package-lock.json";

/// npm with the settings of the user.
#[derive(Debug)]
pub(crate) struct Npm<'a> {
    pub(crate) tools: &'a NodeTools,
    pub(crate) settings: &'a RegistrySettings,
    /// The sidecar's own files.
    pub(crate) private: &'a [PathBuf],
}

/// Whether a run of npm needs the registry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Network {
    None,
    Registry,
}

impl Npm<'_> {
    /// Lets npm choose the versions of the whole tree. Nothing of it is run.
    pub(crate) async fn resolve(
        &self,
        spec: &PackageSpec,
        pending: &Pending,
    ) -> Result<NpmTree, InstallError> {
        let work = pending.work();
        fs::write(work.join("package.json"), package_json(spec).to_string())?;
        let arguments = ["install", "--package-lock-only", "--ignore-scripts"];
        self.run(RESOLVE, &arguments, &work, pending, &[], Network::Registry).await?;
        let text = fs::read(work.join(LOCK_FILE))?;
        let package_lock: Value = serde_json::from_slice(&text).map_err(|_| TreeProblem::Format)?;
        Ok(NpmTree::check(spec, &package_lock)?)
    }

    /// Downloads the locked tree, which npm compares with the digests.
    pub(crate) async fn install(
        &self,
        spec: &PackageSpec,
        locked: &LockedServer,
        pending: &Pending,
        place: &Path,
    ) -> Result<BTreeMap<String, String>, InstallError> {
        let checked = NpmTree::check(spec, locked.tree.as_ref().unwrap_or(&Value::Null))?;
        if checked.packages != locked.packages {
            return Err(TreeProblem::Format.into());
        }
        let tree = pending.tree();
        fs::write(tree.join("package.json"), package_json(spec).to_string())?;
        fs::write(tree.join(LOCK_FILE), checked.package_lock.to_string())?;
        let writable = [(place, tree.clone())];
        self.run(INSTALL, &["ci", "--ignore-scripts"], place, pending, &writable, Network::Registry).await?;
        if locked.install_scripts == InstallScripts::Allow {
            let run = self
                .finished(
                    SCRIPTS,
                    &["rebuild", "--foreground-scripts"],
                    place,
                    pending,
                    &writable,
                    Network::None,
                )
                .await?;
            if run.exit != Exit::Code(0) {
                let mut error = InstallError::of(SCRIPTS, PackageKind::Npm, &run, self.settings);
                if let InstallError::Failed { problem, .. } = &mut error {
                    *problem = Problem::Script;
                }
                return Err(error);
            }
        }
        programs(&tree, spec.name())
    }

    async fn run(
        &self,
        what: &'static str,
        arguments: &[&str],
        directory: &Path,
        pending: &Pending,
        writable: &[(&Path, PathBuf)],
        network: Network,
    ) -> Result<(), InstallError> {
        let run = self.finished(what, arguments, directory, pending, writable, network).await?;
        match run.exit {
            Exit::Code(0) => Ok(()),
            _ => Err(InstallError::of(what, PackageKind::Npm, &run, self.settings)),
        }
    }

    async fn finished(
        &self,
        what: &'static str,
        arguments: &[&str],
        directory: &Path,
        pending: &Pending,
        writable: &[(&Path, PathBuf)],
        network: Network,
    ) -> Result<Finished, InstallError> {
        let work = pending.work();
        let (hosts, of_registry) = match network {
            Network::None => (&[][..], Vec::new()),
            Network::Registry => (&self.settings.hosts[..], self.settings.variables()),
        };
        let mut variables = of_registry;
        let path = |path: &Path| path.as_os_str().to_owned();
        for (name, value) in [
            ("TMPDIR", path(&pending.temporary())),
            ("npm_config_cache", path(&work.join("cache"))),
            ("npm_config_audit", "false".into()),
            ("npm_config_fund", "false".into()),
            ("npm_config_update_notifier", "false".into()),
            ("npm_config_fetch_retries", "1".into()),
            ("npm_config_fetch_retry_mintimeout", "1000".into()),
        ] {
            variables.push(variable(name, value));
        }
        if let Some(certificates) = &self.settings.certificates {
            variables.push(variable("npm_config_cafile", path(certificates)));
        }
        let words = [&["--omit=dev", "--no-progress"], arguments].concat();
        let command = Command {
            program: &self.tools.node,
            arguments: [path(&self.tools.npm)].into_iter().chain(words.into_iter().map(Into::into)).collect(),
            variables,
            directory,
            writable: writable.iter().cloned().chain([(work.as_path(), work.clone())]).collect(),
            readable: self.settings.certificates.iter().cloned().collect(),
            hosts,
            time: TIMEOUT,
        };
        jail::run(command, self.private).await.map_err(|source| InstallError::Confined { what, source })
    }
}

/// The programs that `package.json` names, with their paths below the tree.
fn programs(tree: &Path, package: &str) -> Result<BTreeMap<String, String>, InstallError> {
    let directory = format!("node_modules/{package}");
    let text = fs::read(tree.join(&directory).join("package.json"))?;
    let manifest: Value = serde_json::from_slice(&text).map_err(|_| ProgramProblem::None)?;
    let own_name = package.rsplit('/').next().unwrap_or(package);
    let listed: Vec<(&str, &str)> = match &manifest["bin"] {
        Value::String(path) => vec![(own_name, path)],
        Value::Object(programs) => {
            programs.iter().filter_map(|(name, path)| Some((name.as_str(), path.as_str()?))).collect()
        }
        _ => Vec::new(),
    };
    let inside = |path: &str| {
        let path = Path::new(path);
        let is_plain = path.components().all(|part| matches!(part, Component::CurDir | Component::Normal(_)));
        let parts = path.components().filter_map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        });
        let joined = [directory.as_str()].into_iter().chain(parts).collect::<Vec<_>>().join("/");
        (is_plain && tree.join(&joined).is_file()).then_some(joined)
    };
    Ok(listed.into_iter().filter_map(|(name, path)| Some((name.to_owned(), inside(path)?))).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn programs_are_files_of_the_package() {
        let tree = tempfile::tempdir().unwrap();
        let package = tree.path().join("node_modules/@scope/server");
        fs::create_dir_all(package.join("dist")).unwrap();
        fs::write(package.join("dist/index.js"), "").unwrap();
        let of = |bin: Value| {
            fs::write(package.join("package.json"), json!({ "bin": bin }).to_string()).unwrap();
            programs(tree.path(), "@scope/server").unwrap()
        };
        let path = "node_modules/@scope/server/dist/index.js".to_owned();
        assert_eq!(of("./dist/index.js".into()), BTreeMap::from([("server".to_owned(), path.clone())]));
        let found = of(
            json!({"run": "dist/index.js", "gone": "x.js", "out": "../../../package.json", "root": "/bin/sh"}),
        );
        assert_eq!(found, BTreeMap::from([("run".to_owned(), path)]));
        assert_eq!(of(Value::Null), BTreeMap::new());
    }
}
