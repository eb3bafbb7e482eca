//! Observes which paths a confined server asks the kernel for, also those that do not exist for it.
//!
//! A second filter of system calls lets each call that names a path wait until this module has read the name. The call then goes
//! on unchanged: the walls decide about it as always.
//!
//! ```text
//! server ── open("/srv/data/x") waits ──▶ kernel ──▶ thread `observe` reads the path ──▶ observer
//!        ◀──────────── goes on ──────────        ◀──
//! ```
//!
//! What must stay true: nothing is allowed or refused here; a call whose path cannot be read goes on too, and is counted; the
//! thread ends when no process of the server is left.

mod calls;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::oneshot;

use self::calls::{Place, places};
use super::os::{self, WaitingCall};

pub use calls::observed_calls;

/// Receives what a server asks for. It is called while the server waits, so it must be quick.
pub trait PathObserver: Send + Sync {
    /// `path` is absolute, as the server sees it, without `.` and `..`. Symbolic links are not followed.
    fn asked(&self, path: &Path, wanted: Wanted);

    /// A call whose path could not be read.
    fn missed(&self);
}

/// What a server wants to do with a path.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Wanted {
    Execute,
    /// Also to look whether it exists.
    Read,
    /// Also to create, rename or remove it.
    Write,
}

/// The longest path that the kernel takes.
const MAX_PATH: usize = 4096;
/// No read of another process's memory crosses a page: the next one may not be mapped.
const PAGE: u64 = 4096;

/// Starts the thread that observes one server. It first receives the sockets of the server's network, if there are some, and
/// passes them on.
pub(super) fn start(
    sidecar_end: UnixStream,
    sockets: usize,
    observer: Arc<dyn PathObserver>,
) -> io::Result<oneshot::Receiver<Vec<OwnedFd>>> {
    let (received, receiver) = oneshot::channel();
    let observe = move || {
        if sockets > 0 {
            let Ok(Some(descriptors)) = os::receive_descriptors(sidecar_end.as_fd(), &mut [0]) else {
                return;
            };
            let _ = received.send(descriptors);
        }
        let listener = os::receive_descriptors(sidecar_end.as_fd(), &mut [0]);
        if let Ok(Some(mut descriptors)) = listener
            && let Some(listener) = descriptors.pop()
        {
            serve(&listener, &*observer);
        }
    };
    std::thread::Builder::new().name("observe".into()).spawn(observe)?;
    Ok(receiver)
}

/// Ends when no process has the filter any more.
fn serve(listener: &OwnedFd, observer: &dyn PathObserver) {
    os::wake_quickly(listener.as_fd());
    // The first call executes the server's program. Until then the process is a copy of the keeper, whose memory is closed.
    let mut is_server = false;
    loop {
        let mut descriptors = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        match poll(&mut descriptors, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return,
        }
        let events = descriptors[0].revents().unwrap_or(PollFlags::POLLERR);
        if !events.contains(PollFlags::POLLIN) {
            match events.is_empty() {
                true => continue,
                false => return,
            }
        }
        let call = match os::next_call(listener.as_fd()) {
            Ok(Some(call)) => call,
            Ok(None) => continue,
            Err(_) => return,
        };
        if is_server {
            let asked = Caller::new(&call).and_then(|caller| caller.asked(&call));
            // Only now it is certain that the thread's number had not been given to another.
            match (os::still_waits(listener.as_fd(), &call), asked) {
                (true, Ok(asked)) => asked.iter().for_each(|(path, wanted)| observer.asked(path, *wanted)),
                (true, Err(_)) => observer.missed(),
                (false, _) => {}
            }
        }
        is_server = true;
        if os::let_continue(listener.as_fd(), &call).is_err() {
            return;
        }
    }
}

/// The thread that makes a call.
struct Caller {
    thread: u32,
    memory: File,
}

impl Caller {
    fn new(call: &WaitingCall) -> io::Result<Self> {
        Ok(Self { thread: call.thread, memory: File::open(format!("/proc/{}/mem", call.thread))? })
    }

    /// What the call asks for.
    fn asked(&self, call: &WaitingCall) -> io::Result<Vec<(PathBuf, Wanted)>> {
        let mut asked = Vec::new();
        for Place { directory, path, wanted } in places(call.number) {
            let argument = |index: usize| call.arguments[index];
            let wanted = wanted.of(argument, |address| self.number_at(address))?;
            let path = self.path_at(argument(*path))?;
            // `fstat` and the like: the descriptor itself is meant.
            if path.as_os_str().is_empty() {
                continue;
            }
            let base = match path.is_absolute() {
                true => PathBuf::new(),
                false => self.directory(directory.map(argument))?,
            };
            asked.push((normalized(&base.join(path)), wanted));
        }
        Ok(asked)
    }

    fn directory(&self, descriptor: Option<u64>) -> io::Result<PathBuf> {
        // The kernel looks at the low half only.
        #[expect(clippy::cast_possible_truncation, reason = "as the kernel does")]
        let descriptor = descriptor.map(|descriptor| descriptor as i32);
        let link = match descriptor {
            None | Some(libc::AT_FDCWD) => format!("/proc/{}/cwd", self.thread),
            Some(descriptor) => format!("/proc/{}/fd/{descriptor}", self.thread),
        };
        std::fs::read_link(link)
    }

    fn path_at(&self, address: u64) -> io::Result<PathBuf> {
        let mut bytes = Vec::new();
        while bytes.len() < MAX_PATH {
            let from = address + bytes.len() as u64;
            let mut page = [0; PAGE as usize];
            let rest = usize::try_from(PAGE - from % PAGE).map_err(io::Error::other)?;
            let length = self.memory.read_at(&mut page[..rest], from)?;
            match page[..length].iter().position(|&byte| byte == 0) {
                Some(end) => {
                    bytes.extend(&page[..end]);
                    return Ok(std::ffi::OsString::from_vec(bytes).into());
                }
                None if length == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                None => bytes.extend(&page[..length]),
            }
        }
        Err(Errno::ENAMETOOLONG.into())
    }

    fn number_at(&self, address: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(&mut bytes, address)?;
        Ok(u64::from_ne_bytes(bytes))
    }
}

/// Without `.` and `..`, as far as that is possible without following links.
fn normalized(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut normal, component| {
        match component {
            Component::CurDir => {}
            Component::ParentDir => drop(normal.pop()),
            Component::Normal(_) | Component::Prefix(_) | Component::RootDir => normal.push(component),
        }
        normal
    })
}
