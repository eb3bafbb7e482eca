//! The format of the state directory, so that an older sidecar does not work on what a newer one has written.
//!
//! What must stay true: nothing in the state directory is changed before its format is known to be ours or older.

use std::io;
use std::path::{Path, PathBuf};

use cofferdam_base::atomic_file::{Replace, read_bounded, write_file};

/// Becomes the next number in a version whose state its predecessors would misread.
const FORMAT: u32 = 1;
/// The name of the file in the state directory: the number of the format, and the version that wrote it first.
const FILE: &str = "format";
/// The file has a number and a version; a much larger one is something else.
const MAX_FILE_BYTES: u64 = 256;

#[derive(Debug, thiserror::Error)]
pub(crate) enum StateFormatError {
    #[error("the state directory `{directory}` is of a newer version{}: its format is {format}, and this version knows {FORMAT}", named(.version))]
    Newer { directory: PathBuf, format: u32, version: String },
    #[error("`{path}` does not say which format the state directory has")]
    Unreadable { path: PathBuf },
    #[error("cannot read or write `{path}`")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Refuses a state directory of a newer version. One without the file is new, or of a version that did not write it yet.
pub(super) fn check(state_dir: &Path) -> Result<(), StateFormatError> {
    match read(state_dir)? {
        Some((format, version)) if format > FORMAT => {
            Err(StateFormatError::Newer { directory: state_dir.into(), format, version })
        }
        _ => Ok(()),
    }
}

/// Marks the state directory, which exists and has been checked, as one of this format.
pub(super) fn mark(state_dir: &Path) -> Result<(), StateFormatError> {
    if read(state_dir)?.is_some_and(|(format, _)| format >= FORMAT) {
        return Ok(());
    }
    let path = state_dir.join(FILE);
    let text = format!("{FORMAT} {}\n", env!("CARGO_PKG_VERSION"));
    write_file(state_dir, &path, text.as_bytes(), Replace::Always)
        .map_err(|source| StateFormatError::Io { path, source })
}

fn read(state_dir: &Path) -> Result<Option<(u32, String)>, StateFormatError> {
    let path = state_dir.join(FILE);
    let bytes = match read_bounded(&path, MAX_FILE_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(StateFormatError::Io { path, source }),
    };
    let text = String::from_utf8(bytes).unwrap_or_default();
    let mut words = text.split_whitespace();
    let format = words.next().and_then(|format| format.parse().ok());
    let version = words.next().unwrap_or_default().to_owned();
    format.map(|format| Some((format, version))).ok_or(StateFormatError::Unreadable { path })
}

/// The version for a message; it comes from a file, so that only what a version can contain is repeated.
fn named(version: &str) -> String {
    let is_version = |byte: u8| byte.is_ascii_alphanumeric() || b".-+".contains(&byte);
    if version.is_empty() || !version.bytes().all(is_version) {
        return String::new();
    }
    format!(", {version}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_marked_once_and_one_of_a_newer_format_is_refused_unchanged() {
        let directory = std::env::temp_dir().join(cofferdam_base::random::id("cofferdam-format-"));
        std::fs::create_dir(&directory).unwrap();
        let file = directory.join(FILE);
        check(&directory).unwrap();
        mark(&directory).unwrap();
        check(&directory).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("1 {}\n", env!("CARGO_PKG_VERSION")));

        for (content, expected) in [
            ("2 0.9.0\n", "of a newer version, 0.9.0: its format is 2, and this version knows 1"),
            ("7 \u{1b}[31m\n", "of a newer version: its format is 7"),
            ("", "does not say which format"),
            ("newest\n", "does not say which format"),
        ] {
            std::fs::write(&file, content).unwrap();
            let message = check(&directory).unwrap_err().to_string();
            assert!(message.contains(expected), "{content:?}: {message}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), content);
        }
        std::fs::remove_dir_all(directory).unwrap();
    }
}
