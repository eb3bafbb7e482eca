//! Attachments through the admin API: with a token only attachments of its grants are visible and can be ended, and only
//! sandboxes of platforms that name its grant can be attached.

use cofferdam_tests::admin::{AdminClient, Stream, read_until};
use serde_json::json;

use super::*;

const OTHER_GRANT: &str = "[grants.other]\nservers = [\"tools\"]";
const FOR_BOTH: &str = "platforms.e2b.grants = ['dev', 'other']";

/// A client with a new token for this grant.
#[track_caller]
fn client_with_token(setup: &E2bSetup, grant: &str) -> AdminClient {
    let text = setup.world.cofferdam_text(&["token", "create", "--grant", grant]);
    AdminClient::socket(&setup.world).with_token(text.trim())
}

/// The text of a request to attach a sandbox with these keys.
fn request(client: &AdminClient, attachment: &Value) -> String {
    let body = json!({ "attachment": attachment }).to_string();
    let headers = format!(
        "connection: upgrade\r\nupgrade: cofferdam-attachment\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n",
        body.len()
    );
    client.request("POST", "/v1/attachments", &headers, &body)
}

/// Attaches a sandbox; the attachment lives as long as the returned connection.
#[track_caller]
fn attach(client: &AdminClient, grant: &str, name: &str, sandbox: &str) -> Box<dyn Stream> {
    let attachment = json!({"kind": "e2b", "sandbox": sandbox, "grant": grant, "name": name});
    let mut following = client.open(&request(client, &attachment));
    read_until(&mut *following, "\"state\":\"attached\"");
    following
}

/// The response to an attachment that is refused.
#[track_caller]
fn refused(client: &AdminClient, grant: &str, name: &str, sandbox: &str) -> Value {
    let attachment = json!({"kind": "e2b", "sandbox": sandbox, "grant": grant, "name": name});
    client.raw(&request(client, &attachment)).expect("the sidecar responds").body["error"].clone()
}

#[test]
fn a_token_attaches_and_ends_within_its_grants_only() {
    let Some(setup) = E2bSetup::with(|builder, _| builder.admin(OTHER_GRANT).line(FOR_BOTH)) else { return };
    let (dev, other) = (client_with_token(&setup, "dev"), client_with_token(&setup, "other"));
    let request = |client: &AdminClient, grant: &str, shim: Option<&str>| {
        let attachment =
            json!({"kind": "e2b", "sandbox": setup.sandbox, "grant": grant, "name": "box1", "shim": shim});
        request(client, &attachment)
    };
    assert_eq!(other.raw(&request(&other, "dev", None)).unwrap().refusal(), (403, "forbidden"));
    // With a token no file of the host can be read.
    assert_eq!(dev.raw(&request(&dev, "dev", Some("/etc/shadow"))).unwrap().refusal(), (403, "forbidden"));

    let mut following = dev.open(&request(&dev, "dev", None));
    read_until(&mut *following, "\"state\":\"attached\"");
    assert_eq!(dev.raw(&request(&dev, "dev", None)).unwrap().refusal(), (409, "taken"));
    assert_eq!(other.get("/v1/attachments").ok(), json!({"attachments": []}));
    assert_eq!(other.get("/v1/sessions").ok(), json!({"sessions": [], "attached": []}));
    assert_eq!(other.delete("/v1/attachments/box1").refusal(), (404, "not_found"));
    assert_eq!(other.post("/v1/kill", &json!({"session": "box1"})).refusal(), (404, "not_found"));
    assert_eq!(dev.get("/v1/attachments").ok()["attachments"][0]["state"], "attached");
    let ended = dev.delete("/v1/attachments/box1").ok();
    assert_eq!(ended["attachment"], json!({"name": "box1", "lifetime": "followed"}));
    read_until(&mut *following, "\"state\":\"over\"");
    assert_eq!(dev.get("/v1/attachments").ok(), json!({"attachments": []}));
}

