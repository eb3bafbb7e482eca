//! Connections to the sidecar's admin socket that stay open: one keeps the enrolment alive (the hold), another becomes
//! the pipe into the sandbox; one follows an attachment of the sidecar's own.

use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::daemon::admin::{AdminRequest, AdminResponse};
use crate::daemon::attach_table::AttachEvent;
use crate::daemon::attachments::status::{AttachmentStatus, OverCause};
use crate::terminal::failure::{Failure, Sysexit};

/// Keeps a sandbox's enrolment alive as long as this connection is open.
pub(super) struct HoldConnection {
    pub(super) enrolment: String,
    /// The sidecar's public key.
    pub(super) pin: String,
    lines: Lines,
}

/// Follows an attachment, which ends with this connection unless it is left in the sidecar.
pub(super) struct FollowConnection {
    pub(super) name: String,
    lines: Lines,
}

/// The JSON lines that the sidecar sends after its response.
struct Lines {
    stream: BufReader<UnixStream>,
    line: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum AdminFailure {
    #[error("{why}")]
    AttachmentRefused { why: String, cause: OverCause },
    #[error("connect to the sidecar at `{path}`: {source}")]
    Connect { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Refused(String),
    #[error("send a request to the sidecar: {0}; does it have the same version?")]
    Io(#[from] io::Error),
}

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15);
/// Responses have some hundred bytes.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;

impl HoldConnection {
    pub(super) async fn take(admin: &Path, request: &AdminRequest) -> Result<Self, AdminFailure> {
        match send(admin, request).await? {
            (AdminResponse::Attaching { enrolment, pin }, stream) => {
                Ok(Self { enrolment, pin, lines: Lines::new(stream) })
            }
            (response, _) => Err(unexpected(response)),
        }
    }

    /// The next event from the sidecar, or `None` when the connection is lost. Cancel-safe.
    pub(super) async fn next_event(&mut self) -> Option<AttachEvent> {
        self.lines.next().await
    }
}

impl FollowConnection {
    pub(super) async fn start(admin: &Path, request: &AdminRequest) -> Result<Self, AdminFailure> {
        match send(admin, request).await? {
            (AdminResponse::AttachmentStarted { name }, stream) => {
                Ok(Self { name, lines: Lines::new(stream) })
            }
            (response, _) => Err(unexpected(response)),
        }
    }

    /// The next status, or `None` when the connection is lost. Cancel-safe.
    pub(super) async fn next_status(&mut self) -> Option<AttachmentStatus> {
        self.lines.next().await
    }
}

impl Lines {
    fn new(stream: UnixStream) -> Self {
        Self { stream: BufReader::new(stream), line: Vec::new() }
    }

    async fn next<T: DeserializeOwned>(&mut self) -> Option<T> {
        let room = (MAX_RESPONSE_BYTES - self.line.len().min(MAX_RESPONSE_BYTES)) as u64;
        (&mut self.stream).take(room).read_until(b'\n', &mut self.line).await.ok()?;
        let line = std::mem::take(&mut self.line);
        serde_json::from_slice(&line).ok()
    }
}

/// Opens a connection and turns it into the pipe of this enrolment.
pub(super) async fn pipe(admin: &Path, enrolment: &str) -> Result<StdUnixStream, AdminFailure> {
    match send(admin, &AdminRequest::Pipe { enrolment: enrolment.into() }).await? {
        (AdminResponse::Piped, stream) => {
            let stream = stream.into_std()?;
            // It may become the stdio of a command, which expects a blocking descriptor.
            stream.set_nonblocking(false)?;
            Ok(stream)
        }
        (response, _) => Err(unexpected(response)),
    }
}

impl AdminFailure {
    pub(super) fn failure(self) -> Failure {
        match self {
            Self::AttachmentRefused { why, cause } => Failure::new(exit_code(cause), why),
            Self::Refused(why) => Failure::new(Sysexit::NoInput, why),
            Self::Connect { .. } => Failure::new(Sysexit::Unavailable, self)
                .hint("is `cofferdam serve` running with this configuration, and as this user?"),
            Self::Io(_) => Failure::new(Sysexit::Unavailable, self).hint("look at the sidecar's log"),
        }
    }
}

/// The exit code of a command whose attachment is over.
pub(super) fn exit_code(cause: OverCause) -> Sysexit {
    match cause {
        OverCause::Configuration => Sysexit::Configuration,
        OverCause::Ended | OverCause::Taken | OverCause::Unavailable => Sysexit::Unavailable,
        OverCause::NoSandbox => Sysexit::NoInput,
        OverCause::NotSaved => Sysexit::CannotCreate,
        OverCause::Unauthorized => Sysexit::NoPermission,
    }
}

/// Ends an attachment, without caring how that went: the sidecar's log says it.
pub(super) async fn end_attachment(admin: &Path, name: &str) {
    let _ = send(admin, &AdminRequest::EndAttachment { name: name.into() }).await;
}

async fn send(admin: &Path, request: &AdminRequest) -> Result<(AdminResponse, UnixStream), AdminFailure> {
    let connected = UnixStream::connect(admin).await;
    let mut stream = connected.map_err(|source| AdminFailure::Connect { path: admin.into(), source })?;
    let mut text = serde_json::to_vec(request).expect("a request is plain data");
    text.push(b'\n');
    stream.write_all(&text).await?;
    let line = timeout(RESPONSE_TIMEOUT, line(&mut stream)).await.map_err(io::Error::from)??;
    let response = serde_json::from_slice(&line).map_err(io::Error::from)?;
    Ok((response, stream))
}

/// Reads one byte at a time, because the bytes after the line belong to the pipe.
async fn line(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    while line.len() < MAX_RESPONSE_BYTES {
        match stream.read_u8().await? {
            b'\n' => return Ok(line),
            byte => line.push(byte),
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

fn unexpected(response: AdminResponse) -> AdminFailure {
    match response {
        AdminResponse::AttachmentRefused { why, cause } => AdminFailure::AttachmentRefused { why, cause },
        AdminResponse::Refused { why } => AdminFailure::Refused(why),
        _ => AdminFailure::Io(io::Error::other("unexpected response")),
    }
}
