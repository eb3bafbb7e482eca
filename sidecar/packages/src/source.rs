//! What a server with `package` is started from.
//!
//! What must stay true: a server is started only from files that are those of its lock, and its lock is about the package that the
//! configuration names; nothing here uses a network or starts a program.

use std::path::PathBuf;

use cofferdam_base::text::error_chain;

use crate::lock::{InstallScripts, LockError, LockFile, LockedServer};
use crate::platform;
use crate::programs::{self, ProgramProblem};
use crate::pypi::PYTHON;
use crate::spec::{PackageKind, PackageSpec};
use crate::store::{Inspection, Store, Unusable};

/// A server's package, as the configuration names it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PackageSource {
    /// The server's name: its key in the lock.
    pub server: String,
    pub spec: PackageSpec,
    pub install_scripts: InstallScripts,
    /// Which of the package's programs is the server.
    pub program: Option<String>,
    /// The lock beside the configuration.
    pub lock: PathBuf,
    pub store: Store,
}

/// How an installed package is started.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PackageProgram {
    /// Its path.
    pub program: String,
    /// What comes before the server's own arguments.
    pub arguments: Vec<String>,
    /// The files of the package, with no link in their path.
    pub files: PathBuf,
}

/// Why a server cannot be started from its package.
#[derive(Debug, thiserror::Error)]
#[error("{problem}: {}", self.next_step())]
pub struct NotReady {
    server: String,
    #[source]
    problem: NotReadyProblem,
}

#[derive(Debug, thiserror::Error)]
pub enum NotReadyProblem {
    #[error("the lock has another package, or other `install-scripts`, than the configuration")]
    Disagrees,
    #[error(transparent)]
    Lock(LockError),
    #[error("its package is not in the lock")]
    NotLocked,
    #[error("its path is not UTF-8")]
    Path,
    #[error("its package is locked for `{locked}`, and this host is `{here}`")]
    Platform { locked: String, here: String },
    #[error(transparent)]
    Program(ProgramProblem),
    #[error(transparent)]
    Unusable(Unusable),
}

impl PackageSource {
    /// Finds the installed package. Reads files, so it blocks.
    pub fn locate(&self, inspection: Inspection) -> Result<PackageProgram, NotReady> {
        self.find(inspection).map_err(|problem| NotReady { server: self.server.clone(), problem })
    }

    /// Whether a part of a lock is about this package, as it is configured.
    pub fn is_locked_by(&self, locked: &LockedServer) -> bool {
        locked.package == self.spec.to_string() && locked.install_scripts == self.install_scripts
    }

    fn find(&self, inspection: Inspection) -> Result<PackageProgram, NotReadyProblem> {
        let mut lock = LockFile::read(&self.lock).map_err(NotReadyProblem::Lock)?;
        let locked = lock.servers.remove(&self.server).ok_or(NotReadyProblem::NotLocked)?;
        if !self.is_locked_by(&locked) {
            return Err(NotReadyProblem::Disagrees);
        }
        let here = platform();
        let is_here =
            locked.platform.strip_prefix(&here).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
        if !is_here {
            return Err(NotReadyProblem::Platform { locked: locked.platform, here });
        }
        let installed = self.store.inspect(locked.key(), inspection).map_err(NotReadyProblem::Unusable)?;
        // As it was installed, with no link in its path.
        let files = self.store.tree(locked.key());
        let files =
            files.canonicalize().map_err(|error| NotReadyProblem::Unusable(Unusable::Unreadable(error)))?;
        let chosen = programs::choose(&installed.programs, self.program.as_deref(), self.spec.name())
            .map_err(NotReadyProblem::Program)?;
        let text = |path: PathBuf| path.into_os_string().into_string().map_err(|_| NotReadyProblem::Path);
        let script = text(files.join(chosen))?;
        let interpreter = installed.interpreter;
        match self.spec.kind() {
            PackageKind::Npm => {
                Ok(PackageProgram { program: text(interpreter)?, arguments: vec![script], files })
            }
            PackageKind::PyPi => {
                let python = files.join(PYTHON);
                if !python.canonicalize().is_ok_and(|python| python == interpreter) {
                    return Err(NotReadyProblem::Unusable(Unusable::Interpreter(interpreter)));
                }
                // Compiled files are in the tree already; others would change it.
                Ok(PackageProgram { program: text(python)?, arguments: vec!["-B".into(), script], files })
            }
        }
    }
}

impl NotReady {
    /// Stable, for `cofferdam check`.
    pub fn code(&self) -> &'static str {
        match &self.problem {
            NotReadyProblem::Disagrees
            | NotReadyProblem::Lock(_)
            | NotReadyProblem::NotLocked
            | NotReadyProblem::Platform { .. } => "package-lock",
            NotReadyProblem::Path | NotReadyProblem::Program(_) | NotReadyProblem::Unusable(_) => {
                "package-not-installed"
            }
        }
    }

    /// Whose package it is.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// What is wrong, with its causes and without the next step.
    pub fn describe(&self) -> String {
        error_chain(&self.problem)
    }

    /// The command that mends it.
    pub fn next_step(&self) -> String {
        let server = &self.server;
        match &self.problem {
            NotReadyProblem::Lock(error) => error.hint().to_owned(),
            NotReadyProblem::Platform { .. } => {
                format!("run `cofferdam install {server} --update` on this host")
            }
            NotReadyProblem::Program(_) => format!("set `servers.{server}.program` to one of the names"),
            NotReadyProblem::Path => "choose a `state-dir` whose path is UTF-8".to_owned(),
            NotReadyProblem::Disagrees | NotReadyProblem::NotLocked | NotReadyProblem::Unusable(_) => {
                format!("run `cofferdam install {server}`")
            }
        }
    }
}
