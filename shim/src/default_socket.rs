//! The socket over which a hub and the shims of a sandbox meet if none is configured: the first usable one of a few paths.
//!
//! What must stay true: hub and shim search in the same order; and a socket is used only if no other user of the sandbox
//! can have put it there: its directory belongs to this user or to root, or was mounted there by root. Any user can mount a
//! FUSE file system, and such a file system names any owner, so a mounted one is not trusted. Neither is the owner that stands
//! for all users outside this user namespace.

use std::fs::{self, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, StatxAttributes, StatxFlags, fstat, fstatfs, open, statx};
use rustix::io::Errno;
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
    #[error(
        "not trusted: `{directory}` belongs to user {owner}, who is not known in this user namespace and may be any user outside"
    )]
    UnknownOwner { directory: PathBuf, owner: u32 },
    #[error(
        "not trusted: `{directory}` is a mounted FUSE file system, which any user can make and which can name any owner"
    )]
    Fuse { directory: PathBuf },
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

    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }
}

/// Checks that only this user or root can have created the socket's directory, and can put a socket there. The
/// socket need not exist.
pub(crate) fn check(socket: &Path) -> Result<(), UntrustedSocket> {
    let directory = socket.parent().unwrap_or(Path::new("/"));
    let parent = directory.parent().unwrap_or(Path::new("/"));
    let opened = open_directory(directory)?;
    // Otherwise another user could replace the directory.
    let parent_metadata =
        fs::metadata(parent).map_err(|source| UntrustedSocket::Io { path: parent.into(), source })?;
    let is_parent_sticky = parent_metadata.mode() & STICKY != 0;
    if is_writable_by_others(parent_metadata.mode()) && !is_parent_sticky {
        return Err(UntrustedSocket::Writable { directory: parent.into() });
    }
    let facts = DirectoryFacts::read(&opened, &parent_metadata)
        .map_err(|errno| UntrustedSocket::Io { path: directory.into(), source: errno.into() })?;
    facts.check_owner(directory, known_owner)?;
    if !is_writable_by_others(facts.mode) {
        return Ok(());
    }
    // In a sticky directory others can add sockets, but not replace one.
    let is_own = |socket: &Metadata| known_owner(socket.uid()) == Some(Owner::SelfOrRoot);
    let is_protected =
        facts.mode & STICKY != 0 && fs::symlink_metadata(socket).is_ok_and(|socket| is_own(&socket));
    if is_protected { Ok(()) } else { Err(UntrustedSocket::Writable { directory: directory.into() }) }
}

/// What the kernel says about a directory. Everything is read from one descriptor, so that another user cannot replace the
/// directory in between.
#[derive(Clone, Copy, Debug)]
struct DirectoryFacts {
    owner: u32,
    mode: u32,
    mounted: Mounted,
}

/// Whether a directory is the root of a mount.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Mounted {
    No,
    /// By root: other users can mount FUSE file systems only.
    ByRoot,
    Fuse,
}

/// A user that this user namespace knows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Owner {
    SelfOrRoot,
    Other,
}

/// `FUSE_SUPER_MAGIC` of the kernel.
const FUSE: u64 = 0x6573_5546;
const STICKY: u32 = 0o1000;

impl DirectoryFacts {
    fn read(directory: &OwnedFd, parent: &Metadata) -> Result<Self, Errno> {
        let status = fstat(directory)?;
        let attributes = statx(directory, c"", AtFlags::EMPTY_PATH, StatxFlags::empty());
        let is_root = attributes.is_ok_and(|file| file.stx_attributes.contains(StatxAttributes::MOUNT_ROOT));
        // Kernels before 5.8 show only mounts of another file system.
        let is_mounted = is_root || status.st_dev != parent.dev();
        let mounted = match is_mounted {
            false => Mounted::No,
            true if fstatfs(directory)?.f_type as u64 == FUSE => Mounted::Fuse,
            true => Mounted::ByRoot,
        };
        Ok(Self { owner: status.st_uid, mode: status.st_mode, mounted })
    }

