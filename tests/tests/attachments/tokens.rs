//! Attachments through the admin API: a token sees and ends those of its grants only.

use cofferdam_tests::admin::{AdminClient, read_until};
use serde_json::json;

use super::*;

#[test]
fn a_token_attaches_and_ends_within_its_grants_only() {
    let other_grant = "[grants.other]\nservers = [\"tools\"]";
    let Some(scene) = Scene::with(|builder, _| builder.admin(other_grant)) else { return };
    let admin = AdminClient::socket(&scene.world);
    let token = |grant: &str| {
        let text = scene.world.cofferdam_text(&["token", "create", "--grant", grant]);
        admin.with_token(text.trim())
    };
    let (dev, other) = (token("dev"), token("other"));
    let request = |client: &AdminClient, grant: &str, shim: Option<&str>| {
        let attachment =
            json!({"kind": "e2b", "sandbox": scene.sandbox, "grant": grant, "name": "box1", "shim": shim});
        let body = json!({"attachment": attachment}).to_string();
        let headers = format!(
            "connection: upgrade\r\nupgrade: cofferdam-attachment\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n",
            body.len()
        );
        client.request("POST", "/v1/attachments", &headers, &body)
    };
    assert_eq!(other.raw(&request(&other, "dev", None)).unwrap().refusal(), (403, "forbidden"));
    // A token does not read files of the host.
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
