//! The admin API for the command line and for orchestrators, on a real sidecar.

mod actions;
mod live;
mod names;
mod openapi;
mod pipes;
mod tls;
mod tokens;
mod watch;

use std::io::Write as _;

use cofferdam_tests::admin::{AdminClient, Stream, ends, read_until};
use cofferdam_tests::attach::{Attach, connected, exec_hub};
use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::harness::refusal_of;
use cofferdam_tests::port::free_address;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::{Builder, World};
use serde_json::{Value, json};

/// A configuration with two grants: `dev`, which is also the grant of the shared socket, and `other`.
fn two_grants() -> Builder {
    let tls = free_address();
    World::new()
        .server("tools", Server::fixture())
        .relay(&format!("tls = \"{tls}\""))
        .admin("[grants.other]\nservers = [\"tools\"]\nttl = \"1h\"")
}

fn enrol(client: &AdminClient, grant: &str, name: &str) -> Value {
    client.post("/v1/enrolments", &json!({"grant": grant, "name": name})).ok()
}

/// Sends `GET /v1/events` and waits for the first event of the stream.
fn watch(client: &AdminClient) -> Box<dyn Stream> {
    let mut events = client.open(&client.request("GET", "/v1/events", "", ""));
    read_until(&mut *events, "event: ready");
    events
}

const UPGRADE_TO_HOLD: &str =
    "connection: upgrade\r\nupgrade: cofferdam-hold\r\ncontent-type: application/json\r\n";

/// The request of `POST /v1/attach`. The sandbox stays attached as long as the connection of the request is open.
fn attach_request(client: &AdminClient, grant: &str, name: &str) -> String {
    let body = json!({"grant": grant, "name": name}).to_string();
    client.request(
        "POST",
        "/v1/attach",
        &format!("{UPGRADE_TO_HOLD}content-length: {}\r\n", body.len()),
        &body,
    )
}

#[test]
fn every_route_carries_out_its_request() {
    let mut world = two_grants().start();
    let api = AdminClient::socket(&world);

    let made = enrol(&api, "other", "box 1/ü");
    assert!(made["text"].as_str().unwrap().starts_with("cofferdam:1:"), "{made}");
    assert!((3500..=3600).contains(&made["expires-in-seconds"].as_u64().unwrap()), "{made}");
    let enrolments = api.get("/v1/enrolments").ok();
    let expected = json!({"enrolment": made["enrolment"], "name": "box 1/ü", "grant": "other", "kind": "ticket",
        "expires-in-seconds": enrolments["enrolments"][0]["expires-in-seconds"], "session": null, "links": 0});
    assert_eq!(enrolments, json!({"enrolments": [expected]}));
    let ended = api.delete("/v1/enrolments/box%201%2F%C3%BC").ok();
    assert_eq!(ended["enrolment"], made["enrolment"]);
    assert_eq!(api.get("/v1/enrolments").ok(), json!({"enrolments": []}));

    assert_eq!(api.get("/v1/sessions").ok(), json!({"sessions": [], "attached": []}));
    let mut events = watch(&api);
    let mut shim = world.connected("tools");
    let seen = read_until(&mut *events, "event: link-opened");
    assert!(seen.contains("event: session-began"), "{seen}");
    let session = api.get("/v1/sessions").ok()["sessions"][0]["session"].as_str().unwrap().to_owned();
    let killed = api.post("/v1/kill", &json!({"session": session})).ok();
    assert_eq!(killed["links"][0]["session"], session);
    assert_eq!(killed["links"][0]["processes"], "all-ended");
    assert_eq!(refusal_of(&shim.call("add", json!({}))), "session_ended");
    let seen = read_until(&mut *events, "event: session-ended");
    assert!(seen.contains(&session) && seen.contains("\"reason\":\"killed\""), "{seen}");

    let token = api.post("/v1/tokens", &json!({"grants": ["dev"], "name": "ci", "ttl-ms": 60_000})).ok();
    assert_eq!(token["expires-in-seconds"], 60);
    let id = token["id"].as_str().unwrap();
    let listed = api.get("/v1/tokens").ok();
    assert_eq!((&listed["tokens"][0]["id"], &listed["tokens"][0]["grants"]), (&token["id"], &json!(["dev"])));
    assert!(!listed.to_string().contains(token["token"].as_str().unwrap()));
    assert_eq!(api.delete(&format!("/v1/tokens/{id}")).ok()["id"], id);
    assert_eq!(api.delete(&format!("/v1/tokens/{id}")).refusal(), (404, "not_found"));

    assert!(api.send("POST", "/v1/reload", None).ok()["policy"].is_string());
    world.rewrite(|builder| builder.line("unknown-key = 1"));
    assert_eq!(api.send("POST", "/v1/reload", None).refusal(), (422, "configuration_invalid"));
    let document = api.get("/v1/openapi.json").ok();
    assert_eq!(document["openapi"], "3.1.0");
}

