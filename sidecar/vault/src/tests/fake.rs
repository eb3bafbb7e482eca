//! A fake Vault in this process: one login, tokens of sessions, and leases that end with their token.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout_at};
use zeroize::Zeroizing;

use crate::body::Body;
use crate::client::{Request, VaultResponse};
use crate::error::Problem;
use crate::token::Token;

pub(crate) const LOGIN_TOKEN: &str = "s.login";

/// Paths whose requests a test can count, delay and make fail.
pub(crate) const READ: &str = "database/creds/readonly";
pub(crate) const REVOKE_ACCESSOR: &str = "auth/token/revoke-accessor";
pub(crate) const REVOKE_SELF: &str = "auth/token/revoke-self";
pub(crate) const LOOK_UP_LEASE: &str = "sys/leases/lookup";

#[derive(Default)]
pub(crate) struct FakeVault(Mutex<FakeState>);

#[derive(Default)]
struct FakeState {
    tokens_created: usize,
    /// Numbers of the session tokens that are valid.
    tokens: BTreeSet<usize>,
    /// Each lease with the number of its token.
    leases: BTreeMap<String, usize>,
    lease_end: LeaseRevocation,
    /// The status with which requests to a path fail.
    failures: BTreeMap<&'static str, u16>,
    delays: BTreeMap<&'static str, Duration>,
    requests: BTreeMap<String, Requests>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Requests {
    pub(crate) received: usize,
    pub(crate) succeeded: usize,
    in_progress: usize,
    pub(crate) max_concurrent: usize,
}

/// When the fake revokes the leases of a revoked token.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum LeaseRevocation {
    #[default]
    WithItsToken,
    /// Not before [`FakeVault::end_leases`] is called with `WithItsToken`.
    Later,
}

impl FakeVault {
    pub(crate) async fn respond(
        &self,
        request: &Request<'_>,
        deadline: Instant,
    ) -> Result<VaultResponse, Problem> {
        let response = timeout_at(deadline, self.handle(request)).await;
        let (status, body) = response.map_err(|_| Problem::NoAnswer { why: "it took too long".into() })?;
        Ok(VaultResponse {
            status,
            retry_after: None,
            date: None,
            redirect_host: None,
            body: Zeroizing::new(body),
        })
    }

    async fn handle(&self, request: &Request<'_>) -> (u16, Vec<u8>) {
        let path = request.path.as_str();
        let delay = {
            let mut state = self.state();
            let requests = state.requests.entry(path.to_owned()).or_default();
            requests.received += 1;
            requests.in_progress += 1;
            requests.max_concurrent = requests.max_concurrent.max(requests.in_progress);
            state.delays.get(path).copied().unwrap_or_default()
        };
        sleep(delay).await;
        let mut state = self.state();
        let body = request.body.as_ref().map(Body::encode).unwrap_or_default();
        let body = serde_json::from_slice(&body).unwrap_or_default();
        let (status, response) = match state.failures.get(path) {
            Some(status) => (*status, json!({"errors": []})),
            None => {
                let token = request.token.map(Token::expose).unwrap_or_default();
                state.perform((&request.method, path), token, &body)
            }
        };
        let requests = state.requests.entry(path.to_owned()).or_default();
        requests.in_progress -= 1;
        requests.succeeded += usize::from(status < 300);
        (status, response.to_string().into_bytes())
    }

    /// Requests to this path fail with this status.
    pub(crate) fn fail(&self, path: &'static str, status: u16) {
        self.state().failures.insert(path, status);
    }

    /// Requests do not fail any more; delays stay.
    pub(crate) fn recover(&self) {
        self.state().failures.clear();
    }

    pub(crate) fn delay(&self, path: &'static str, delay: Duration) {
        self.state().delays.insert(path, delay);
    }

    pub(crate) fn end_leases(&self, when: LeaseRevocation) {
        let mut state = self.state();
        state.lease_end = when;
        state.end_orphaned_leases();
    }

    /// An operator revokes every session's token.
    pub(crate) fn revoke_all(&self) {
        let mut state = self.state();
        state.tokens.clear();
        state.end_orphaned_leases();
    }

    /// How many tokens of sessions are valid.
    pub(crate) fn tokens(&self) -> usize {
        self.state().tokens.len()
    }

    pub(crate) fn leases(&self) -> usize {
        self.state().leases.len()
    }

    pub(crate) fn requests(&self, path: &str) -> Requests {
        self.state().requests.get(path).copied().unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, FakeState> {
        self.0.lock().unwrap()
    }
}

impl FakeState {
    fn perform(&mut self, (method, path): (&Method, &str), token: &str, body: &Value) -> (u16, Value) {
        let number = token.strip_prefix("s.session-").and_then(|number| number.parse().ok());
        let number = number.filter(|number| self.tokens.contains(number));
        if token != LOGIN_TOKEN && number.is_none() {
            return (403, json!({"errors": ["permission denied"]}));
        }
        match (method, path, number) {
            (&Method::GET, "auth/token/lookup-self", _) => (200, json!({"data": {"ttl": 0}})),
            (&Method::POST, "auth/token/create", None) => {
                self.tokens_created += 1;
                let number = self.tokens_created;
                self.tokens.insert(number);
                let ttl = body["ttl"].as_str().and_then(|ttl| ttl.strip_suffix('s')).unwrap();
                let auth = json!({
                    "client_token": format!("s.session-{number}"),
                    "accessor": format!("accessor-{number}"),
                    "lease_duration": ttl.parse::<u64>().unwrap(),
                });
                (200, json!({"auth": auth}))
            }
            (&Method::GET, READ, Some(number)) => {
                let lease = format!("{READ}/{number}");
                self.leases.insert(lease.clone(), number);
                let data = json!({"username": "a-database-user", "password": "a-long-password"});
                (200, json!({"lease_id": lease, "lease_duration": 3600, "renewable": true, "data": data}))
            }
            (&Method::POST, REVOKE_SELF, Some(number)) => self.revoke(number),
            (&Method::POST, REVOKE_ACCESSOR, None) => {
                let accessor = body["accessor"].as_str().unwrap();
                let number = accessor.strip_prefix("accessor-").and_then(|number| number.parse().ok());
                match number.filter(|number| self.tokens.contains(number)) {
                    Some(number) => self.revoke(number),
                    None => (400, json!({"errors": ["invalid accessor"]})),
                }
            }
            (&Method::POST, LOOK_UP_LEASE, None) => {
                match self.leases.contains_key(body["lease_id"].as_str().unwrap()) {
                    true => (200, json!({"data": {"ttl": 60}})),
                    false => (400, json!({"errors": ["invalid lease"]})),
                }
            }
            _ => (404, json!({"errors": []})),
        }
    }

    fn revoke(&mut self, number: usize) -> (u16, Value) {
        self.tokens.remove(&number);
        self.end_orphaned_leases();
        (200, json!({}))
    }

    fn end_orphaned_leases(&mut self) {
        let Self { tokens, leases, .. } = self;
        if self.lease_end == LeaseRevocation::WithItsToken {
            leases.retain(|_, token| tokens.contains(token));
        }
    }
}
