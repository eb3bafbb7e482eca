//! Removes files that a client puts into a sandbox for a short time: uploads that are renamed once they are complete, and
//! enrolment strings.
//!
//! What must stay true: a file is registered before it is created, and forgotten only when it is gone. So a client that was
//! stopped at any step can remove what is left.

use std::time::Duration;

use tokio::time::timeout;

use crate::PlatformError;
use crate::guest::Guest;

const ACTION: &str = "remove temporary files from the sandbox";
/// How long removing the files of failed work may take before the failure is reported.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Parameters: the files.
const REMOVE: &str = r#"rm -f "$@""#;

/// Does `work`, which creates these files and after which they are gone. If the work fails, the files are removed; if this
/// future is dropped, they stay registered for [`remove_registered_files`].
pub(crate) async fn with_temporary_files<T>(
    guest: &impl Guest,
    paths: &[&str],
    work: impl Future<Output = Result<T, PlatformError>>,
) -> Result<T, PlatformError> {
    guest.temporary_files().register(paths);
    let result = work.await;
    if result.is_ok() {
        guest.temporary_files().forget(paths);
    } else {
        // A failure is ignored: the files stay registered.
        let _ = timeout(REMOVE_TIMEOUT, remove(guest, paths)).await;
    }
    result
}

/// Removes all files that are still registered.
pub(crate) async fn remove_registered_files(guest: &impl Guest) -> Result<(), PlatformError> {
    let paths = guest.temporary_files().registered();
    match paths.is_empty() {
        true => Ok(()),
        false => remove(guest, &paths.iter().map(String::as_str).collect::<Vec<_>>()).await,
    }
}

async fn remove(guest: &impl Guest, paths: &[&str]) -> Result<(), PlatformError> {
    guest.run(ACTION, REMOVE, paths).await?.success(ACTION)?;
    guest.temporary_files().forget(paths);
    Ok(())
}
