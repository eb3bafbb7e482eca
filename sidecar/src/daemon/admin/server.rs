//! The daemon's side of the admin socket.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_base::text::error_chain;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::{AdminRequest, AdminResponse, MAX_REQUEST_BYTES};
use crate::daemon::attach::hold::{AttachRequest, Hold};
use crate::daemon::attachments::{Detach, EndedAttachment, Follower};
use crate::daemon::enrolling::{EnrollRequest, EnrollVia, Enrolled, Killed};
use crate::daemon::reload::Reloaded;
use crate::daemon::state::Daemon;
use crate::link::registry::Ending;

/// Requests served at the same time.
const MAX_REQUESTS: usize = 16;
/// For a request and its response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves requests until the stop.
pub(crate) async fn run(daemon: Arc<Daemon>, listener: Arc<UnixListener>) {
    let requests = Arc::new(Semaphore::new(MAX_REQUESTS));
    loop {
        let Some(permit) = daemon.stop.run_until_cancelled(Arc::clone(&requests).acquire_owned()).await
        else {
            return;
        };
        match daemon.stop.run_until_cancelled(listener.accept()).await {
            None => return,
            Some(Ok((stream, _))) => {
                let daemon = Arc::clone(&daemon);
                daemon.context.tasks.clone().spawn(async move {
                    // A client that sends no request in time gets no response.
                    let served = daemon
                        .stop
                        .run_until_cancelled(timeout(REQUEST_TIMEOUT, serve(&daemon, stream)))
                        .await;
                    drop(permit);
                    match served {
                        Some(Ok(Ok(Some((KeptFor::Hold(hold), stream))))) => {
                            daemon.keep_hold(hold, stream).await
                        }
                        Some(Ok(Ok(Some((KeptFor::Pipe(enrolment), stream))))) => {
                            daemon.serve_pipe(enrolment, stream).await;
                        }
                        Some(Ok(Ok(Some((KeptFor::Attachment(follower, detach), stream))))) => {
                            follower.follow(stream, detach).await;
                        }
                        _ => {}
                    }
                });
            }
            Some(Err(error)) => {
                tracing::error!(%error, "accept on the admin socket");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// What a connection is kept for after its response.
enum KeptFor {
    Attachment(Follower, Detach),
    Hold(Hold),
    Pipe(String),
}

async fn serve(daemon: &Arc<Daemon>, stream: UnixStream) -> std::io::Result<Option<(KeptFor, UnixStream)>> {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    (&mut stream).take(MAX_REQUEST_BYTES as u64).read_until(b'\n', &mut line).await?;
    let (response, kept_for) = match serde_json::from_slice(&line) {
        Ok(AdminRequest::Attach { grant, name, ttl_ms }) => attach(daemon, &grant, name, ttl_ms).await,
        Ok(AdminRequest::AttachPlatform { attachment, detach }) => {
            let detach = match detach {
                true => Detach::WhenAttached,
                false => Detach::No,
            };
            match daemon.attach_platform(&attachment).await {
                Ok(follower) => {
                    let name = follower.status().name;
                    (AdminResponse::AttachmentStarted { name }, Some(KeptFor::Attachment(follower, detach)))
                }
                Err(error) => {
                    let cause = error.cause();
                    (AdminResponse::AttachmentRefused { why: error_chain(&error), cause }, None)
                }
            }
        }
        Ok(AdminRequest::Pipe { enrolment }) => match daemon.is_held(&enrolment) {
            true => (AdminResponse::Piped, Some(KeptFor::Pipe(enrolment))),
            false => {
                let why = format!("no `cofferdam attach` holds the enrolment `{enrolment}`");
                (AdminResponse::Refused { why }, None)
            }
        },
        Ok(request) => (respond(daemon, request).await, None),
        Err(error) => (
            AdminResponse::Refused {
                why: format!(
                    "the request is not understood: {error}; do sidecar and command line have the same version?"
                ),
            },
            None,
        ),
    };
    let mut text = serde_json::to_vec(&response)?;
    text.push(b'\n');
    stream.write_all(&text).await?;
    // Bytes that were sent before the response are in our buffer: the connection cannot be handed over.
    let early = !stream.buffer().is_empty();
    Ok(kept_for.filter(|_| !early).map(|kept_for| (kept_for, stream.into_inner())))
}

async fn attach(
    daemon: &Arc<Daemon>,
    grant: &str,
    name: String,
    ttl_ms: Option<u64>,
) -> (AdminResponse, Option<KeptFor>) {
    let grant = match grant.parse() {
        Ok(grant) => grant,
        Err(error) => {
            return (AdminResponse::Refused { why: format!("read the grant's name: {error}") }, None);
        }
    };
    match daemon.hold(AttachRequest { grant, name, ttl: ttl_ms.map(Duration::from_millis) }).await {
        Ok(hold) => {
            let enrolment = hold.enrolment.to_string();
            let pin = daemon.identity.public().to_string();
            (AdminResponse::Attaching { enrolment, pin }, Some(KeptFor::Hold(hold)))
        }
        Err(error) => (AdminResponse::Refused { why: error_chain(&error) }, None),
    }
}

async fn respond(daemon: &Arc<Daemon>, request: AdminRequest) -> AdminResponse {
    match request {
        AdminRequest::Attach { .. } | AdminRequest::AttachPlatform { .. } | AdminRequest::Pipe { .. } => {
            AdminResponse::Refused { why: "this request needs a connection of its own".into() }
        }
        AdminRequest::Attachments => {
            AdminResponse::Attachments { attachments: daemon.attachments.statuses() }
        }
        AdminRequest::EndAttachment { name } => match daemon.end_attachment(&name).await {
            Some(ended) => attachment_ended(&name, ended),
            None => AdminResponse::Refused {
                why: format!("there is no attachment `{name}`; `cofferdam attach list` lists them"),
            },
        },
        AdminRequest::Sessions => AdminResponse::Sessions {
            sessions: daemon.registry.describe().await,
            attachments: daemon.attachments.statuses(),
        },
        AdminRequest::Reload => match daemon.reload() {
            Ok(Reloaded { policy, at_restart }) => AdminResponse::Reloaded {
                policy,
                at_restart: at_restart.into_iter().map(str::to_owned).collect(),
            },
            Err(problems) => AdminResponse::Refused { why: problems.to_string() },
        },
        AdminRequest::Enroll { grant, name, ttl_ms, ticket_ttl_ms, socket } => {
            let via = match socket {
                Some(directory) => EnrollVia::Socket { directory },
                None => EnrollVia::Ticket { ttl: Duration::from_millis(ticket_ttl_ms) },
            };
            match grant.parse() {
                Ok(grant) => {
                    enroll(daemon, EnrollRequest { grant, name, ttl: ttl_ms.map(Duration::from_millis), via })
                        .await
                }
                Err(error) => AdminResponse::Refused { why: format!("read the grant's name: {error}") },
            }
        }
        AdminRequest::Kill { session } => match daemon.end_attachment(&session).await {
            Some(ended) => attachment_ended(&session, ended),
            None => kill(daemon, &session).await,
        },
    }
}

async fn enroll(daemon: &Arc<Daemon>, request: EnrollRequest) -> AdminResponse {
    match daemon.enroll(request).await {
        Ok(Enrolled { enrolment, text }) => {
            let left = enrolment.expires.duration_since(cofferdam_base::clock::now()).unwrap_or_default();
            let expires_in_seconds = left.as_millis().div_ceil(1000) as u64;
            AdminResponse::Enrolled { enrolment: enrolment.id.to_string(), expires_in_seconds, text }
        }
        Err(error) => AdminResponse::Refused { why: error_chain(&error) },
    }
}

async fn kill(daemon: &Arc<Daemon>, session: &str) -> AdminResponse {
    let began = Instant::now();
    match daemon.kill(session).await {
        Some(killed) => report_kill(session, killed, began),
        None => AdminResponse::Refused {
            why: format!("there is no session or enrolment `{session}`; `cofferdam sessions` lists them"),
        },
    }
}

fn report_kill(session: &str, killed: Killed, began: Instant) -> AdminResponse {
    let Killed { ending: Ending { ended, late }, enrolment, unwritten } = killed;
    if !late.is_empty() {
        let why = format!(
            "session `{session}` is ending but has not ended within 5 s; links still open: {}",
            late.join(", ")
        );
        return AdminResponse::Refused { why };
    }
    if let (Some(error), Some(enrolment)) = (unwritten, &enrolment) {
        let why = format!(
            "all links have ended, but the end of the enrolment was not saved: {}; after a restart of the sidecar the \
             enrolment {enrolment} would be valid again: free disk space and kill it again, or remove its file",
            error_chain(&error)
        );
        return AdminResponse::Refused { why };
    }
    let total_ms = began.elapsed().as_millis() as u64;
    let enrolment = enrolment.map(|id| id.to_string());
    AdminResponse::Killed { links: ended, enrolment, attachment: None, total_ms }
}

fn attachment_ended(
    name: &str,
    EndedAttachment { lifetime, killed, began }: EndedAttachment,
) -> AdminResponse {
    let ended = Some((name.to_owned(), lifetime));
    let none =
        |total_ms| AdminResponse::Killed { links: Vec::new(), enrolment: None, attachment: None, total_ms };
    let reported = match killed {
        Some(killed) => report_kill(name, killed, began),
        None => none(began.elapsed().as_millis() as u64),
    };
    match reported {
        AdminResponse::Killed { links, enrolment, total_ms, .. } => {
            AdminResponse::Killed { links, enrolment, attachment: ended, total_ms }
        }
        refused => refused,
    }
}
