//! HTTP servers whose credentials are in a real OpenBao: every request has the newest credential, a credential that the
//! server refuses is read again once, and without a credential requests are refused with the reason. Two tests show parts
//! of this without HTTP or without OpenBao: which read the audit names for a server process, and a secret in a file.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::harness::{Harness, refusal_of};
use cofferdam_tests::http_fixture::{Behaviour, HttpFixture, Sessions};
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::server::Server;
use cofferdam_tests::vault::{CANARY, prepared, token_file_auth, world, world_with_vault_at};
use cofferdam_tests::vault_fault_proxy::{Action, VaultFaultProxy};
use cofferdam_tests::world::World;
use serde_json::{Value, json};

const NEXT: &str = "ghp-CANARY-after-rotation-0815";

#[test]
fn every_request_has_the_newest_header_and_the_audit_names_its_read() {
    let Some(bao) = prepared(OpenBao::configured()) else { return };
    let server = HttpFixture::start(Behaviour::Json);
    let world = world(&bao)
        .secret("github", "kv = \"secret/github\"\nrefresh = \"1s\"")
        .server("remote", bearer(&server))
        .capturing()
        .start();
    let mut shim = world.connected("remote");
    shim.call_text("headers", json!({}));
    assert_eq!(server.authorizations(), [format!("Bearer {CANARY}")]);
    let first = vault_request(&world);
    rotate(&bao, NEXT);
    wait_until("the new value is sent", || {
        shim.call_text("headers", json!({}));
        server.authorizations().last() == Some(&format!("Bearer {NEXT}"))
    });
    shim.call_text("headers", json!({}));
    let last = vault_request(&world);
    assert_ne!(first, last);
    // Vault's own audit has that read, by a token of this session.
    let session = world.sessions()[0]["session"].clone();
    let found =
        bao.audit().into_iter().find(|line| line["type"] == "response" && line["request"]["id"] == last);
    let found = found.unwrap_or_else(|| panic!("{last} is not in Vault's audit"));
    assert_eq!(found["request"]["path"], "secret/data/github");
    assert_eq!(found["auth"]["metadata"]["session"], session, "{found}");
    for value in [CANARY, NEXT] {
        world.assert_secret_not_leaked(value);
    }
}

#[test]
fn a_refused_credential_is_read_again_once_and_the_calls_run() {
    let Some(bao) = prepared(OpenBao::configured()) else { return };
    let (accepted, server) = accepting(CANARY);
    let world =
        world(&bao).secret("github", "kv = \"secret/github\"").server("remote", bearer(&server)).start();
    let mut shim = world.connected("remote");
    shim.call_text("headers", json!({}));
    assert_eq!(reads(&bao), 1);
    rotate(&bao, NEXT);
    *accepted.lock().unwrap() = format!("Bearer {NEXT}");
    let calls: Vec<_> = (0..8).map(|_| shim.send_call("headers", json!({}))).collect();
    for call in &calls {
        let answer = shim.answer_to(call);
        assert!(answer.get("result").is_some(), "{answer}");
    }
    assert_eq!(reads(&bao), 2, "refused requests did not share one read");
    let sent = server.authorizations();
    assert_eq!(sent.iter().filter(|sent| **sent == format!("Bearer {NEXT}")).count(), 8, "{sent:?}");
    // The first call ran with the read that its decision names. The others ran with the second read: where a decision
    // names the first read, its outcome names the second.
    let reads = read_requests(&bao);
    let (decisions, outcomes) = (world.decisions(), world.outcomes());
    assert_eq!((decisions.len(), outcomes.len(), reads.len()), (9, 9, 2));
    let read = |number: usize| json!([{"name": "github", "vault_request": reads[number]}]);
    assert_eq!((&decisions[0]["secrets"], outcomes[0].get("secrets")), (&read(0), None), "{}", outcomes[0]);
    assert_eq!(decisions[1]["secrets"], read(0));
    for decision in &decisions[1..] {
        let outcome = outcomes.iter().find(|outcome| outcome["seq"] == decision["seq"]).unwrap();
        let other = (decision["secrets"] == read(0)).then(|| read(1));
        assert_eq!(outcome.get("secrets"), other.as_ref(), "{decision} {outcome}");
    }
}

