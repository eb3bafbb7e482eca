//! A proxy on the relay socket that keeps every byte towards the shim, and can cut the connections.
//!
//! "No credential enters the sandbox" is checked on what really crossed, not on what the shim chose to print.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Listens at `path`, passes on to `sidecar`.
#[derive(Debug)]
pub struct Tee {
    path: PathBuf,
    kept: Arc<Mutex<Vec<u8>>>,
    connections: Arc<Mutex<Vec<UnixStream>>>,
}

impl Tee {
    /// # Panics
    /// When the socket cannot be made.
    pub fn start(path: &Path, sidecar: &Path) -> Self {
        let listener = UnixListener::bind(path).expect("a fresh directory takes a socket");
        let kept = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(Mutex::new(Vec::new()));
        let (sidecar, record, open) = (sidecar.to_owned(), Arc::clone(&kept), Arc::clone(&connections));
        // Ends with the test's process; it holds nothing but this socket.
        std::thread::spawn(move || {
            for shim in listener.incoming().flatten() {
                if let Ok(upstream) = UnixStream::connect(&sidecar) {
                    if let Ok(mut open) = open.lock() {
                        open.extend([&shim, &upstream].into_iter().filter_map(|end| end.try_clone().ok()));
                    }
                    join(shim, upstream, &record);
                }
            }
        });
        Self { path: path.to_owned(), kept, connections }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Every byte from the sidecar to any shim, in the order of arrival.
    pub fn towards_the_shim(&self) -> Vec<u8> {
        self.kept.lock().map(|kept| kept.clone()).unwrap_or_default()
    }

    /// Cuts every connection there is now; new ones are taken as before.
    pub fn cut(&self) {
        for end in self.connections.lock().map(|mut open| std::mem::take(&mut *open)).unwrap_or_default() {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

fn join(shim: UnixStream, sidecar: UnixStream, record: &Arc<Mutex<Vec<u8>>>) {
    let (Ok(shim_reader), Ok(sidecar_writer)) = (shim.try_clone(), sidecar.try_clone()) else { return };
    let record = Arc::clone(record);
    std::thread::spawn(move || pump(shim_reader, sidecar_writer, |_| {}));
    std::thread::spawn(move || {
        pump(sidecar, shim, |bytes| {
            if let Ok(mut kept) = record.lock() {
                kept.extend_from_slice(bytes);
            }
        });
    });
}

fn pump(mut from: UnixStream, mut to: UnixStream, mut saw: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match from.read(&mut buffer) {
            Ok(count) if count > 0 => {
                saw(&buffer[..count]);
                if to.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            _ => break,
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}
