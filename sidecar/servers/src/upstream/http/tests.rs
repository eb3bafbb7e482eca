//! The upstream against real HTTP servers on loopback, honest and hostile.

mod credentials;
mod failures;
mod legacy;
mod server;
mod stateless;
mod trust;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cofferdam_net::AddressPolicy;
use cofferdam_secrets::SecretReads;
use http::{HeaderMap, HeaderValue};
use relay_proto::envelope::IdValue;

use self::server::Server;
use super::{
    BoxFuture, CredentialResult, Credentials, Event, Failure, HttpLimits, HttpTarget, HttpUpstream, Outbound,
    OutboundKind, RequestCredentials,
};

const CREDENTIAL: &str = "Bearer correct-horse";

fn target(url: &str) -> HttpTarget {
    HttpTarget { url: url.parse().unwrap(), addresses: AddressPolicy::PublicOnly }
}

fn limits() -> HttpLimits {
    HttpLimits { message_bytes: 256 * 1024, connect_timeout: Duration::from_secs(20), requests_in_flight: 8 }
}

fn upstream(server: &Server) -> HttpUpstream {
    HttpUpstream::new(target(&server.url()), limits())
}

fn credentials() -> Arc<dyn Credentials> {
    fixed("authorization", CREDENTIAL)
}

fn fixed(name: &'static str, value: &'static str) -> Arc<dyn Credentials> {
    let mut headers = HeaderMap::new();
    headers.insert(name, HeaderValue::from_static(value));
    Arc::new(FixedHeaders(headers))
}

fn no_credentials() -> Arc<dyn Credentials> {
    Arc::new(FixedHeaders(HeaderMap::new()))
}

/// The same headers for every request.
struct FixedHeaders(HeaderMap);

impl Credentials for FixedHeaders {
    fn current(&self) -> BoxFuture<'_, CredentialResult> {
        Box::pin(async { Ok(Arc::new(FixedHeaders(self.0.clone())) as _) })
    }

    fn held(&self) -> Option<Arc<dyn RequestCredentials>> {
        Some(Arc::new(FixedHeaders(self.0.clone())))
    }
}

impl RequestCredentials for FixedHeaders {
    fn headers(&self) -> &HeaderMap {
        &self.0
    }

    fn reads_after_decision(&self, _decided: &SecretReads) -> Option<Arc<SecretReads>> {
        None
    }

    fn secret_names(&self) -> String {
        "the test".into()
    }

    fn newer(&self) -> BoxFuture<'_, CredentialResult> {
        Box::pin(async { Err("there is no newer one".into()) })
    }
}

fn number(id: u32) -> IdValue {
    IdValue::Integer(id.to_string().into())
}

fn request(id: u32, method: &str, params: &str) -> Outbound {
    let bytes = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
    let name = serde_json::from_str::<serde_json::Value>(params).unwrap()["name"].as_str().map(str::to_owned);
    let kind = OutboundKind::Request { id: number(id), method: method.to_owned(), name };
    Outbound { bytes: bytes.into(), kind, scope: None, decision_reads: None }
}

fn notification(method: &str) -> Outbound {
    let bytes = format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#);
    Outbound {
        bytes: bytes.into(),
        kind: OutboundKind::Notification { method: method.to_owned() },
        scope: None,
        decision_reads: None,
    }
}

fn response(id: u32) -> Outbound {
    let bytes = Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
    Outbound { bytes, kind: OutboundKind::Response, scope: None, decision_reads: None }
}

fn result(id: u32) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"n": {id}.0}}}}"#)
}

/// Fails after 30 s: a step that takes this long hangs.
async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("it took longer than 30 s")
}

async fn next_message(upstream: &mut HttpUpstream) -> String {
    match within(upstream.next()).await {
        Event::Message(bytes) => String::from_utf8(bytes).unwrap(),
        other => panic!("expected a message, not {other:?}"),
    }
}

async fn next_failure(upstream: &mut HttpUpstream, id: u32) -> Failure {
    match within(upstream.next()).await {
        Event::Failed { id: failed, failure } if failed == number(id) => failure,
        other => panic!("expected a failure of {id}, not {other:?}"),
    }
}

/// `initialize` and `notifications/initialized`, as a harness sends them.
async fn handshake(upstream: &mut HttpUpstream) {
    upstream.send(request(0, "initialize", r#"{"protocolVersion":"2025-11-25"}"#), credentials());
    assert!(next_message(upstream).await.contains("protocolVersion"));
    upstream.send(notification("notifications/initialized"), credentials());
}