#[test]
fn a_call_that_waited_for_its_credential_is_audited_with_the_read_that_it_waited_for() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let server = HttpFixture::start(Behaviour::Json);
    let proxy = VaultFaultProxy::in_front_of(bao.listens_at);
    let write = "write = { common_name = \"agent.internal\", ttl = \"6s\" }";
    let world = world_with_vault_at(&proxy.address(), &token_file_auth(&bao))
        .secret("cert", &format!("vault = \"pki/issue/agent\"\n{write}"))
        .server("remote", local(&server).header("Authorization", "Serial {cert.serial_number}"))
        .start();
    let mut shim = world.connected("remote");
    // The credential is read again before it expires, and the delayed read ends only after the expiry.
    proxy.rule("pki/issue", Action::Delay(Duration::from_secs(3)));
    let mut waited = None;
    wait_until("a call has waited", || {
        // On a busy machine some calls wait too long and are refused.
        call_headers(&mut shim);
        waited = world.outcomes().into_iter().find(|outcome| outcome.get("secrets").is_some());
        waited.is_some()
    });
    let waited = waited.unwrap();
    let decisions = world.decisions();
    let decided = decisions.iter().find(|decision| decision["seq"] == waited["seq"]).unwrap();
    for what in ["lease", "vault_request"] {
        let (before, after) = (&decided["secrets"][0][what], &waited["secrets"][0][what]);
        assert!(before.is_string() && after.is_string() && before != after, "{decided} {waited}");
    }
    call_headers(&mut shim);
    assert_eq!(world.decisions().pop().unwrap()["secrets"], waited["secrets"]);
}

#[test]
fn a_call_that_waited_for_a_process_is_audited_with_the_read_of_that_process() {
    let Some(bao) = prepared(OpenBao::configured()) else { return };
    let server = Server::fixture().env("SECRET", "{github.token}").allow(&["*"]);
    let world = world(&bao).secret("github", "kv = \"secret/github\"").server("tools", server).start();
    let mut shim = world.connected("tools");
    shim.call_text("env", json!({}));
    let of = |method: &str, kind: &str| {
        let is_it = |record: &Value| record["method"] == method && record["kind"] == kind;
        let mut found = None;
        wait_until("the record is written", || {
            found = world.audit().into_iter().find(is_it);
            found.is_some()
        });
        found.unwrap()
    };
    // When the handshake was decided on, nothing was read yet.
    assert_eq!(of("initialize", "decision")["secrets"], json!([{"name": "github"}]));
    let read = json!([{"name": "github", "vault_request": read_requests(&bao)[0]}]);
    assert_eq!(of("initialize", "outcome")["secrets"], read);
    // For a call that does not wait, only the decision names the read.
    assert_eq!(of("tools/call", "decision")["secrets"], read);
    assert_eq!(of("tools/call", "outcome").get("secrets"), None);
}

#[test]
fn a_replayed_handshake_without_a_valid_credential_is_refused_with_the_reason() {
    let Some(bao) = prepared(OpenBao::configured()) else { return };
    let sessions = Sessions { accepted: format!("Bearer {CANARY}"), number: 0 };
    let sessions = Arc::new(Mutex::new(sessions));
    let server = HttpFixture::start(Behaviour::KeepsNewestSession(Arc::clone(&sessions)));
    let world =
        world(&bao).secret("github", "kv = \"secret/github\"").server("remote", bearer(&server)).start();
    let mut shim = world.connected("remote");
    shim.call_text("headers", json!({}));
    // The server expires the session and accepts only another credential for a new one, and Vault is sealed.
    bao.seal();
    *sessions.lock().unwrap() = Sessions { accepted: format!("Bearer {NEXT}"), number: 7 };
    for _ in 0..3 {
        let refused = shim.call("headers", json!({}));
        assert_eq!(refusal_of(&refused), "credential_unavailable", "{refused}");
        for word in ["it did not run", "HTTP 401", "the secret `github`", "sealed", "tried again in "] {
            assert!(refused.to_string().contains(word), "{word}: {refused}");
        }
        assert_eq!(refused.to_string().matches("it did not run").count(), 1, "{refused}");
    }
    bao.unseal();
    rotate(&bao, NEXT);
    wait_until("the session is open again", || shim.call("headers", json!({})).get("result").is_some());
}

#[test]
fn a_server_that_refuses_everything_does_not_cause_a_read_for_each_call() {
    let Some(bao) = prepared(OpenBao::configured()) else { return };
    let (accepted, server) = accepting(CANARY);
    let world =
        world(&bao).secret("github", "kv = \"secret/github\"").server("remote", bearer(&server)).start();
    let mut shim = world.connected("remote");
    *accepted.lock().unwrap() = "nothing".into();
    #[expect(
        clippy::disallowed_methods,
        reason = "how many reads are allowed depends on the time that passed"
    )]
    let began = Instant::now();
    for _ in 0..40 {
        let refused = shim.call("headers", json!({}));
        assert_eq!(refusal_of(&refused), "credential_unavailable", "{refused}");
        for word in ["it did not run", "HTTP 401", "the secret `github`"] {
            assert!(refused.to_string().contains(word), "{word}: {refused}");
        }
        assert!(!refused.to_string().contains(CANARY), "{refused}");
    }
    assert!(world.log().contains("it is from Vault's `secret/github`"), "{}", world.log());
    let allowed = 2 + began.elapsed().as_secs() as usize / 5;
    assert!((2..=allowed).contains(&reads(&bao)), "{} reads, {allowed} allowed", reads(&bao));
    // The same value came back each time, so nothing was sent twice.
    assert_eq!(server.authorizations().len(), 40);
    // When the user stores a new value, the next read finds it, without a restart.
    rotate(&bao, NEXT);
    *accepted.lock().unwrap() = format!("Bearer {NEXT}");
    wait_until("the new value is found", || shim.call("headers", json!({})).get("result").is_some());
}

