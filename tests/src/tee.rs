//! A proxy on the relay socket that keeps every byte towards the shim, and can cut the connections, whole or half.
//!
//! "No credential enters the sandbox" is checked on what really crossed, not on what the shim chose to print.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Listens at `path`, passes on to `sidecar`.
#[derive(Debug)]
pub struct Tee {
    path: PathBuf,
    kept: Arc<Mutex<Vec<u8>>>,
    connections: Arc<Mutex<Vec<Connection>>>,
    /// The sidecar's ends of connections that were half cut.
    silent: Mutex<Vec<UnixStream>>,
}

/// Both ends of one connection.
#[derive(Debug)]
struct Connection {
    shim: UnixStream,
    sidecar: UnixStream,
    /// Whether the end of one side is the end of the other.
    joined: Arc<AtomicBool>,
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
                let joined = Arc::new(AtomicBool::new(true));
                let Ok(upstream) = UnixStream::connect(&sidecar) else { continue };
                if let (Ok(mut open), Ok(shim), Ok(sidecar)) =
                    (open.lock(), shim.try_clone(), upstream.try_clone())
                {
                    open.push(Connection { shim, sidecar, joined: Arc::clone(&joined) });
                }
                join(shim, upstream, &record, &joined);
            }
        });
        Self { path: path.to_owned(), kept, connections, silent: Mutex::default() }
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
        for Connection { shim, sidecar, .. } in self.take() {
            for end in [shim, sidecar] {
                let _ = end.shutdown(Shutdown::Both);
            }
        }
    }

    /// Cuts the shim's side of every connection there is now; the sidecar's side stays open and silent.
    pub fn half_cut(&self) {
        for Connection { shim, sidecar, joined } in self.take() {
            joined.store(false, Ordering::SeqCst);
            let _ = shim.shutdown(Shutdown::Both);
            if let Ok(mut silent) = self.silent.lock() {
                silent.push(sidecar);
            }
        }
    }

    fn take(&self) -> Vec<Connection> {
        self.connections.lock().map(|mut open| std::mem::take(&mut *open)).unwrap_or_default()
    }
}

fn join(shim: UnixStream, sidecar: UnixStream, record: &Arc<Mutex<Vec<u8>>>, joined: &Arc<AtomicBool>) {
    let (Ok(shim_reader), Ok(sidecar_writer)) = (shim.try_clone(), sidecar.try_clone()) else { return };
    let (record, joined) = (Arc::clone(record), Arc::clone(joined));
    let still_joined = Arc::clone(&joined);
    std::thread::spawn(move || pump(shim_reader, sidecar_writer, &still_joined, |_| {}));
    std::thread::spawn(move || {
        pump(sidecar, shim, &joined, |bytes| {
            if let Ok(mut kept) = record.lock() {
                kept.extend_from_slice(bytes);
            }
        });
    });
}

fn pump(mut from: UnixStream, mut to: UnixStream, joined: &AtomicBool, mut saw: impl FnMut(&[u8])) {
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
    if joined.load(Ordering::SeqCst) {
        let _ = to.shutdown(Shutdown::Write);
        let _ = from.shutdown(Shutdown::Read);
    }
}
