//! Fixed responses that a single real server cannot be made to send. A fake server sends them, without Vault.

use std::time::Duration;

use cofferdam_tests::http::{Reply, listen};
use cofferdam_vault::{Kind, KvVersion, Problem};
use serde_json::json;

use crate::support::{FakeVault, client_at, explained, token};

const TOKEN: &str = "hvs.CANARYCANARYCANARYCANARY";

#[tokio::test(flavor = "multi_thread")]
async fn a_faked_redirect_of_a_standby_is_not_followed() {
    let elsewhere = FakeVault::status(200, "", "{}");
    let standby = FakeVault::status(307, &format!("location: {}/v1/secret/x\r\n", elsewhere.address()), "");
    let refused = standby.vault().read(&token(TOKEN), "secret/x").await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Standby, "{refused:?}");
    assert!(refused.explained().contains("127.0.0.1"), "{}", refused.explained());
    assert_eq!(
        (standby.requests(), elsewhere.requests()),
        (1, 0),
        "the redirect was followed, or the request repeated"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn faked_statuses_are_mapped_to_kinds_of_errors() {
    let seven_seconds = Some(Duration::from_secs(7));
    for (status, kind) in [
        (412, Kind::Busy { retry_after: seven_seconds }),
        (429, Kind::Busy { retry_after: seven_seconds }),
        (472, Kind::Standby),
        (473, Kind::Standby),
        (500, Kind::Failed),
        (501, Kind::Uninitialised),
        (502, Kind::Failed),
        (503, Kind::Sealed),
    ] {
        let fake = FakeVault::status(status, "retry-after: 7\r\n", r#"{"errors":["as the server says"]}"#);
        let error = fake.vault().read(&token(TOKEN), "secret/x").await.unwrap_err();
        assert_eq!(error.kind(), kind, "{}", error.explained());
        assert!(error.explained().contains("GET `secret/x`"), "{}", error.explained());
        assert!(error.explained().contains("as the server says"), "{}", error.explained());
        assert_eq!(fake.requests(), 1, "the client retried by itself");
    }
    for status in [429, 472, 473] {
        let fake = FakeVault::status(
            status,
            "",
            r#"{"initialized":true,"sealed":false,"standby":true,"performance_standby":true}"#,
        );
        let health = fake.vault().health().await.unwrap();
        assert!(health.standby && health.status == status, "{health:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_faked_response_that_is_too_large_is_refused() {
    let claimed = FakeVault::of("HTTP/1.1 200 OK\r\ncontent-length: 1048577\r\n\r\n{}");
    let unclaimed = FakeVault::of(format!("HTTP/1.1 200 OK\r\n\r\n{{\"data\":\"{}\"}}", "x".repeat(2 << 20)));
    for fake in [claimed, unclaimed] {
        let refused = fake.vault().read(&token(TOKEN), "secret/x").await.unwrap_err();
        assert!(matches!(refused.problem, Problem::TooLarge { .. }), "{refused:?}");
    }
    let whole = FakeVault::of(format!("HTTP/1.1 200 OK\r\n\r\n{{\"data\":\"{}\"}}", "x".repeat(1_000_000)));
    assert!(whole.vault().read(&token(TOKEN), "secret/x").await.unwrap().data.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn faked_invalid_responses_are_errors_and_do_not_leak() {
    let cut = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"data\": {\"password\": \"CANARY";
    for response in ["", "CANARY", cut, "HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n<html>CANARY"] {
        let error = FakeVault::of(response).vault().read(&token(TOKEN), "secret/x").await.unwrap_err();
        assert!(matches!(error.kind(), Kind::Malformed | Kind::Unreachable), "{error:?}");
        assert!(!explained(&error).contains("CANARY"), "{}", explained(&error));
    }
    let huge_head = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(200_000));
    assert_eq!(FakeVault::of(huge_head).vault().health().await.unwrap_err().kind(), Kind::Unreachable);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_faked_error_that_repeats_the_token_does_not_get_through() {
    let echo =
        format!(r#"{{"errors":["bad token {TOKEN} or {TOKEN}","it was s.aVeryLongTokenOfAnotherUser"]}}"#);
    let error = FakeVault::status(400, "", &echo).vault().read(&token(TOKEN), "secret/x").await.unwrap_err();
    let explained = explained(&error);
    assert!(explained.contains("bad token [hidden]"), "{explained}");
    assert!(!explained.contains("CANARY") && !explained.contains("aVeryLong"), "{explained}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_faked_secret_is_recognised_by_its_form_if_the_mount_is_unknown() {
    // The same bytes for every path: a mount without a version, and a secret of version 2.
    let response = r#"{"data":{"data":{"token":"x"},"metadata":{"version":3}}}"#;
    let version = FakeVault::status(200, "", response).vault().kv_version(&token(TOKEN), "secret/x").await;
    assert_eq!(version.unwrap_err().kind(), Kind::Malformed);
    let open = listen(|request| match request.path.starts_with("/v1/sys/internal/ui/mounts/") {
        true => Reply::Status(403),
        false if request.path == "/v1/secret/data/x" => {
            Reply::Json(json!({"data": {"data": {"token": "x"}, "metadata": {"version": 3}}}))
        }
        false => Reply::Status(404),
    });
    let found = client_at(&format!("http://{open}")).kv_read(&token(TOKEN), "secret/x").await.unwrap();
    assert_eq!(found.version, Some(3));
    let closed = FakeVault::status(403, "", r#"{"errors":["permission denied"]}"#);
    assert_eq!(closed.vault().kv_version(&token(TOKEN), "secret/x").await.unwrap(), KvVersion::V1);
    assert_eq!(closed.requests(), 2, "the client did not probe the version");
}
