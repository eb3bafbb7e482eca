//! The files: `NAME.jsonl`, and `NAME.jsonl.1` with what came before it.
//!
//! What must stay true: the two together stay within the limit; a line is in a file as a whole or not at all, except after a
//! crash of the host, and the next line then begins on its own; both files have mode 0600 from the moment they exist.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};

use cofferdam_base::PacedLines;
use nix::libc::O_NOFOLLOW;
use relay_proto::name::Name;

use super::queue::{Queue, QueuedLine};
use super::record::StderrRecord;

pub(super) struct ServerFiles {
    directory: PathBuf,
    /// At this size a file becomes the previous one.
    rotate_at: u64,
    open: HashMap<Name, OpenFile>,
}

struct OpenFile {
    file: File,
    bytes: u64,
}

/// With a full disk every line fails.
static FAILURES: PacedLines = PacedLines::new("a line of stderr is not written for `cofferdam logs`");

/// The current file of a server, and the one before it.
pub(super) fn paths(directory: &Path, server: &Name) -> [PathBuf; 2] {
    [directory.join(format!("{server}.jsonl")), directory.join(format!("{server}.jsonl.1"))]
}

impl ServerFiles {
    pub(super) fn new(directory: PathBuf, bytes: u64) -> Self {
        Self { directory, rotate_at: bytes / 2, open: HashMap::new() }
    }

    /// Writes a line, after the number of those that are missing before it.
    pub(super) fn write(&mut self, queue: &Queue, line: QueuedLine) {
        let QueuedLine { server, record } = line;
        let missing = queue.take_dropped(&server);
        let notice = (missing > 0).then(|| {
            StderrRecord::dropped(None, missing, "they could not be written: the disk was slow or full")
        });
        let written = notice.iter().chain([&record]).try_for_each(|record| self.append(&server, record));
        if let Err(error) = written {
            self.open.remove(&server);
            queue.count_dropped(&server, missing + 1);
            if let Some(left_out) = FAILURES.admit() {
                tracing::warn!(%server, %error, left_out, "a line of stderr is not written for `cofferdam logs`");
            }
        }
    }

    fn append(&mut self, server: &Name, record: &StderrRecord) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(record)?;
        bytes.push(b'\n');
        let limit = self.rotate_at;
        if bytes.len() as u64 > limit {
            return Err(io::Error::other("the line is larger than `limits.stderr-log-bytes` permits"));
        }
        let mut file = match self.open.remove(server) {
            // A file that was removed takes no more lines.
            Some(open) if open.file.metadata().is_ok_and(|metadata| metadata.nlink() > 0) => open,
            _ => self.open_file(server)?,
        };
        if file.bytes + bytes.len() as u64 > limit {
            let [current, previous] = paths(&self.directory, server);
            fs::rename(current, previous)?;
            file = self.open_file(server)?;
        }
        if let Err(error) = file.file.write_all(&bytes) {
            // Removes what a full disk took of the line.
            let _ = file.file.set_len(file.bytes);
            return Err(error);
        }
        file.bytes += bytes.len() as u64;
        self.open.insert(server.clone(), file);
        Ok(())
    }

    fn open_file(&self, server: &Name) -> io::Result<OpenFile> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let [path, _] = paths(&self.directory, server);
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(O_NOFOLLOW)
            .open(path)?;
        let metadata = file.metadata()?;
        if metadata.mode() & 0o077 != 0 {
            file.set_permissions(Permissions::from_mode(0o600))?;
        }
        let mut bytes = metadata.len();
        let mut last = [b'\n'];
        if bytes > 0 {
            file.read_exact_at(&mut last, bytes - 1)?;
        }
        if last != *b"\n" {
            file.write_all(b"\n")?;
            bytes += 1;
        }
        Ok(OpenFile { file, bytes })
    }
}
