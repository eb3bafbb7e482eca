//! Replaces a hub that outlived its client with a newer hub: a platform may keep a hub's stdin open after the client at its
//! other end is gone, which the hub itself would notice only some fifteen seconds later, by missing heartbeats.
//!
//! The holder of an address listens on a control socket beside it. The newer hub connects and sends the key that it pins;
//! if the holder pins the same key, the newer hub does its TLS handshake and then asks the holder to end.
//!
//! Must stay true: the holder ends only for its own user or root, who could end it by a signal as well, so this
//! gives no new power; only for a hub that pins the same sidecar; and that hub asks only after its own pipe has proved the
//! sidecar's key, so that a working pipe is never closed for one that does not work.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use relay_proto::key::PublicKey;
use rustix::process::geteuid;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::local::with_suffix;

/// The side of the hub that holds the address. The socket is removed on drop.
#[derive(Debug)]
pub(super) struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    pin: PublicKey,
}

/// The side of the newer hub: the holder has confirmed that it pins the same key, and waits for this hub's handshake.
#[derive(Debug)]
pub(super) struct Takeover(UnixStream);

const REQUEST: &str = "cofferdam-hub-takeover/1 ";
const SAME_SIDECAR: &[u8] = b"same\n";
const END: &[u8] = b"end!\n";
/// For one message, on a local socket.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// From the first message to the request to end: the newer hub's handshake has its own, shorter timeout.
const DECISION_TIMEOUT: Duration = Duration::from_secs(15);
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Newer hubs that are in their handshakes at a time.
const MAX_REQUESTS: usize = 8;

impl ControlSocket {
    /// Opens the control socket of the hub that holds `path`. Without one (Unix sockets may be forbidden, or the path too
    /// long) the hub works too, but a newer hub must wait until this one has noticed that its pipe is dead.
    pub(super) fn open(path: &Path, pin: PublicKey) -> Option<Self> {
        let path = with_suffix(path, ".control");
        // A hub that was killed leaves its socket behind; the lock proves that it is gone.
        if fs::symlink_metadata(&path).is_ok_and(|file| file.file_type().is_socket()) {
            fs::remove_file(&path).ok()?;
        }
        let listener = UnixListener::bind(&path).ok()?;
        // A connection that arrives before this line is also checked for its user.
        fs::set_permissions(&path, Permissions::from_mode(0o600)).ok()?;
        Some(Self { listener, path, pin })
    }

    /// Waits until a newer hub to the same sidecar asks this one to end.
    pub(super) async fn wait_for_takeover(&self) {
        let mut requests = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if requests.len() < MAX_REQUESTS => {
                    match accepted {
                        Ok((stream, _)) if is_own_user_or_root(&stream) => {
                            requests.spawn(timeout(DECISION_TIMEOUT, handle_request(stream, self.pin)));
                        }
                        Ok(_) => {}
                        // Most likely out of descriptors: some will be closed soon.
                        Err(_) => sleep(ACCEPT_RETRY).await,
                    }
                }
                Some(decided) = requests.join_next() => if matches!(decided, Ok(Ok(Ok(Decision::End)))) { return },
            }
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // If this fails, the next hub replaces the socket.
        let _ = fs::remove_file(&self.path);
    }
}

impl Takeover {
    /// Asks the holder of `path` whether it would end for a hub that pins this key.
    pub(super) async fn offer(path: &Path, pin: &PublicKey) -> Option<Self> {
        timeout(REPLY_TIMEOUT, async {
            let mut stream = UnixStream::connect(with_suffix(path, ".control")).await.ok()?;
            if !is_own_user_or_root(&stream) {
                return None;
            }
            stream.write_all(request_line(pin).as_bytes()).await.ok()?;
            let mut reply = [0; SAME_SIDECAR.len()];
            stream.read_exact(&mut reply).await.ok()?;
            (reply == SAME_SIDECAR).then_some(Self(stream))
        })
        .await
        .ok()
        .flatten()
    }

    /// Asks the holder to end. Must be called only after this hub's pipe has proved the sidecar's key.
    pub(super) async fn take_over(mut self) {
        // If the holder is gone already, its lock is free.
        let _ = timeout(REPLY_TIMEOUT, self.0.write_all(END)).await;
    }
}

enum Decision {
    End,
    Stay,
}

async fn handle_request(mut stream: UnixStream, pin: PublicKey) -> io::Result<Decision> {
    let expected = request_line(&pin);
    let mut received = vec![0; expected.len()];
    stream.read_exact(&mut received).await?;
    if received != expected.as_bytes() {
        return Ok(Decision::Stay);
    }
    stream.write_all(SAME_SIDECAR).await?;
    let mut decision = [0; END.len()];
    stream.read_exact(&mut decision).await?;
    Ok(if decision == END { Decision::End } else { Decision::Stay })
}

fn request_line(pin: &PublicKey) -> String {
    format!("{REQUEST}{pin}\n")
}

fn is_own_user_or_root(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == 0 || peer.uid() == geteuid().as_raw())
}
