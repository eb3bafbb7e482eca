//! The command line's side of the admin socket.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Answer, Question};

#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    #[error("connect to the sidecar at `{path}`")]
    Connect {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("talk to the sidecar")]
    Talk(#[source] io::Error),
    #[error("understand the sidecar's answer: is it of the same version?")]
    Answer(#[source] serde_json::Error),
}

/// Ending a session takes up to five seconds, with its processes.
const ANSWER_TIME: Duration = Duration::from_secs(15);

pub(crate) fn ask(socket: &Path, question: &Question) -> Result<Answer, AskError> {
    let mut stream =
        UnixStream::connect(socket).map_err(|source| AskError::Connect { path: socket.into(), source })?;
    stream.set_read_timeout(Some(ANSWER_TIME)).map_err(AskError::Talk)?;
    let mut text = serde_json::to_vec(question).expect("a question is plain data");
    text.push(b'\n');
    stream.write_all(&text).map_err(AskError::Talk)?;
    let mut line = Vec::new();
    BufReader::new(stream).read_until(b'\n', &mut line).map_err(AskError::Talk)?;
    serde_json::from_slice(&line).map_err(AskError::Answer)
}
