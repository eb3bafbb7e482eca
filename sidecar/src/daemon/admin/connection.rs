//! One HTTP connection of the admin API, with one request: limits, authentication, then the response, or the upgrade to a
//! stream.
//!
//! What must stay true: no body is read before its sender is authenticated; a connection that is silent or slow holds one
//! of few slots for a limited time; a web page cannot use the client certificate of its visitor.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cofferdam_net::ChannelBody;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue, ORIGIN, UPGRADE};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Either, Full, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, copy, split};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::caller::{Caller, Peer};
use super::error::ApiError;
use super::http_server::{self, HeadLimits};
use super::respond::{self, Outcome};
use super::routes::{self, RouteKind};
use super::watch;
use super::{AdminResponse, openapi};
use crate::daemon::attach::hold::Hold;
use crate::daemon::handshake_slots::HandshakeSlot;
use crate::daemon::state::Daemon;

/// How long a connection may take until its request is authenticated, and again until its response is sent.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// How long reading a request's body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long sending the last bytes of a stream may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
const HEAD_LIMITS: HeadLimits = HeadLimits { timeout: REQUEST_TIMEOUT, bytes: 16 * 1024, headers: 64 };
const MAX_BODY_BYTES: usize = 16 * 1024;

type ResponseBody = Either<Full<Bytes>, ChannelBody>;

/// The progress of a connection's request, as tokens that are cancelled at each step.
#[derive(Clone)]
struct Progress {
    /// Cancelled when the sender is authenticated.
    authenticated: CancellationToken,
    /// Cancelled when the response is a stream of unlimited length.
    streaming: CancellationToken,
    /// Cancelled when the connection must be closed.
    close: CancellationToken,
}

/// Serves a connection until its response is sent or it has become a stream.
pub(super) async fn serve<S>(daemon: Arc<Daemon>, stream: S, peer: Peer, slot: HandshakeSlot)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let progress = Progress {
        authenticated: CancellationToken::new(),
        streaming: CancellationToken::new(),
        close: daemon.stop.child_token(),
    };
    let service = service_fn(|request: Request<Incoming>| {
        let (daemon, progress) = (Arc::clone(&daemon), progress.clone());
        async move { Ok::<_, Infallible>(respond_to(&daemon, peer, &progress, request).await) }
    });
    let connection =
        http_server::builder(HEAD_LIMITS).serve_connection(TokioIo::new(stream), service).with_upgrades();
    let mut connection = pin!(connection);
    let until_authenticated = async {
        tokio::select! {
            _ = connection.as_mut() => None,
            () = progress.authenticated.cancelled() => Some(()),
        }
    };
    // Until the request is authenticated, the connection can lose its slot to a later connection.
    let Ok(Ok(Some(()))) = timeout(REQUEST_TIMEOUT, slot.secure_after(until_authenticated)).await else {
        return;
    };
    tokio::select! {
        _ = connection.as_mut() => return,
        () = progress.streaming.cancelled() => {}
        () = progress.close.cancelled() => return,
        () = sleep(REQUEST_TIMEOUT) => return,
    }
    drop(slot);
    tokio::select! {
        _ = connection.as_mut() => {}
        () = progress.close.cancelled() => {
            // When the sidecar stops, the stream ends properly, so that the client does not report a lost connection.
            let _ = timeout(CLOSE_TIMEOUT, connection).await;
        }
    }
}

async fn respond_to(
    daemon: &Arc<Daemon>,
    peer: Peer,
    progress: &Progress,
    request: Request<Incoming>,
) -> Response<ResponseBody> {
    let mut response = handle(daemon, peer, progress, request).await.unwrap_or_else(|refused| {
        let mut response = refused.into_response();
        response.headers_mut().insert(CONTENT_TYPE, JSON);
        response.map(Either::Left)
    });
    http_server::add_common_headers(response.headers_mut());
    response
}

async fn handle(
    daemon: &Arc<Daemon>,
    peer: Peer,
    progress: &Progress,
    mut request: Request<Incoming>,
) -> Result<Response<ResponseBody>, ApiError> {
    let caller = Caller::authenticate(&daemon.admin, peer, request.headers())?;
    if request.headers().contains_key(ORIGIN) {
        return Err(ApiError::forbidden("web pages may not use this API"));
    }
    progress.authenticated.cancel();
    if request.uri().path() == routes::DOCUMENT {
        if request.method() != Method::GET {
            return Err(ApiError::method_not_allowed("GET"));
        }
        return Ok(json_response(Bytes::from_static(openapi::DOCUMENT.as_bytes())));
    }
    let matched = routes::find(request.method(), request.uri().path())?;
    if request.uri().query().is_some() {
        let message = "this API has no query parameters";
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "query_unknown", message));
    }
    let kind = matched.route.kind;
    if let RouteKind::Upgrade(protocol) = kind
        && !requests_upgrade(request.headers(), protocol)
    {
        return Err(ApiError::upgrade_required(protocol));
    }
    let upgrade = hyper::upgrade::on(&mut request);
    let body = read_body(request).await?;
    let outcome = respond::carry_out(daemon, &caller, matched.decode(&body)?).await?;
    Ok(match outcome {
        Outcome::Response(response) => json_response(routes::encode_response(&response).into()),
        Outcome::Watch => {
            let events = watch::start(daemon, caller, progress.close.clone())?;
            progress.streaming.cancel();
            let mut response = Response::new(Either::Right(events));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
            response
        }
        Outcome::Follow(follower, detach) => {
            let daemon = Arc::clone(daemon);
            daemon.context.tasks.clone().spawn(async move {
                if let Some(stream) = upgraded_stream(&daemon, upgrade).await {
                    tokio::select! {
                        () = follower.follow(stream, detach) => {}
                        () = caller.await_end() => {}
                    }
                }
            });
            switch_protocols(routes::FOLLOW)
        }
        Outcome::Hold(hold) => {
            daemon.context.tasks.spawn(hold_until_disconnect(Arc::clone(daemon), caller, hold, upgrade));
            switch_protocols(routes::HOLD)
        }
        Outcome::Pipe { enrolment, via } => {
            let daemon = Arc::clone(daemon);
            daemon.context.tasks.clone().spawn(async move {
                if let Some(stream) = upgraded_stream(&daemon, upgrade).await {
                    daemon.serve_pipe(enrolment, via, stream, caller.await_end()).await;
                }
            });
            switch_protocols(routes::PIPE)
        }
    })
}

