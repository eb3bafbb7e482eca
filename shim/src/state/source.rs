//! Finds an enrolment string: in the environment, in a file that it names, or in the default file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use relay_proto::control::Ticket;
use relay_proto::enrolment::EnrolmentString;

use super::StateError;
use super::file::read_bounded;
use crate::options::EnrolmentSources;

/// An enrolment string, and the file to remove after its use.
#[derive(Debug)]
pub(super) struct FoundString {
    pub(super) enrolment: EnrolmentString,
    file: Option<PathBuf>,
}

impl EnrolmentSources {
    /// Reads the first string whose ticket is not refused. An unreadable or invalid string is an error if there is no
    /// other.
    pub(super) fn read(&self, refused: &[Ticket]) -> Result<Option<FoundString>, StateError> {
        let mut first_error = None;
        let variable = self
            .variable
            .as_ref()
            .map(|text| (Ok(text.clone().into_bytes()), "COFFERDAM_ENROLL".into(), None));
        let files = self
            .file
            .iter()
            .chain([&self.default_file])
            .map(|path| (read_bounded(path), format!("`{}`", path.display()), Some(path.clone())));
        for (read, origin, file) in variable.into_iter().chain(files) {
            let bytes = match read {
                Ok(bytes) => bytes,
                // The file may be written later.
                Err(error) if is_absent(&error) => continue,
                // The directory belongs to a hub that runs as root: its files are not for this user.
                Err(_)
                    if file.as_ref() == Some(&self.default_file) && is_out_of_reach(&self.default_file) =>
                {
                    continue;
                }
                Err(source) => {
                    first_error.get_or_insert(StateError::Unreadable { origin, source });
                    continue;
                }
            };
            match String::from_utf8_lossy(&bytes).parse::<EnrolmentString>() {
                Ok(enrolment) if refused.contains(&enrolment.ticket) => {}
                Ok(enrolment) => return Ok(Some(FoundString { enrolment, file })),
                Err(source) => {
                    first_error.get_or_insert(StateError::InvalidString { origin, source });
                }
            }
        }
        first_error.map_or(Ok(None), Err)
    }
}

impl FoundString {
    /// Removes the string's file: the ticket is stored with the key. A failure is ignored.
    pub(super) fn remove(self) {
        if let Some(file) = self.file {
            let _ = fs::remove_file(file);
        }
    }
}

/// Whether this user may not search the file's directory. A file that may not be read is not out of reach.
fn is_out_of_reach(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
