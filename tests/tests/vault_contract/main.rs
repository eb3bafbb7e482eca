//! Compares our Vault client with an independent one: vaultrs builds the same call, and HTTP method, path and JSON body
//! have to be equal. Requests go only to a listener on loopback, which records what our client sends.
//!
//! What must stay true: every call of our client is in [`compared`] or in [`NOT_IN_VAULTRS`]; an intended difference
//! is a [`Deviation`] with its reason, and a deviation that no longer exists fails the test.

mod logins;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use cofferdam_tests::deadline::PATIENCE;
use cofferdam_tests::http::{Reply, Request, listen};
use cofferdam_vault::login::{Login, LoginRecords, Method};
use cofferdam_vault::{Accessor, ChildToken, ClientSettings, KvVersion, Mint, Renewable, Token, Vault};
use logins::logins;
use rustify::endpoint::Endpoint;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use vaultrs::api::auth::approle;
use vaultrs::api::{database, kv1, kv2, pki, ssh, sys, token};

/// Calls of ours without a counterpart: the endpoint, and what vaultrs has instead.
const NOT_IN_VAULTRS: [(&str, &str); 9] = [
    ("capabilities_self", "sys/capabilities-self: nothing"),
    ("kv_read", "no request of its own: `kv_version` and `kv_read_as`"),
    ("kv_version", "no request of its own: `mount`, then `kv_read_as`"),
    ("kv_probe", "no request of its own: `kv_read_as`"),
    ("lookup_lease", "sys/leases/lookup: nothing about leases"),
    ("mount", "sys/internal/ui/mounts/PATH, which needs no policy: only sys/mounts/PATH, which does"),
    ("operate", "no request of its own: it sends vaultrs' requests for operators"),
    ("renew_lease", "sys/leases/renew: nothing about leases"),
    ("verdicts", "no request of its own: `capabilities_self`"),
];

/// Functions of `impl Vault` that the calls use and that are no calls themselves.
const HELPERS: [&str; 3] = ["auth", "call", "data"];

/// How vaultrs' request differs from ours, on purpose.
#[derive(Clone, Copy, Debug)]
enum Deviation {
    /// Its path begins with a TAB, a mistake in its source; the URL parser removes it.
    Tab,
    /// It sends no body where ours is `{}`: Vault reads both as no parameters.
    NoBody,
    /// Its certificate login sends `cert_name`. Vault reads `name`, so with vaultrs' field any role would log in.
    CertName,
}

/// A request without its token.
#[derive(Clone, Debug, PartialEq)]
struct Sent {
    method: String,
    /// Below `/v1/`.
    path: String,
    /// Null for none.
    body: Value,
}

/// One call, as both clients make it.
struct Pair {
    call: &'static str,
    ours: Sent,
    vaultrs: Sent,
    deviations: &'static [Deviation],
}

