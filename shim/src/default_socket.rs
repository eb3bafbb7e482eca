//! The socket over which a hub and the shims of a sandbox meet if none is configured: the first usable one of a few paths.
//!
//! What must stay true: hub and shim search in the same order; and a socket is used only if no other user of the sandbox
//! can have put it there: its directory belongs to this user or to root, or was mounted there from outside.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use rustix::process::geteuid;

/// The socket paths to try, in this order.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SocketSearch {
    paths: Vec<PathBuf>,
}

/// Where the sidecar's shared socket is mounted, and where a hub that may write to `/run` creates its socket.
pub(crate) const SYSTEM_SOCKET: &str = "/run/cofferdam/relay/relay.sock";

/// Why a socket is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UntrustedSocket {
    #[error("not trusted: `{directory}` is not a directory")]
    NotADirectory { directory: PathBuf },
    #[error("not trusted: `{directory}` belongs to user {owner}, who is neither this user nor root")]
    OtherOwner { directory: PathBuf, owner: u32 },
    #[error("not trusted: other users may write to `{directory}`")]
    Writable { directory: PathBuf },
    #[error("cannot inspect `{path}`: {source}; does the hub run as another user?")]
    Io { path: PathBuf, source: io::Error },
}

impl SocketSearch {
    /// Searches in `/run`, which needs root, in the user's runtime directory, if there is one, and in `/tmp`.
    pub fn new(runtime_directory: Option<PathBuf>) -> Self {
        let runtime_directory = runtime_directory.filter(|directory| directory.is_absolute());
        let in_runtime_directory = runtime_directory.map(|directory| directory.join("cofferdam/relay.sock"));
        let temporary = PathBuf::from(format!("/tmp/cofferdam-{}/relay.sock", geteuid().as_raw()));
        Self {
            paths: [PathBuf::from(SYSTEM_SOCKET)]
                .into_iter()
                .chain(in_runtime_directory)
                .chain([temporary])
                .collect(),
        }
    }

    pub(crate) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }
}

/// Checks that only this user, root or the host can have created the socket's directory, and can put a socket there. The
/// socket need not exist.
pub(crate) fn check(socket: &Path) -> Result<(), UntrustedSocket> {
    let directory = socket.parent().unwrap_or(Path::new("/"));
    let parent = directory.parent().unwrap_or(Path::new("/"));
    let metadata = read_metadata(directory)?;
    if !metadata.is_dir() {
        return Err(UntrustedSocket::NotADirectory { directory: directory.into() });
    }
    // Otherwise another user could replace the directory.
    let parent_metadata =
        fs::metadata(parent).map_err(|source| UntrustedSocket::Io { path: parent.into(), source })?;
    if is_writable_by_others(&parent_metadata) && !is_sticky(&parent_metadata) {
        return Err(UntrustedSocket::Writable { directory: parent.into() });
    }
    if !is_own_or_root(metadata.uid())
        && !is_mounted(directory, &metadata, &parent_metadata)
        && !belongs_to_host_user(socket, &metadata)
    {
        return Err(UntrustedSocket::OtherOwner { directory: directory.into(), owner: metadata.uid() });
    }
    if !is_writable_by_others(&metadata) {
        return Ok(());
    }
    // In a sticky directory others can add sockets, but not replace one.
    let is_protected =
        is_sticky(&metadata) && fs::symlink_metadata(socket).is_ok_and(|socket| is_own_or_root(socket.uid()));
    if is_protected { Ok(()) } else { Err(UntrustedSocket::Writable { directory: directory.into() }) }
}

/// Does not follow a symbolic link: its target may be another user's.
fn read_metadata(path: &Path) -> Result<Metadata, UntrustedSocket> {
    fs::symlink_metadata(path).map_err(|source| UntrustedSocket::Io { path: path.into(), source })
}

fn is_own_or_root(owner: u32) -> bool {
    owner == 0 || owner == geteuid().as_raw()
}

