//! The two connections to the sidecar: the one that holds a sandbox, and the one that becomes its pipe.

use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::daemon::admin::{Answer, Question};
use crate::daemon::attach_table::News;
use crate::terminal::failure::{Failure, Sysexit};

/// A sandbox that is held for as long as this is.
pub(super) struct Held {
    pub(super) enrolment: String,
    /// The sidecar's public key.
    pub(super) pin: String,
    stream: BufReader<UnixStream>,
    line: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Unanswered {
    #[error("connect to the sidecar at `{path}`: {source}")]
    Connect { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Refused(String),
    #[error("talk to the sidecar: {0}; is it of the same version?")]
    Talk(#[from] io::Error),
}

/// An answer takes no longer.
const ANSWER_TIME: Duration = Duration::from_secs(15);
/// An answer has some hundred bytes.
const MAX_ANSWER: usize = 64 * 1024;

impl Held {
    pub(super) async fn take(admin: &Path, question: &Question) -> Result<Self, Unanswered> {
        match ask(admin, question).await? {
            (Answer::Attaching { enrolment, pin }, stream) => {
                Ok(Self { enrolment, pin, stream: BufReader::new(stream), line: Vec::new() })
            }
            (answer, _) => Err(odd(answer)),
        }
    }

    /// What the sidecar has to say; nothing when it is gone. Can be dropped at any time.
    pub(super) async fn news(&mut self) -> Option<News> {
        let room = (MAX_ANSWER - self.line.len().min(MAX_ANSWER)) as u64;
        (&mut self.stream).take(room).read_until(b'\n', &mut self.line).await.ok()?;
        let line = std::mem::take(&mut self.line);
        serde_json::from_slice(&line).ok()
    }
}

/// A connection that is the pipe from now on.
pub(super) async fn pipe(admin: &Path, enrolment: &str) -> Result<StdUnixStream, Unanswered> {
    match ask(admin, &Question::Pipe { enrolment: enrolment.into() }).await? {
        (Answer::Piped, stream) => {
            let stream = stream.into_std()?;
            // It becomes the stdio of a command, which expects a blocking descriptor.
            stream.set_nonblocking(false)?;
            Ok(stream)
        }
        (answer, _) => Err(odd(answer)),
    }
}

impl Unanswered {
    pub(super) fn failure(self) -> Failure {
        match self {
            Self::Refused(why) => Failure::new(Sysexit::NoInput, why),
            Self::Connect { .. } => Failure::new(Sysexit::Unavailable, self)
                .hint("is `cofferdam serve` running with this configuration, and as this user?"),
            Self::Talk(_) => Failure::new(Sysexit::Unavailable, self).hint("look at the sidecar's log"),
        }
    }
}

async fn ask(admin: &Path, question: &Question) -> Result<(Answer, UnixStream), Unanswered> {
    let connected = UnixStream::connect(admin).await;
    let mut stream = connected.map_err(|source| Unanswered::Connect { path: admin.into(), source })?;
    let mut text = serde_json::to_vec(question).expect("a question is plain data");
    text.push(b'\n');
    stream.write_all(&text).await?;
    let line = timeout(ANSWER_TIME, line(&mut stream)).await.map_err(io::Error::from)??;
    let answer = serde_json::from_slice(&line).map_err(io::Error::from)?;
    Ok((answer, stream))
}

/// One byte at a time: what follows the line is not ours to read.
async fn line(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    while line.len() < MAX_ANSWER {
        match stream.read_u8().await? {
            b'\n' => return Ok(line),
            byte => line.push(byte),
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

fn odd(answer: Answer) -> Unanswered {
    match answer {
        Answer::Refused { why } => Unanswered::Refused(why),
        _ => Unanswered::Talk(io::Error::other("it answered something else")),
    }
}
