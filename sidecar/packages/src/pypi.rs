//! Resolves and installs packages of the Python package index: wheels only, in an environment of their own.
//!
//! What must stay true: nothing of a package runs while it is installed, because wheels are unpacked and source code is refused;
//! the environment has the path that it is installed at, because its files contain it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_egress::AllowedHost;
use cofferdam_process::{Exit, Variable};

use crate::failure::InstallError;
use crate::ini;
use crate::jail::{self, Command, variable};
use crate::lock::{LockedPackage, LockedServer};
use crate::pip_report::{ReportProblem, normalized, packages, requirements};
use crate::settings::RegistrySettings;
use crate::spec::{PackageKind, PackageSpec};
use crate::store::Pending;
use crate::tools::PythonTools;

const PREPARE: &str = "make a Python environment";
const RESOLVE: &str = "resolve the package";
const INSTALL: &str = "install the package";
const TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Below the tree.
const ENVIRONMENT: &str = "venv";
/// Runs the program of an environment, which exists only inside the walls.
const IN_ENVIRONMENT: &str = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])";
/// Runs pip out of its archive, as Python itself does to put it into new environments.
const PIP: &str = "import runpy, sys\n\
    sys.path.insert(0, sys.argv[1])\n\
    sys.argv = ['pip'] + sys.argv[2:]\n\
    runpy.run_module('pip', run_name='__main__', alter_sys=True)";
/// Below the tree: how a server's interpreter is started.
pub(crate) const PYTHON: &str = "venv/bin/python";

/// pip with the settings of the user.
#[derive(Debug)]
pub(crate) struct Pip<'a> {
    pub(crate) tools: &'a PythonTools,
    pub(crate) settings: &'a RegistrySettings,
    /// The sidecar's own files.
    pub(crate) private: &'a [PathBuf],
}

/// The directory in which an environment is made: where it is inside the walls, and where on the host.
#[derive(Clone, Copy)]
struct Place<'a> {
    inside: &'a Path,
    source: &'a Path,
}

impl Pip<'_> {
    /// Lets pip choose the versions of the whole tree. Nothing of it is run.
    pub(crate) async fn resolve(
        &self,
        spec: &PackageSpec,
        pending: &Pending,
    ) -> Result<Vec<LockedPackage>, InstallError> {
        let work = pending.work();
        let place = Place { inside: &work, source: &work };
        self.make_environment(place, pending).await?;
        let report = work.join("report.json");
        let options = ["-vv", "--dry-run", "--ignore-installed", "--only-binary", ":all:", "--report"];
        let arguments = options.map(OsString::from).into_iter();
        let arguments = arguments.chain([report.clone().into(), spec.requirement().into()]).collect();
        self.pip_install(RESOLVE, arguments, place, pending).await?;
        Ok(packages(&fs::read(report)?)?)
    }

    /// Downloads the locked wheels, which pip compares with the digests, and unpacks them.
    pub(crate) async fn install(
        &self,
        spec: &PackageSpec,
        locked: &LockedServer,
        pending: &Pending,
        place: &Path,
    ) -> Result<BTreeMap<String, String>, InstallError> {
        let tree = pending.tree();
        let place = Place { inside: place, source: &tree };
        self.make_environment(place, pending).await?;
        let list = pending.work().join("requirements.txt");
        fs::write(&list, requirements(&locked.packages)?)?;
        let options =
            ["--require-hashes", "--no-deps", "--only-binary", ":all:", "--compile", "--requirement"];
        let arguments = options.map(OsString::from).into_iter().chain([list.into()]).collect();
        self.pip_install(INSTALL, arguments, place, pending).await?;
        programs(&tree, spec.name())
    }

    /// Makes an empty environment, without a pip of its own.
    async fn make_environment(&self, place: Place<'_>, pending: &Pending) -> Result<(), InstallError> {
        let arguments = ["-I", "-m", "venv", "--without-pip"].map(OsString::from).into_iter();
        let arguments = arguments.chain([place.inside.join(ENVIRONMENT).into()]).collect();
        self.run(PREPARE, arguments, Vec::new(), &[], place, pending).await
    }

    /// Runs `pip install` in the environment.
    async fn pip_install(
        &self,
        what: &'static str,
        arguments: Vec<OsString>,
        place: Place<'_>,
        pending: &Pending,
    ) -> Result<(), InstallError> {
        let python = place.inside.join(PYTHON).into();
        let pip = self.tools.pip.clone().into();
        let start = ["-I".into(), "-c".into(), IN_ENVIRONMENT.into(), python];
        let start = start.into_iter().chain(["-I".into(), "-c".into(), PIP.into(), pip, "install".into()]);
        let arguments = start.chain(arguments).collect();
        let mut variables = self.settings.variables();
        if let Some(certificates) = &self.settings.certificates {
            variables.push(variable("PIP_CERT", certificates.clone().into()));
        }
        for name in ["PIP_NO_INPUT", "PIP_NO_CACHE_DIR", "PIP_DISABLE_PIP_VERSION_CHECK", "PIP_RETRIES"] {
            variables.push(variable(name, "1".into()));
        }
        self.run(what, arguments, variables, &self.settings.hosts, place, pending).await
    }

    async fn run(
        &self,
        what: &'static str,
        arguments: Vec<OsString>,
        mut variables: Vec<Variable>,
        hosts: &[AllowedHost],
        place: Place<'_>,
        pending: &Pending,
    ) -> Result<(), InstallError> {
        variables.push(variable("TMPDIR", pending.temporary().into()));
        let work = pending.work();
        let command = Command {
            program: &self.tools.python,
            arguments,
            variables,
            directory: &work,
            writable: vec![(&work, work.clone()), (place.inside, place.source.to_owned())],
            readable: self.settings.certificates.iter().cloned().collect(),
            hosts,
            time: TIMEOUT,
        };
        let finished = jail::run(command, self.private)
            .await
            .map_err(|source| InstallError::Confined { what, source })?;
        match finished.exit {
            Exit::Code(0) => Ok(()),
            _ => Err(InstallError::of(what, PackageKind::PyPi, &finished, self.settings)),
        }
    }
}

