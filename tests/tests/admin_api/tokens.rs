//! Bearer tokens: their rights, expiry, revocation and storage.

use std::time::Duration;

use cofferdam_tests::deadline::holds_within;

use super::*;

fn token(world: &World, arguments: &[&str]) -> String {
    world.cofferdam_text(&[&["token", "create"], arguments].concat()).trim().to_owned()
}

/// The id in the text of a token.
pub(crate) fn id_of(token: &str) -> &str {
    token.split('_').nth(1).expect("a token has an id")
}

#[test]
fn a_token_can_neither_see_nor_change_anything_of_other_grants() {
    let world = two_grants().start();
    let admin = AdminClient::socket(&world);
    let dev = admin.with_token(&token(&world, &["--grant", "dev"]));
    let other = admin.with_token(&token(&world, &["--grant", "other"]));
    let both = admin.with_token(&token(&world, &["--grant", "dev", "--grant", "other"]));

    let mut events = watch(&other);
    let theirs = enrol(&dev, "dev", "of-dev")["enrolment"].as_str().unwrap().to_owned();
    let _shim = world.connected("tools");
    let mut holding = admin.open(&hold(&admin, "dev", "held"));
    read_until(&mut *holding, "attaching");
    let sessions = admin.get("/v1/sessions").ok();
    let session = sessions["sessions"][0]["session"].as_str().unwrap();
    let held = sessions["attached"][0]["enrolment"].as_str().unwrap();

    assert_eq!(other.get("/v1/sessions").ok(), json!({"sessions": [], "attached": []}));
    assert_eq!(other.get("/v1/enrolments").ok(), json!({"enrolments": []}));
    for name in [session, &theirs, "of-dev", "held", held] {
        assert_eq!(other.post("/v1/kill", &json!({"session": name})).refusal(), (404, "not_found"), "{name}");
        assert_eq!(other.delete(&format!("/v1/enrolments/{name}")).refusal(), (404, "not_found"), "{name}");
    }
    let upgrade = "connection: upgrade\r\nupgrade: cofferdam-pipe\r\n";
    let pipe = other.raw(&other.request("POST", &format!("/v1/attach/{held}/pipe"), upgrade, "")).unwrap();
    assert_eq!(pipe.refusal(), (404, "not_found"));
    for grant in ["dev", "nowhere"] {
        let refused = other.post("/v1/enrolments", &json!({"grant": grant}));
        assert_eq!(refused.refusal(), (403, "forbidden"), "{grant}");
        assert_eq!(other.raw(&hold(&other, grant, "box")).unwrap().refusal(), (403, "forbidden"), "{grant}");
    }

    for (method, path, body) in [
        ("POST", "/v1/reload", None),
        ("GET", "/v1/tokens", None),
        ("POST", "/v1/tokens", Some(json!({"grants": ["other"]}))),
        ("DELETE", "/v1/tokens/t1", None),
        ("POST", "/v1/enrolments", Some(json!({"grant": "other", "socket": "/tmp/of-a-token"}))),
    ] {
        let refused = other.send(method, path, body.as_ref());
        assert_eq!(refused.refusal(), (403, "forbidden"), "{method} {path}");
    }

    // Changes of its own grant are seen, and earlier changes of the other grant are not.
    enrol(&other, "other", "of-other");
    let seen = read_until(&mut *events, "event: enrolment-created");
    assert!(seen.contains("of-other") && !seen.contains("dev"), "{seen}");
    assert_eq!(other.get("/v1/enrolments").ok()["enrolments"].as_array().unwrap().len(), 1);
    assert_eq!(dev.get("/v1/enrolments").ok()["enrolments"].as_array().unwrap().len(), 2);
    assert_eq!(both.get("/v1/enrolments").ok()["enrolments"].as_array().unwrap().len(), 3);
    assert_eq!(dev.get("/v1/sessions").ok()["sessions"][0]["session"], session);
    other.delete("/v1/enrolments/of-other").ok();
    dev.post("/v1/kill", &json!({"session": session})).ok();
    assert_eq!(admin.get("/v1/sessions").ok()["sessions"], json!([]));
}

#[test]
fn tokens_and_revocations_survive_a_restart() {
    let mut world = two_grants().start();
    let admin = AdminClient::socket(&world);
    let (kept, revoked) =
        (token(&world, &["--grant", "dev", "--name", "ci"]), token(&world, &["--grant", "dev"]));
    world.cofferdam_text(&["token", "revoke", id_of(&revoked)]);
    assert_eq!(admin.with_token(&revoked).get("/v1/sessions").refusal(), (401, "unauthorized"));
    world.stop_sidecar();
    world.start_sidecar();
    admin.with_token(&kept).get("/v1/sessions").ok();
    assert_eq!(admin.with_token(&revoked).get("/v1/sessions").refusal(), (401, "unauthorized"));
    let list = world.cofferdam_text(&["token", "list"]);
    assert!(list.contains(id_of(&kept)) && list.contains("ci") && !list.contains(id_of(&revoked)), "{list}");
    assert_eq!(world.cofferdam(&["token", "revoke", id_of(&revoked)]).status.code(), Some(66));
    assert_eq!(world.cofferdam(&["token", "create", "--grant", "nowhere"]).status.code(), Some(64));

    let secret = kept.rsplit('_').next().unwrap();
    for text in [world.log(), list] {
        assert!(!text.contains(secret), "{text}");
    }
    for entry in std::fs::read_dir(world.layout().state.join("tokens")).unwrap() {
        assert!(!std::fs::read_to_string(entry.unwrap().path()).unwrap().contains(secret));
    }
    world.assert_secret_not_leaked(secret);
}

#[test]
fn a_token_is_refused_by_another_sidecar() {
    let (one, two) = (two_grants().start(), two_grants().start());
    let token = token(&one, &["--grant", "dev"]);
    AdminClient::socket(&one).with_token(&token).get("/v1/sessions").ok();
    assert_eq!(
        AdminClient::socket(&two).with_token(&token).get("/v1/sessions").refusal(),
        (401, "unauthorized")
    );
}

#[test]
fn streams_end_when_their_token_expires_or_is_revoked() {
    let world = two_grants().start();
    let admin = AdminClient::socket(&world);
    let short = admin.with_token(&token(&world, &["--grant", "dev", "--ttl", "2s"]));
    let mut events = watch(&short);
    assert!(ends(&mut *events));
    assert_eq!(short.get("/v1/sessions").refusal(), (401, "unauthorized"));
    assert!(short.get("/v1/sessions").body.to_string().contains("expired"));

    let text = token(&world, &["--grant", "dev"]);
    let client = admin.with_token(&text);
    let (mut events, mut holding) = (watch(&client), client.open(&hold(&client, "dev", "box")));
    read_until(&mut *holding, "attaching");
    world.cofferdam_text(&["token", "revoke", id_of(&text)]);
    assert!(ends(&mut *events) && ends(&mut *holding));
    let detached = || admin.get("/v1/sessions").ok()["attached"][0]["state"] == "detached";
    assert!(holds_within(Duration::from_secs(5), detached), "the sandbox is still held");
}