fn is_writable_by_others(file: &Metadata) -> bool {
    file.mode() & 0o022 != 0
}

fn is_sticky(file: &Metadata) -> bool {
    file.mode() & 0o1000 != 0
}

/// Whether the directory is a mount point: then the operator who set up the sandbox chose what is there, and the owner is a
/// user of the host. Kernels before 5.8 show only mounts of another file system.
fn is_mounted(directory: &Path, metadata: &Metadata, parent_metadata: &Metadata) -> bool {
    let attributes = statx(CWD, directory, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty());
    let is_root = attributes.is_ok_and(|file| file.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
    is_root || metadata.dev() != parent_metadata.dev()
}

/// In a user namespace, the files of users outside it have this owner.
const OVERFLOW_USER: u32 = 65_534;

/// Whether the directory belongs to a user outside this user namespace. Only root can create
/// a directory in `/run`; one in `/tmp` could be of any user of the host.
fn belongs_to_host_user(socket: &Path, metadata: &Metadata) -> bool {
    let is_unmapped = |map: String| {
        !map.lines().any(|line| {
            let mut numbers = line.split_ascii_whitespace().map(str::parse::<u32>);
            let (Some(Ok(first)), _, Some(Ok(count))) = (numbers.next(), numbers.next(), numbers.next())
            else {
                return true;
            };
            (first..first.saturating_add(count)).contains(&OVERFLOW_USER)
        })
    };
    socket == Path::new(SYSTEM_SOCKET)
        && metadata.uid() == OVERFLOW_USER
        && fs::read_to_string("/proc/self/uid_map").is_ok_and(is_unmapped)
}

impl UntrustedSocket {
    /// Whether the directory does not exist, which is no reason to warn.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    /// A directory of this test, removed with it.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("cofferdam-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn directory(&self, name: &str, mode: u32) -> PathBuf {
            let path = self.0.join(name);
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            path
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_runtime_directory_is_searched_if_there_is_one() {
        let temporary = format!("/tmp/cofferdam-{}/relay.sock", geteuid().as_raw());
        let paths = |directory: Option<&str>| SocketSearch::new(directory.map(PathBuf::from)).paths;
        assert_eq!(paths(None), [Path::new(SYSTEM_SOCKET), Path::new(&temporary)]);
        assert_eq!(paths(Some("relative")), paths(None));
        let runtime = Path::new("/run/user/7/cofferdam/relay.sock");
        assert_eq!(paths(Some("/run/user/7")), [Path::new(SYSTEM_SOCKET), runtime, Path::new(&temporary)]);
    }

    #[test]
    fn a_directory_that_others_can_change_is_not_trusted() {
        let scratch = Scratch::new("trust");
        let socket = |directory: &Path| directory.join("relay.sock");
        let own = scratch.directory("own", 0o755);
        assert!(check(&socket(&own)).is_ok());
        for mode in [0o777, 0o775, 0o722] {
            let open = scratch.directory(&format!("open-{mode:o}"), mode);
            assert!(matches!(check(&socket(&open)), Err(UntrustedSocket::Writable { .. })), "{mode:o}");
            let inside = open.join("inside");
            fs::create_dir(&inside).unwrap();
            assert!(matches!(check(&socket(&inside)), Err(UntrustedSocket::Writable { .. })), "in {mode:o}");
        }
        let sticky = scratch.directory("sticky", 0o1777);
        assert!(
            matches!(check(&socket(&sticky)), Err(UntrustedSocket::Writable { .. })),
            "others can create the socket in a sticky directory"
        );
        fs::write(socket(&sticky), "").unwrap();
        assert!(check(&socket(&sticky)).is_ok(), "others cannot replace the socket");
        symlink(&own, scratch.0.join("link")).unwrap();
        let linked = check(&scratch.0.join("link/relay.sock"));
        assert!(matches!(linked, Err(UntrustedSocket::NotADirectory { .. })));
        assert!(check(&scratch.0.join("missing/relay.sock")).unwrap_err().is_absent());
    }
}
