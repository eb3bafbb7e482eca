//! A proxy on the relay socket that records every byte sent towards the shim and can close connections, one or both
//! sides of them.
//!
//! "No credential enters the sandbox" is checked on the bytes that reached the shim, not on what the shim printed.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Listens at `path` and forwards to the sidecar.
#[derive(Debug)]
pub struct RecordingProxy {
    path: PathBuf,
    recorded: Arc<Mutex<Vec<u8>>>,
    connections: Arc<Mutex<Vec<Connection>>>,
    /// The sidecar's sockets of connections whose shim side was closed: open, and without traffic.
    idle: Mutex<Vec<UnixStream>>,
}

/// The two sockets of one connection.
#[derive(Debug)]
struct Connection {
    shim: UnixStream,
    sidecar: UnixStream,
    /// Whether an end of file on one side is forwarded to the other.
    forwards_end: Arc<AtomicBool>,
}

impl RecordingProxy {
    /// # Panics
    /// When the socket cannot be made.
    pub fn start(path: &Path, sidecar: &Path) -> Self {
        let listener = UnixListener::bind(path).expect("a socket can be created in a new directory");
        let recorded = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(Mutex::new(Vec::new()));
        let (sidecar, record, open) = (sidecar.to_owned(), Arc::clone(&recorded), Arc::clone(&connections));
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            for shim in listener.incoming().flatten() {
                let forwards_end = Arc::new(AtomicBool::new(true));
                let Ok(upstream) = UnixStream::connect(&sidecar) else { continue };
                if let (Ok(mut open), Ok(shim), Ok(sidecar)) =
                    (open.lock(), shim.try_clone(), upstream.try_clone())
                {
                    open.push(Connection { shim, sidecar, forwards_end: Arc::clone(&forwards_end) });
                }
                forward(shim, upstream, &record, &forwards_end);
            }
        });
        Self { path: path.to_owned(), recorded, connections, idle: Mutex::default() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Every byte from the sidecar to any shim, in the order of arrival.
    pub fn towards_the_shim(&self) -> Vec<u8> {
        self.recorded.lock().map(|recorded| recorded.clone()).unwrap_or_default()
    }

    /// Closes every open connection; new ones are accepted.
    pub fn cut(&self) {
        for Connection { shim, sidecar, .. } in self.take() {
            for end in [shim, sidecar] {
                let _ = end.shutdown(Shutdown::Both);
            }
        }
    }

    /// Closes the shim's side of every open connection; the sidecar's side stays open, without traffic.
    pub fn half_cut(&self) {
        for Connection { shim, sidecar, forwards_end } in self.take() {
            forwards_end.store(false, Ordering::SeqCst);
            let _ = shim.shutdown(Shutdown::Both);
            if let Ok(mut idle) = self.idle.lock() {
                idle.push(sidecar);
            }
        }
    }

    fn take(&self) -> Vec<Connection> {
        self.connections.lock().map(|mut open| std::mem::take(&mut *open)).unwrap_or_default()
    }
}

fn forward(
    shim: UnixStream,
    sidecar: UnixStream,
    record: &Arc<Mutex<Vec<u8>>>,
    forwards_end: &Arc<AtomicBool>,
) {
    let (Ok(shim_reader), Ok(sidecar_writer)) = (shim.try_clone(), sidecar.try_clone()) else { return };
    let record = Arc::clone(record);
    let (towards_sidecar, towards_shim) = (Arc::clone(forwards_end), Arc::clone(forwards_end));
    std::thread::spawn(move || copy(shim_reader, sidecar_writer, &towards_sidecar, |_| {}));
    std::thread::spawn(move || {
        copy(sidecar, shim, &towards_shim, |bytes| {
            if let Ok(mut recorded) = record.lock() {
                recorded.extend_from_slice(bytes);
            }
        });
    });
}

fn copy(mut from: UnixStream, mut to: UnixStream, forwards_end: &AtomicBool, mut record: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match from.read(&mut buffer) {
            Ok(count) if count > 0 => {
                record(&buffer[..count]);
                if to.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            _ => break,
        }
    }
    if forwards_end.load(Ordering::SeqCst) {
        let _ = to.shutdown(Shutdown::Write);
        let _ = from.shutdown(Shutdown::Read);
    }
}
