//! Files that are either complete or absent: private ones, readable by the sidecar's user alone, and programs.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// The suffix of temporary names of files that are being written; these names begin with a dot.
pub const TEMPORARY_SUFFIX: &str = ".new";

/// Whether an existing file is replaced.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Replace {
    Always,
    /// Of several writers the first one succeeds; the others get `AlreadyExists`.
    Never,
}

/// Writes and syncs a file with mode 0600 under a temporary name, then renames or links it to `path`.
pub fn write_file(directory: &Path, path: &Path, bytes: &[u8], replace: Replace) -> io::Result<()> {
    write_with_mode(directory, path, bytes, replace, 0o600)
}

/// Writes a program that every user may run, as [`write_file`] does: a program that runs from this file is not written to.
pub fn write_program(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    write_with_mode(directory, path, bytes, Replace::Always, 0o755)
}

fn write_with_mode(
    directory: &Path,
    path: &Path,
    bytes: &[u8],
    replace: Replace,
    mode: u32,
) -> io::Result<()> {
    let temporary = directory.join(format!(".{}{TEMPORARY_SUFFIX}", crate::random::hex::<8>()));
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        match replace {
            Replace::Always => fs::rename(&temporary, path)?,
            Replace::Never => {
                fs::hard_link(&temporary, path)?;
                fs::remove_file(&temporary)?;
            }
        }
        sync_directory(directory)
    })();
    written.inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })
}

/// Reads a regular file of at most `limit` bytes. Follows no symbolic link, and does not block on a pipe.
pub fn read_bounded(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read_checked(path, limit, |_| Ok(()))
}

/// Like [`read_bounded`], with a check of the metadata before the file is read.
pub fn read_checked(
    path: &Path,
    limit: u64,
    check: impl FnOnce(&Metadata) -> io::Result<()>,
) -> io::Result<Vec<u8>> {
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    check(&metadata)?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > limit {
        true => Err(io::Error::other(format!("it has more than {limit} bytes"))),
        false => Ok(bytes),
    }
}

/// Syncs a directory, so that created and removed names in it survive a crash.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}
