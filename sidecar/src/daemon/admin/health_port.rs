//! The port for health checks and metrics: `/healthz`, `/readyz` and `/metrics`, on loopback.
//!
//! What must stay true: requests here change nothing and show no secret; a web page whose host name resolves to this host
//! (DNS rebinding) gets no data; a silent or slow client holds one of few slots for a short time, and when all are in use,
//! the oldest connection loses its slot to the next.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cofferdam_base::metrics::{self, Gauges};
use http::header::{ALLOW, CONTENT_TYPE, HOST, HeaderValue};
use http::uri::Authority;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use relay_proto::address::HostPort;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::http_server::{self, HeadLimits};
use crate::daemon::handshake_slots::HandshakeSlots;
use crate::daemon::state::Daemon;

/// How many connections are served at a time.
const MAX_CONNECTIONS: usize = 16;
/// How long a request and its response may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const HEAD_LIMITS: HeadLimits = HeadLimits { timeout: REQUEST_TIMEOUT, bytes: 8 * 1024, headers: 32 };

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// The port of `admin.http`, bound.
#[derive(Debug)]
pub(crate) struct HealthPort {
    listener: TcpListener,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for `admin.http`: is the port in use?")]
pub(crate) struct HealthPortError {
    address: HostPort,
    #[source]
    source: io::Error,
}

impl HealthPort {
    pub(crate) async fn bind(address: &HostPort) -> Result<Self, HealthPortError> {
        let bound = TcpListener::bind(address.to_string()).await;
        let listener = bound.map_err(|source| HealthPortError { address: address.clone(), source })?;
        Ok(Self { listener })
    }

    /// Serves requests until the sidecar stops.
    pub(crate) async fn run(self, daemon: Arc<Daemon>) {
        let slots = HandshakeSlots::new(MAX_CONNECTIONS, daemon.stop.clone());
        loop {
            match daemon.stop.run_until_cancelled(self.listener.accept()).await {
                None => return,
                Some(Ok((stream, _))) => {
                    let Some(slot) = daemon.stop.run_until_cancelled(slots.take()).await else { return };
                    let daemon = Arc::clone(&daemon);
                    daemon.context.tasks.clone().spawn(async move {
                        // A client whose request does not end in time is disconnected.
                        let _ = slot.run_unless_lost(timeout(REQUEST_TIMEOUT, serve(daemon, stream))).await;
                    });
                }
                Some(Err(error)) => {
                    tracing::error!(%error, "cannot accept a connection on the port of `admin.http`");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

async fn serve(daemon: Arc<Daemon>, stream: TcpStream) {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = respond(&daemon, &request);
        async move { Ok::<_, Infallible>(response) }
    });
    // A client that disconnects early, or does not send HTTP, is not logged.
    let _ = http_server::builder(HEAD_LIMITS).serve_connection(TokioIo::new(stream), service).await;
}

fn respond(daemon: &Daemon, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if !is_for_this_host(request) {
        return text_response(
            StatusCode::MISDIRECTED_REQUEST,
            "use the host name localhost or a loopback address\n",
        );
    }
    let page: fn(&Daemon) -> Response<Full<Bytes>> = match request.uri().path() {
        "/healthz" => |_| text_response(StatusCode::OK, "alive\n"),
        "/readyz" => readiness,
        "/metrics" => metrics,
        _ => return text_response(StatusCode::NOT_FOUND, "the paths are /healthz, /readyz and /metrics\n"),
    };
    if request.method() != Method::GET {
        let mut refused = text_response(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return refused;
    }
    page(daemon)
}

fn readiness(daemon: &Daemon) -> Response<Full<Bytes>> {
    if daemon.stop.is_cancelled() {
        return text_response(StatusCode::SERVICE_UNAVAILABLE, "not ready: the sidecar is stopping\n");
    }
    // The relay sockets are bound before this port serves requests.
    match daemon.context.vault.as_ref().is_none_or(|vault| vault.is_logged_in()) {
        true => text_response(StatusCode::OK, "ready\n"),
        false => {
            text_response(StatusCode::SERVICE_UNAVAILABLE, "not ready: not logged in to Vault; see the log\n")
        }
    }
}

fn metrics(daemon: &Daemon) -> Response<Full<Bytes>> {
    let (sessions, links) = daemon.registry.count();
    let text = metrics::render(Gauges {
        sessions,
        links,
        processes: daemon.context.processes(),
        memory: daemon.context.memory_used(),
        audit_records: daemon.context.audit.last_number(),
        logged_in: daemon.context.vault.as_ref().map(|vault| vault.is_logged_in()),
    });
    response(StatusCode::OK, OPEN_METRICS, text.into())
}

/// Whether the header `Host` names this host. A browser sends the host name of the page there, which differs in an attack
/// by DNS rebinding.
fn is_for_this_host<B>(request: &Request<B>) -> bool {
    let mut hosts = request.headers().get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let Ok(authority) = Authority::try_from(host.as_bytes()) else { return false };
    let name = authority.host();
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.is_ok_and(|address| address.is_loopback()) || name.eq_ignore_ascii_case("localhost")
}

fn text_response(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    response(status, TEXT, Bytes::from_static(text.as_bytes()))
}

fn response(status: StatusCode, content_type: HeaderValue, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    http_server::add_common_headers(headers);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_for_names_of_this_host_are_served() {
        let accepted = |hosts: &[&str]| {
            let request = hosts.iter().fold(Request::builder(), |builder, host| builder.header(HOST, *host));
            is_for_this_host(&request.body(()).unwrap())
        };
        for good in ["localhost", "LOCALHOST:7480", "127.0.0.1:7480", "127.9.9.9", "[::1]:7480"] {
            assert!(accepted(&[good]), "{good}");
        }
        for bad in
            ["evil.example", "localhost.evil.example:7480", "10.0.0.1", "", "127.0.0.1.evil.example", "[::2]"]
        {
            assert!(!accepted(&[bad]), "{bad}");
        }
        assert!(!accepted(&[]));
        assert!(!accepted(&["localhost", "evil.example"]));
    }
}
