//! Resolves packages into locks, and installs what locks say into the store.
//!
//! What must stay true: what is installed is what the lock says, and the lock is written by the caller only after a person, or
//! `--yes`, agreed.

use std::path::PathBuf;

use crate::failure::InstallError;
use crate::lock::{InstallScripts, LockedServer};
use crate::npm::Npm;
use crate::npm_tree::NpmTree;
use crate::pypi::Pip;
use crate::settings::{RegistrySettings, Surroundings, npm_settings, pip_settings};
use crate::source::{NotReady, PackageSource};
use crate::spec::{PackageKind, PackageSpec};
use crate::store::{Inspection, Pending, Store, StoreLock};
use crate::tools::{NodeTools, PythonTools};
use crate::{platform, programs};

/// Installs packages into one store. Only one of them exists at a time.
#[derive(Debug)]
pub struct Installer {
    store: Store,
    lock: StoreLock,
    /// The sidecar's own files, which no package manager sees.
    private: Vec<PathBuf>,
    node: Option<(NodeTools, RegistrySettings)>,
    python: Option<(PythonTools, RegistrySettings)>,
}

/// A tree that the registry has for a package.
#[derive(Clone, Debug)]
pub struct Resolved {
    pub locked: LockedServer,
    /// The packages that want to run a program while they are installed.
    pub with_scripts: Vec<String>,
}

impl Installer {
    /// Locks the store, and finds the tools and settings for these kinds of packages.
    pub async fn open(
        mut store: Store,
        private: Vec<PathBuf>,
        kinds: &[PackageKind],
        surroundings: Surroundings<'_>,
    ) -> Result<Self, InstallError> {
        let (mut node, mut python) = (None, None);
        if kinds.contains(&PackageKind::Npm) {
            let tools = NodeTools::find().await?;
            let settings = npm_settings(&surroundings, &tools.node)?;
            node = Some((tools, settings));
        }
        if kinds.contains(&PackageKind::PyPi) {
            python = Some((PythonTools::find().await?, pip_settings(&surroundings)?));
        }
        let lock = store.lock()?;
        Ok(Self { store, lock, private, node, python })
    }

    /// For what packages of this kind are resolved here.
    pub fn platform(&self, kind: PackageKind) -> String {
        match (kind, &self.python) {
            (PackageKind::PyPi, Some((tools, _))) => format!("{}-{}", platform(), tools.implementation),
            _ => platform(),
        }
    }

    /// Chooses the versions of the whole tree. Nothing is installed.
    pub async fn resolve(
        &self,
        spec: &PackageSpec,
        scripts: InstallScripts,
    ) -> Result<Resolved, InstallError> {
        let pending = self.store.begin(&self.lock)?;
        let (packages, tree, with_scripts) = match self.tools(spec.kind()) {
            Tools::Npm(npm) => {
                let NpmTree { package_lock, packages, with_scripts } = npm.resolve(spec, &pending).await?;
                (packages, Some(package_lock), with_scripts)
            }
            Tools::Pip(pip) => (pip.resolve(spec, &pending).await?, None, Vec::new()),
        };
        let platform = self.platform(spec.kind());
        let locked = LockedServer::new(spec.to_string(), scripts, platform, packages, tree);
        Ok(Resolved { locked, with_scripts })
    }

    /// Whether the locked tree is installed and unchanged.
    pub fn is_installed(&self, locked: &LockedServer) -> bool {
        self.store.inspect(locked.key(), Inspection::Content).is_ok()
    }

    /// Installs what is locked. Whatever was at its place before was found unusable, and is replaced.
    pub async fn install(&self, source: &PackageSource, locked: &LockedServer) -> Result<(), InstallError> {
        let spec = &source.spec;
        let here = self.platform(spec.kind());
        if locked.platform != here {
            return Err(InstallError::Platform { locked: locked.platform.clone(), here });
        }
        let pending: Pending = self.store.begin(&self.lock)?;
        let place = self.store.tree(locked.key());
        let (interpreter, found) = match self.tools(spec.kind()) {
            Tools::Npm(npm) => (&npm.tools.node, npm.install(spec, locked, &pending, &place).await?),
            Tools::Pip(pip) => (&pip.tools.python, pip.install(spec, locked, &pending, &place).await?),
        };
        programs::choose(&found, source.program.as_deref(), spec.name())?;
        Ok(self.store.finish(pending, locked.key(), interpreter.clone(), found)?)
    }

    /// Whether a server could be started from what is installed now.
    pub fn ready(&self, source: &PackageSource) -> Result<(), NotReady> {
        source.locate(Inspection::Quick).map(drop)
    }

    fn tools(&self, kind: PackageKind) -> Tools<'_> {
        let private = &self.private;
        match (kind, &self.node, &self.python) {
            (PackageKind::Npm, Some((tools, settings)), _) => Tools::Npm(Npm { tools, settings, private }),
            (PackageKind::PyPi, _, Some((tools, settings))) => Tools::Pip(Pip { tools, settings, private }),
            _ => unreachable!("`open` was given every kind of package"),
        }
    }
}

enum Tools<'a> {
    Npm(Npm<'a>),
    Pip(Pip<'a>),
}
