//! The local address that the sandbox's shims connect to: a Unix socket, or a loopback port whose key is in a file.
//!
//! Must stay true: only the hub that holds the `claim` listens; an address that another program serves is left alone; only
//! the hub's own user can connect; and a file is removed only if this hub created it. The address exists only while there
//! is a pipe: otherwise a connection could wait for a pipe until its shim has timed out and connected again, and then reach
//! the sidecar after the newer connection.

use std::fmt;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use relay_carriage::BoxedStream;
use relay_proto::hub::{HubFile, Key};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::net::{TcpListener, UnixListener};
use tokio::time::sleep;

use super::claim::LocalAddress;
use crate::default_socket::UntrustedSocket;

/// The listening end of an address. Its file is removed on drop.
#[derive(Debug)]
pub(super) struct LocalEndpoint {
    listener: Listener,
    path: PathBuf,
    /// Device and inode of the file, to recognise it later.
    file: (u64, u64),
}

#[derive(Debug)]
enum Listener {
    Loopback(TcpListener, HubFile),
    Unix(UnixListener),
}

/// A connection that has not authenticated yet.
pub(super) struct Arrival {
    stream: BoxedStream,
    /// The key that the shim must send first, and the hub's reply.
    hub_file: Option<HubFile>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum LocalError {
    #[error(
        "serve `{path}`: another hub{} serves it, and one hub is enough for all shims of a sandbox; stop the \
         other hub, or give this one another path with --socket", .process.map(|id| format!(" (process {id})")).unwrap_or_default()
    )]
    HeldByHub { path: PathBuf, process: Option<u32> },
    #[error(
        "serve `{path}`: {source}; can this user write there? otherwise choose another path with --socket, and give it \
         to the shims with --relay"
    )]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "serve `{path}`: another program that is not a hub listens there; if it is the sidecar's own socket, no hub is \
         needed; otherwise choose another path with --socket"
    )]
    InUseByOther { path: PathBuf },
    #[error("serve `{path}`: {source}; remove what is there, or choose another path with --socket")]
    Untrusted { path: PathBuf, source: UntrustedSocket },
    #[error(
        "serve `{path}`: the file there was not made by a hub; remove it, or choose another path with --socket"
    )]
    ForeignFile { path: PathBuf },
}

impl LocalEndpoint {
    /// Starts to listen.
    pub(super) async fn open(address: &LocalAddress) -> Result<Self, LocalError> {
        match address {
            LocalAddress::Loopback(path) => listen_on_loopback(path).await,
            LocalAddress::Unix(path) => listen_on_socket(path),
        }
    }

    /// Waits for the next connection. Cancel-safe.
    pub(super) async fn accept(&self) -> Arrival {
        loop {
            match self.try_accept().await {
                Ok(arrival) => return arrival,
                // Most likely out of descriptors: some will be closed soon.
                Err(_) => sleep(ACCEPT_RETRY).await,
            }
        }
    }

    async fn try_accept(&self) -> io::Result<Arrival> {
        Ok(match &self.listener {
            Listener::Loopback(listener, hub_file) => {
                let (stream, _) = listener.accept().await?;
                let _ = stream.set_nodelay(true);
                Arrival { stream: Box::new(stream), hub_file: Some(hub_file.clone()) }
            }
            Listener::Unix(listener) => {
                Arrival { stream: Box::new(listener.accept().await?.0), hub_file: None }
            }
        })
    }
}

impl fmt::Display for LocalEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.listener {
            Listener::Loopback(..) => "hub",
            Listener::Unix(_) => "unix",
        };
        write!(f, "{kind}:{}", self.path.display())
    }
}

impl Drop for LocalEndpoint {
    fn drop(&mut self) {
        if device_and_inode(&self.path).is_ok_and(|file| file == self.file) {
            // If this fails, the next hub finds the file stale.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Arrival {
    /// Returns the stream if the shim sent the right key. Has no timeout of its own.
    pub(super) async fn authenticate(mut self) -> Option<BoxedStream> {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let Some(hub_file) = &self.hub_file else { return Some(self.stream) };
        let mut received = [0; Key::WIRE_BYTES];
        self.stream.read_exact(&mut received).await.ok()?;
        if !hub_file.shim_key.matches(&received) {
            return None;
        }
        self.stream.write_all(hub_file.hub_key.on_wire()).await.ok()?;
        Some(self.stream)
    }
}

/// The number of connections that the kernel queues.
const BACKLOG: i32 = 128;
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

fn listen_on_socket(path: &Path) -> Result<LocalEndpoint, LocalError> {
    let failed = |source: io::Error| LocalError::Io { path: path.into(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
        Ok(file) if !file.file_type().is_socket() => {
            return Err(LocalError::ForeignFile { path: path.into() });
        }
        Ok(_) => match probe(path) {
            Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(failed)?,
            // A program listens there, whether its queue has room or not.
            Ok(()) | Err(Errno::AGAIN) => return Err(LocalError::InUseByOther { path: path.into() }),
            Err(error) => return Err(failed(error.into())),
        },
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let bound = (|| {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        // No connection is possible before `listen`, so the initial mode of the socket does not matter.
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        listen(&socket, BACKLOG)?;
        UnixListener::from_std(socket.into())
    })();
    let listener = Listener::Unix(bound.map_err(failed)?);
    Ok(LocalEndpoint { listener, file: device_and_inode(path).map_err(failed)?, path: path.into() })
}

/// Connects to find out whether a program listens there. Does not wait: a socket whose owner accepts no connections is not
/// stale.
fn probe(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)
}

async fn listen_on_loopback(path: &Path) -> Result<LocalEndpoint, LocalError> {
    let failed = |source: io::Error| LocalError::Io { path: path.into(), source };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    let hub_file =
        HubFile { port, shim_key: random_key().map_err(failed)?, hub_key: random_key().map_err(failed)? };
    let temporary = with_suffix(path, ".new");
    let written = (|| {
        // The file is left by a hub that was killed before the rename.
        let _ = fs::remove_file(&temporary);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(hub_file.to_text().as_bytes())?;
        fs::rename(&temporary, path)?;
        device_and_inode(path)
    })();
    Ok(LocalEndpoint {
        listener: Listener::Loopback(listener, hub_file),
        file: written.map_err(failed)?,
        path: path.into(),
    })
}

fn random_key() -> io::Result<Key> {
    let mut random = [0; 32];
    let count = getrandom(&mut random, GetRandomFlags::empty())?;
    if count != random.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Key::from_hex(&digits).expect("these are 64 digits"))
}

pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn device_and_inode(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}
