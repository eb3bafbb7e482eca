//! Audit records of the actions of clients of the admin API.

use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::tls::Remote;
use super::tokens::id_of;
use super::*;

/// The audit records of actions, without their number, time and hashes.
fn actions(world: &World) -> Vec<Value> {
    let mut records = world.audit();
    records.retain(|record| record["kind"] == "admin");
    for record in &mut records {
        let members = record.as_object_mut().expect("a record is an object");
        members.retain(|name, _| !["number", "time", "chain", "kind"].contains(&name.as_str()));
    }
    records
}

/// Waits until the newest record is the result of this action: while the disk is slow, results are recorded after the
/// response.
#[track_caller]
fn wait_for_result(world: &World, action: &str) -> Value {
    let mut newest = Value::Null;
    wait_until("the result of the action is recorded", || {
        newest = actions(world).pop().unwrap_or_default();
        newest["action"] == action && newest["state"] != "requested"
    });
    newest
}

#[test]
fn each_action_is_recorded_with_its_caller_and_without_secrets() {
    let world = two_grants().start();
    let admin = AdminClient::socket(&world);
    let uid = nix::unistd::getuid();
    let by_user = json!(format!("uid:{uid}"));

    let token = world.cofferdam_text(&["token", "create", "--grant", "dev", "--name", "ci"]);
    let token = token.trim();
    let by_token = json!(format!("token:{}", id_of(token)));
    let created = json!({"action": "create_token", "state": "done", "by": by_user, "grant": "dev", "token": id_of(token)});
    wait_for_result(&world, "create_token");
    let records = actions(&world);
    assert_eq!(records[0]["state"], "requested");
    assert_eq!(records[1..], [created]);

    let client = admin.with_token(token);
    let made = enrol(&client, "dev", "box1");
    let (enrolment, text) = (&made["enrolment"], made["text"].as_str().unwrap());
    let requested = json!({"action": "enroll", "state": "requested", "by": by_token, "by_name": "ci", "sandbox": "box1", "grant": "dev"});
    let mut done = requested.clone();
    (done["state"], done["enrolment"]) = (json!("done"), enrolment.clone());
    wait_for_result(&world, "enroll");
    assert_eq!(actions(&world)[2..], [requested, done]);

    let mut attachment = client.open(&attach_request(&client, "dev", "attached-box"));
    read_until(&mut *attachment, "attaching");
    let attached = wait_for_result(&world, "attach");
    assert_eq!((&attached["action"], &attached["state"]), (&json!("attach"), &json!("done")));
    assert_eq!((&attached["sandbox"], &attached["by"]), (&json!("attached-box"), &by_token));
    assert!(attached["enrolment"].is_string(), "{attached}");

    world.cofferdam_text(&["enrolments", "end", "box1"]);
    let ended = json!({"action": "end_enrolment", "state": "done", "by": by_user, "enrolment": enrolment, "sandbox": "box1", "grant": "dev"});
    assert_eq!(wait_for_result(&world, "end_enrolment"), ended);

    let _shim = world.connected("tools");
    let session = admin.get("/v1/sessions").ok()["sessions"][0]["session"].clone();
    client.post("/v1/kill", &json!({"session": session})).ok();
    let killed = json!({"action": "kill", "state": "done", "by": by_token, "by_name": "ci", "session": session, "grant": "dev"});
    assert_eq!(wait_for_result(&world, "kill"), killed);
    let shown = world.cofferdam_text(&["audit", "show", session.as_str().unwrap()]);
    assert!(shown.contains("kill") && shown.contains("(ci)"), "{shown}");

    world.cofferdam_text(&["token", "revoke", id_of(token)]);
    let revoked = json!({"action": "revoke_token", "state": "done", "by": by_user, "token": id_of(token)});
    assert_eq!(wait_for_result(&world, "revoke_token"), revoked);

    let tail = world.cofferdam_text(&["audit", "tail"]);
    assert!(tail.contains(&format!("by uid:{uid}")) && tail.contains("sandbox box1"), "{tail}");
    world.cofferdam_text(&["audit", "verify"]);
    let audit = String::from_utf8_lossy(&world.audit_bytes()).into_owned();
    let ticket = text.rsplit(':').next().unwrap();
    for secret in [token.rsplit('_').next().unwrap(), text, ticket] {
        assert!(!audit.contains(secret), "{secret} is in the audit");
    }
}

