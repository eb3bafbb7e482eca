//! The command line's side of the admin socket.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{AdminRequest, AdminResponse};

#[derive(Debug, thiserror::Error)]
pub(crate) enum AdminError {
    #[error("connect to the sidecar at `{path}`")]
    Connect {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("send a request to the sidecar")]
    Io(#[source] io::Error),
    #[error("read the sidecar's response: does it have the same version?")]
    Response(#[source] serde_json::Error),
}

/// Longer than any request takes: ending a session with its processes takes up to five seconds.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15);

pub(crate) fn send(socket: &Path, request: &AdminRequest) -> Result<AdminResponse, AdminError> {
    let mut stream =
        UnixStream::connect(socket).map_err(|source| AdminError::Connect { path: socket.into(), source })?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT)).map_err(AdminError::Io)?;
    let mut text = serde_json::to_vec(request).expect("a request is plain data");
    text.push(b'\n');
    stream.write_all(&text).map_err(AdminError::Io)?;
    let mut line = Vec::new();
    BufReader::new(stream).read_until(b'\n', &mut line).map_err(AdminError::Io)?;
    serde_json::from_slice(&line).map_err(AdminError::Response)
}
