//! What Vault may hold, or be asked, that is no use: refused clearly, with path and server, and nothing else is harmed.
//!
//! A path that the policies deny, a field that is missing, empty or nested: `tests/tests/vault.rs`. Certificates of
//! another name: `vault_outages::changes`. Answers that are torn, huge or no answers at all: `vault_client::answers`.

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::harness::Harness;
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::server::Server;
use cofferdam_tests::toll::{Act, Toll};
use cofferdam_tests::vault::{
    CANARY, connected, connected_at, file, leases, leave, prepared, token_file, tokens, with_certificate_in,
    world,
};
use cofferdam_tests::vault_logins::{approle, secret_id, signed_web_token, wrapped_secret_id};
use cofferdam_tests::world::{Builder, World};
use serde_json::{Value, json};

/// With a server that has nothing to do with what is bad.
fn beside_a_good_one(builder: Builder) -> Builder {
    builder
        .secret("github", "kv = \"secret/github\"")
        .server("good", Server::fixture().env("SECRET", "{github.token}").allow(&["*"]))
}

fn uses(template: &str) -> Server {
    Server::fixture().env("SECRET", template).allow(&["*"])
}

/// The server is refused in these words, and the good one serves as it did.
#[track_caller]
fn refuses(world: &World, server: &str, words: &[&str]) -> String {
    let mut good = world.connected("good");
    let refusal = refused(&mut world.shim(server), server, words);
    assert!(good.call("echo", json!({"text": "x"})).get("result").is_some());
    refusal
}

#[track_caller]
fn refused(harness: &mut Harness, server: &str, words: &[&str]) -> String {
    let answer = harness.initialize();
    let text = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
    let server = format!("`{server}`");
    for word in ["credential_unavailable", server.as_str()].iter().chain(words) {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(!text.contains(CANARY), "{text}");
    text
}

/// What is made of an answer of Vault's.
type Change = fn(&mut Value);

#[test]
fn a_mount_that_is_not_there() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let all: &[&str] = &["read", "update"];
    bao.policy("agent", &[("secret/data/github", &["read"]), ("nomount/*", all)]);
    let world = beside_a_good_one(world(&bao))
        .secret("stored", "kv = \"nomount/github\"")
        .secret("made", "vault = \"nomount/creds/agent\"")
        .secret("written", "vault = \"nomount/issue/agent\"\nwrite = { name = \"x\" }")
        .server("stored", uses("{stored.token}"))
        .server("made", uses("{made.token}"))
        .server("written", uses("{written.token}"))
        .start();
    for (server, path) in [
        ("stored", "GET `nomount/github`"),
        ("made", "GET `nomount/creds/agent`"),
        ("written", "POST `nomount/issue/agent`"),
    ] {
        refuses(&world, server, &[path, "HTTP 404", "is the path right, mount and all"]);
    }
}

#[test]
fn values_that_are_no_texts_and_secrets_that_are_empty() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let odd = json!({"number": 1234567890, "real": 12345678.5, "flag": true, "nothing": null, "list": ["a"], "short": "x"});
    bao.api("POST", "secret/data/odd", json!({"data": odd}));
    bao.api("POST", "secret/data/empty", json!({"data": {}}));
    bao.api("POST", "secret/data/deleted", json!({"data": {"token": CANARY}}));
    bao.api("DELETE", "secret/data/deleted", Value::Null);
    bao.policy("agent", &[("secret/data/*", &["read"])]);
    let fields = ["number", "real", "flag", "nothing", "list", "short"];
    let mut builder = beside_a_good_one(world(&bao))
        .secret("odd", "kv = \"secret/odd\"")
        .secret("empty", "kv = \"secret/empty\"")
        .secret("deleted", "kv = \"secret/deleted\"")
        .server("empty", uses("{empty.token}"))
        .server("deleted", uses("{deleted.token}"));
    for field in fields {
        builder = builder.server(field, uses(&format!("{{odd.{field}}}")));
    }
    let world = builder.start();
    // Numbers are used as they are written there.
    for (field, value) in [("number", "1234567890"), ("real", "12345678.5")] {
        let _harness = world.connected(field);
        let process = world.fixture_processes(field)[0];
        let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap();
        let environment = String::from_utf8_lossy(&environment).into_owned();
        assert!(environment.contains(&format!("SECRET={value}")), "{field}");
    }
    for (server, why) in [
        ("flag", "its field `flag` has 4 bytes, fewer than 8"),
        ("short", "its field `short` has 1 bytes, fewer than 8"),
        ("nothing", "its field `nothing` is null, a list or an object"),
        ("list", "its field `list` is null, a list or an object"),
    ] {
        refuses(&world, server, &[why, "secret/odd"]);
    }
    refuses(&world, "empty", &["secret/empty", "it is empty"]);
    refuses(&world, "deleted", &["secret/data/deleted", "Vault has nothing there"]);
}

