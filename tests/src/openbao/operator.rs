//! The operator of a test's OpenBao: mounts, roles, policies, secrets, and the server's data about tokens and leases.
//!
//! What must stay true: every request is sent by vaultrs' own `VaultClient`, never by the sidecar's code, so that an
//! error in that code is detected; no environment variable changes the address.
//!
//! vaultrs has no call for leases, quotas, namespaces, the identity issuer, the engines for RabbitMQ and Kubernetes,
//! tuning a mount and initialising a server that unseals itself, and it cannot read OpenBao's health. These requests
//! use [`OpenBao::call`] and [`OpenBao::api`]: the same client, with a method, path and body that the test writes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::thread;

use rustify::endpoint::Endpoint;
use rustify::enums::{RequestMethod, RequestType, ResponseType};
use rustify::errors::ClientError as HttpError;
use serde_json::Value;
use vaultrs::api::sys::requests::EnableEngineRequestBuilder;
use vaultrs::api::token::requests::{
    CreateTokenRequestBuilder, LookupTokenAccessorRequest, SetTokenRoleRequestBuilder,
};
use vaultrs::client::{Client, VaultClient, VaultClientSettingsBuilder};
use vaultrs::error::ClientError;
use vaultrs::{auth, kv1, kv2, sys, token};

use super::OpenBao;
use crate::deadline::PATIENCE;

pub use vaultrs::api::auth::approle::requests::SetAppRoleRequestBuilder as AppRole;
pub use vaultrs::api::token::requests::{
    CreateTokenRequestBuilder as NewToken, SetTokenRoleRequestBuilder as TokenRole,
};

/// A response, whatever its status.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    /// Null where it is not JSON.
    pub body: Value,
}

/// Which headers a request has beside its token.
#[derive(Clone, Copy, Debug, Default)]
pub struct Headers<'a> {
    pub namespace: Option<&'a str>,
    /// Asks for a wrapped response with this lifetime.
    pub wrap_ttl: Option<&'a str>,
}

/// The version of a key-value engine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KvEngine {
    V1,
    V2,
}

impl OpenBao {
    /// Sends one request and returns its response, whatever its status. The path is not percent-encoded yet.
    #[track_caller]
    pub fn call(&self, method: &str, path: &str, token: Option<&str>, body: &Value) -> Answer {
        self.call_with(method, path, token, body, Headers::default())
    }

    /// Like [`Self::call`], with more headers.
    #[track_caller]
    pub fn call_with(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: &Value,
        headers: Headers<'_>,
    ) -> Answer {
        let answer = request(self.listens_at, method, path, token, body, headers);
        answer.unwrap_or_else(|error| panic!("{method} {path}: {error}\n{}", self.log()))
    }

    /// A request with the root token that must succeed; returns its response.
    #[track_caller]
    pub fn api(&self, method: &str, path: &str, body: Value) -> Value {
        let answer = self.call(method, path, Some(&self.root_token), &body);
        assert!((200..300).contains(&answer.status), "{method} {path}: {answer:?}");
        answer.body
    }

    /// Mounts a secrets engine.
    #[track_caller]
    pub fn mount(&self, path: &str, engine: &str) {
        self.operator("mount an engine", async |client| sys::mount::enable(client, path, engine, None).await);
    }

    /// Mounts a key-value engine.
    #[track_caller]
    pub fn mount_kv(&self, path: &str, engine: KvEngine) {
        let version = if engine == KvEngine::V1 { "1" } else { "2" };
        self.operator("mount a key-value engine", async |client| {
            let mut options = EnableEngineRequestBuilder::default();
            options.options(HashMap::from([("version".to_owned(), version.to_owned())]));
            sys::mount::enable(client, path, "kv", Some(&mut options)).await
        });
    }

    /// Whether an engine is mounted there.
    #[track_caller]
    pub fn is_mounted(&self, path: &str) -> bool {
        let mounts = self.operator("list the mounts", async |client| sys::mount::list(client).await);
        mounts.contains_key(&format!("{path}/"))
    }

    /// Mounts a login method below `auth/`.
    #[track_caller]
    pub fn enable_login(&self, path: &str, method: &str) {
        self.operator("enable a login", async |client| sys::auth::enable(client, path, method, None).await);
    }