#[test]
fn failed_actions_are_recorded_with_their_error_and_unauthorized_requests_are_not_recorded() {
    let world = two_grants().start();
    let admin = AdminClient::socket(&world);
    let client = admin.with_token(&world.cofferdam_text(&["token", "create", "--grant", "dev"]));
    wait_for_result(&world, "create_token");
    let before = actions(&world).len();
    assert_eq!(client.post("/v1/enrolments", &json!({"grant": "other"})).refusal(), (403, "forbidden"));
    assert_eq!(client.post("/v1/kill", &json!({"session": "none"})).refusal(), (404, "not_found"));
    assert_eq!(client.post("/v1/tokens", &json!({"grants": ["dev"]})).refusal(), (403, "forbidden"));
    assert_eq!(client.delete("/v1/tokens/t1").refusal(), (403, "forbidden"));
    assert_eq!(actions(&world).len(), before);
    let too_long = client.post("/v1/enrolments", &json!({"grant": "dev", "ttl-ms": 1_000_000_000_000_u64}));
    assert_eq!(too_long.refusal(), (422, "invalid"));
    let failed = wait_for_result(&world, "enroll");
    assert_eq!((&failed["action"], &failed["state"]), (&json!("enroll"), &json!("failed")));
    assert!(failed["detail"].as_str().unwrap().contains("longer than the grant"), "{failed}");
}

#[test]
fn a_client_certificate_is_named_by_its_hash() {
    let remote = Remote::start();
    let certified = remote.clients.client("orchestrator");
    enrol(&remote.client(Some(&certified)), "dev", "box1");
    let done = wait_for_result(&remote.world, "enroll");
    let certificate = CertificateDer::from_pem_slice(certified.certificate.as_bytes()).unwrap();
    let digest = ring::digest::digest(&ring::digest::SHA256, &certificate);
    let hash: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(done["by"], format!("certificate:{hash}"));
}

/// While the audit cannot be written, no rights are given, but rights can be ended.
#[test]
fn without_the_audit_rights_are_ended_but_not_given() {
    let world = two_grants().start();
    let admin = AdminClient::socket(&world);
    let token = world.cofferdam_text(&["token", "create", "--grant", "dev"]);
    let enrolment = enrol(&admin, "dev", "box1")["enrolment"].clone();
    let mut shim = world.connected("tools");
    let session = admin.get("/v1/sessions").ok()["sessions"][0]["session"].clone();

    // The current file is removed, and the next file cannot be created.
    let [file] = <[_; 1]>::try_from(world.audit_files()).expect("one file");
    let next = file.with_file_name("audit-00000002.jsonl");
    std::fs::create_dir(&next).unwrap();
    std::fs::remove_file(&file).unwrap();
    for (path, body) in [
        ("/v1/enrolments", json!({"grant": "dev", "name": "box2"})),
        ("/v1/tokens", json!({"grants": ["dev"]})),
    ] {
        assert_eq!(admin.post(path, &body).refusal(), (503, "audit_unavailable"), "{path}");
    }
    let refused = admin.raw(&attach_request(&admin, "dev", "box3")).unwrap();
    assert_eq!(refused.refusal(), (503, "audit_unavailable"));
    let listed = admin.get("/v1/enrolments").ok();
    assert_eq!(listed["enrolments"].as_array().unwrap().len(), 1, "an enrolment was created: {listed}");
    assert_eq!(admin.get("/v1/tokens").ok()["tokens"].as_array().unwrap().len(), 1);

    assert_eq!(admin.delete("/v1/enrolments/box1").ok()["enrolment"], enrolment);
    admin.post("/v1/kill", &json!({"session": session})).ok();
    assert_eq!(refusal_of(&shim.call("add", json!({}))), "session_ended");
    admin.delete(&format!("/v1/tokens/{}", id_of(token.trim()))).ok();
    assert_eq!(admin.with_token(&token).get("/v1/sessions").refusal(), (401, "unauthorized"));
    world.wait_until("the log names the action whose result is not recorded", || {
        let log = world.log();
        log.lines()
            .any(|line| line.contains("the result of an action was not recorded") && line.contains("kill"))
    });

    std::fs::remove_dir(&next).unwrap();
    enrol(&admin, "dev", "box4");
}

