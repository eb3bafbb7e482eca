//! Removes files that a client puts into a sandbox for a short time: uploads that are renamed once they are complete, and
//! enrolment strings; and directories that it creates for such files, if the work fails and they are empty.
//!
//! What must stay true: a file is registered before it is created, and forgotten only when it is gone. So a client that was
//! stopped at any step can remove what is left.

use std::cmp::Reverse;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::timeout;

use crate::guest::Guest;
use crate::{PlatformError, SandboxId, SandboxState};

const ACTION: &str = "remove temporary files from the sandbox";
/// How long removing the files of failed work may take before the failure is reported.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Removes the files twice, because the platform may still write what it received of an interrupted upload after the first
/// time. Parameters: the files and directories, in the order in which they are removed. A directory ends with a slash, and is
/// removed only if it is empty.
const REMOVE: &str = r#"remove() {
  removed=0
  for path in "$@"; do
    case "$path" in
      */) rmdir "$path" 2>/dev/null || true ;;
      *) rm -f "$path" || removed=1 ;;
    esac
  done
  return $removed
}
remove "$@"
sleep 1
remove "$@"
"#;

/// Does `work`, which creates these files and after which they are gone. If the work fails, the files are removed; if this
/// future is dropped, they stay registered for [`LastSandbox::clean_up`]. A path with a slash at its end is a directory that the
/// work creates and needs: if the work fails, the directory is removed unless it has other files.
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

/// The sandbox in which a client has worked last, for cleaning up after interrupted work.
pub(crate) struct LastSandbox<G>(Mutex<Option<(SandboxId, Arc<G>)>>);

impl<G> Default for LastSandbox<G> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<G: Guest> LastSandbox<G> {
    /// Remembers the sandbox in which the client works from now on.
    pub(crate) fn remember(&self, id: &SandboxId, guest: G) -> Arc<G> {
        let guest = Arc::new(guest);
        *self.lock() = Some((id.clone(), Arc::clone(&guest)));
        guest
    }

    /// Removes the files that are still registered, unless the sandbox is suspended: a request would resume some suspended
    /// sandboxes.
    pub(crate) async fn clean_up(
        &self,
        find_state: impl AsyncFnOnce(&SandboxId) -> Result<SandboxState, PlatformError>,
    ) {
        let Some((id, guest)) = self.lock().take() else { return };
        let files = guest.temporary_files().registered();
        if files.is_empty() {
            return;
        }
        let removed = async {
            match find_state(&id).await? {
                SandboxState::Running => {
                    remove(&*guest, &files.iter().map(String::as_str).collect::<Vec<_>>()).await
                }
                SandboxState::Suspended(suspension) => {
                    Err(PlatformError::Suspended { action: "clean up in the sandbox", suspension })
                }
            }
        };
        if let Err(error) = removed.await {
            tracing::warn!(sandbox = %id, %error, "temporary files may be left in the sandbox");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<(SandboxId, Arc<G>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn remove(guest: &impl Guest, paths: &[&str]) -> Result<(), PlatformError> {
    let mut ordered = paths.to_vec();
    // First the files, then the directories, and of these the innermost first.
    ordered.sort_by_key(|path| (path.ends_with('/'), Reverse(path.len())));
    guest.run(ACTION, REMOVE, &ordered).await?.success(ACTION)?;
    guest.temporary_files().forget(paths);
    Ok(())
}
