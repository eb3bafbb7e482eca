//! Binds the Unix sockets of the sidecar: a stale socket file is replaced, a socket in use is left alone. Or takes over a
//! socket that the service manager has bound.
//!
//! What must stay true: a socket's name appears only when the socket has its final mode and accepts connections; only a
//! file that is certainly stale is replaced; only a file that is still ours is removed. The directory may be visible in
//! a sandbox, so everything is done relative to the opened directory, and no symbolic link in it is followed.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, renameat};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, getsockopt, listen, socket,
};
use nix::sys::stat::{FchmodatFlags, FileStat, Mode as Bits, SFlag, fchmodat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use tokio::net::UnixListener;

use crate::config::Relay;

/// A bound socket; its file is removed on drop, unless the service manager has bound it.
#[derive(Debug)]
pub(super) struct Socket {
    listener: Arc<UnixListener>,
    /// `None` if the file belongs to the service manager.
    _file: Option<SocketFile>,
}

/// The file of a socket that was bound here; removed on drop.
#[derive(Debug)]
struct SocketFile {
    directory: OwnedFd,
    name: OsString,
    /// No other file has this identity while the listener is open.
    identity: Identity,
}

/// Which users may connect.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Mode {
    AnyUser,
    Owner,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SocketError {
    #[error("cannot listen on `{path}`: another process serves this socket{}", pid_in_parentheses(*.pid))]
    Live {
        path: PathBuf,
        /// The process that listens there. `None` if its connection queue is full, or if it is in another process namespace.
        pid: Option<i32>,
    },
    #[error(
        "cannot listen on `{path}`: a file that is not a socket exists there; remove it or choose another path"
    )]
    NotASocket { path: PathBuf },
    #[error("cannot listen on `{path}`")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "cannot listen on `{path}`: it is unclear whether the socket is in use; if it is not, remove it or choose another path"
    )]
    Unclear {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Identifies a file independently of its name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Identity {
    device: u64,
    inode: u64,
}

/// Connections that the kernel queues until they are accepted.
const BACKLOG: i32 = 1024;

impl Mode {
    pub(super) fn of(relay: &Relay) -> Self {
        match relay.uids {
            // The list is checked against the peer's uid from the kernel, so the file's mode need not restrict access.
            Some(_) => Self::AnyUser,
            None => Self::Owner,
        }
    }

    fn of_socket(self) -> Bits {
        match self {
            Self::AnyUser => Bits::from_bits_truncate(0o666),
            Self::Owner => Bits::from_bits_truncate(0o600),
        }
    }

    fn of_directory(self) -> u32 {
        match self {
            Self::AnyUser => 0o755,
            Self::Owner => 0o700,
        }
    }
}

impl Socket {
    pub(super) fn bind(path: &Path, mode: Mode) -> Result<Self, SocketError> {
        let failed = |source: io::Error| SocketError::Io { path: path.into(), source };
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        };
        if !parent.exists() {
            let mut builder = std::fs::DirBuilder::new();
            builder.recursive(true).mode(mode.of_directory()).create(parent).map_err(failed)?;
        }
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = open(parent, flags, Bits::empty()).map_err(|errno| failed(errno.into()))?;
        check_path_is_free(&directory, name, path)?;
        let (listener, identity) = bind_and_rename(&directory, name, mode).map_err(failed)?;
        let file = SocketFile { directory, name: name.into(), identity };
        Ok(Self { listener: Arc::new(listener), _file: Some(file) })
    }

    /// Takes over a socket that the service manager listens on. Its file and the file's mode stay as they are.
    pub(super) fn passed(socket: StdUnixListener, path: &Path) -> Result<Self, SocketError> {
        let failed = |source: io::Error| SocketError::Io { path: path.into(), source };
        socket.set_nonblocking(true).map_err(failed)?;
        let listener = UnixListener::from_std(socket).map_err(failed)?;
        Ok(Self { listener: Arc::new(listener), _file: None })
    }

    pub(super) fn listener(&self) -> Arc<UnixListener> {
        Arc::clone(&self.listener)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let existing = stat(&self.directory, &self.name);
        if existing.is_ok_and(|file| Identity::of(&file) == self.identity) {
            // A failure is ignored: the next start finds a stale socket file and replaces it.
            let _ = unlinkat(&self.directory, self.name.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

impl Identity {
    fn of(file: &FileStat) -> Self {
        Self { device: file.st_dev, inode: file.st_ino }
    }
}

/// Checks that the path does not exist, or is a socket without a listener.
fn check_path_is_free(directory: &OwnedFd, name: &OsStr, path: &Path) -> Result<(), SocketError> {
    let unclear = |errno: Errno| SocketError::Unclear { path: path.into(), source: errno.into() };
    match stat(directory, name) {
        Err(Errno::ENOENT) => return Ok(()),
        Err(errno) => return Err(unclear(errno)),
        Ok(file) if SFlag::from_bits_truncate(file.st_mode) & SFlag::S_IFMT != SFlag::S_IFSOCK => {
            return Err(SocketError::NotASocket { path: path.into() });
        }
        Ok(_) => {}
    }
    let address = address(directory, name).map_err(unclear)?;
    let probe = stream_socket().map_err(unclear)?;
    match connect(probe.as_raw_fd(), &address) {
        Ok(()) => {
            let listener = getsockopt(&probe, PeerCredentials).ok();
            let pid = listener.map(|listener| listener.pid()).filter(|pid| *pid > 0);
            Err(SocketError::Live { path: path.into(), pid })
        }
        // The accept queue is full: there is a listener, and it is slow.
        Err(Errno::EAGAIN) => Err(SocketError::Live { path: path.into(), pid: None }),
        Err(Errno::ECONNREFUSED | Errno::ENOENT) => Ok(()),
        Err(errno) => Err(unclear(errno)),
    }
}

/// Listens under a temporary name, then renames the socket, which also replaces a stale one.
fn bind_and_rename(directory: &OwnedFd, name: &OsStr, mode: Mode) -> io::Result<(UnixListener, Identity)> {
    let hidden: OsString = format!(".{}", cofferdam_base::random::hex::<8>()).into();
    let socket = stream_socket()?;
    bind(socket.as_raw_fd(), &address(directory, &hidden)?)?;
    let placed = (|| {
        // No client can connect before `listen`, so the initial mode of the file does not matter.
        fchmodat(directory, hidden.as_os_str(), mode.of_socket(), FchmodatFlags::NoFollowSymlink)?;
        listen(&socket, backlog())?;
        let identity = Identity::of(&stat(directory, &hidden)?);
        renameat(directory, hidden.as_os_str(), directory, name)?;
        Ok(identity)
    })();
    let identity = placed.inspect_err(|_: &io::Error| {
        let _ = unlinkat(directory, hidden.as_os_str(), UnlinkatFlags::NoRemoveDir);
    })?;
    Ok((UnixListener::from_std(socket.into())?, identity))
}

fn pid_in_parentheses(pid: Option<i32>) -> String {
    pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
}

fn stat(directory: &OwnedFd, name: &OsStr) -> nix::Result<FileStat> {
    fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW)
}

/// The socket's address through the open directory, so that its length does not depend on the directory's path.
fn address(directory: &OwnedFd, name: &OsStr) -> nix::Result<UnixAddr> {
    UnixAddr::new(&Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name))
}

/// [`BACKLOG`]. Where the C library says that the limit is lower, as musl's 128 is, the kernel's own, `net.core.somaxconn`.
fn backlog() -> Backlog {
    Backlog::new(BACKLOG).unwrap_or(Backlog::MAXALLOWABLE)
}

fn stream_socket() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::Stream, flags, None)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixDatagram, UnixListener as StdListener, UnixStream};

    use super::*;

    /// A temporary directory, removed on drop.
    struct Directory(PathBuf);

    impl Directory {
        fn new() -> Self {
            let path = std::env::temp_dir().join(cofferdam_base::random::id("cofferdam-socket-"));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn socket(&self) -> PathBuf {
            self.0.join("s.sock")
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[tokio::test]
    async fn a_socket_has_its_mode_and_leaves_nothing_behind() {
        let directory = Directory::new();
        for (mode, bits) in [(Mode::AnyUser, 0o666), (Mode::Owner, 0o600)] {
            let socket = Socket::bind(&directory.socket(), mode).unwrap();
            let metadata = std::fs::metadata(directory.socket()).unwrap();
            assert_eq!(metadata.permissions().mode() & 0o7777, bits);
            let _client = UnixStream::connect(directory.socket()).unwrap();
            socket.listener().accept().await.unwrap();
            drop(socket);
            assert_eq!(std::fs::read_dir(&directory.0).unwrap().count(), 0);
        }
    }

    #[tokio::test]
    async fn a_socket_can_be_bound_at_the_longest_path_that_clients_can_connect_to() {
        let directory = Directory::new();
        let length = directory.0.as_os_str().len();
        let deep = directory.0.join("d".repeat(107 - length - "//s".len()));
        let path = deep.join("s");
        assert_eq!(path.as_os_str().len(), 107);
        let _socket = Socket::bind(&path, Mode::Owner).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_is_left_alone() {
        let directory = Directory::new();
        let listener = StdListener::bind(directory.socket()).unwrap();
        let error = Socket::bind(&directory.socket(), Mode::Owner).unwrap_err();
        assert!(matches!(error, SocketError::Live { .. }));
        drop(listener);
        let _socket = Socket::bind(&directory.socket(), Mode::Owner).unwrap();
        UnixStream::connect(directory.socket()).unwrap();
    }

    #[tokio::test]
    async fn a_listener_with_a_full_accept_queue_is_live() {
        let directory = Directory::new();
        let listener = stream_socket().unwrap();
        let address = UnixAddr::new(&directory.socket()).unwrap();
        bind(listener.as_raw_fd(), &address).unwrap();
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let waiting: Vec<OwnedFd> = std::iter::repeat_with(|| stream_socket().unwrap())
            .take_while(|client| connect(client.as_raw_fd(), &address).is_ok())
            .collect();
        assert!(!waiting.is_empty());
        let error = Socket::bind(&directory.socket(), Mode::Owner).unwrap_err();
        assert!(matches!(error, SocketError::Live { .. }));
    }

    #[tokio::test]
    async fn a_file_that_may_be_in_use_is_left_alone() {
        let directory = Directory::new();
        let _other = UnixDatagram::bind(directory.socket()).unwrap();
        let error = Socket::bind(&directory.socket(), Mode::Owner).unwrap_err();
        assert!(matches!(error, SocketError::Unclear { .. }));
        assert!(directory.socket().exists());
        std::fs::remove_file(directory.socket()).unwrap();
        std::os::unix::fs::symlink("/nowhere", directory.socket()).unwrap();
        let error = Socket::bind(&directory.socket(), Mode::Owner).unwrap_err();
        assert!(matches!(error, SocketError::NotASocket { .. }));
    }

    #[tokio::test]
    async fn the_file_of_a_passed_socket_stays() {
        let directory = Directory::new();
        let bound = StdListener::bind(directory.socket()).unwrap();
        let socket = Socket::passed(bound, &directory.socket()).unwrap();
        let _client = UnixStream::connect(directory.socket()).unwrap();
        socket.listener().accept().await.unwrap();
        drop(socket);
        assert!(directory.socket().exists());
    }

    #[tokio::test]
    async fn a_socket_of_another_process_at_our_path_is_not_removed() {
        let directory = Directory::new();
        let socket = Socket::bind(&directory.socket(), Mode::Owner).unwrap();
        std::fs::remove_file(directory.socket()).unwrap();
        let _other = StdListener::bind(directory.socket()).unwrap();
        drop(socket);
        UnixStream::connect(directory.socket()).unwrap();
    }
}