    /// Writes an ACL policy: paths with their capabilities.
    #[track_caller]
    pub fn policy(&self, name: &str, rules: &[(&str, &[&str])]) {
        let rule = |(path, may): &(&str, &[&str])| format!("path \"{path}\" {{ capabilities = {may:?} }}\n");
        self.policy_text(name, &rules.iter().map(rule).collect::<String>());
    }

    /// Writes an ACL policy in Vault's own language.
    #[track_caller]
    pub fn policy_text(&self, name: &str, text: &str) {
        self.operator("write a policy", async |client| sys::policy::set(client, name, text).await);
    }

    #[track_caller]
    pub fn delete_policy(&self, name: &str) {
        self.operator("delete a policy", async |client| sys::policy::delete(client, name).await);
    }

    /// Creates a token; returns its value.
    #[track_caller]
    pub fn create_token(&self, wanted: &mut CreateTokenRequestBuilder) -> String {
        let made = self.operator("create a token", async |client| token::new(client, Some(wanted)).await);
        made.client_token
    }

    /// Whether a token is still valid.
    #[track_caller]
    pub fn is_live(&self, token: &str) -> bool {
        match self.as_token(token, async |client| token::lookup_self(client).await) {
            Ok(_) => true,
            Err(ClientError::APIError { code: 403, .. }) => false,
            Err(error) => panic!("look up a token: {error}\n{}", self.log()),
        }
    }

    /// The server's data about a token; `None` once it is revoked or expired.
    #[track_caller]
    pub fn token_facts(&self, accessor: &str) -> Option<Value> {
        // vaultrs' own response type cannot hold a token that is being revoked.
        let lookup = LookupTokenAccessorRequest { accessor: accessor.to_owned() };
        match exchange(self.listens_at, &self.root_token, Headers::default(), lookup) {
            Ok(Answer { status: 200, body }) => Some(body["data"].clone()),
            Ok(Answer { status: 400 | 403 | 404, .. }) => None,
            Ok(answer) => panic!("look up an accessor: {answer:?}\n{}", self.log()),
            Err(error) => panic!("look up an accessor: {error}\n{}", self.log()),
        }
    }

    #[track_caller]
    pub fn revoke_accessor(&self, accessor: &str) {
        self.operator("revoke a token", async |client| token::revoke_accessor(client, accessor).await);
    }

    /// Writes a token role.
    #[track_caller]
    pub fn token_role(&self, name: &str, role: &mut SetTokenRoleRequestBuilder) {
        self.operator("write a token role", async |client| token::role::set(client, name, Some(role)).await);
    }

    #[track_caller]
    pub fn delete_token_role(&self, name: &str) {
        self.operator("delete a token role", async |client| token::role::delete(client, name).await);
    }

    /// A role of `auth/approle`.
    #[track_caller]
    pub fn app_role(&self, name: &str, role: &mut AppRole) {
        self.operator("write an AppRole", async |client| {
            auth::approle::role::set(client, "approle", name, Some(role)).await
        });
    }

    #[track_caller]
    pub fn role_id(&self, role: &str) -> String {
        let read = async |client: &VaultClient| auth::approle::role::read_id(client, "approle", role).await;
        self.operator("read a role-id", read).role_id
    }

    /// One more secret-id of an AppRole.
    #[track_caller]
    pub fn secret_id(&self, role: &str) -> String {
        let generated = self.operator("generate a secret-id", async |client| {
            auth::approle::role::secret::generate(client, "approle", role, None).await
        });
        generated.secret_id
    }

    /// Writes `secret/NAME` of a version 2 key-value engine.
    #[track_caller]
    pub fn write_secret(&self, name: &str, data: Value) {
        self.operator("write a secret", async |client| kv2::set(client, "secret", name, &data).await);
    }

    /// Writes a secret of a version 1 key-value engine.
    #[track_caller]
    pub fn write_plain_secret(&self, mount: &str, name: &str, data: Value) {
        let members = data.as_object().expect("a secret has members");
        let members: HashMap<&str, &Value> =
            members.iter().map(|(name, value)| (name.as_str(), value)).collect();
        self.operator("write a secret", async |client| kv1::set(client, mount, name, &members).await);
    }