#[test]
fn a_sandbox_is_attached_by_two_upgraded_connections() {
    let world = two_grants().start();
    let api = AdminClient::socket(&world);
    assert_eq!(
        api.post("/v1/attach", &json!({"grant": "dev", "name": "box"})).refusal(),
        (426, "upgrade_required")
    );
    let unknown = api.raw(&attach_request(&api, "nowhere", "box")).unwrap();
    assert_eq!(unknown.refusal(), (404, "grant_unknown"));

    let mut attachment = api.open(&attach_request(&api, "dev", "box"));
    let answer = read_until(&mut *attachment, "\n{\"answer\":\"attaching\"");
    assert!(answer.starts_with("HTTP/1.1 101") && answer.contains("upgrade: cofferdam-hold"), "{answer}");
    let listed = api.get("/v1/sessions").ok();
    assert_eq!(listed["attached"][0]["name"], "box");
    assert_eq!(listed["attached"][0]["state"], "connecting");
    let enrolment = listed["attached"][0]["enrolment"].as_str().unwrap();
    let second = api.raw(&attach_request(&api, "dev", "box")).unwrap();
    assert_eq!(second.refusal(), (409, "refused"), "a sandbox was attached twice at the same time");

    let upgrade = "connection: upgrade\r\nupgrade: cofferdam-pipe\r\n";
    let no_such = api.raw(&api.request("POST", "/v1/attach/e1/pipe", upgrade, "")).unwrap();
    assert_eq!(no_such.refusal(), (404, "not_found"));
    let mut pipe = api.open(&api.request("POST", &format!("/v1/attach/{enrolment}/pipe"), upgrade, ""));
    let answer = read_until(&mut *pipe, "\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 101") && answer.contains("upgrade: cofferdam-pipe"), "{answer}");
    // The test is not a hub, so the sidecar closes the pipe and sends the reason to the holder.
    pipe.write_all(b"Last login: today\n").unwrap();
    assert!(ends(&mut *pipe));
    read_until(&mut *attachment, "only the hub may write to its stdout");
    assert_eq!(api.delete("/v1/enrolments/box").ok()["enrolment"], enrolment);
    read_until(&mut *attachment, "\"news\":\"over\"");
    assert!(ends(&mut *attachment));
}

