//! What the client of every platform can do in a running sandbox: run short scripts, and read and write files.
//!
//! What must stay true: platforms log scripts, their parameters and the paths of files, so none of them contains a secret; the
//! output of a script and the content of a file come from the sandbox and are not trusted.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::PlatformError;
use crate::redactor::Redactor;

/// Access to a running sandbox through its platform.
pub(crate) trait Guest: Sync {
    /// Runs a script with `sh` and waits for its exit; `parameters` are its `$1`, `$2` and so on.
    fn run(
        &self,
        action: &'static str,
        script: &str,
        parameters: &[&str],
    ) -> impl Future<Output = Result<ScriptOutput, PlatformError>> + Send;

    /// Writes a file as the sandbox's user, and creates its directory. `sent` is called with the number of bytes sent so far.
    fn upload(
        &self,
        action: &'static str,
        path: &str,
        content: Bytes,
        sent: &(dyn Fn(u64) + Send + Sync),
    ) -> impl Future<Output = Result<(), PlatformError>> + Send;

    /// Reads a file of at most a megabyte.
    fn download(
        &self,
        action: &'static str,
        path: &str,
    ) -> impl Future<Output = Result<Bytes, PlatformError>> + Send;

    fn redactor(&self) -> &Redactor;

    /// The files that have to be removed if the work in the sandbox is interrupted.
    fn temporary_files(&self) -> &TemporaryFiles;
}

/// The output and the result of a script.
pub(crate) struct ScriptOutput {
    /// The script's stdout; on some platforms with its stderr.
    pub(crate) text: String,
    /// `Err` is a description of the failure, without secrets.
    pub(crate) result: Result<(), String>,
}

/// The temporary files and directories of a client in one sandbox that may exist now: see [`crate::temporary_files`].
#[derive(Default)]
pub(crate) struct TemporaryFiles(Mutex<BTreeSet<String>>);

impl TemporaryFiles {
    pub(crate) fn register(&self, paths: &[&str]) {
        self.lock().extend(paths.iter().map(|path| (*path).to_owned()));
    }

    pub(crate) fn forget(&self, paths: &[&str]) {
        self.lock().retain(|registered| !paths.contains(&registered.as_str()));
    }

    pub(crate) fn registered(&self) -> Vec<String> {
        self.lock().iter().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ScriptOutput {
    /// Returns the output of a successful script, or else an error.
    pub(crate) fn success(self, action: &'static str) -> Result<String, PlatformError> {
        match self.result {
            Ok(()) => Ok(self.text),
            Err(why) => Err(PlatformError::Sandbox { action, why }),
        }
    }
}