    /// A request of vaultrs with the root token, which has to succeed.
    #[track_caller]
    pub fn operator<T: Send>(
        &self,
        what: &str,
        work: impl AsyncFnOnce(&VaultClient) -> Result<T, ClientError> + Send,
    ) -> T {
        let done = self.as_token(&self.root_token, work);
        done.unwrap_or_else(|error| panic!("{what}: {error}\n{}", self.log()))
    }

    /// A request of vaultrs with this token; an empty string means no token.
    pub fn as_token<T: Send>(
        &self,
        token: &str,
        work: impl AsyncFnOnce(&VaultClient) -> Result<T, ClientError> + Send,
    ) -> Result<T, ClientError> {
        let client = client(self.listens_at, token, Headers::default());
        blocking(async || work(&client).await)
    }
}

/// Sends one request that vaultrs has no type for.
pub(super) fn request(
    listens_at: SocketAddr,
    method: &str,
    path: &str,
    token: Option<&str>,
    body: &Value,
    headers: Headers<'_>,
) -> Result<Answer, HttpError> {
    let endpoint = Raw {
        method: match method {
            "DELETE" => RequestMethod::DELETE,
            "GET" => RequestMethod::GET,
            "LIST" => RequestMethod::LIST,
            "POST" => RequestMethod::POST,
            "PUT" => RequestMethod::PUT,
            _ => panic!("{method} is not a method of Vault's API"),
        },
        path: path.to_owned(),
        body: if body.is_null() { Vec::new() } else { body.to_string().into_bytes() },
    };
    exchange(listens_at, token.unwrap_or_default(), headers, endpoint)
}

/// Sends one request of any type; returns its response whatever the status.
fn exchange(
    listens_at: SocketAddr,
    token: &str,
    headers: Headers<'_>,
    endpoint: impl Endpoint,
) -> Result<Answer, HttpError> {
    let client = client(listens_at, token, headers);
    let json = |bytes: &[u8]| serde_json::from_slice(bytes).unwrap_or(Value::Null);
    blocking(async || match endpoint.with_middleware(client.middle()).exec(client.http()).await {
        Ok(result) => {
            Ok(Answer { status: result.response.status().as_u16(), body: json(result.response.body()) })
        }
        Err(HttpError::ServerResponseError { code, content }) => {
            Ok(Answer { status: code, body: json(content.unwrap_or_default().as_bytes()) })
        }
        Err(error) => Err(error),
    })
}

/// A client for one request: its connections are closed with the runtime that sent it.
fn client(listens_at: SocketAddr, token: &str, headers: Headers<'_>) -> VaultClient {
    // reqwest needs a crypto provider even without TLS. An error means that this provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let address = format!("http://{listens_at}");
    let settings = VaultClientSettingsBuilder::default()
        .address(&address)
        // Without a proxy setting, reqwest would use the proxy of the environment; so the server is named as its own
        // proxy.
        .proxy(&address)
        .token(token)
        .namespace(headers.namespace.map(str::to_owned))
        .ca_certs(Vec::new())
        .identity(None)
        .verify(true)
        .timeout(Some(PATIENCE))
        .build();
    let mut client =
        VaultClient::new(settings.expect("all settings are set")).expect("a client can be built");
    client.middle.wrap = headers.wrap_ttl.map(str::to_owned);
    client
}

/// Runs the future on a new thread, so that tests with and without a runtime can wait for it.
fn blocking<T: Send>(work: impl AsyncFnOnce() -> T + Send) -> T {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime can be built").block_on(work())
    };
    thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|panic| resume_unwind(panic))
}

/// A request that vaultrs has no type for.
struct Raw {
    method: RequestMethod,
    path: String,
    body: Vec<u8>,
}

impl Endpoint for Raw {
    type Response = Value;
    const REQUEST_BODY_TYPE: RequestType = RequestType::JSON;
    const RESPONSE_BODY_TYPE: ResponseType = ResponseType::JSON;

    fn path(&self) -> String {
        self.path.clone()
    }

    fn method(&self) -> RequestMethod {
        self.method.clone()
    }

    fn body(&self) -> Result<Option<Vec<u8>>, HttpError> {
        Ok(Some(self.body.clone()))
    }
}
