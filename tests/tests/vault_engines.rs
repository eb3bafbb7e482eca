//! Credentials of engines that state a lifetime in different ways: SSH certificates, Kubernetes tokens, secret-ids.
//! Each is replaced before it expires.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use cofferdam_base::clock::{Rfc3339, now};
use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::encodings::base64url;
use cofferdam_tests::harness::Harness;
use cofferdam_tests::http::{Reply, listen};
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::process::{command, is_alive, output_of};
use cofferdam_tests::server::{Server, environment};
use cofferdam_tests::tools::Tool;
use cofferdam_tests::vault::{
    app_role_with, leave, list, prepared, session_tokens, token_file_auth, world, world_with_vault_at,
};
use cofferdam_tests::vault_fault_proxy::{Action, VaultFaultProxy};
use cofferdam_tests::world::World;
use serde_json::{Value, json};

/// A change to a response in transit.
type Change = fn(&mut Value);

/// The private key was discarded.
const PUBLIC_KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAl1afZInVzhjjratVny6T7GE6JGdFZlJZZxYW4VbTa1";
/// The engine's own token for the cluster.
const ENGINE_TOKEN: &str = "token-of-the-engine";
const CREDS: &str = "sys/leases/lookup/kubernetes/creds/agent";

#[test]
fn a_signed_ssh_certificate_is_replaced_before_its_end() {
    let (Some(bao), Some(keygen)) = (prepared(OpenBao::dev()), Tool::SshKeygen.path()) else { return };
    bao.mount("ssh", "ssh");
    bao.api("POST", "ssh/config/ca", json!({"generate_signing_key": true, "key_type": "ed25519"}));
    let role = json!({"key_type": "ca", "allow_user_certificates": true, "allowed_users": "agent", "default_user": "agent", "ttl": "18s", "not_before_duration": "1s"});
    bao.api("POST", "ssh/roles/agent", role);
    bao.policy("agent", &[("ssh/sign/agent", &["update"])]);
    let server = Server::fixture()
        .file("id-cert.pub", "{ssh.signed_key}")
        .env("CERTIFICATE", "{file:id-cert.pub}")
        .allow(&["*"]);
    let secret = format!("vault = \"ssh/sign/agent\"\nwrite = {{ public_key = \"{PUBLIC_KEY}\" }}");
    let world = world(&bao).secret("ssh", &secret).server("tools", server).start();
    let mut harness = world.connected("tools");
    let first = process(&mut harness);
    // The start and end of the validity, as OpenSSH prints them.
    let valid = |process: u32| {
        let mut keygen = command(&keygen);
        keygen.env("TZ", "UTC").args(["-L", "-f"]).arg(variable(process, "CERTIFICATE"));
        let printed = String::from_utf8(output_of(keygen, "ssh-keygen").stdout).unwrap();
        let line = printed.lines().find_map(|line| line.trim().strip_prefix("Valid: from "));
        let (from, to) = line.and_then(|line| line.split_once(" to ")).unwrap_or_else(|| panic!("{printed}"));
        (from.to_owned(), to.to_owned())
    };
    let (_, end) = valid(first);
    assert!((0..=18).contains(&seconds_until_expiry(&world, "ssh")), "{}", world.sessions());
    wait_until("another process has taken over", || process(&mut harness) != first);
    let (begin, later) = valid(process(&mut harness));
    assert!(begin < end && end < later, "{begin} {end} {later}");
    wait_until("the old process is gone", || !is_alive(first));
    // There is no lease, so one token was enough.
    assert_eq!(session_tokens(&bao).len(), 1);
}

