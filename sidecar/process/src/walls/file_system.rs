//! Builds what the server sees below `/`.
//!
//! What must stay true: every source is opened before anything is mounted, so that no mount hides one; no symbolic link is
//! followed, neither in a source nor in the place where it is put; every bind has the flags `nosuid` and `nodev`, and is
//! read-only unless its entry says otherwise; no later mount of the host appears inside, and none inside on the host; nothing
//! of the host's tree is left after [`build`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat, openat2, symlinkat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, open_tree,
    unmount,
};
use rustix::process::{chdir, fchdir, pivot_root};

use super::init::Failed;
use super::{Access, Entry, EntryKind, Proc, Step, Walls};
use crate::os;

/// The root itself holds directories, links and small files only.
const ROOT_BYTES: u64 = 1024 * 1024;
const ROOT_FILES: u64 = 1024;
/// Where the new root is attached until it is the root: every host has this directory, and the sources in it are open by then.
const STAGING: &str = "/dev";
const READ_ONLY: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY;
const NO_SETUID: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID;
const NO_DEVICES: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NODEV;
const NO_PROGRAMS: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOEXEC;
const DIRECTORY_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;

/// Makes a new root directory of `walls` and enters it. The process must be in mount and process namespaces of its own.
/// `sources` are those of the entries, if they are open already.
pub(super) fn build(walls: &Walls, sources: Option<Vec<Source>>) -> Result<(), Failed> {
    let in_root = |error: rustix::io::Errno| (Step::Root, errno(error));
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).map_err(in_root)?;
    let sources = match sources {
        Some(sources) => sources,
        None => open_sources(&walls.entries, None)?,
    };
    let root = memory(DIRECTORY_MODE, ROOT_BYTES, ROOT_FILES).map_err(in_root)?;
    attach(root.as_fd(), CWD, STAGING).map_err(in_root)?;
    fchdir(&root).map_err(in_root)?;
    for (index, (entry, source)) in walls.entries.iter().zip(&sources).enumerate() {
        place(&root, entry, source).map_err(|error| (Step::Entry(index), errno(error)))?;
    }
    make_proc(&root, walls.proc).map_err(|error| (Step::Proc, errno(error)))?;
    // The old root is then mounted above the new one, and the path `.` leads to it.
    pivot_root(".", ".").map_err(in_root)?;
    unmount(".", UnmountFlags::DETACH).map_err(in_root)?;
    chdir("/").map_err(in_root)?;
    // Not recursive: what is mounted below has flags of its own.
    let root = open_tree(CWD, "/", OpenTreeFlags::OPEN_TREE_CLOEXEC).map_err(in_root)?;
    os::restrict_mounts(root.as_fd(), os::Below::Unchanged, READ_ONLY, None)
        .map_err(|error| (Step::Root, error))
}

/// What an entry is made from.
pub(crate) enum Source {
    /// A copy of a part of the host's tree, not attached yet.
    Tree(OwnedFd),
    /// The entry needs nothing of the host.
    Nothing,
    /// The entry is left out.
    Skipped,
}

/// Opens the source of each entry. With `owners`, a user namespace, the files of binds belong to whom it says.
pub(super) fn open_sources(entries: &[Entry], owners: Option<BorrowedFd<'_>>) -> Result<Vec<Source>, Failed> {
    let sources = entries.iter().enumerate();
    sources
        .map(|(index, entry)| open_source(entry, owners).map_err(|error| (Step::Entry(index), error)))
        .collect()
}

fn open_source(entry: &Entry, owners: Option<BorrowedFd<'_>>) -> Result<Source, Errno> {
    let (source, attributes) = match &entry.kind {
        EntryKind::Bind { source, access: Access::Read } | EntryKind::System { source } => {
            (source, READ_ONLY | NO_SETUID | NO_DEVICES)
        }
        EntryKind::Bind { source, access: Access::Write } => (source, NO_SETUID | NO_DEVICES),
        // Read-only does not forbid writing to a device, but changing its owner and mode.
        EntryKind::Device { source } => (source, READ_ONLY | NO_SETUID | NO_PROGRAMS),
        EntryKind::Directory | EntryKind::File { .. } | EntryKind::Link { .. } | EntryKind::Memory { .. } => {
            return Ok(Source::Nothing);
        }
    };
    let tree = match (clone_tree(source), &entry.kind) {
        (Ok(tree), _) => tree,
        (Err(Errno::ENOENT | Errno::ELOOP | Errno::ENOTDIR | Errno::EACCES), EntryKind::System { .. }) => {
            return Ok(Source::Skipped);
        }
        (Err(error), _) => return Err(error),
    };
    let owners = owners.filter(|_| matches!(entry.kind, EntryKind::Bind { .. }));
    os::restrict_mounts(tree.as_fd(), os::Below::Too, attributes, owners)?;
    Ok(Source::Tree(tree))
}