/// A kill is completed and recorded even if its client disconnects meanwhile.
#[test]
fn a_kill_is_recorded_even_if_its_client_disconnects() {
    let world = World::new().server("tools", Server::fixture_that("ignores-term")).start();
    let admin = AdminClient::socket(&world);
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("box/relay.sock");
    let _attach = Attach::exec(&world, &socket);
    let _shim = connected(&format!("unix:{}", socket.display()), "tools");
    let session = admin.get("/v1/sessions").ok()["sessions"][0]["session"].clone();
    let mut events = watch(&admin);
    let body = json!({"session": session}).to_string();
    let headers = format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
    let killing = admin.open(&admin.request("POST", "/v1/kill", &headers, &body));
    read_until(&mut *events, "event: enrolment-ended");
    drop(killing);
    wait_until("the kill is recorded", || {
        actions(&world).pop().is_some_and(|record| record["action"] == "kill" && record["state"] == "done")
    });
    assert_eq!(admin.get("/v1/sessions").ok()["sessions"], json!([]));
}

const FOLLOW: &str =
    "connection: upgrade\r\nupgrade: cofferdam-attachment\r\ncontent-type: application/json\r\n";

/// Clients close their connections at different moments after they have sent their requests. Whether the sidecar then
/// carries out a request or not, the audit has what was done.
#[test]
fn what_was_done_is_recorded_although_the_caller_disconnects() {
    const CALLERS: u32 = 20;
    let world = two_grants().start();
    let admin = AdminClient::socket(&world);
    let count = |action: &str, states: &[&str]| {
        let records = actions(&world);
        let is_counted = |record: &&Value| {
            record["action"] == action && states.contains(&record["state"].as_str().unwrap_or_default())
        };
        records.iter().filter(is_counted).count()
    };
    let list = |path: &str, name: &str| admin.get(path).ok()[name].as_array().cloned().unwrap_or_default();
    let post = |path: &str, body: &Value| {
        let (headers, text) = ("content-type: application/json\r\n", body.to_string());
        admin.request("POST", path, &format!("{headers}content-length: {}\r\n", text.len()), &text)
    };
    let send_and_disconnect = |request: &str, caller: u32| {
        let connection = admin.open(request);
        // From a disconnect before the sidecar reads the request to one after its response.
        std::thread::sleep(Duration::from_micros(150) * caller);
        drop(connection);
    };

    for caller in 0..CALLERS {
        send_and_disconnect(&post("/v1/tokens", &json!({"grants": ["dev"]})), caller);
        send_and_disconnect(&post("/v1/enrolments", &json!({"grant": "dev"})), caller);
        send_and_disconnect(&attach_request(&admin, "dev", &format!("held {caller}")), caller);
        // No platform is configured, so this action fails, which is recorded too.
        let attachment = json!({"attachment": {"kind": "e2b", "sandbox": "x", "grant": "dev"}}).to_string();
        let headers = format!("{FOLLOW}content-length: {}\r\n", attachment.len());
        send_and_disconnect(&admin.request("POST", "/v1/attachments", &headers, &attachment), caller);
    }
    for action in ["create_token", "enroll", "attach", "attach_platform"] {
        wait_until(&format!("each request to {action} has its result"), || {
            count(action, &["requested"]) == count(action, &["done", "failed"])
        });
        assert!(count(action, &["requested"]) > 0, "no request to {action} arrived");
    }
    assert_eq!(list("/v1/tokens", "tokens").len(), count("create_token", &["done"]));
    let tickets = || {
        let enrolments = list("/v1/enrolments", "enrolments");
        enrolments.into_iter().filter(|enrolment| enrolment["kind"] == "ticket").collect::<Vec<_>>()
    };
    assert_eq!(tickets().len(), count("enroll", &["done"]));

    let (tokens, enrolments) = (list("/v1/tokens", "tokens"), tickets());
    let delete = |path: String| admin.request("DELETE", &path, "content-length: 0\r\n", "");
    for (token, caller) in tokens.iter().zip(0..) {
        send_and_disconnect(&delete(format!("/v1/tokens/{}", token["id"].as_str().unwrap())), caller);
    }
    for (enrolment, caller) in enrolments.iter().zip(0..) {
        let id = enrolment["enrolment"].as_str().unwrap();
        send_and_disconnect(&delete(format!("/v1/enrolments/{id}")), caller);
    }
    wait_until("each token is listed or its revocation is recorded", || {
        list("/v1/tokens", "tokens").len() + count("revoke_token", &["done"]) == tokens.len()
    });
    wait_until("each enrolment is listed or its end is recorded", || {
        tickets().len() + count("end_enrolment", &["done"]) == enrolments.len()
    });
    assert!(count("revoke_token", &["done"]) > 0 && count("end_enrolment", &["done"]) > 0);
}
