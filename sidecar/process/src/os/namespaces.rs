//! System calls for processes in namespaces of their own: forking into them, mount attributes, the filter of system calls.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::libc;
use nix::unistd::Pid;
use rustix::mount::MountAttrFlags;

/// Whether a change of a mount is also made to what is mounted below it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Below {
    Too,
    Unchanged,
}

/// Proof that this process has one thread. It stays true in a forked copy, and as long as no thread is started: this crate
/// starts none in a keeper. Not `Send`, so that no other thread can use it.
#[derive(Clone, Copy)]
pub(crate) struct SingleThreaded(PhantomData<*const ()>);

impl SingleThreaded {
    pub(crate) fn check() -> io::Result<Self> {
        match std::fs::read_dir("/proc/self/task")?.count() {
            1 => Ok(Self(PhantomData)),
            _ => Err(io::Error::other("a process with several threads cannot be forked safely")),
        }
    }

    /// Runs `child` in a forked copy of this process in new namespaces (`CLONE_NEW…`; none: 0), which then exits with the code
    /// that `child` returns.
    pub(crate) fn fork(self, namespaces: libc::c_int, child: impl FnOnce() -> i32) -> io::Result<Pid> {
        // `clone` and not `clone3`, because the default profile of Docker refuses `clone3`.
        let flags = libc::c_long::from(namespaces | libc::SIGCHLD);
        // SAFETY: without a stack and CLONE_VM the call copies the process as `fork` does; the other pointers are null, and
        // unused without their flags. The process has one thread, so no lock can be held by a thread that is missing in the copy.
        let result = unsafe { libc::syscall(libc::SYS_clone, flags, 0_usize, 0_usize, 0_usize, 0_usize) };
        match Errno::result(result)? {
            0 => std::process::exit(child()),
            pid => Ok(Pid::from_raw(i32::try_from(pid).map_err(io::Error::other)?)),
        }
    }
}

/// Adds attributes to a mount, and separates it from the mount that it is a copy of: neither sees what is mounted in the other.
/// With `owners`, a user namespace, its files belong to whom that namespace says.
pub(crate) fn restrict_mounts(
    mount: BorrowedFd<'_>,
    below: Below,
    attributes: MountAttrFlags,
    owners: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut request = libc::mount_attr {
        attr_set: u64::from(attributes.bits()),
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    if let Some(owners) = owners {
        request.attr_set |= u64::from(MountAttrFlags::MOUNT_ATTR_IDMAP.bits());
        request.userns_fd = u64::try_from(owners.as_raw_fd()).map_err(|_| Errno::EBADF)?;
    }
    let flags = match below {
        Below::Too => libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
        Below::Unchanged => libc::AT_EMPTY_PATH,
    };
    // SAFETY: the path is a NUL-terminated empty string, `request` outlives the call, and its size is given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const request,
            size_of::<libc::mount_attr>(),
        )
    };
    Errno::result(result).map(drop)
}

/// Installs a filter of system calls for this process and its descendants. It must have `no_new_privs` set.
pub(crate) fn install_filter(instructions: &[libc::sock_filter]) -> Result<(), Errno> {
    let length = u16::try_from(instructions.len()).map_err(|_| Errno::E2BIG)?;
    // The kernel does not write to the program; the field's type is the C header's.
    let program = libc::sock_fprog { len: length, filter: instructions.as_ptr().cast_mut() };
    // SAFETY: `program` and the instructions that it points to outlive the call, which copies them; the kernel checks them.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0_u32, &raw const program) };
    Errno::result(result).map(drop)
}
