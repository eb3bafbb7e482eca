//! Removes a directory tree that a sandbox could write.
//!
//! What must stay true: files that hold a login are removed first; no symbolic link is followed; a sandbox cannot prevent the
//! removal by clearing the permissions of its directories, or by nesting them deeper than this process has descriptors or
//! stack; what could not be removed is reported.
//!
//! The algorithm needs no recursion: directories below a directory of the root are moved to the root of the tree, so that the
//! tree becomes flatter with every pass.

use std::ffi::CStr;
use std::fmt;
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use nix::NixPath;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat, renameat};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{UnlinkatFlags, unlinkat};

/// A tree could not be removed completely.
#[derive(Debug)]
pub(super) struct NotRemoved {
    tree: PathBuf,
    /// How many entries could not be removed in the last pass.
    count: usize,
    /// The first of them.
    entry: PathBuf,
    cause: Errno,
}

/// Removes a tree. The files of `first`, relative to it, are removed before all others. Succeeds if the tree does not exist.
pub(super) fn remove_tree<'a>(
    path: &Path,
    first: impl IntoIterator<Item = &'a Path>,
) -> Result<(), NotRemoved> {
    let failed = |cause| NotRemoved { tree: path.to_owned(), count: 1, entry: path.to_owned(), cause };
    let root = match open_writable(AT_FDCWD, path) {
        Ok(root) => root,
        Err(Errno::ENOENT) => return Ok(()),
        Err(cause) => return Err(failed(cause)),
    };
    for file in first {
        // If the sandbox has moved the file, `Flattening` removes it.
        let _ = remove_file_below(&root, file);
    }
    Flattening { root: &root, path, moved: 0 }.run()?;
    unlinkat(AT_FDCWD, path, UnlinkatFlags::RemoveDir).map_err(failed)
}

/// Empties a tree by moving its directories to its root.
struct Flattening<'a> {
    root: &'a OwnedFd,
    path: &'a Path,
    /// The number in the last new name for a directory that was moved to the root.
    moved: usize,
}

/// The result of one pass over a directory.
#[derive(Default)]
struct Pass {
    /// How many entries were removed or moved.
    changed: usize,
    remaining: usize,
    first_failure: Option<(PathBuf, Errno)>,
}

impl Flattening<'_> {
    /// Empties the root. A pass may miss entries that it adds to the root itself, so passes repeat until one changes nothing.
    fn run(mut self) -> Result<(), NotRemoved> {
        let tree = self.path.to_owned();
        loop {
            let failed = |cause| NotRemoved { tree: tree.clone(), count: 1, entry: tree.clone(), cause };
            let pass = self.pass_over_root().map_err(failed)?;
            match pass.first_failure {
                None if pass.changed == 0 => return Ok(()),
                Some((entry, cause)) if pass.changed == 0 => {
                    return Err(NotRemoved { tree, count: pass.remaining, entry, cause });
                }
                _ => {}
            }
        }
    }

    fn pass_over_root(&mut self) -> Result<Pass, Errno> {
        let mut pass = Pass::default();
        for_each_entry(self.root, |name| {
            let mut result = unlinkat(self.root, name, UnlinkatFlags::NoRemoveDir);
            if result == Err(Errno::EISDIR) {
                result = self.empty(name, &mut pass);
                if result.is_ok() {
                    result = unlinkat(self.root, name, UnlinkatFlags::RemoveDir);
                }
            }
            pass.record(result, || self.path.join(text(name)));
        })?;
        Ok(pass)
    }

    /// Removes the files of a directory of the root, and moves its directories to the root.
    fn empty(&mut self, directory: &CStr, pass: &mut Pass) -> Result<(), Errno> {
        let opened = open_writable(self.root, directory)?;
        for_each_entry(&opened, |name| {
            let mut result = unlinkat(&opened, name, UnlinkatFlags::NoRemoveDir);
            if result == Err(Errno::EISDIR) {
                result = self.move_to_root(&opened, name);
            }
            pass.record(result, || self.path.join(text(directory)).join(text(name)));
        })
    }

    fn move_to_root(&mut self, parent: &OwnedFd, name: &CStr) -> Result<(), Errno> {
        // The kernel requires write permission on a directory that moves to another parent.
        drop(open_writable(parent, name)?);
        loop {
            self.moved += 1;
            match renameat(parent, name, self.root, format!("removed-{}", self.moved).as_str()) {
                // The sandbox may have used this name itself; try the next number.
                Err(Errno::EEXIST | Errno::ENOTEMPTY | Errno::ENOTDIR) => {}
                result => return result,
            }
        }
    }
}

impl Pass {
    fn record(&mut self, result: Result<(), Errno>, path: impl FnOnce() -> PathBuf) {
        match result {
            Ok(()) => self.changed += 1,
            Err(cause) => {
                self.remaining += 1;
                self.first_failure.get_or_insert_with(|| (path(), cause));
            }
        }
    }
}

/// Opens a directory, not following a link, and gives its owner all permissions.
fn open_writable<P: ?Sized + NixPath>(parent: impl AsFd, name: &P) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    // `O_PATH` needs no permission on the directory itself.
    let directory = openat(parent, name, flags | OFlag::O_PATH, Mode::empty())?;
    let mode = fstat(&directory)?.st_mode;
    if mode & Mode::S_IRWXU.bits() != Mode::S_IRWXU.bits() {
        // This path is the opened directory, even if it was renamed or replaced meanwhile.
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(errno)?;
    }
    openat(&directory, ".", flags, Mode::empty())
}