#[test]
fn a_wrapped_secret_id_that_somebody_opened_before_us() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let role_id = approle(&bao, json!({"token_policies": ["sidecar", "agent"], "token_ttl": "10m"}));
    let stolen = wrapped_secret_id(&bao);
    bao.call("POST", "sys/wrapping/unwrap", Some(&stolen), &json!({}));
    let wrapped = file(&bao, "wrapped", &stolen);
    let auth = format!(
        "auth = {{ method = \"approle\", role-id-file = {role_id:?}, secret-id-file = {wrapped:?}, secret-id-wrapped = true, role = \"agent\" }}"
    );
    let toll = Toll::before(bao.place);
    let world = with_certificate_in(connected_at(&toll.address(), &auth))
        .server("own", Server::fixture().allow(&["*"]))
        .start();
    let mut harness = world.shim("tools");
    let words = ["sys/wrapping/lookup", "ALERT", "already unwrapped", "destroy that secret-id"];
    for _ in 0..3 {
        refused(&mut harness, "tools", &words);
    }
    // Told in the log and the audit, and not asked again and again.
    assert!(world.log().contains("ALERT: the wrapped secret-id was already unwrapped"));
    let alerts = || world.audit().iter().filter(|record| record["event"] == "alert").count();
    wait_until("the audit has the alert", || alerts() == 1);
    assert_eq!(toll.count("sys/wrapping/lookup"), 1);
    assert!(!world.log().contains(&stolen));
    assert!(world.connected("own").call("echo", json!({"text": "x"})).get("result").is_some());
    file(&bao, "wrapped", &wrapped_secret_id(&bao));
    wait_until("another one helps", || harness.initialize().get("result").is_some());
    assert_eq!(alerts(), 1);
}

#[test]
fn a_wrapped_secret_id_whose_answer_was_lost_may_be_ours() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let role_id = approle(&bao, json!({"token_policies": ["sidecar", "agent"], "token_ttl": "10m"}));
    let wrapped = file(&bao, "wrapped", &wrapped_secret_id(&bao));
    let auth = format!(
        "auth = {{ method = \"approle\", role-id-file = {role_id:?}, secret-id-file = {wrapped:?}, secret-id-wrapped = true, role = \"agent\" }}"
    );
    let toll = Toll::before(bao.place);
    toll.rule("sys/wrapping/unwrap", Act::CutAfter(60));
    let world = with_certificate_in(connected_at(&toll.address(), &auth)).start();
    let mut harness = world.shim("tools");
    wait_until("the second try is an alert", || {
        harness.initialize()["error"]["message"].as_str().is_some_and(|text| text.contains("ALERT"))
    });
    refused(
        &mut harness,
        "tools",
        &["in an answer that was lost, or to somebody else", "destroy that secret-id"],
    );
    assert_eq!(toll.count("sys/wrapping/unwrap"), 1, "it is opened once");
    toll.open();
    file(&bao, "wrapped", &wrapped_secret_id(&bao));
    wait_until("another one helps", || harness.initialize().get("result").is_some());
}

#[test]
fn a_secret_id_that_is_used_up() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let settings = json!({"token_policies": ["sidecar", "agent"], "token_ttl": "2s", "token_max_ttl": "2s", "secret_id_num_uses": 1});
    let role_id = approle(&bao, settings);
    let secret = file(&bao, "secret-id", &secret_id(&bao));
    let auth =
        format!("auth = {{ method = \"approle\", role-id-file = {role_id:?}, secret-id-file = {secret:?} }}");
    let world = with_certificate_in(beside_a_good_one(connected(&bao, &auth))).start();
    let mut good = world.connected("good");
    wait_until("the login's life is over", || {
        world.log().contains("Vault did not keep the login")
            && tokens(&bao, |token| token["display_name"] == "approle").is_empty()
    });
    let mut harness = world.shim("tools");
    let used_up = std::fs::read_to_string(&secret).unwrap();
    let text = refused(
        &mut harness,
        "tools",
        &["POST `auth/approle/login`", "HTTP 400", "correct the path, the role"],
    );
    assert!(!text.contains(&used_up) && !world.log().contains(&used_up), "{text}");
    assert!(
        good.call("echo", json!({"text": "x"})).get("result").is_some(),
        "a value that was only read goes on"
    );
    bao.api(
        "POST",
        "auth/approle/role/agent",
        json!({"secret_id_num_uses": 0, "token_ttl": "10m", "token_max_ttl": "1h"}),
    );
    file(&bao, "secret-id", &secret_id(&bao));
    wait_until("another one helps", || harness.initialize().get("result").is_some());
}