#[tokio::test(flavor = "multi_thread")]
async fn our_client_and_vaultrs_send_the_same_requests() {
    let differences: Vec<String> = compared().await.into_iter().filter_map(Pair::difference).collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_of_our_client_is_left_out() {
    let pairs = compared().await;
    let compared = pairs.iter().map(|pair| pair.call.split(' ').next().unwrap_or_default());
    let known: BTreeSet<&str> = compared
        .chain(NOT_IN_VAULTRS.map(|(call, _)| call))
        .chain(HELPERS)
        .filter(|call| *call != "login")
        .collect();
    let written = calls_in_source();
    assert_eq!(written.iter().map(String::as_str).collect::<BTreeSet<_>>(), known);
}

impl Pair {
    fn difference(self) -> Option<String> {
        let Self { call, ours, mut vaultrs, deviations } = self;
        for deviation in deviations {
            let before = vaultrs.clone();
            deviation.undo(&mut vaultrs);
            if vaultrs == before {
                return Some(format!("{call}: vaultrs does not deviate by {deviation:?} any more"));
            }
        }
        (ours != vaultrs).then(|| format!("{call}:\n  ours    {ours:?}\n  vaultrs {vaultrs:?}"))
    }
}

impl Deviation {
    /// Makes vaultrs' request what it would be without the difference.
    fn undo(self, request: &mut Sent) {
        match self {
            Self::Tab => request.path = request.path.trim_start_matches(['\t', '/']).to_owned(),
            Self::NoBody if request.body.is_null() => request.body = json!({}),
            Self::NoBody => {}
            Self::CertName => {
                let body = request.body.as_object_mut().expect("a login has a body");
                let role = body.remove("cert_name").expect("vaultrs names the role");
                body.insert("name".into(), role);
            }
        }
    }
}

/// Every call that both clients have.
async fn compared() -> Vec<Pair> {
    let ours = RecordedClient::new();
    let calls = [tokens(&ours).await, secrets(&ours).await, system(&ours).await, logins(&ours).await];
    calls.into_iter().flatten().collect()
}

async fn tokens(ours: &RecordedClient) -> Vec<Pair> {
    let (vault, token) = (&ours.vault, &ours.token);
    let child = ChildToken {
        policies: vec!["agent".into(), "other".into()],
        metadata: BTreeMap::from([("session".into(), "s-1".into())]),
        display_name: "cofferdam-s-1".into(),
        ttl: Duration::from_secs(90),
        explicit_max_ttl: Duration::from_secs(120),
        renewable: Renewable::No,
    };
    let metadata = HashMap::from([("session".to_owned(), "s-1".to_owned())]);
    let policies = vec!["agent".to_owned(), "other".to_owned()];
    let plain = token::requests::CreateTokenRequest {
        policies: Some(policies.clone()),
        meta: Some(metadata.clone()),
        display_name: Some("cofferdam-s-1".into()),
        ttl: Some("90s".into()),
        explicit_max_ttl: Some("120s".into()),
        renewable: Some(false),
        ..Default::default()
    };
    let by_role = token::requests::CreateRoleTokenRequest {
        role_name: "cofferdam".into(),
        policies: Some(policies),
        meta: Some(metadata),
        display_name: Some("cofferdam-s-1".into()),
        ttl: Some("90s".into()),
        explicit_max_ttl: Some("120s".into()),
        renewable: Some(false),
        ..Default::default()
    };
    let accessor = Accessor::new("accessor-1");
    let renew = token::requests::RenewTokenSelfRequest { increment: Some("60s".into()) };
    vec![
        pair(
            "lookup_self",
            ours.sent(vault.lookup_self(token)).await,
            &token::requests::LookupTokenSelfRequest {},
            &[],
        ),
        pair(
            "renew_self with an increment",
            ours.sent(vault.renew_self(token, Some(Duration::from_secs(60)))).await,
            &renew,
            &[Deviation::Tab],
        ),
        pair(
            "renew_self",
            ours.sent(vault.renew_self(token, None)).await,
            &token::requests::RenewTokenSelfRequest::default(),
            &[Deviation::Tab, Deviation::NoBody],
        ),
        pair(
            "revoke_self",
            ours.sent(vault.revoke_self(token)).await,
            &token::requests::RevokeTokenSelfRequest {},
            &[Deviation::Tab, Deviation::NoBody],
        ),
        pair("create_child", ours.sent(vault.create_child(token, &child, Mint::Plain)).await, &plain, &[]),
        pair(
            "create_child by a role",
            ours.sent(vault.create_child(token, &child, Mint::Role("cofferdam"))).await,
            &by_role,
            &[],
        ),
        pair(
            "revoke_accessor",
            ours.sent(vault.revoke_accessor(token, &accessor)).await,
            &token::requests::RevokeTokenAccessorRequest { accessor: "accessor-1".into() },
            &[],
        ),
        pair(
            "is_secret_id_of",
            ours.sent(vault.is_secret_id_of(
                token,
                "auth/approle/role/agent",
                "secret-id-1".to_owned().into(),
            ))
            .await,
            &approle::requests::ReadSecretIDRequest {
                mount: "approle".into(),
                role_name: "agent".into(),
                secret_id: "secret-id-1".into(),
            },
            &[],
        ),
    ]
}

async fn secrets(ours: &RecordedClient) -> Vec<Pair> {
    let (vault, token) = (&ours.vault, &ours.token);
    let second = KvVersion::V2 { mount: "team/kv/".into() };
    let certificate = object(json!({"common_name": "agent.internal", "ttl": "5m"}));
    let key = object(json!({"public_key": "ssh-ed25519 AAAA", "valid_principals": "agent"}));
    let fields = BTreeMap::from([("token".to_owned(), "value".to_owned().into())]);
    vec![
        pair(
            "kv_read_as of the first version",
            ours.sent(vault.kv_read_as(token, "plain/deep/app", &KvVersion::V1)).await,
            &kv1::requests::GetSecretRequest { mount: "plain".into(), path: "deep/app".into() },
            &[],
        ),
        pair(
            "kv_read_as of the second version",
            ours.sent(vault.kv_read_as(token, "team/kv/deep/app", &second)).await,
            &kv2::requests::ReadSecretRequest {
                mount: "team/kv".into(),
                path: "deep/app".into(),
                version: None,
            },
            &[],
        ),
        pair(
            "kv_create in the first version",
            ours.sent(vault.kv_create(token, "plain/deep/app", &KvVersion::V1, &fields)).await,
            &kv1::requests::SetSecretRequest {
                mount: "plain".into(),
                path: "deep/app".into(),
                data: serde_json::to_vec(&json!({"token": "value"})).expect("a map is JSON"),
            },
            &[],
        ),
        pair(
            "kv_create in the second version",
            ours.sent(vault.kv_create(token, "team/kv/deep/app", &second, &fields)).await,
            &kv2::requests::SetSecretRequest {
                mount: "team/kv".into(),
                path: "deep/app".into(),
                data: json!({"token": "value"}),
                options: Some(kv2::requests::SetSecretRequestOptions { cas: 0 }),
            },
            &[],
        ),
        pair(
            "read of a database user",
            ours.sent(vault.read(token, "database/creds/readonly")).await,
            &database::requests::GenerateCredentialsRequest {
                mount: "database".into(),
                name: "readonly".into(),
            },
            &[],
        ),
        pair(
            "write of a certificate",
            ours.sent(vault.write(token, "pki/issue/agent", &certificate)).await,
            &pki::requests::GenerateCertificateRequest {
                mount: "pki".into(),
                role: "agent".into(),
                common_name: Some("agent.internal".into()),
                ttl: Some("5m".into()),
                ..Default::default()
            },
            &[],
        ),
        pair(
            "write of an SSH key",
            ours.sent(vault.write(token, "ssh/sign/agent", &key)).await,
            &ssh::requests::SignSSHKeyRequest {
                mount: "ssh".into(),
                name: "agent".into(),
                public_key: "ssh-ed25519 AAAA".into(),
                valid_principals: Some("agent".into()),
                ..Default::default()
            },
            &[],
        ),
        pair(
            "write of a secret-id",
            ours.sent(vault.write(token, "auth/approle/role/robot/secret-id", &Map::new())).await,
            &approle::requests::GenerateNewSecretIDRequest {
                mount: "approle".into(),
                role_name: "robot".into(),
                ..Default::default()
            },
            &[Deviation::NoBody],
        ),
    ]
}

async fn system(ours: &RecordedClient) -> Vec<Pair> {
    let (vault, token) = (&ours.vault, &ours.token);
    vec![
        pair("health", ours.sent(vault.health()).await, &sys::requests::ReadHealthRequest::default(), &[]),
        pair(
            "wrapping_lookup",
            ours.sent(vault.wrapping_lookup(token)).await,
            &sys::requests::WrappingLookupRequest { token: TOKEN.into() },
            &[],
        ),
        pair(
            "unwrap",
            ours.sent(vault.unwrap(token)).await,
            &sys::requests::UnwrapRequest { token: None },
            &[Deviation::NoBody],
        ),
    ]
}

const TOKEN: &str = "s.contract";

/// Our client in front of the listener.
struct RecordedClient {
    vault: Vault,
    token: Token,
    requests: Receiver<Request>,
    directory: tempfile::TempDir,
}

impl RecordedClient {
    fn new() -> Self {
        let (sender, requests) = channel();
        let place: SocketAddr = listen(move |request| {
            // The receiver is gone only when the test is over.
            let _ = sender.send(request);
            Reply::Status(404)
        });
        let address = format!("http://{place}").parse().expect("an address of loopback");
        let vault =
            Vault::new(&ClientSettings { address, namespace: None, ca_file: None }).expect("a client");
        let token = Token::read(TOKEN.as_bytes()).expect("a token");
        Self {
            vault,
            token,
            requests,
            directory: tempfile::tempdir().expect("a temporary directory can be made"),
        }
    }

    /// The request that a call sends. The call's result is always the listener's 404 and is ignored.
    async fn sent<T>(&self, call: impl Future<Output = T>) -> Sent {
        call.await;
        self.recorded()
    }

    /// The request of the first attempt to log in. Each login has its own listener: on a busy machine a second attempt
    /// may be made before the login is stopped, and must not be mistaken for another login.
    async fn login_request(method: Method) -> Sent {
        let (own, stop) = (Self::new(), CancellationToken::new());
        let login = Login::start(
            own.vault.clone(),
            method,
            LoginRecords::default(),
            Arc::default(),
            &TaskTracker::new(),
            &stop,
        );
        assert!(
            login.current().await.is_err(),
            "the login succeeded although the listener refuses every login"
        );
        stop.cancel();
        own.recorded()
    }

    fn recorded(&self) -> Sent {
        let request = self.requests.recv_timeout(PATIENCE).expect("the call sends a request");
        let path = request.path.strip_prefix("/v1/").expect("every path is below /v1/").to_owned();
        Sent { method: request.method, path, body: request.body }
    }

    fn write_file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).expect("a temporary directory is writable");
        path
    }
}