#[test]
fn a_token_attaches_only_on_platforms_that_name_its_grant() {
    let Some(mut setup) = E2bSetup::with(|builder, _| builder.admin(OTHER_GRANT)) else { return };
    let dev = client_with_token(&setup, "dev");
    // Without `grants`, only the operator may use the platform. A token gets the same response if the platform does not exist.
    let mut responses = [None, Some("e2b"), Some("cube")].map(|platform| {
        let attachment =
            json!({"kind": "e2b", "sandbox": setup.sandbox, "grant": "dev", "platform": platform});
        let response = dev.raw(&request(&dev, &attachment)).expect("the sidecar responds");
        (response.status, response.body)
    });
    assert_eq!(responses[0].0, 403);
    assert!(responses[0].1.to_string().contains("`grants` of the platform's table"), "{responses:?}");
    responses.sort_by_key(|(_, body)| body.to_string());
    assert_eq!(responses[0], responses[2]);
    setup.attach(&[]).stop();

    setup.world.rewrite(|builder| builder.line("platforms.e2b.grants = ['dev']"));
    setup.world.cofferdam_text(&["reload"]);
    let mut following = attach(&dev, "dev", "box1", &setup.sandbox);
    // The operator, too, can attach only with the grants that are named.
    let mut operator = Attach::start(&setup.world, &["e2b", &setup.sandbox, "--grant", "other"]);
    assert_eq!(operator.wait().code(), Some(78), "{}", operator.printed());
    assert!(operator.printed().contains("the platform `e2b` is not for the grant `other`"));

    // A reload that removes the grant from the platform ends the grant's attachments.
    let narrowed = builder(&setup.platform).admin(OTHER_GRANT).line("platforms.e2b.grants = ['other']");
    setup.world.rewrite(|_| narrowed);
    setup.world.cofferdam_text(&["reload"]);
    read_until(&mut *following, "\"state\":\"over\"");
    setup.assert_nothing_left();
}

#[test]
fn a_grant_neither_sees_nor_uses_up_names_and_shares_of_other_grants() {
    // Two grants share a limit of four attachments.
    let change =
        |builder: Builder, _: &str| builder.admin(OTHER_GRANT).line(FOR_BOTH).limit("attachments = 4");
    let Some(setup) = E2bSetup::with(change) else { return };
    let (dev, other) = (client_with_token(&setup, "dev"), client_with_token(&setup, "other"));
    let [second, third, fourth] = [(); 3].map(|()| setup.platform.create(SandboxUser::Usual));
    let _first = attach(&dev, "dev", "box1", &setup.sandbox);
    let _second = attach(&dev, "dev", "box2", &second);
    let full = refused(&dev, "dev", "box3", &third);
    assert_eq!(full["code"], "unavailable");
    assert!(
        full["message"].as_str().unwrap().contains("its share of `limits.attachments` allows (2)"),
        "{full}"
    );

    // The other grant can use the same name, and has its own share of the limit.
    let mut following = attach(&other, "other", "box1", &third);
    let taken = refused(&other, "other", "box9", &setup.sandbox);
    assert_eq!(taken["code"], "taken");
    assert!(!taken.to_string().contains("box1") && !taken.to_string().contains("dev"), "{taken}");
    let _fourth = attach(&other, "other", "box2", &fourth);

    // The operator must say which attachment is meant.
    let ambiguous = setup.world.cofferdam(&["attach", "end", "box1"]);
    let said = String::from_utf8_lossy(&ambiguous.stderr).into_owned();
    assert!(!ambiguous.status.success() && said.contains("2 attachments have the name `box1`"), "{said}");
    other.delete("/v1/attachments/box1").ok();
    read_until(&mut *following, "\"state\":\"over\"");
    let left = dev.get("/v1/attachments").ok();
    assert_eq!(left["attachments"].as_array().unwrap().len(), 2, "{left}");
    setup.world.cofferdam_text(&["attach", "end", left["attachments"][0]["enrolment"].as_str().unwrap()]);
    assert_eq!(dev.get("/v1/attachments").ok()["attachments"][0]["name"], "box2");
}