/// Copies the tree at a path of the host that contains no symbolic link.
fn clone_tree(path: &str) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = openat2(CWD, path, flags, Mode::empty(), resolve).map_err(errno)?;
    // Recursive, because a copy without the mounts below it would show what they hide; the kernel refuses that.
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    open_tree(&opened, "", flags).map_err(errno)
}

fn place(root: &OwnedFd, entry: &Entry, source: &Source) -> rustix::io::Result<()> {
    let path = Path::new(&entry.path).strip_prefix("/").map_err(|_| rustix::io::Errno::INVAL)?;
    let name = path.file_name().ok_or(rustix::io::Errno::INVAL)?;
    if let Source::Skipped = source {
        return Ok(());
    }
    let parent = make_directories(root, path.parent().unwrap_or(Path::new("")))?;
    match (&entry.kind, source) {
        (_, Source::Tree(tree)) => {
            match FileType::from_raw_mode(fstat(tree)?.st_mode) {
                FileType::Directory => make_directory(parent.as_fd(), name)?,
                _ => make_file(parent.as_fd(), name, &[])?,
            }
            attach_to(tree.as_fd(), parent.as_fd(), name)
        }
        (EntryKind::File { content }, _) => make_file(parent.as_fd(), name, content.as_bytes()),
        (EntryKind::Link { target }, _) => symlinkat(target.as_str(), &parent, name),
        (EntryKind::Memory { mode, bytes, files }, _) => {
            make_directory(parent.as_fd(), name)?;
            attach_to(memory(*mode, *bytes, *files)?.as_fd(), parent.as_fd(), name)
        }
        (
            EntryKind::Directory
            | EntryKind::Bind { .. }
            | EntryKind::Device { .. }
            | EntryKind::System { .. },
            _,
        ) => make_directory(parent.as_fd(), name),
    }
}

/// Makes the directories of a relative path where they are missing, and opens the last one.
fn make_directories(root: &OwnedFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let mut directory = root.try_clone().map_err(|_| rustix::io::Errno::MFILE)?;
    for name in path.iter() {
        make_directory(directory.as_fd(), name)?;
        directory = open_beneath(directory.as_fd(), Path::new(name))?;
    }
    Ok(directory)
}

fn make_directory(parent: BorrowedFd<'_>, name: impl rustix::path::Arg) -> rustix::io::Result<()> {
    match mkdirat(parent, name, Mode::from_raw_mode(DIRECTORY_MODE)) {
        Err(rustix::io::Errno::EXIST) => Ok(()),
        other => other,
    }
}

/// Makes a file, unless there is one already on which something else is to be mounted.
fn make_file(parent: BorrowedFd<'_>, name: impl rustix::path::Arg, content: &[u8]) -> rustix::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match openat(parent, name, flags, Mode::from_raw_mode(FILE_MODE)) {
        Err(rustix::io::Errno::EXIST) if content.is_empty() => return Ok(()),
        other => other?,
    };
    let mut rest = content;
    while !rest.is_empty() {
        rest = &rest[rustix::io::write(&file, rest)?..];
    }
    Ok(())
}

fn make_proc(root: &OwnedFd, proc: Proc) -> rustix::io::Result<()> {
    make_directory(root.as_fd(), "proc")?;
    if proc == Proc::Empty {
        return Ok(());
    }
    let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    // Read-only: its `sys` has switches of the kernel that a process of the host's root user may open even without
    // capabilities.
    let attributes = READ_ONLY | NO_SETUID | NO_DEVICES | NO_PROGRAMS;
    let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    attach_to(mount.as_fd(), root.as_fd(), "proc")
}

/// A new empty directory in memory, not attached yet.
fn memory(mode: u32, bytes: u64, files: u64) -> rustix::io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "mode", format!("{mode:o}"))?;
    fsconfig_set_string(context.as_fd(), "size", bytes.to_string())?;
    fsconfig_set_string(context.as_fd(), "nr_inodes", files.to_string())?;
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, NO_SETUID | NO_DEVICES)
}

fn attach(
    mount: BorrowedFd<'_>,
    parent: BorrowedFd<'_>,
    name: impl rustix::path::Arg,
) -> rustix::io::Result<()> {
    move_mount(mount, "", parent, name, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// Attaches a mount to a file or directory of the new root that is not a symbolic link.
fn attach_to(
    mount: BorrowedFd<'_>,
    parent: BorrowedFd<'_>,
    name: impl AsRef<Path>,
) -> rustix::io::Result<()> {
    let place = open_beneath(parent, name.as_ref())?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", &place, "", flags)
}

fn open_beneath(parent: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(parent, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}
