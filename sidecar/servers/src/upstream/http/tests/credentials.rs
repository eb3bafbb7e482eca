//! Credentials that a request has to wait for, and credentials that the server refuses.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cofferdam_secrets::SecretReads;
use http::{HeaderMap, HeaderValue};
use tokio::sync::Semaphore;

use super::server::{SeenRequest, Server, TestResponse};
use super::{credentials, next_failure, next_message, request, result, upstream};
use crate::upstream::http::{BoxFuture, CredentialResult, Credentials, Failure, RequestCredentials};

/// Gives the credential `first`, and `second` after the server has refused that one.
#[derive(Clone)]
struct RotatingCredentials {
    headers: HeaderMap,
    rereads: Arc<AtomicUsize>,
    /// No credential is available before this has a permit.
    ready: Arc<Semaphore>,
}

impl RotatingCredentials {
    fn new(ready: usize) -> Arc<Self> {
        Arc::new(Self::named("first", &Arc::default(), &Arc::new(Semaphore::new(ready))))
    }

    fn named(name: &'static str, rereads: &Arc<AtomicUsize>, ready: &Arc<Semaphore>) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", HeaderValue::from_static(name));
        Self { headers, rereads: Arc::clone(rereads), ready: Arc::clone(ready) }
    }
}

impl Credentials for RotatingCredentials {
    fn current(&self) -> BoxFuture<'_, CredentialResult> {
        Box::pin(async {
            let _permit = self.ready.acquire().await.unwrap();
            Ok(Arc::new(self.clone()) as _)
        })
    }

    fn held(&self) -> Option<Arc<dyn RequestCredentials>> {
        None
    }
}

impl RequestCredentials for RotatingCredentials {
    fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    fn reads_after_decision(&self, _decided: &SecretReads) -> Option<Arc<SecretReads>> {
        None
    }

    fn secret_names(&self) -> String {
        "the test".into()
    }

    fn newer(&self) -> BoxFuture<'_, CredentialResult> {
        self.rereads.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(Arc::new(Self::named("second", &self.rereads, &self.ready)) as _) })
    }
}

fn accepts(name: &'static str) -> impl Fn(&SeenRequest) -> TestResponse + Send + Sync + 'static {
    move |seen| match seen.header("authorization") == Some(name) {
        true => TestResponse::json(result(1)),
        false => TestResponse::status(401),
    }
}

#[tokio::test]
async fn a_refused_request_is_sent_once_more_with_a_newer_credential() {
    let server = Server::start(accepts("second")).await;
    let mut upstream = upstream(&server);
    let rotating = RotatingCredentials::new(1);
    upstream.send(request(1, "tools/call", r#"{"name":"t"}"#), rotating.clone());
    assert_eq!(next_message(&mut upstream).await, result(1));
    let sent: Vec<_> =
        server.seen().iter().map(|seen| seen.header("authorization").map(str::to_owned)).collect();
    assert_eq!(sent, [Some("first".to_owned()), Some("second".to_owned())]);
    assert_eq!(rotating.rereads.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_server_that_refuses_every_credential_gets_two_requests() {
    let server = Server::start(accepts("third")).await;
    let mut upstream = upstream(&server);
    let rotating = RotatingCredentials::new(1);
    upstream.send(request(1, "tools/call", r#"{"name":"t"}"#), rotating.clone());
    let Failure::NoCredential { why } = next_failure(&mut upstream, 1).await else { panic!() };
    assert!(why.contains("read again, the test"), "{why}");
    assert_eq!((server.seen().len(), rotating.rereads.load(Ordering::Relaxed)), (2, 1));
}

#[tokio::test]
async fn a_large_request_is_not_retained_for_a_second_attempt() {
    let server = Server::start(accepts("second")).await;
    let mut upstream = upstream(&server);
    let large = format!(r#"{{"name":"t","filler":"{}"}}"#, "x".repeat(80 * 1024));
    upstream.send(request(1, "tools/call", &large), RotatingCredentials::new(1));
    let Failure::NoCredential { why } = next_failure(&mut upstream, 1).await else { panic!() };
    assert!(why.contains("so repeat the request"), "{why}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn waiting_for_a_credential_delays_no_other_request() {
    let server = Server::start(|seen| match seen.body.contains("\"id\":2") {
        true => TestResponse::json(result(2)),
        false => TestResponse::json(result(1)),
    })
    .await;
    let mut upstream = upstream(&server);
    let late = RotatingCredentials::new(0);
    upstream.send(request(1, "tools/call", r#"{"name":"t"}"#), late.clone());
    upstream.send(request(2, "tools/call", r#"{"name":"t"}"#), credentials());
    assert_eq!(next_message(&mut upstream).await, result(2));
    late.ready.add_permits(1);
    assert_eq!(next_message(&mut upstream).await, result(1));
}
