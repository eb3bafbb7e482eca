//! Connections to the sidecar's admin socket that stay open: the hold, which keeps the enrolment alive; pipes into the
//! sandbox; and connections that follow an attachment of the sidecar.

use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::daemon::admin::client::{self, AdminError, UpgradeResponse};
use crate::daemon::admin::{AdminRequest, AdminResponse, PipeVia};
use crate::daemon::attach_table::AttachEvent;
use crate::daemon::attachments::status::{AttachmentStatus, OverCause};
use crate::terminal::failure::{Failure, Sysexit};

/// A connection that keeps a sandbox's enrolment alive for as long as it is open.
pub(super) struct HoldConnection {
    pub(super) enrolment: String,
    /// The sidecar's public key.
    pub(super) pin: String,
    lines: JsonLines,
}

/// A connection that follows an attachment, which ends with the connection unless it was detached.
pub(super) struct FollowConnection(JsonLines);

/// Reads the JSON lines that the sidecar sends.
struct JsonLines {
    stream: BufReader<TokioIo<Upgraded>>,
    line: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum AdminFailure {
    #[error("{why}")]
    AttachmentRefused { why: String, cause: OverCause },
    #[error("cannot connect to the sidecar at `{path}`: {source}")]
    Connect { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Refused(String),
    #[error("the request to the sidecar failed: {0}; does the sidecar have the same version?")]
    Io(#[from] io::Error),
}

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15);
/// An event or a status has a few hundred bytes.
const MAX_LINE_BYTES: usize = 64 * 1024;

impl HoldConnection {
    pub(super) async fn open(admin: &Path, request: &AdminRequest) -> Result<Self, AdminFailure> {
        let mut lines = JsonLines::new(upgrade(admin, request).await?);
        let first = timeout(RESPONSE_TIMEOUT, lines.next()).await.map_err(io::Error::from)?;
        match first {
            Some(AdminResponse::Attaching { enrolment, pin }) => Ok(Self { enrolment, pin, lines }),
            _ => Err(AdminFailure::Io(io::Error::other("unexpected response"))),
        }
    }

    /// The next event from the sidecar, or `None` when the connection is lost. Cancel-safe.
    pub(super) async fn next_event(&mut self) -> Option<AttachEvent> {
        self.lines.next().await
    }
}

impl FollowConnection {
    pub(super) async fn start(admin: &Path, request: &AdminRequest) -> Result<Self, AdminFailure> {
        Ok(Self(JsonLines::new(upgrade(admin, request).await?)))
    }

    /// The next status, or `None` when the connection is lost. Cancel-safe.
    pub(super) async fn next_status(&mut self) -> Option<AttachmentStatus> {
        self.0.next().await
    }
}

impl JsonLines {
    fn new(upgraded: Upgraded) -> Self {
        Self { stream: BufReader::new(TokioIo::new(upgraded)), line: Vec::new() }
    }

    /// The next line; `None` if the connection is lost or the line cannot be read. Cancel-safe.
    async fn next<T: DeserializeOwned>(&mut self) -> Option<T> {
        let remaining = (MAX_LINE_BYTES - self.line.len().min(MAX_LINE_BYTES)) as u64;
        (&mut self.stream).take(remaining).read_until(b'\n', &mut self.line).await.ok()?;
        let line = std::mem::take(&mut self.line);
        serde_json::from_slice(&line).ok()
    }
}

/// Opens a connection and turns it into the pipe of this enrolment.
pub(super) async fn open_pipe(
    admin: &Path,
    enrolment: &str,
    via: PipeVia,
) -> Result<StdUnixStream, AdminFailure> {
    let upgraded = upgrade(admin, &AdminRequest::Pipe { enrolment: enrolment.into(), via }).await?;
    // The sidecar sends nothing before the other end of the pipe does, so no byte of the pipe is in the buffer.
    let parts = upgraded.downcast::<TokioIo<UnixStream>>();
    let parts = parts.map_err(|_| io::Error::other("the connection is not a Unix socket"))?;
    if !parts.read_buf.is_empty() {
        return Err(io::Error::other("the sidecar sent bytes too early").into());
    }
    let stream = parts.io.into_inner().into_std()?;
    // The stream may become the stdin and stdout of a command, which expects a blocking descriptor.
    stream.set_nonblocking(false)?;
    Ok(stream)
}

impl AdminFailure {
    pub(super) fn into_failure(self) -> Failure {
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

/// Ends an attachment. Failures are ignored here: the sidecar logs them, and this connection ends anyway.
pub(super) async fn end_attachment(admin: &Path, name: &str) {
    let _ = client::exchange(admin, &AdminRequest::EndAttachment { name: name.into() }).await;
}

async fn upgrade(admin: &Path, request: &AdminRequest) -> Result<Upgraded, AdminFailure> {
    match client::upgrade(admin, request).await {
        Ok(UpgradeResponse::Stream(upgraded)) => Ok(upgraded),
        Ok(UpgradeResponse::Refused { code, why }) => Err(match (request, OverCause::read(&code)) {
            (AdminRequest::AttachPlatform { .. }, Some(cause)) => {
                AdminFailure::AttachmentRefused { why, cause }
            }
            _ => AdminFailure::Refused(why),
        }),
        Err(AdminError::Connect { path, source }) => Err(AdminFailure::Connect { path, source }),
        Err(AdminError::Io(error)) => Err(error.into()),
        Err(AdminError::Response(error)) => Err(io::Error::from(error).into()),
    }
}
