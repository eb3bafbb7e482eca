//! An empty FUSE file system that names any owner for its root directory, as a hostile user of a machine can mount one.
//!
//! It speaks the kernel's protocol itself (`linux/fuse.h`), so that no further program is needed.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// For the directory of the file system: a directory with mode 0755.
const MODE: u32 = 0o040_755;
const NOT_FOUND: i32 = -2;
const NOT_IMPLEMENTED: i32 = -38;
/// The length of the header before each request.
const HEADER_BYTES: usize = 40;

/// Moves the calling thread, and the processes that it starts from now on, to a mount namespace whose mounts no other
/// process sees.
///
/// # Panics
/// When this is not permitted: only root may.
pub fn enter_private_mounts() {
    unshare(CloneFlags::CLONE_NEWNS).expect("root may make a mount namespace");
    let flags = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).expect("root may change mounts");
}

/// Mounts the file system. It ends with the mount namespace of the calling thread.
///
/// # Panics
/// When it cannot be mounted.
pub fn mount_with_owner(directory: &Path, owner: u32) {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").expect("root may open it");
    let options =
        format!("fd={},rootmode=40000,user_id={owner},group_id={owner},allow_other", device.as_raw_fd());
    mount(Some("hostile"), directory, Some("fuse"), MsFlags::empty(), Some(options.as_str()))
        .expect("root may mount");
    std::thread::spawn(move || serve(device, owner));
}

/// Responds until the file system is unmounted.
fn serve(mut device: File, owner: u32) {
    let mut request = vec![0; 1 << 20];
    while let Ok(length @ HEADER_BYTES..) = device.read(&mut request) {
        let operation = u32::from_ne_bytes(request[4..8].try_into().expect("four bytes"));
        let id = &request[8..16];
        let (error, body) = match operation {
            1 => (NOT_FOUND, Vec::new()),
            // The kernel expects no response to FORGET and BATCH_FORGET.
            2 | 42 => continue,
            3 => (0, attributes(owner)),
            17 => (0, vec![0; 80]),
            26 => (0, initialization(&request[HEADER_BYTES..length])),
            _ => (NOT_IMPLEMENTED, Vec::new()),
        };
        let total = u32::try_from(16 + body.len()).expect("it is short");
        let response = [&total.to_ne_bytes()[..], &error.to_ne_bytes(), id, &body].concat();
        if device.write_all(&response).is_err() {
            return;
        }
    }
}

/// The kernel's own version, and no optional features.
fn initialization(request: &[u8]) -> Vec<u8> {
    let mut response = vec![0; 64];
    response[..8].copy_from_slice(&request[..8]);
    // The largest write.
    response[20..24].copy_from_slice(&4096_u32.to_ne_bytes());
    response
}

/// The attributes of the root directory, which are valid for no time.
fn attributes(owner: u32) -> Vec<u8> {
    let mut response = vec![0; 104];
    let mut put = |at: usize, value: u32| response[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    put(16, 1); // inode
    put(76, MODE);
    put(80, 2); // links
    put(84, owner);
    put(88, owner);
    response
}