/// The response has no `ttl`, only a `secret_id_ttl`, so the `ttl` of the configured request counts.
#[test]
fn the_requested_ttl_is_used_if_the_response_has_none() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    bao.enable_login("approle", "approle");
    bao.app_role("robot", &mut app_role_with(&["default"], "10m"));
    bao.policy("agent", &[("auth/approle/role/robot/secret-id", &["update"])]);
    let server = Server::fixture().env("SECRET", "{robot.secret_id}").allow(&["*"]);
    let secret = "vault = \"auth/approle/role/robot/secret-id\"\nwrite = { ttl = \"18s\" }";
    let world = world(&bao).secret("robot", secret).server("tools", server).start();
    let mut harness = world.connected("tools");
    let first = process(&mut harness);
    assert!((0..=18).contains(&seconds_until_expiry(&world, "robot")), "{}", world.sessions());
    let value = variable(first, "SECRET");
    wait_until("another process has taken over", || process(&mut harness) != first);
    assert_ne!(variable(process(&mut harness), "SECRET"), value);
}

#[test]
fn a_token_of_kubernetes_is_replaced_before_its_end_and_its_lease_ends_with_it() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let cluster = Cluster::start(Duration::from_secs(18));
    cluster.prepare(&bao);
    let world = cluster.used_by(world(&bao)).start();
    let mut harness = world.connected("tools");
    let first = process(&mut harness);
    assert_eq!(cluster.issued(), [variable(first, "TOKEN")]);
    let lease = list(&bao, CREDS);
    assert_eq!(lease.len(), 1);
    assert!((0..=18).contains(&seconds_until_expiry(&world, "cluster")), "{}", world.sessions());
    wait_until("another process has taken over", || process(&mut harness) != first);
    assert!(cluster.issued()[1..].contains(&variable(process(&mut harness), "TOKEN")));
    wait_until("the first lease is gone", || !list(&bao, CREDS).contains(&lease[0]));
    leave(harness);
    wait_until("nothing is left", || list(&bao, CREDS).is_empty() && session_tokens(&bao).is_empty());
    // The cluster gets no request to revoke tokens: for the cluster they stay valid until they expire.
    assert_eq!(cluster.received.load(Ordering::SeqCst), cluster.issued().len());
    wait_until("the audit names what outlives the session", || {
        let is_end = |record: &Value| record["event"] == "link_end";
        let end = world.audit().into_iter().find(is_end).unwrap_or_default();
        end["detail"].as_str().is_some_and(|detail| detail.contains("; not revocable: `cluster` "))
    });
}

/// Live responses are rewritten: a lease that is too long, one without a duration, and no lease.
#[test]
fn a_web_token_is_replaced_before_its_own_expiry_whatever_its_lease_says() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let cluster = Cluster::start(Duration::from_secs(18));
    cluster.prepare(&bao);
    let changes: [(&str, Change); 3] = [
        ("a lease that is too long", |answer| {
            answer["lease_duration"] = json!(3600);
            answer["renewable"] = json!(true);
        }),
        ("a lease without a duration", |answer| {
            answer["lease_duration"] = json!(0);
            answer["renewable"] = json!(true);
        }),
        ("no lease", |answer| {
            answer["lease_duration"] = json!(0);
            answer["lease_id"] = json!("");
        }),
    ];
    for (what, change) in changes {
        let proxy = VaultFaultProxy::in_front_of(bao.listens_at);
        proxy.rule("kubernetes/creds/agent", Action::Rewrite(change));
        let world = cluster.used_by(world_with_vault_at(&proxy.address(), &token_file_auth(&bao))).start();
        let mut harness = world.connected("tools");
        let first = process(&mut harness);
        assert!((0..=18).contains(&seconds_until_expiry(&world, "cluster")), "{what}: {}", world.sessions());
        wait_until("another process has taken over", || process(&mut harness) != first);
        let tokens = BTreeSet::from([first, process(&mut harness)].map(|process| variable(process, "TOKEN")));
        assert_eq!(tokens.len(), 2, "{what}");
    }
}

/// The process that runs calls now.
#[track_caller]
fn process(harness: &mut Harness) -> u32 {
    harness.call_text("process", json!({})).parse().expect("a process's number")
}

/// The value of a process's environment variable.
#[track_caller]
fn variable(process: u32, name: &str) -> String {
    let (environment, begins) = (environment(process), format!("{name}="));
    let value = environment.split('\0').find_map(|entry| entry.strip_prefix(&begins));
    value.unwrap_or_else(|| panic!("no {name} in {environment}")).to_owned()
}