    /// `known_owner` returns `None` for an owner that this user namespace does not know.
    fn check_owner(
        self,
        directory: &Path,
        known_owner: impl Fn(u32) -> Option<Owner>,
    ) -> Result<(), UntrustedSocket> {
        let (directory, owner) = (directory.to_owned(), self.owner);
        match (self.mounted, known_owner(owner)) {
            (Mounted::Fuse, _) => Err(UntrustedSocket::Fuse { directory }),
            // Root chose what is there, and the owner is a user of the host.
            (Mounted::ByRoot, _) | (Mounted::No, Some(Owner::SelfOrRoot)) => Ok(()),
            (Mounted::No, Some(Owner::Other)) => Err(UntrustedSocket::OtherOwner { directory, owner }),
            (Mounted::No, None) => Err(UntrustedSocket::UnknownOwner { directory, owner }),
        }
    }
}

/// Does not follow a symbolic link: its target may be another user's.
fn open_directory(path: &Path) -> Result<OwnedFd, UntrustedSocket> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open(path, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::NOTDIR | Errno::LOOP => UntrustedSocket::NotADirectory { directory: path.into() },
        errno => UntrustedSocket::Io { path: path.into(), source: errno.into() },
    })
}

fn is_writable_by_others(mode: u32) -> bool {
    mode & 0o022 != 0
}

/// The owner that the kernel names for a file of a user outside this user namespace, unless the administrator changed it.
const OVERFLOW_USER: u32 = 65_534;

/// `None` if the owner stands for users outside this user namespace.
fn known_owner(owner: u32) -> Option<Owner> {
    let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid");
    let overflow = overflow.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(OVERFLOW_USER);
    if owner == overflow && !fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| is_mapped(&map, owner))
    {
        return None;
    }
    let is_self_or_root = owner == 0 || owner == geteuid().as_raw();
    Some(if is_self_or_root { Owner::SelfOrRoot } else { Owner::Other })
}

/// Whether a user has an id outside of the user namespace with this `uid_map`.
fn is_mapped(map: &str, user: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u32>);
        let (Some(Ok(first)), _, Some(Ok(count))) = (numbers.next(), numbers.next(), numbers.next()) else {
            return false;
        };
        (first..first.saturating_add(count)).contains(&user)
    })
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
    fn the_owner_decides_unless_root_mounted_the_directory() {
        let known = |owner| match owner {
            0 | 7 => Some(Owner::SelfOrRoot),
            OVERFLOW_USER => None,
            _ => Some(Owner::Other),
        };
        let check = |mounted, owner| {
            DirectoryFacts { owner, mode: 0o755, mounted }.check_owner(Path::new("/tmp/cofferdam-7"), known)
        };
        for owner in [0, 7] {
            assert!(check(Mounted::No, owner).is_ok() && check(Mounted::ByRoot, owner).is_ok());
        }
        for owner in [8, OVERFLOW_USER] {
            assert!(check(Mounted::No, owner).is_err() && check(Mounted::ByRoot, owner).is_ok());
        }
        for owner in [0, 7, 8, OVERFLOW_USER] {
            assert!(matches!(check(Mounted::Fuse, owner), Err(UntrustedSocket::Fuse { .. })), "{owner}");
        }
        assert!(matches!(check(Mounted::No, OVERFLOW_USER), Err(UntrustedSocket::UnknownOwner { .. })));
    }

    #[test]
    fn a_user_is_mapped_if_a_range_of_the_namespace_contains_it() {
        assert!(is_mapped("         0          0 4294967295\n", OVERFLOW_USER));
        assert!(is_mapped("0 1000 1\n65534 100000 1\n", OVERFLOW_USER));
        for map in ["0 1000 1\n", "0 100000 65534\n", "65535 1 1\n", "", "not a map"] {
            assert!(!is_mapped(map, OVERFLOW_USER), "{map}");
        }
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