#[test]
fn web_tokens_of_another_time() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let claims = |not_before: u64, expires: u64| json!({"sub": "job", "aud": "vault", "iat": 1_700_000_000_u64, "nbf": not_before, "exp": expires});
    let good = signed_web_token(&bao, &claims(1_700_000_000, 4_000_000_000));
    let over = signed_web_token(&bao, &claims(1_700_000_000, 1_700_000_600));
    let early = signed_web_token(&bao, &claims(3_900_000_000, 4_000_000_000));
    let path = file(&bao, "jwt", &over);
    let auth = format!("auth = {{ method = \"jwt\", role = \"agent\", jwt-file = {path:?} }}");
    let world =
        with_certificate_in(connected(&bao, &auth)).server("own", Server::fixture().allow(&["*"])).start();
    let mut harness = world.shim("tools");
    refused(&mut harness, "tools", &["POST `auth/jwt/login`", "HTTP 400"]);
    // What Vault says of it is told on the host alone.
    assert!(world.log().contains("expired"));
    file(&bao, "jwt", &early);
    wait_until("the other one was read", || {
        refused(&mut harness, "tools", &["POST `auth/jwt/login`"]);
        world.log().contains("not yet valid") || world.log().contains("not valid yet")
    });
    assert!(world.connected("own").call("echo", json!({"text": "x"})).get("result").is_some());
    for text in [&over, &early] {
        assert!(!world.log().contains(text.rsplit('.').next().unwrap()));
    }
    file(&bao, "jwt", &good);
    wait_until("one of now helps", || harness.initialize().get("result").is_some());
}

/// What no server says: rewritten in live answers.
#[test]
fn rewritten_lives_of_nothing_and_of_for_ever_neither_spin_nor_harm() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let changes: [(&str, Change); 6] = [
        ("a lease of 0", |answer| answer["lease_duration"] = json!(0)),
        ("a renewable lease of 0", |answer| {
            answer["lease_duration"] = json!(0);
            answer["renewable"] = json!(true);
        }),
        ("a lease of a century", |answer| answer["lease_duration"] = json!(100_u64 * 365 * 24 * 3600)),
        ("a lease of all time", |answer| {
            answer["lease_duration"] = json!(u64::MAX);
            answer["renewable"] = json!(true);
        }),
        ("no lease, over long ago by this clock", |answer| {
            answer["lease_id"] = json!("");
            answer["lease_duration"] = json!(0);
            answer["data"]["expiration"] = json!(1_700_000_000);
        }),
        ("no lease, and a century", |answer| {
            answer["lease_id"] = json!("");
            answer["lease_duration"] = json!(0);
            answer["data"]["ttl"] = json!(u64::MAX);
        }),
    ];
    for (what, change) in changes {
        let toll = Toll::before(bao.place);
        toll.rule("pki/issue", Act::Rewrite(change));
        let world = with_certificate_in(connected_at(&toll.address(), &token_file(&bao))).start();
        let mut harness = world.connected("tools");
        let asked = toll.count("");
        for _ in 0..50 {
            assert!(harness.call("echo", json!({"text": "x"})).get("result").is_some(), "{what}");
        }
        let again = toll.count("") - asked;
        assert!(again <= 5, "{what}: {again} more requests: {:?}", toll.seen());
        assert!(!world.log().contains("panicked"), "{what}");
        leave(harness);
        wait_until("the lease is gone with its token", || leases(&bao) == 0);
    }
}

#[test]
fn rewritten_lives_of_tokens_neither_spin_nor_harm() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let changes: [(&str, &str, Change); 4] = [
        ("auth/token/create", "a century", |answer| answer["auth"]["lease_duration"] = json!(u64::MAX)),
        ("auth/token/create", "nothing", |answer| answer["auth"]["lease_duration"] = json!(0)),
        ("auth/token/lookup-self", "a century", |answer| answer["data"]["ttl"] = json!(u64::MAX)),
        ("auth/token/lookup-self", "a second", |answer| answer["data"]["ttl"] = json!(1)),
    ];
    for (path, what, change) in changes {
        let toll = Toll::before(bao.place);
        toll.rule(path, Act::Rewrite(change));
        let world = with_certificate_in(connected_at(&toll.address(), &token_file(&bao))).start();
        let mut harness = world.connected("tools");
        for _ in 0..50 {
            assert!(harness.call("echo", json!({"text": "x"})).get("result").is_some(), "{path}: {what}");
        }
        assert!(toll.count("") <= 25, "{path}: {what}: {:?}", toll.seen());
        leave(harness);
        wait_until("nothing is left", || leases(&bao) == 0);
    }
}

/// No rewriting: a server whose mounts allow it does give out leases of a hundred years.
#[test]
fn a_real_lease_of_a_hundred_years_ends_with_its_session() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let century = format!("{}h", 100 * 365 * 24);
    let longer = format!("{}h", 120 * 365 * 24);
    bao.api("POST", "sys/mounts/pki/tune", json!({"max_lease_ttl": longer}));
    bao.api("DELETE", "pki/root", Value::Null);
    bao.api(
        "POST",
        "pki/root/generate/internal",
        json!({"common_name": "old", "ttl": longer, "key_type": "ec"}),
    );
    let role = json!({"allow_any_name": true, "enforce_hostnames": false, "generate_lease": true, "ttl": century, "max_ttl": century, "key_type": "ec"});
    bao.api("POST", "pki/roles/agent", role);
    let world = with_certificate_in(connected(&bao, &token_file(&bao))).start();
    let harness = world.connected("tools");
    assert_eq!(leases(&bao), 1);
    leave(harness);
    wait_until("the lease is gone", || leases(&bao) == 0);
}