#[test]
fn bad_requests_are_refused_with_a_reason() {
    let world = two_grants().start();
    let api = AdminClient::socket(&world);
    let with_body = |method: &str, path: &str, headers: &str, body: &str| {
        let headers = format!("{headers}content-length: {}\r\n", body.len());
        api.raw(&api.request(method, path, &headers, body)).expect("a response")
    };
    let json_type = "content-type: application/json\r\n";
    let enrolment = r#"{"grant": "dev"}"#;
    for (method, path, headers, body, expected) in [
        ("GET", "/", "", "", (404, "not_found")),
        ("GET", "/v1/session", "", "", (404, "not_found")),
        ("GET", "/v1/sessions?grant=dev", "", "", (400, "query_unknown")),
        ("DELETE", "/v1/sessions", "", "", (405, "method_not_allowed")),
        ("OPTIONS", "/v1/enrolments", "", "", (405, "method_not_allowed")),
        ("POST", "/v1/enrolments", "", enrolment, (415, "not_json")),
        ("POST", "/v1/enrolments", "content-type: text/plain\r\n", enrolment, (415, "not_json")),
        ("POST", "/v1/enrolments", json_type, "{", (400, "body_malformed")),
        ("POST", "/v1/enrolments", json_type, "[]", (400, "body_malformed")),
        ("POST", "/v1/enrolments", json_type, "", (400, "body_malformed")),
        ("POST", "/v1/enrolments", json_type, r#"{"grant": "dev", "more": 1}"#, (400, "body_malformed")),
        ("POST", "/v1/enrolments", json_type, r#"{"grant": "dev", "ttl-ms": -1}"#, (400, "body_malformed")),
        ("POST", "/v1/enrolments", json_type, r#"{"grant": "dev", "ttl-ms": 1}"#, (422, "invalid")),
        ("POST", "/v1/enrolments", json_type, r#"{"grant": "dev", "name": ""}"#, (422, "invalid")),
        ("POST", "/v1/enrolments", json_type, r#"{"grant": "../x"}"#, (422, "invalid")),
        ("POST", "/v1/enrolments", json_type, r#"{"grant": "nowhere"}"#, (404, "grant_unknown")),
        ("POST", "/v1/enrolments", json_type, r#"{"grant": "dev", "socket": "x"}"#, (422, "invalid")),
        ("POST", "/v1/tokens", json_type, r#"{"grants": []}"#, (422, "invalid")),
        ("POST", "/v1/tokens", json_type, r#"{"grants": ["nowhere"]}"#, (404, "grant_unknown")),
        ("POST", "/v1/tokens", json_type, r#"{"grants": ["dev"], "ttl-ms": 1}"#, (422, "invalid")),
        ("POST", "/v1/kill", json_type, r#"{"session": "unknown"}"#, (404, "not_found")),
        ("POST", "/v1/reload", "origin: https://page.example\r\n", "", (403, "forbidden")),
        ("GET", "/v1/sessions", "authorization: Bearer x\r\n", "", (401, "unauthorized")),
        ("GET", "/v1/sessions", "authorization: Basic eDp5\r\n", "", (401, "unauthorized")),
    ] {
        assert_eq!(
            with_body(method, path, headers, body).refusal(),
            expected,
            "{method} {path} {headers} {body}"
        );
    }
    let allowed = with_body("PUT", "/v1/enrolments", "", "");
    assert!(allowed.head.contains("allow: GET, POST"), "{}", allowed.head);

    // A body above the limit is refused before it is read, and a body of unknown length as soon as it exceeds the limit.
    let announced = format!("{json_type}content-length: 1000000000\r\n");
    let refused = api.raw(&api.request("POST", "/v1/kill", &announced, "{")).unwrap();
    assert_eq!(refused.refusal(), (413, "body_too_large"));
    let chunk = "8000\r\n".to_owned() + &" ".repeat(0x8000) + "\r\n";
    let chunked = format!("{json_type}transfer-encoding: chunked\r\n");
    let refused = api.raw(&api.request("POST", "/v1/kill", &chunked, &chunk)).unwrap();
    assert_eq!(refused.refusal(), (413, "body_too_large"));
    let long = format!("x-long: {}\r\n", "x".repeat(64 * 1024));
    let refused = api.raw(&api.request("GET", "/v1/sessions", &long, ""));
    assert!(refused.is_none_or(|refused| refused.status == 431));
    assert_eq!(api.get("/v1/enrolments").ok(), json!({"enrolments": []}), "an enrolment was created");
}

#[test]
fn slow_and_silent_clients_do_not_delay_other_clients() {
    let world = two_grants().start();
    let api = AdminClient::socket(&world);
    let _silent: Vec<_> = (0..64).map(|_| api.connect().unwrap()).collect();
    let headers = "content-type: application/json\r\ncontent-length: 20\r\n";
    let slow = api.request("POST", "/v1/kill", headers, "{\"session\"");
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let (api, slow) = (api.clone(), slow.clone());
            std::thread::spawn(move || api.raw(&slow))
        })
        .collect();
    assert_eq!(world.sessions_json(), json!({"sessions": [], "attached": [], "attachments": []}));
    for waiting in waiting {
        assert_eq!(waiting.join().unwrap().unwrap().refusal(), (408, "body_timeout"));
    }
}

#[test]
fn watchers_see_an_attached_sandbox_and_its_links() {
    let world = two_grants().start();
    let api = AdminClient::socket(&world);
    let mut events = watch(&api);
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("box/relay.sock");
    let mut arguments = exec_hub(&socket);
    arguments.splice(1..1, ["--name".into(), "box".into()]);
    let attach = Attach::start(&world, &arguments);
    let seen = read_until(&mut *events, "event: attached");
    assert!(seen.contains("event: enrolment-created") && seen.contains("\"name\":\"box\""), "{seen}");
    let _shim = connected(&format!("unix:{}", socket.display()), "tools");
    let seen = read_until(&mut *events, "event: link-opened");
    assert!(seen.contains("\"name\":\"box\""), "{seen}");
    world.cofferdam_text(&["kill", "box"]);
    let seen = read_until(&mut *events, "event: session-ended");
    assert!(seen.contains("event: enrolment-ended") && seen.contains("event: link-ended"), "{seen}");
    attach.wait_until_output_has("the enrolment has ended");
}

/// When the sidecar stops, it ends the streams and does not wait for their clients.
#[test]
fn streams_end_when_the_sidecar_stops() {
    let mut world = two_grants().start();
    let api = AdminClient::socket(&world);
    let mut events = watch(&api);
    let mut attachment = api.open(&attach_request(&api, "dev", "box"));
    read_until(&mut *attachment, "attaching");
    world.stop_sidecar();
    assert!(ends(&mut *events) && ends(&mut *attachment));
    assert!(!world.log().contains("some tasks did not end in time"), "{}", world.log());
    wait_until("the socket is gone", || !world.layout().admin.exists());
}
