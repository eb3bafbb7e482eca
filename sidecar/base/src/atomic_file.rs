//! Files that are whole or not there, for the sidecar's user alone.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// How the names end that files have before they are whole; they begin with a dot.
pub const ASIDE: &str = ".new";

/// Whether a file that stands there already is replaced.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Replace {
    Always,
    /// The first who comes is right; `AlreadyExists` says that it was another.
    Never,
}

/// Puts a whole file, 0600, under its name.
pub fn place(directory: &Path, path: &Path, bytes: &[u8], replace: Replace) -> io::Result<()> {
    let aside = directory.join(format!(".{}{ASIDE}", crate::random::hex::<8>()));
    let placed = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        match replace {
            Replace::Always => fs::rename(&aside, path)?,
            Replace::Never => {
                fs::hard_link(&aside, path)?;
                fs::remove_file(&aside)?;
            }
        }
        sync(directory)
    })();
    placed.inspect_err(|_| {
        let _ = fs::remove_file(&aside);
    })
}

/// At most so many bytes of a regular file; no link is followed and no pipe waited for.
pub fn read_bounded(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read_checked(path, most, |_| Ok(()))
}

/// The same of a file that passes; it is looked at before it is read.
pub fn read_checked(
    path: &Path,
    most: u64,
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
    file.take(most + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(io::Error::other(format!("it has more than {most} bytes"))),
        false => Ok(bytes),
    }
}

/// What was placed or removed in a directory stays so after a crash.
pub fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}
