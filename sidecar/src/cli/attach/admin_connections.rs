//! Connections to the sidecar's admin socket that stay open: one keeps the enrolment alive (the hold), another becomes
//! the pipe into the sandbox; one follows an attachment of the sidecar's own.

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

/// Keeps a sandbox's enrolment alive as long as this connection is open.
pub(super) struct HoldConnection {
    pub(super) enrolment: String,
    /// The sidecar's public key.
    pub(super) pin: String,
    lines: Lines,
}

/// Follows an attachment, which ends with this connection unless it is left in the sidecar.
pub(super) struct FollowConnection(Lines);

/// The JSON lines that the sidecar sends.
struct Lines {
    stream: BufReader<TokioIo<Upgraded>>,
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
/// Events have some hundred bytes.
const MAX_LINE_BYTES: usize = 64 * 1024;

impl HoldConnection {
    pub(super) async fn take(admin: &Path, request: &AdminRequest) -> Result<Self, AdminFailure> {
        let mut lines = Lines::new(upgrade(admin, request).await?);
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
        Ok(Self(Lines::new(upgrade(admin, request).await?)))
    }

    /// The next status, or `None` when the connection is lost. Cancel-safe.
    pub(super) async fn next_status(&mut self) -> Option<AttachmentStatus> {
        self.0.next().await
    }
}

impl Lines {
    fn new(upgraded: Upgraded) -> Self {
        Self { stream: BufReader::new(TokioIo::new(upgraded)), line: Vec::new() }
    }

    /// Cancel-safe.
    async fn next<T: DeserializeOwned>(&mut self) -> Option<T> {
        let room = (MAX_LINE_BYTES - self.line.len().min(MAX_LINE_BYTES)) as u64;
        (&mut self.stream).take(room).read_until(b'\n', &mut self.line).await.ok()?;
        let line = std::mem::take(&mut self.line);
        serde_json::from_slice(&line).ok()
    }
}

/// Opens a connection and turns it into the pipe of this enrolment.
pub(super) async fn pipe(admin: &Path, enrolment: &str, via: PipeVia) -> Result<StdUnixStream, AdminFailure> {
    let upgraded = upgrade(admin, &AdminRequest::Pipe { enrolment: enrolment.into(), via }).await?;
    // The sidecar sends nothing before the other end of the pipe does, so no byte of the pipe is in the buffer.
    let parts = upgraded.downcast::<TokioIo<UnixStream>>();
    let parts = parts.map_err(|_| io::Error::other("the connection is not a Unix socket"))?;
    if !parts.read_buf.is_empty() {
        return Err(io::Error::other("the sidecar sent bytes too early").into());
    }
    let stream = parts.io.into_inner().into_std()?;
    // It may become the stdio of a command, which expects a blocking descriptor.
    stream.set_nonblocking(false)?;
    Ok(stream)
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

/// Ends an attachment. The sidecar's log has the failures.
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
