//! A Vault inside the process: one login, tokens of sessions, and leases that end with their token.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout_at};
use zeroize::Zeroizing;

use crate::body::Body;
use crate::client::{Reply, Request};
use crate::error::Problem;
use crate::token::Token;

pub(crate) const LOGIN_TOKEN: &str = "s.login";

/// Paths whose requests a test can count, delay and make fail.
pub(crate) const READ: &str = "database/creds/readonly";
pub(crate) const REVOKE_ACCESSOR: &str = "auth/token/revoke-accessor";
pub(crate) const REVOKE_SELF: &str = "auth/token/revoke-self";
pub(crate) const LOOK_UP_LEASE: &str = "sys/leases/lookup";

#[derive(Default)]
pub(crate) struct FakeVault(Mutex<Contents>);

#[derive(Default)]
struct Contents {
    made: usize,
    /// Numbers of the session tokens that are valid.
    tokens: BTreeSet<usize>,
    /// Each lease with the number of its token.
    leases: BTreeMap<String, usize>,
    lease_end: LeaseEnd,
    /// The status with which requests to a path fail.
    failures: BTreeMap<&'static str, u16>,
    delays: BTreeMap<&'static str, Duration>,
    requests: BTreeMap<String, Requests>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Requests {
    pub(crate) received: usize,
    pub(crate) succeeded: usize,
    under_way: usize,
    /// The most that were under way at once.
    pub(crate) most_at_once: usize,
}

/// When a lease ends.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum LeaseEnd {
    #[default]
    WithItsToken,
    /// Vault revokes leases in its own time.
    Later,
}

impl FakeVault {
    pub(crate) async fn reply(&self, request: &Request<'_>, deadline: Instant) -> Result<Reply, Problem> {
        let answer = timeout_at(deadline, self.answer(request)).await;
        let (status, body) = answer.map_err(|_| Problem::NoAnswer { why: "it took too long".into() })?;
        Ok(Reply { status, retry_after: None, date: None, host: None, body: Zeroizing::new(body) })
    }

    async fn answer(&self, request: &Request<'_>) -> (u16, Vec<u8>) {
        let path = request.path.as_str();
        let delay = {
            let mut contents = self.contents();
            let requests = contents.requests.entry(path.to_owned()).or_default();
            requests.received += 1;
            requests.under_way += 1;
            requests.most_at_once = requests.most_at_once.max(requests.under_way);
            contents.delays.get(path).copied().unwrap_or_default()
        };
        sleep(delay).await;
        let mut contents = self.contents();
        let body = request.body.as_ref().map(Body::encode).unwrap_or_default();
        let body = serde_json::from_slice(&body).unwrap_or_default();
        let (status, answer) = match contents.failures.get(path) {
            Some(status) => (*status, json!({"errors": []})),
            None => {
                let token = request.token.map(Token::expose).unwrap_or_default();
                contents.perform((&request.method, path), token, &body)
            }
        };
        let requests = contents.requests.entry(path.to_owned()).or_default();
        requests.under_way -= 1;
        requests.succeeded += usize::from(status < 300);
        (status, answer.to_string().into_bytes())
    }

    /// Requests to this path fail with this status.
    pub(crate) fn fail(&self, path: &'static str, status: u16) {
        self.contents().failures.insert(path, status);
    }

    pub(crate) fn recover(&self) {
        self.contents().failures.clear();
    }

    pub(crate) fn delay(&self, path: &'static str, delay: Duration) {
        self.contents().delays.insert(path, delay);
    }

    pub(crate) fn end_leases(&self, when: LeaseEnd) {
        let mut contents = self.contents();
        contents.lease_end = when;
        contents.end_orphaned_leases();
    }

    /// An operator revokes every session's token.
    pub(crate) fn revoke_all(&self) {
        let mut contents = self.contents();
        contents.tokens.clear();
        contents.end_orphaned_leases();
    }

    /// How many tokens of sessions are valid.
    pub(crate) fn tokens(&self) -> usize {
        self.contents().tokens.len()
    }

    pub(crate) fn leases(&self) -> usize {
        self.contents().leases.len()
    }

    pub(crate) fn requests(&self, path: &str) -> Requests {
        self.contents().requests.get(path).copied().unwrap_or_default()
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap()
    }
}

impl Contents {
    fn perform(&mut self, (method, path): (&Method, &str), token: &str, body: &Value) -> (u16, Value) {
        let number = token.strip_prefix("s.session-").and_then(|number| number.parse().ok());
        let number = number.filter(|number| self.tokens.contains(number));
        if token != LOGIN_TOKEN && number.is_none() {
            return (403, json!({"errors": ["permission denied"]}));
        }
        match (method, path, number) {
            (&Method::GET, "auth/token/lookup-self", _) => (200, json!({"data": {"ttl": 0}})),
            (&Method::POST, "auth/token/create", None) => {
                self.made += 1;
                let number = self.made;
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
        if self.lease_end == LeaseEnd::WithItsToken {
            leases.retain(|_, token| tokens.contains(token));
        }
    }
}
