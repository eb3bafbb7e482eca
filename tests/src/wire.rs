//! A TCP wire between sandboxes and the sidecar's port, which can be cut, or lose what matters most.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::port::free_place;

/// Listens on loopback, passes on to a port there.
#[derive(Debug)]
pub struct Wire {
    port: u16,
    target: u16,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    connections: Mutex<Vec<TcpStream>>,
    lose_a_welcome: AtomicBool,
    lost: AtomicUsize,
}

impl Wire {
    /// A wire to a port that nobody has yet.
    ///
    /// # Panics
    /// When loopback has no port left.
    #[track_caller]
    pub fn start() -> Self {
        let target = free_place().port();
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let shared = Arc::new(Shared::default());
        let mine = Arc::clone(&shared);
        // Ends with the test's process; it holds nothing but this port.
        std::thread::spawn(move || {
            for shim in listener.incoming().flatten() {
                if let Ok(sidecar) = TcpStream::connect(("127.0.0.1", target)) {
                    join(&mine, shim, sidecar);
                }
            }
        });
        Self { port, target, shared }
    }

    /// The lines of `[relay]` that make a sidecar listen at the far end and sandboxes dial the near one.
    pub fn relay_lines(&self) -> String {
        format!("tls = \"127.0.0.1:{}\"\nadvertise = \"127.0.0.1:{}\"", self.target, self.port)
    }

    /// Cuts every connection there is now; new ones are taken as before.
    pub fn cut(&self) {
        let open = self.shared.connections.lock().map(|mut open| std::mem::take(&mut *open));
        for end in open.unwrap_or_default() {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    /// The next connection is cut when the sidecar has answered its Hello, and the answer is lost.
    pub fn lose_the_next_welcome(&self) {
        self.shared.lose_a_welcome.store(true, Ordering::SeqCst);
    }

    /// How many answers were lost.
    pub fn lost(&self) -> usize {
        self.shared.lost.load(Ordering::SeqCst)
    }
}

/// More than a shim's side of the TLS handshake (some 440 bytes), less than that and its Hello (some 190).
const A_HELLO: usize = 500;
/// More than the preface and TLS around it, less than any answer to a Hello.
const AN_ANSWER: usize = 120;

fn join(shared: &Arc<Shared>, shim: TcpStream, sidecar: TcpStream) {
    let (Ok(shim_reader), Ok(sidecar_writer)) = (shim.try_clone(), sidecar.try_clone()) else { return };
    if let Ok(mut open) = shared.connections.lock() {
        open.extend([&shim, &sidecar].into_iter().filter_map(|end| end.try_clone().ok()));
    }
    let loses = shared.lose_a_welcome.swap(false, Ordering::SeqCst);
    let spoken = Arc::new(AtomicUsize::new(0));
    let (counting, shared) = (Arc::clone(&spoken), Arc::clone(shared));
    std::thread::spawn(move || {
        pump(shim_reader, sidecar_writer, |bytes| {
            counting.fetch_add(bytes, Ordering::SeqCst);
            Passed::On
        });
    });
    std::thread::spawn(move || {
        let mut swallowed = 0;
        pump(sidecar, shim, |bytes| {
            if !loses || spoken.load(Ordering::SeqCst) < A_HELLO {
                return Passed::On;
            }
            swallowed += bytes;
            match swallowed > AN_ANSWER {
                true => {
                    shared.lost.fetch_add(1, Ordering::SeqCst);
                    Passed::Cut
                }
                false => Passed::Swallowed,
            }
        });
    });
}

/// What becomes of some bytes.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Passed {
    Cut,
    On,
    Swallowed,
}

fn pump(mut from: TcpStream, mut to: TcpStream, mut passes: impl FnMut(usize) -> Passed) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        match passes(count) {
            Passed::Cut => {
                let _ = from.shutdown(Shutdown::Both);
                let _ = to.shutdown(Shutdown::Both);
                return;
            }
            Passed::Swallowed => {}
            Passed::On => {
                if to.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}
