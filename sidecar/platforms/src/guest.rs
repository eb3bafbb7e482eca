//! What the client of every platform can do in a running sandbox: run short scripts, and read and write files.
//!
//! What must stay true: platforms log scripts, their parameters and the paths of files, so none of them holds a secret; what
//! a script prints and what a file holds was written by the sandbox and is not trusted.

use bytes::Bytes;

use crate::PlatformError;
use crate::redactor::Redactor;

/// A running sandbox, as its platform gives access to it.
pub(crate) trait Guest: Sync {
    /// Runs a script with `sh` to its end; `parameters` are its `$1`, `$2` and so on.
    fn run(
        &self,
        doing: &'static str,
        script: &str,
        parameters: &[&str],
    ) -> impl Future<Output = Result<ScriptOutput, PlatformError>> + Send;

    /// Writes a file as the sandbox's user, and makes its directory; `sent` is told how many bytes were sent so far.
    fn upload(
        &self,
        doing: &'static str,
        path: &str,
        content: Bytes,
        sent: &(dyn Fn(u64) + Send + Sync),
    ) -> impl Future<Output = Result<(), PlatformError>> + Send;

    /// Reads a file of at most a megabyte.
    fn download(
        &self,
        doing: &'static str,
        path: &str,
    ) -> impl Future<Output = Result<Bytes, PlatformError>> + Send;

    fn redactor(&self) -> &Redactor;
}

/// How a script ended.
pub(crate) struct ScriptOutput {
    /// What the script printed; on some platforms with its error messages.
    pub(crate) text: String,
    /// `Err` says how the script failed, and may be shown.
    pub(crate) end: Result<(), String>,
}

impl ScriptOutput {
    /// What a script printed that succeeded.
    pub(crate) fn success(self, doing: &'static str) -> Result<String, PlatformError> {
        match self.end {
            Ok(()) => Ok(self.text),
            Err(why) => Err(PlatformError::Sandbox { doing, why }),
        }
    }
}