/// The programs that the package itself installed, with their paths below the tree.
fn programs(tree: &Path, package: &str) -> Result<BTreeMap<String, String>, InstallError> {
    let directories = fs::read_dir(tree.join(ENVIRONMENT).join("lib"))?;
    let packages =
        directories.flatten().map(|entry| entry.path().join("site-packages")).filter(|path| path.is_dir());
    for directory in packages {
        for entry in fs::read_dir(directory)?.flatten() {
            let name = entry.file_name();
            let is_own = name
                .to_str()
                .and_then(|name| name.strip_suffix(".dist-info")?.split_once('-'))
                .is_some_and(|(name, _)| normalized(name) == normalized(package));
            if is_own {
                // A package without programs has no such file.
                let text = fs::read_to_string(entry.path().join("entry_points.txt")).unwrap_or_default();
                return Ok(console_scripts(&text, tree));
            }
        }
    }
    Err(ReportProblem::Format.into())
}

fn console_scripts(entry_points: &str, tree: &Path) -> BTreeMap<String, String> {
    let path = |name: &str| format!("{ENVIRONMENT}/bin/{name}");
    ini::lines(entry_points)
        .filter(|(section, name, _)| *section == "console_scripts" && !name.contains('/'))
        .filter(|(_, name, _)| tree.join(path(name)).is_file())
        .map(|(_, name, _)| (name.to_owned(), path(name)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_those_of_the_package_itself() {
        let tree = tempfile::tempdir().unwrap();
        let site = tree.path().join("venv/lib/python3.11/site-packages");
        for (package, text) in [
            (
                "mcp_server_time-2026.10.19",
                "[gui_scripts]\nwindow = x:y\n[console_scripts]\nmcp-server-time = a:main\ngone = a:b\n../out = a:b\n",
            ),
            ("other-1.0", "[console_scripts]\nother = o:main\n"),
        ] {
            fs::create_dir_all(site.join(format!("{package}.dist-info"))).unwrap();
            fs::write(site.join(format!("{package}.dist-info/entry_points.txt")), text).unwrap();
        }
        fs::create_dir_all(tree.path().join("venv/bin")).unwrap();
        for name in ["mcp-server-time", "other", "window"] {
            fs::write(tree.path().join("venv/bin").join(name), "").unwrap();
        }
        let found = programs(tree.path(), "MCP-Server.Time").unwrap();
        assert_eq!(found, BTreeMap::from([("mcp-server-time".into(), "venv/bin/mcp-server-time".into())]));
        assert!(programs(tree.path(), "absent").is_err());
    }
}
