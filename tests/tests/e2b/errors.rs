//! The client's errors when the platform, the network or the sandbox fails.

use std::fs;
use std::io::Read as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use cofferdam_platforms::PlatformError;
use cofferdam_tests::e2b_double::{API_KEY, Fault, SandboxUser, Side};
use cofferdam_tests::encodings;

use crate::support::{ECHO, Scene, client, read, setup};

#[tokio::test(flavor = "multi_thread")]
async fn quotas_and_outages_are_temporary_and_have_the_retry_after_of_the_platform() {
    let Some(scene) = Scene::new() else { return };
    scene.double.plan(Side::Control, "/sandboxes", Fault::Status(429), 1);
    let quota = scene.refused(&setup(ECHO)).await;
    assert!(matches!(quota, PlatformError::Quota { .. }) && quota.may_succeed_later(), "{quota}");
    for side in [Side::Control, Side::Envd] {
        for fault in [Fault::Status(502), Fault::StatusRetryAfter(503, 7), Fault::Cut] {
            scene.double.plan(side, "/", fault.clone(), 1);
            let outage = scene.refused(&setup(ECHO)).await;
            let PlatformError::Unavailable { retry_after, .. } = outage else {
                panic!("{side:?} {fault:?}: {outage}")
            };
            let expected = matches!(fault, Fault::StatusRetryAfter(..)).then(|| Duration::from_secs(7));
            assert_eq!(retry_after, expected, "{side:?} {fault:?}");
        }
    }
    let mut pipe = scene.open(&setup(ECHO)).await.expect("the outage is over");
    assert_eq!(read(&mut pipe, 6).await, b"hello ");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_shows_the_message_of_the_platform_without_the_key() {
    let Some(scene) = Scene::new() else { return };
    scene.double.plan(Side::Control, "/", Fault::StatusWithMessage(500, format!("bad key {API_KEY}")), 1);
    let error = scene.refused(&setup(ECHO)).await;
    assert!(!error.to_string().contains(API_KEY) && !format!("{error:?}").contains(API_KEY), "{error}");
    scene.double.plan(Side::Control, "/", Fault::StatusWithMessage(500, "the disk is full".to_owned()), 1);
    let error = scene.refused(&setup(ECHO)).await;
    assert!(error.to_string().contains("the disk is full"), "{error}");
}

/// Whatever `envd` or a process in the sandbox sends back, no error contains the key or the sandbox's token.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_never_contains_the_key_or_the_token_of_the_sandbox() {
    let Some(scene) = Scene::new() else { return };
    let secrets = [API_KEY.to_owned(), scene.double.token(scene.box_id())];
    let echo = format!("refused {} {}", secrets[0], secrets[1]);
    let check = |place: &str, error: PlatformError| {
        let shown = format!("{error} {error:?}");
        for secret in &secrets {
            encodings::assert_absent(place, shown.as_bytes(), secret);
            assert!(
                !shown.contains(&secret[secret.len() / 2..]),
                "half of a secret is in the error: {shown}"
            );
        }
    };
    for path in ["/Start", "/files", "/SendSignal"] {
        for status in [400, 401, 404, 409, 500, 503] {
            scene.double.plan(Side::Envd, path, Fault::StatusWithMessage(status, echo.clone()), 1);
            check(path, scene.refused(&setup(ECHO)).await);
        }
        scene.double.plan(Side::Envd, path, Fault::Redirect(format!("https://{}/", secrets[1])), 1);
        check(path, scene.refused(&setup(ECHO)).await);
    }
    // The secrets are on the last line of stderr, also at the position where a long line is shortened.
    for padding in [0, 170, 4060, 9000] {
        let hub = format!("#!/bin/sh\necho '{}{echo}' >&2\nexit 1\n", "x".repeat(padding));
        check("stderr of the hub", scene.refused(&setup(hub)).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_without_tmp_and_usr_local_can_be_attached() {
    for user in [SandboxUser::Usual, SandboxUser::Root] {
        let Some(scene) = Scene::of(user) else { return };
        for missing in ["/tmp", "/usr/local/bin", "/usr/local/lib", "/usr/local"] {
            fs::remove_dir(scene.double.path(scene.box_id(), missing)).unwrap();
        }
        let mut pipe = scene.open(&setup(ECHO)).await.unwrap_or_else(|error| panic!("{user:?}: {error}"));
        assert_eq!(read(&mut pipe, 6).await, b"hello ");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_for_a_read_only_home_names_the_template_directory() {
    let Some(scene) = Scene::new() else { return };
    let home = scene.double.path(scene.box_id(), "/home/user");
    fs::set_permissions(&home, fs::Permissions::from_mode(0o555)).unwrap();
    let refused = scene.refused(&setup(ECHO)).await;
    assert!(matches!(refused, PlatformError::Sandbox { .. }), "{refused}");
    let text = refused.to_string();
    assert!(text.contains("cannot write to `/home/user/.local/lib/cofferdam`"), "{text}");
    assert!(text.contains("/usr/local/lib/cofferdam/cofferdam-shim-"), "{text}");
    assert_eq!(scene.uploads(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn redirects_are_not_followed() {
    let Some(scene) = Scene::new() else { return };
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let target = format!("http://{}/take", elsewhere.local_addr().unwrap());
    for (side, path) in [(Side::Control, "/sandboxes"), (Side::Envd, "/Start"), (Side::Envd, "/files")] {
        scene.double.plan(side, path, Fault::Redirect(target.clone()), 1);
        let refused = scene.refused(&setup(ECHO)).await;
        assert!(matches!(refused, PlatformError::Protocol { .. }), "{side:?} {path}: {refused}");
        assert!(refused.to_string().contains("redirect to `127.0.0.1`"), "{refused}");
    }
    let mut bytes = Vec::new();
    let followed = elsewhere.accept().map(|(mut peer, _)| peer.read_to_end(&mut bytes));
    assert!(followed.is_err(), "the redirect was followed: {}", String::from_utf8_lossy(&bytes));
}

#[tokio::test(flavor = "multi_thread")]
async fn endless_and_incomplete_responses_are_errors() {
    let Some(scene) = Scene::new() else { return };
    for (side, path) in [(Side::Control, "/sandboxes"), (Side::Envd, "/Start"), (Side::Envd, "/files")] {
        scene.double.plan(side, path, Fault::Gigabyte, 1);
        let refused = scene.refused(&setup(ECHO)).await;
        assert!(matches!(refused, PlatformError::Protocol { .. }), "{side:?} {path}: {refused}");
        assert!(refused.to_string().contains("bytes"), "the error does not name the limit: {refused}");
    }
    for (side, path) in [(Side::Control, "/sandboxes"), (Side::Envd, "/files"), (Side::Envd, "/SendSignal")] {
        scene.double.plan(side, path, Fault::HalfResponse, 1);
        let broken = scene.refused(&setup(ECHO)).await;
        assert!(matches!(broken, PlatformError::Unavailable { .. }), "{side:?} {path}: {broken}");
    }
    let memory = cofferdam_tests::process::peak_memory_kib(std::process::id());
    assert!(memory < 512 * 1024, "the response was buffered: {memory} KiB");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_platform_that_does_not_respond_causes_a_timeout() {
    let Some(scene) = Scene::new() else { return };
    scene.double.plan(Side::Control, "/sandboxes", Fault::Silence, 1);
    let late = scene.refused(&setup(ECHO)).await;
    assert!(matches!(late, PlatformError::Unavailable { .. }), "{late}");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_sandbox_ended_during_the_upload_it_is_not_found() {
    let Some(scene) = Scene::new() else { return };
    scene.double.die_during_upload(scene.box_id(), 1 << 20);
    let large = format!("{ECHO}#{}", "x".repeat(4 << 20));
    let died = scene.refused(&setup(large)).await;
    assert!(matches!(died, PlatformError::Unavailable { .. }), "{died}");
    assert!(died.to_string().starts_with("upload the shim"), "{died}");
    let gone = scene.refused(&setup(ECHO)).await;
    assert!(matches!(gone, PlatformError::NoSandbox { .. }), "{gone}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_be_written_is_a_permanent_error_of_the_sandbox() {
    let Some(scene) = Scene::new() else { return };
    let home = scene.double.path(scene.box_id(), "/home/user/.local");
    std::fs::write(&home, "a file where a directory should be").unwrap();
    let refused = scene.refused(&setup(ECHO)).await;
    assert!(matches!(refused, PlatformError::Sandbox { .. }) && !refused.may_succeed_later(), "{refused}");
    scene.double.plan(
        Side::Envd,
        "/files",
        Fault::StatusWithMessage(507, "not enough disk space available".into()),
        1,
    );
    std::fs::remove_file(&home).unwrap();
    let full = scene.refused(&setup(ECHO)).await;
    assert!(full.to_string().contains("not enough disk space"), "{full}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_token_is_temporary_because_the_next_attempt_gets_a_new_one() {
    let Some(scene) = Scene::new() else { return };
    scene.double.plan(Side::Envd, "/", Fault::Status(401), 1);
    let refused = scene.refused(&setup(ECHO)).await;
    assert!(matches!(refused, PlatformError::Unavailable { .. }) && refused.may_succeed_later(), "{refused}");
    assert!(scene.open(&setup(ECHO)).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_never_sent_unencrypted_over_the_network() {
    let Some(scene) = Scene::new() else { return };
    let plain = client("http://198.51.100.1:3000", None, API_KEY);
    let refused = plain.state(&scene.id).await.unwrap_err();
    assert!(refused.to_string().contains("https://"), "{refused}");
    let plain = client(&scene.double.api_url(), Some("http://198.51.100.1:49983"), API_KEY);
    let opened =
        plain.open(&scene.id, cofferdam_platforms::WhenSuspended::Refuse, &setup(ECHO), &|_| {}).await;
    assert!(matches!(opened.err(), Some(PlatformError::Protocol { .. })));
    assert!(scene.double.heads().iter().all(|head| head.side == Side::Control));
}