fn pair(call: &'static str, ours: Sent, endpoint: &impl Endpoint, deviations: &'static [Deviation]) -> Pair {
    let query = endpoint.query().expect("a query can be built").unwrap_or_default();
    assert_eq!(query, "", "{call}: our client has no queries");
    let body = endpoint.body().expect("a body can be built").unwrap_or_default();
    let body =
        if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).expect("a body is JSON") };
    // Some of vaultrs' paths begin with a slash and some do not: it joins them by their segments.
    let path = endpoint.path();
    let path = path.strip_prefix('/').unwrap_or(&path).to_owned();
    let vaultrs = Sent { method: format!("{:?}", endpoint.method()), path, body };
    Pair { call, ours, vaultrs, deviations }
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().expect("an object").clone()
}

/// The names of the asynchronous functions in every `impl Vault` of the sidecar.
fn calls_in_source() -> BTreeSet<String> {
    fn visit(directory: &Path, calls: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(directory).expect("the source is there").flatten() {
            let path = entry.path();
            if path.is_dir() {
                visit(&path, calls);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("source is text");
                for block in text.split("\nimpl Vault {").skip(1) {
                    let block = block.split("\n}").next().unwrap_or_default();
                    let names =
                        block.split("async fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next());
                    calls.extend(names.map(str::to_owned));
                }
            }
        }
    }
    let mut calls = BTreeSet::new();
    visit(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../sidecar"), &mut calls);
    calls
}
