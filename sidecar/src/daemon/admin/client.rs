//! The command line's side of the admin API, on the admin socket.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HOST, UPGRADE};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::error::ErrorBody;
use super::routes::{self, EncodedRequest, RouteKind};
use super::{AdminRequest, AdminResponse};

#[derive(Debug, thiserror::Error)]
pub(crate) enum AdminError {
    #[error("cannot connect to the sidecar at `{path}`")]
    Connect {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the request to the sidecar failed")]
    Io(#[source] io::Error),
    #[error("cannot read the sidecar's response: does the sidecar have the same version?")]
    Response(#[source] serde_json::Error),
}

/// The response to a request that turns its connection into a stream.
pub(crate) enum UpgradeResponse {
    Refused { code: String, why: String },
    Stream(Upgraded),
}

/// Longer than any request takes: ending a session with its processes takes up to five seconds.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);
/// Enough for descriptions of many thousand links.
const MAX_RESPONSE_BYTES: usize = 64 * 1024 * 1024;

/// Sends a request and waits for the response. Blocks.
pub(crate) fn send(socket: &Path, request: &AdminRequest) -> Result<AdminResponse, AdminError> {
    let exchange = || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AdminError::Io)?;
        runtime.block_on(exchange(socket, request))
    };
    // On its own thread, because the caller may run on a thread of a runtime, where another runtime cannot be started.
    let finished = std::thread::scope(|scope| scope.spawn(exchange).join());
    finished.unwrap_or_else(|_| {
        Err(AdminError::Io(io::Error::other("the request failed; the panic is reported above")))
    })
}

/// Like [`send`], inside a runtime.
pub(crate) async fn exchange(socket: &Path, request: &AdminRequest) -> Result<AdminResponse, AdminError> {
    let encoded = routes::encode(request);
    let route = encoded.route;
    let read = async |response: Response<Incoming>| {
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
        let body = body.map_err(|error| AdminError::Io(io::Error::other(error)))?.to_bytes();
        routes::decode_response(route, status, &body).map_err(AdminError::Response)
    };
    with_response(socket, encoded, read).await
}

/// Sends a request that turns its connection into a stream.
pub(crate) async fn upgrade(socket: &Path, request: &AdminRequest) -> Result<UpgradeResponse, AdminError> {
    let encoded = routes::encode(request);
    let route = encoded.route;
    let read = async |mut response: Response<Incoming>| {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let upgraded = hyper::upgrade::on(&mut response).await;
            return upgraded.map(UpgradeResponse::Stream).map_err(io_error);
        }
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
        let body = body.map_err(|error| AdminError::Io(io::Error::other(error)))?.to_bytes();
        match routes::decode_response(route, status, &body).map_err(AdminError::Response)? {
            AdminResponse::Refused { why } => {
                let ErrorBody { error } = serde_json::from_slice(&body).map_err(AdminError::Response)?;
                Ok(UpgradeResponse::Refused { code: error.code, why })
            }
            _ => Err(AdminError::Io(io::Error::other("the sidecar sent an unexpected response"))),
        }
    };
    with_response(socket, encoded, read).await
}

async fn with_response<T>(
    socket: &Path,
    encoded: EncodedRequest,
    read: impl AsyncFnOnce(Response<Incoming>) -> Result<T, AdminError>,
) -> Result<T, AdminError> {
    let connected = UnixStream::connect(socket).await;
    let stream = connected.map_err(|source| AdminError::Connect { path: socket.into(), source })?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io_error)?;
    let mut request =
        Request::builder().method(encoded.route.method.clone()).uri(encoded.path).header(HOST, "localhost");
    if !encoded.body.is_empty() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    if let RouteKind::Upgrade(protocol) = encoded.route.kind {
        request = request.header(CONNECTION, "upgrade").header(UPGRADE, protocol);
    }
    let request = request
        .body(Full::<Bytes>::from(encoded.body))
        .map_err(|error| AdminError::Io(io::Error::other(error)))?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(io_error)?;
        read(response).await
    };
    let drive_connection = async {
        // An error of the connection also fails the exchange.
        let _ = connection.with_upgrades().await;
        std::future::pending().await
    };
    let (exchange, drive_connection) = (pin!(exchange), pin!(drive_connection));
    timeout(RESPONSE_TIMEOUT, async {
        tokio::select! {
            result = exchange => result,
            () = drive_connection => unreachable!("it waits forever after the connection has ended"),
        }
    })
    .await
    .unwrap_or_else(|elapsed| Err(AdminError::Io(elapsed.into())))
}

fn io_error(error: hyper::Error) -> AdminError {
    AdminError::Io(io::Error::other(error))
}