async fn read_body(request: Request<Incoming>) -> Result<Bytes, ApiError> {
    let too_large = || {
        let message = format!("the body has more than {MAX_BODY_BYTES} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    };
    let (head, body) = request.into_parts();
    if body.size_hint().lower() > MAX_BODY_BYTES as u64 {
        return Err(too_large());
    }
    let is_json = |headers: &HeaderMap| {
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
    };
    let read = timeout(BODY_TIMEOUT, Limited::new(body, MAX_BODY_BYTES).collect()).await.map_err(|_| {
        let message = format!("the body did not arrive within {} seconds", BODY_TIMEOUT.as_secs());
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message)
    })?;
    let bytes = read.map_err(|error| match error.is::<LengthLimitError>() {
        true => too_large(),
        false => {
            ApiError::new(StatusCode::BAD_REQUEST, "body_malformed", format!("cannot read the body: {error}"))
        }
    })?;
    let bytes = bytes.to_bytes();
    if !bytes.is_empty() && !is_json(&head.headers) {
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not_json", "the body is not JSON")
            .with_hint("send `Content-Type: application/json`"));
    }
    Ok(bytes)
}

fn requests_upgrade(headers: &HeaderMap, protocol: &str) -> bool {
    let has_token = |name, token: &str| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|found| found.trim().eq_ignore_ascii_case(token))
    };
    has_token(CONNECTION, "upgrade") && has_token(UPGRADE, protocol)
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");

fn json_response(body: Bytes) -> Response<ResponseBody> {
    let mut response = Response::new(Either::Left(Full::new(body)));
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

fn switch_protocols(protocol: &'static str) -> Response<ResponseBody> {
    let mut response = Response::new(Either::Left(Full::default()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(protocol));
    response
}

/// Holds a sandbox until the client disconnects or its right ends.
async fn hold_until_disconnect(daemon: Arc<Daemon>, caller: Caller, hold: Hold, upgrade: OnUpgrade) {
    let Some(mut stream) = upgraded_stream(&daemon, upgrade).await else { return };
    let (enrolment, pin) = (hold.enrolment.to_string(), daemon.identity.public().to_string());
    let mut line =
        serde_json::to_vec(&AdminResponse::Attaching { enrolment, pin }).expect("a response is plain data");
    line.push(b'\n');
    if !matches!(timeout(REQUEST_TIMEOUT, stream.write_all(&line)).await, Ok(Ok(()))) {
        return;
    }
    tokio::select! {
        () = daemon.hold_until_disconnect(hold, stream) => {}
        () = caller.await_end() => {}
    }
}

/// Waits for the upgrade and returns the connection as a Unix stream: the connection itself on the admin socket, otherwise
/// one end of a socket pair whose other end is connected to it.
async fn upgraded_stream(daemon: &Arc<Daemon>, upgrade: OnUpgrade) -> Option<UnixStream> {
    let upgraded = timeout(REQUEST_TIMEOUT, upgrade).await.ok()?.ok()?;
    match upgraded.downcast::<TokioIo<UnixStream>>() {
        // Bytes that the client sent before the response are in hyper's buffer and would be lost, so it is refused.
        Ok(parts) => parts.read_buf.is_empty().then(|| parts.io.into_inner()),
        Err(upgraded) => {
            let (ours, theirs) = UnixStream::pair().ok()?;
            let stop = daemon.stop.clone();
            daemon.context.tasks.spawn(async move {
                let _ = stop.run_until_cancelled(copy_both_ways(TokioIo::new(upgraded), theirs)).await;
            });
            Some(ours)
        }
    }
}

/// Copies bytes in both directions until one of them ends.
async fn copy_both_ways<S: AsyncRead + AsyncWrite>(remote: S, mut local: UnixStream) {
    let (mut from_remote, mut to_remote) = split(remote);
    let (mut from_local, mut to_local) = local.split();
    tokio::select! {
        _ = copy(&mut from_remote, &mut to_local) => {}
        _ = copy(&mut from_local, &mut to_remote) => {}
    }
    let _ = timeout(CLOSE_TIMEOUT, to_remote.shutdown()).await;
}
