//! `audit-sync = "call"`: one thread syncs records to the disk for all callers that wait.
//!
//! A caller requests a sync after its write; the thread takes all requests and only then begins to sync. So no caller
//! gets the result of a sync that began before its write, and one sync serves all requests that arrived during the
//! previous sync.

use std::fs::File;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

/// The result of a sync; the error is shared by all callers that waited for it.
pub(super) type Synced = Result<(), Arc<io::Error>>;

/// Owns the thread: dropping it sends a result to all waiting callers and joins the thread.
pub(super) struct Syncer {
    shared: Arc<SharedSyncer>,
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    /// `sync` is `fdatasync(2)`, or a test's replacement.
    pub(super) fn start_with(
        sync: impl Fn(&File) -> io::Result<()> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let shared =
            Arc::new(SharedSyncer { state: Mutex::default(), wake: Condvar::new(), sync: Box::new(sync) });
        let thread = std::thread::Builder::new().name("audit-sync".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || shared.serve()
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// To be called after the write to `file`. The result is of a sync that begins after this call.
    pub(super) fn request_sync(&self, file: &Arc<File>) -> oneshot::Receiver<Synced> {
        let (waiter, synced) = oneshot::channel();
        let mut state = self.shared.lock();
        state.add(file);
        state.waiters.push(waiter);
        self.shared.wake.notify_one();
        synced
    }

    /// Adds this file or directory to the next sync. Neither causes a sync nor waits for it.
    pub(super) fn include(&self, file: &Arc<File>) {
        self.shared.lock().add(file);
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.shared.lock().stop = StopRequest::Requested;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, that was printed already.
            let _ = thread.join();
        }
    }
}

struct SharedSyncer {
    state: Mutex<SyncState>,
    wake: Condvar,
    sync: Box<SyncFile>,
}

/// `fdatasync(2)`, or a test's replacement.
type SyncFile = dyn Fn(&File) -> io::Result<()> + Send + Sync;

#[derive(Default)]
struct SyncState {
    /// Bounded by the number of callers: each waits for its result before it requests another sync.
    waiters: Vec<oneshot::Sender<Synced>>,
    files: Vec<Arc<File>>,
    stop: StopRequest,
}

#[derive(Default, Eq, PartialEq)]
enum StopRequest {
    Requested,
    #[default]
    NotYet,
}

impl SyncState {
    fn add(&mut self, file: &Arc<File>) {
        if !self.files.iter().any(|known| Arc::ptr_eq(known, file)) {
            self.files.push(Arc::clone(file));
        }
    }
}

impl SharedSyncer {
    fn lock(&self) -> MutexGuard<'_, SyncState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        loop {
            let idle = |state: &mut SyncState| state.waiters.is_empty() && state.stop == StopRequest::NotYet;
            let mut state = self.wake.wait_while(self.lock(), idle).unwrap_or_else(PoisonError::into_inner);
            let waiters = std::mem::take(&mut state.waiters);
            let files = std::mem::take(&mut state.files);
            let last = state.stop == StopRequest::Requested;
            drop(state);

            let synced: Synced = files.iter().try_for_each(|file| (self.sync)(file)).map_err(Arc::new);
            for waiter in waiters {
                // A caller that was cancelled does not wait any more; its record is in the file nevertheless.
                let _ = waiter.send(synced.clone());
            }
            if last {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    /// Reached only if the syncer is broken.
    const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(20);

    fn a_file() -> Arc<File> {
        Arc::new(File::open("/dev/null").unwrap())
    }

    #[test]
    fn callers_that_arrive_during_a_sync_share_the_next_one() {
        let (began, sync_begins) = mpsc::channel();
        let (go, gate) = mpsc::channel();
        let gate = Mutex::new(gate);
        let syncer = Syncer::start_with(move |_| {
            began.send(()).unwrap();
            gate.lock().unwrap().recv_timeout(TIMEOUT).unwrap()
        })
        .unwrap();
        let file = a_file();

        let first = syncer.request_sync(&file);
        sync_begins.recv_timeout(TIMEOUT).unwrap();
        let mut late: Vec<_> = (0..10).map(|_| syncer.request_sync(&file)).collect();
        go.send(Ok(())).unwrap();
        first.blocking_recv().unwrap().unwrap();

        sync_begins.recv_timeout(TIMEOUT).unwrap();
        for waiting in &mut late {
            assert_eq!(waiting.try_recv().unwrap_err(), TryRecvError::Empty);
        }
        go.send(Err(io::Error::other("the disk is gone"))).unwrap();
        for waiting in late {
            assert_eq!(waiting.blocking_recv().unwrap().unwrap_err().to_string(), "the disk is gone");
        }

        let after = syncer.request_sync(&file);
        go.send(Ok(())).unwrap();
        after.blocking_recv().unwrap().unwrap();
        drop(syncer);
        // The test has received the begin of two syncs above. Only that of `after` is left.
        assert_eq!(sync_begins.iter().count(), 1, "ten waiters did not share one sync");
    }

    #[test]
    fn waiting_callers_get_a_result_when_the_syncer_is_dropped() {
        let syncer = Syncer::start_with(|_| Ok(())).unwrap();
        let waiting: Vec<_> = (0..100).map(|_| syncer.request_sync(&a_file())).collect();
        drop(syncer);
        for synced in waiting {
            synced.blocking_recv().unwrap().unwrap();
        }
    }
}
