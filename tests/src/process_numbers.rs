//! Tells confined servers the numbers that their processes have on the host.
//!
//! A confined process has another number inside its namespaces, and cannot see the one that a test needs to look at it from
//! outside. The kernel tells whoever accepts a connection which process made it, in the numbers of the one who asks.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use nix::sys::socket::{getsockopt, sockopt};

/// The variable in which a fixture finds the socket's path.
pub const VARIABLE: &str = "PROCESS_NUMBERS";
/// The socket, in a directory that the servers can reach.
pub const SOCKET: &str = "processes.sock";

/// Answers every connection to the socket with the number of the process that connected, as four bytes.
///
/// # Panics
/// When the socket cannot be made.
pub fn serve(socket: &Path) {
    let listener = UnixListener::bind(socket).expect("a socket can be created in a new directory");
    // For servers that run as another user.
    std::fs::set_permissions(socket, PermissionsExt::from_mode(0o666)).expect("the socket is ours");
    // The thread ends with the test's process.
    std::thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            if let Ok(peer) = getsockopt(&connection, sockopt::PeerCredentials) {
                // A server that was killed meanwhile needs no answer.
                let _ = connection.write_all(&peer.pid().to_ne_bytes());
            }
        }
    });
}