/// The seconds until a secret expires, as `cofferdam sessions` shows them; -1 for a secret without expiry.
#[track_caller]
fn seconds_until_expiry(world: &World, secret: &str) -> i64 {
    let sessions = world.sessions();
    let credentials = sessions[0]["credentials"].as_array().cloned().unwrap_or_default();
    let credential = credentials.into_iter().find(|credential| credential["secret"] == secret);
    let credential = credential.unwrap_or_else(|| panic!("no {secret} in {sessions}"));
    credential["expires-in-seconds"].as_i64().unwrap_or(-1)
}

/// The part of a cluster's API that issues tokens. Like a real cluster it sets their lifetime, which is longer in a
/// real one.
struct Cluster {
    address: SocketAddr,
    issued: Arc<Mutex<Vec<String>>>,
    /// The number of all requests.
    received: Arc<AtomicUsize>,
}

impl Cluster {
    fn start(life: Duration) -> Self {
        let issued = Arc::new(Mutex::new(Vec::new()));
        let received = Arc::new(AtomicUsize::new(0));
        let (issued_tokens, counted) = (Arc::clone(&issued), Arc::clone(&received));
        let address = listen(move |request| {
            counted.fetch_add(1, Ordering::SeqCst);
            let is_token_request = request.method == "POST"
                && request.path == "/api/v1/namespaces/agents/serviceaccounts/agent/token";
            match request.headers.get("authorization") {
                Some(bearer) if *bearer == format!("Bearer {ENGINE_TOKEN}") => {}
                _ => return Reply::Status(401),
            }
            if !is_token_request {
                return Reply::Status(404);
            }
            let made = now();
            let mut issued_tokens = issued_tokens.lock().expect("no holder of this lock panics");
            let token = web_token(made, life, issued_tokens.len());
            issued_tokens.push(token.clone());
            Reply::Json(json!({
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {}, "spec": {},
                "status": {"token": token, "expirationTimestamp": Rfc3339::from(made + life).as_str()},
            }))
        });
        Self { address, issued, received }
    }

    /// Mounts OpenBao's engine for this cluster and allows agents to use it.
    #[track_caller]
    fn prepare(&self, bao: &OpenBao) {
        bao.mount("kubernetes", "kubernetes");
        let config = json!({"kubernetes_host": format!("http://{}", self.address), "service_account_jwt": ENGINE_TOKEN, "disable_local_ca_jwt": true});
        bao.api("POST", "kubernetes/config", config);
        let role = json!({"allowed_kubernetes_namespaces": ["agents"], "service_account_name": "agent", "token_default_ttl": "10m"});
        bao.api("POST", "kubernetes/roles/agent", role);
        bao.policy("agent", &[("kubernetes/creds/agent", &["update"])]);
    }

    /// Adds a server that uses a token of this cluster.
    fn used_by(&self, builder: cofferdam_tests::world::Builder) -> cofferdam_tests::world::Builder {
        let secret = "vault = \"kubernetes/creds/agent\"\nwrite = { kubernetes_namespace = \"agents\" }";
        let server = Server::fixture().env("TOKEN", "{cluster.service_account_token}").allow(&["*"]);
        builder.secret("cluster", secret).server("tools", server)
    }

    fn issued(&self) -> Vec<String> {
        self.issued.lock().expect("no holder of this lock panics").clone()
    }
}

/// A JWT without a valid signature, which nothing in this test checks.
fn web_token(made: SystemTime, life: Duration, number: usize) -> String {
    let made = made.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let claims = json!({
        "sub": "system:serviceaccount:agents:agent", "jti": number.to_string(),
        "iat": made, "nbf": made, "exp": made + life.as_secs(),
    });
    let parts = [json!({"alg": "RS256"}).to_string(), claims.to_string(), "signature".to_owned()];
    parts.map(|part| base64url(part.as_bytes())).join(".")
}