#[test]
fn a_changed_file_is_found_when_the_server_refuses_what_was_in_it() {
    let accepted = Arc::new(Mutex::new(format!("Bearer {CANARY}")));
    let server = HttpFixture::start(Behaviour::Accepts(Arc::clone(&accepted)));
    let mut world = World::new()
        .secret_file("github", &json!({"token": CANARY}).to_string())
        .server("remote", bearer(&server))
        .start();
    let mut shim = world.connected("remote");
    shim.call_text("headers", json!({}));
    world.rewrite(|builder| builder.secret_file("github", &json!({"token": NEXT}).to_string()));
    *accepted.lock().unwrap() = format!("Bearer {NEXT}");
    shim.call_text("headers", json!({}));
    assert_eq!(server.authorizations().last(), Some(&format!("Bearer {NEXT}")));
}

#[test]
fn an_expired_credential_while_vault_is_silent_is_refused_and_recovers() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let (server, other) = (HttpFixture::start(Behaviour::Json), HttpFixture::start(Behaviour::Json));
    let write = "write = { common_name = \"agent.internal\", ttl = \"4s\" }";
    let world = world(&bao)
        .secret("cert", &format!("vault = \"pki/issue/agent\"\n{write}"))
        .server("remote", local(&server).header("Authorization", "Serial {cert.serial_number}"))
        .server("other", local(&other))
        .start();
    let (mut shim, mut neighbour) = (world.connected("remote"), world.connected("other"));
    shim.call_text("headers", json!({}));
    let before = server.authorizations();
    bao.freeze();
    let mut refused = Value::Null;
    wait_until("the credential has expired", || {
        refused = call_headers(&mut shim);
        refused.get("result").is_none()
    });
    assert_eq!(refusal_of(&refused), "credential_unavailable", "{refused}");
    for word in ["it did not run", "the secret `cert`", "tried again in "] {
        assert!(refused.to_string().contains(word), "{word}: {refused}");
    }
    neighbour.call_text("headers", json!({}));
    bao.thaw();
    wait_until("a new credential is sent", || call_headers(&mut shim).get("result").is_some());
    assert_ne!(server.authorizations().last(), before.last());
}

/// Makes a call. A call that waits for its credential gets a response within ten seconds.
#[track_caller]
fn call_headers(harness: &mut Harness) -> Value {
    let call = harness.send_call("headers", json!({}));
    // Some more for a machine that is busy.
    harness.answer_within(&call, Duration::from_secs(20)).expect("a response within 20 s")
}

fn local(server: &HttpFixture) -> Server {
    Server::http(&server.url()).line("private = true")
}

/// A server that accepts one value of `Authorization`, which the test can change.
fn accepting(token: &str) -> (Arc<Mutex<String>>, HttpFixture) {
    let accepted = Arc::new(Mutex::new(format!("Bearer {token}")));
    let server = HttpFixture::start(Behaviour::Accepts(Arc::clone(&accepted)));
    (accepted, server)
}

fn bearer(server: &HttpFixture) -> Server {
    local(server).header("Authorization", "Bearer {github.token}")
}

#[track_caller]
fn rotate(bao: &OpenBao, value: &str) {
    bao.write_secret("github", json!({"token": value}));
}

/// How often the secret was read by a token of a session.
fn reads(bao: &OpenBao) -> usize {
    read_requests(bao).len()
}

/// Vault's request ids of the reads of the secret by tokens of sessions.
fn read_requests(bao: &OpenBao) -> Vec<Value> {
    let is_read = |line: &&Value| {
        line["type"] == "response"
            && line["request"]["path"] == "secret/data/github"
            && line["auth"]["metadata"]["session"].is_string()
    };
    bao.audit().iter().filter(is_read).map(|line| line["request"]["id"].clone()).collect()
}

/// Vault's id of the read whose value the last call was decided with.
#[track_caller]
fn vault_request(world: &World) -> String {
    let decision = world.decisions().pop().expect("there was a call");
    let id = decision["secrets"][0]["vault_request"].as_str();
    id.unwrap_or_else(|| panic!("{decision} does not name the read")).to_owned()
}
