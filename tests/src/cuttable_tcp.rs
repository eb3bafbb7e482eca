//! A TCP forwarder between sandboxes and the sidecar's port. A test can close its connections, or have it drop the
//! sidecar's response to a `Hello`.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::port::free_address;

/// Listens on loopback and forwards to another port there.
#[derive(Debug)]
pub struct CuttableTcp {
    port: u16,
    target: u16,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    connections: Mutex<Vec<TcpStream>>,
    drop_next_welcome: AtomicBool,
    dropped: AtomicUsize,
}

impl CuttableTcp {
    /// Forwards to a free port, at which a sidecar will listen.
    ///
    /// # Panics
    /// When loopback has no port left.
    #[track_caller]
    pub fn start() -> Self {
        let target = free_address().port();
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let shared = Arc::new(Shared::default());
        let accepting = Arc::clone(&shared);
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            for shim in listener.incoming().flatten() {
                if let Ok(sidecar) = TcpStream::connect(("127.0.0.1", target)) {
                    forward(&accepting, shim, sidecar);
                }
            }
        });
        Self { port, target, shared }
    }

    /// The lines of `[relay]` that make the sidecar listen on the target port and sandboxes connect to the forwarder.
    pub fn relay_lines(&self) -> String {
        format!("tls = \"127.0.0.1:{}\"\nadvertise = \"127.0.0.1:{}\"", self.target, self.port)
    }

    /// Closes every open connection; new ones are accepted.
    pub fn cut(&self) {
        let open = self.shared.connections.lock().map(|mut open| std::mem::take(&mut *open));
        for end in open.unwrap_or_default() {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    /// Drops the response to the `Hello` of the next connection and closes it.
    pub fn drop_the_next_welcome(&self) {
        self.shared.drop_next_welcome.store(true, Ordering::SeqCst);
    }

    /// How many responses were dropped.
    pub fn dropped(&self) -> usize {
        self.shared.dropped.load(Ordering::SeqCst)
    }
}

/// Bytes from the shim after which its `Hello` has begun: more than its side of the TLS handshake (some 440), less than
/// that and a `Hello` (some 190).
const HELLO_BYTES: usize = 500;
/// More bytes than the preface with its TLS record, fewer than any response to a `Hello`.
const RESPONSE_BYTES: usize = 120;

fn forward(shared: &Arc<Shared>, shim: TcpStream, sidecar: TcpStream) {
    let (Ok(shim_reader), Ok(sidecar_writer)) = (shim.try_clone(), sidecar.try_clone()) else { return };
    if let Ok(mut open) = shared.connections.lock() {
        open.extend([&shim, &sidecar].into_iter().filter_map(|end| end.try_clone().ok()));
    }
    let drops = shared.drop_next_welcome.swap(false, Ordering::SeqCst);
    let from_shim = Arc::new(AtomicUsize::new(0));
    let (counting, shared) = (Arc::clone(&from_shim), Arc::clone(shared));
    std::thread::spawn(move || {
        copy(shim_reader, sidecar_writer, |bytes| {
            counting.fetch_add(bytes, Ordering::SeqCst);
            Forwarding::Send
        });
    });
    std::thread::spawn(move || {
        let mut withheld = 0;
        copy(sidecar, shim, |bytes| {
            if !drops || from_shim.load(Ordering::SeqCst) < HELLO_BYTES {
                return Forwarding::Send;
            }
            withheld += bytes;
            match withheld > RESPONSE_BYTES {
                true => {
                    shared.dropped.fetch_add(1, Ordering::SeqCst);
                    Forwarding::Close
                }
                false => Forwarding::Withhold,
            }
        });
    });
}

/// What to do with bytes that were received.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Forwarding {
    Close,
    Send,
    Withhold,
}

fn copy(mut from: TcpStream, mut to: TcpStream, mut decide: impl FnMut(usize) -> Forwarding) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        match decide(count) {
            Forwarding::Close => {
                let _ = from.shutdown(Shutdown::Both);
                let _ = to.shutdown(Shutdown::Both);
                return;
            }
            Forwarding::Withhold => {}
            Forwarding::Send => {
                if to.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}