fn remove_file_below(root: &OwnedFd, path: &Path) -> Result<(), Errno> {
    let mut directory = openat(root, ".", OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
    for part in path.parent().into_iter().flat_map(Path::components) {
        directory = open_writable(&directory, part.as_os_str())?;
    }
    unlinkat(&directory, path.file_name().unwrap_or_default(), UnlinkatFlags::NoRemoveDir)
}

/// Calls `act` for every name except `.` and `..`. Names are not collected, because the sandbox may have created very many.
fn for_each_entry(directory: &OwnedFd, mut act: impl FnMut(&CStr)) -> Result<(), Errno> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut stream = Dir::from_fd(openat(directory, ".", flags, Mode::empty())?)?;
    for entry in stream.iter() {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            act(name);
        }
    }
    Ok(())
}

fn errno(error: io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw)
}

fn text(name: &CStr) -> String {
    name.to_string_lossy().into_owned()
}

impl fmt::Display for NotRemoved {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tree, count, entry, cause } = self;
        write!(
            formatter,
            "cannot remove `{}`: {count} of its entries remain, the first is {:?}: {}; remove them by hand, they may hold a login",
            tree.display(),
            entry,
            cause.desc()
        )
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::stat::mkdirat;
    use nix::unistd::{Uid, chown, geteuid, setfsuid};

    use super::*;

    /// An unprivileged user: for root, permissions would have no effect.
    const USER: Uid = Uid::from_raw(1000);

    /// Calls `act` as an unprivileged user, with an empty tree in a directory of that user.
    fn as_user(act: impl FnOnce(&Path) + Send + 'static) {
        let directory = std::env::temp_dir().join(cofferdam_base::random::id("cofferdam-removal-"));
        fs::create_dir(&directory).unwrap();
        let path = directory.clone();
        let is_root = geteuid().is_root();
        if is_root {
            chown(&path, Some(USER), None).unwrap();
        }
        // `setfsuid` changes the calling thread only.
        let result = std::thread::spawn(move || {
            if is_root {
                setfsuid(USER);
            }
            fs::create_dir(path.join("tree")).unwrap();
            act(&path.join("tree"));
        })
        .join();
        fs::set_permissions(&directory, Permissions::from_mode(0o700)).unwrap();
        fs::remove_dir_all(&directory).unwrap();
        result.unwrap();
    }

    #[test]
    fn directories_without_permissions_are_removed() {
        as_user(|tree| {
            fs::create_dir_all(tree.join("home/.claude/deeper/still")).unwrap();
            fs::write(tree.join("home/.claude/login"), "secret").unwrap();
            for path in ["home/.claude/deeper/still", "home/.claude/deeper", "home/.claude", "home"] {
                fs::set_permissions(tree.join(path), Permissions::from_mode(0o000)).unwrap();
            }
            remove_tree(tree, []).unwrap();
            assert!(!tree.exists());
        });
    }

    #[test]
    fn a_file_in_a_directory_without_permissions_is_removed_by_its_path() {
        as_user(|tree| {
            fs::create_dir_all(tree.join("home/.claude")).unwrap();
            fs::write(tree.join("home/.claude/login"), "secret").unwrap();
            fs::set_permissions(tree.join("home/.claude"), Permissions::from_mode(0o000)).unwrap();
            let root = open_writable(AT_FDCWD, tree).unwrap();
            remove_file_below(&root, Path::new("home/.claude/login")).unwrap();
            assert!(!tree.join("home/.claude/login").exists());
            assert!(tree.join("home/.claude").exists());
        });
    }

    #[test]
    fn entries_that_cannot_be_removed_are_reported() {
        as_user(|tree| {
            fs::write(tree.join("file"), "").unwrap();
            let parent = tree.parent().unwrap();
            fs::set_permissions(parent, Permissions::from_mode(0o500)).unwrap();
            let remaining = remove_tree(tree, []).unwrap_err().to_string();
            assert!(remaining.contains("Permission denied") && remaining.contains("by hand"), "{remaining}");
            assert!(!tree.join("file").exists());
        });
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        as_user(|tree| {
            let outside = tree.parent().unwrap().join("outside");
            fs::create_dir(&outside).unwrap();
            fs::write(outside.join("login"), "the user's").unwrap();
            fs::set_permissions(&outside, Permissions::from_mode(0o500)).unwrap();
            fs::create_dir(tree.join("home")).unwrap();
            symlink(&outside, tree.join("home/.claude")).unwrap();
            symlink(&outside, tree.join("link")).unwrap();
            remove_tree(tree, [Path::new("home/.claude/login")]).unwrap();
            assert!(!tree.exists());
            assert_eq!(fs::read(outside.join("login")).unwrap(), b"the user's");
            assert_eq!(fs::metadata(&outside).unwrap().permissions().mode() & 0o777, 0o500);
        });
    }

    /// The tree is deeper than the usual limit of descriptors, and has names that the removal uses for moved directories.
    #[test]
    fn a_tree_of_any_depth_is_removed() {
        as_user(|tree| {
            fs::create_dir(tree.join("removed-2")).unwrap();
            fs::write(tree.join("removed-2/file"), "").unwrap();
            fs::write(tree.join("removed-3"), "").unwrap();
            let mut directory = openat(AT_FDCWD, tree, OFlag::O_PATH, Mode::empty()).unwrap();
            for _ in 0..3_000 {
                mkdirat(&directory, "d", Mode::S_IRWXU).unwrap();
                directory = openat(&directory, "d", OFlag::O_PATH, Mode::empty()).unwrap();
            }
            drop(directory);
            remove_tree(tree, []).unwrap();
            assert!(!tree.exists());
        });
    }
}
