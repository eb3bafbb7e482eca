//! The port for whoever watches the sidecar: `/healthz`, `/readyz` and `/metrics`, on loopback.
//!
//! What must stay true: nothing here changes anything, and nothing here is a secret; a page of the web that has its name
//! point to this host (DNS rebinding) is told nothing; who is silent or slow holds one of few places for a short time,
//! and the longest silent makes room.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::uri::Authority;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use relay_proto::address::HostPort;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::daemon::handshake_slots::Places;
use crate::daemon::state::App;
use crate::metrics::{self, Standing};

/// Connections at a time.
const MAX_CONNECTIONS: usize = 16;
/// For the whole of a question and its answer.
const TALK_TIME: Duration = Duration::from_secs(5);
/// Of a request's head, line and names and all; hyper takes no less.
const MAX_HEAD: usize = 8 * 1024;
const MAX_HEADERS: usize = 32;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// A bound port.
#[derive(Debug)]
pub(crate) struct AdminPort {
    listener: TcpListener,
}

#[derive(Debug, thiserror::Error)]
#[error("listen on {place} for `admin.http`: is another sidecar there?")]
pub(crate) struct AdminPortError {
    place: HostPort,
    #[source]
    source: io::Error,
}

impl AdminPort {
    pub(crate) async fn bind(place: &HostPort) -> Result<Self, AdminPortError> {
        let bound = TcpListener::bind(place.to_string()).await;
        let listener = bound.map_err(|source| AdminPortError { place: place.clone(), source })?;
        Ok(Self { listener })
    }

    /// Answers until the stop.
    pub(crate) async fn run(self, app: Arc<App>) {
        let places = Places::new(MAX_CONNECTIONS, app.stop.clone());
        loop {
            match app.stop.run_until_cancelled(self.listener.accept()).await {
                None => return,
                Some(Ok((stream, _))) => {
                    let Some(place) = app.stop.run_until_cancelled(places.take()).await else { return };
                    let app = Arc::clone(&app);
                    app.context.tasks.clone().spawn(async move {
                        // Who does not ask in time is not answered.
                        let _ = place.before_words(timeout(TALK_TIME, talk(app, stream))).await;
                    });
                }
                Some(Err(error)) => {
                    tracing::error!(%error, "accept on the port of `admin.http`");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

async fn talk(app: Arc<App>, stream: TcpStream) {
    let answer = service_fn(move |request: Request<Incoming>| {
        let answer = answer(&app, &request);
        async move { Ok::<_, Infallible>(answer) }
    });
    // What is no HTTP, or too much of it, is answered by hyper or by the end of the connection.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(TALK_TIME)
        .keep_alive(false)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), answer)
        .await;
}

fn answer(app: &App, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if !is_for_this_host(request) {
        return plain(StatusCode::MISDIRECTED_REQUEST, "ask for localhost, or for an address of loopback\n");
    }
    let page: fn(&App) -> Response<Full<Bytes>> = match request.uri().path() {
        "/healthz" => |_| plain(StatusCode::OK, "alive\n"),
        "/readyz" => ready,
        "/metrics" => metrics,
        _ => return plain(StatusCode::NOT_FOUND, "there are /healthz, /readyz and /metrics\n"),
    };
    if request.method() != Method::GET {
        let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return refused;
    }
    page(app)
}

fn ready(app: &App) -> Response<Full<Bytes>> {
    if app.stop.is_cancelled() {
        return plain(StatusCode::SERVICE_UNAVAILABLE, "not ready: the sidecar is stopping\n");
    }
    // The sockets were bound before anybody could ask.
    match app.context.vault.as_ref().is_none_or(|vault| vault.is_logged_in()) {
        true => plain(StatusCode::OK, "ready\n"),
        false => plain(StatusCode::SERVICE_UNAVAILABLE, "not ready: no login at Vault; the log says why\n"),
    }
}

fn metrics(app: &App) -> Response<Full<Bytes>> {
    let (sessions, links) = app.registry.count();
    let text = metrics::render(Standing {
        sessions,
        links,
        processes: app.context.processes(),
        audit_records: app.context.audit.head().number,
        logged_in: app.context.vault.as_ref().map(|vault| vault.is_logged_in()),
    });
    page(StatusCode::OK, OPEN_METRICS, text.into())
}

/// A browser sends the name that the page has; only ours are answered.
fn is_for_this_host<B>(request: &Request<B>) -> bool {
    let mut hosts = request.headers().get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let Ok(authority) = Authority::try_from(host.as_bytes()) else { return false };
    let name = authority.host();
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.is_ok_and(|address| address.is_loopback()) || name.eq_ignore_ascii_case("localhost")
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    page(status, TEXT, Bytes::from_static(text.as_bytes()))
}

fn page(status: StatusCode, kind: HeaderValue, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, kind);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_host_are_answered() {
        let asked = |hosts: &[&str]| {
            let request = hosts.iter().fold(Request::builder(), |builder, host| builder.header(HOST, *host));
            is_for_this_host(&request.body(()).unwrap())
        };
        for good in ["localhost", "LOCALHOST:7480", "127.0.0.1:7480", "127.9.9.9", "[::1]:7480"] {
            assert!(asked(&[good]), "{good}");
        }
        for bad in
            ["evil.example", "localhost.evil.example:7480", "10.0.0.1", "", "127.0.0.1.evil.example", "[::2]"]
        {
            assert!(!asked(&[bad]), "{bad}");
        }
        assert!(!asked(&[]));
        assert!(!asked(&["localhost", "evil.example"]));
    }
}
