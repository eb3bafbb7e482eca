//! What the client says when the platform, the network or the sandbox fails.

use std::io::Read as _;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_platforms::{PlatformError, SandboxState};
use cofferdam_tests::deadline::{PATIENCE, holds_within};
use cofferdam_tests::e2b_double::{API_KEY, Fault, Side};

use crate::support::{ECHO, Scene, client, read, setup};

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_key_and_an_unknown_sandbox_are_told_apart() {
    let Some(scene) = Scene::new() else { return };
    let stranger = client(&scene.double.api_url(), Some(&scene.double.sandbox_url()), "e2b_wrong_key");
    let refused = stranger.state(&scene.id).await.unwrap_err();
    assert!(matches!(refused, PlatformError::Unauthorized { status: 401, .. }), "{refused}");
    assert!(!refused.may_pass() && !refused.to_string().contains("e2b_wrong_key"));
    let unknown = scene.client.state(&"iunknown".parse().unwrap()).await.unwrap_err();
    assert!(
        matches!(&unknown, PlatformError::NoSandbox { sandbox, .. } if sandbox == "iunknown"),
        "{unknown}"
    );
    assert!(!unknown.may_pass());
    assert_eq!(scene.client.state(&scene.id).await.unwrap(), SandboxState::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn quotas_and_outages_may_pass_and_name_their_time() {
    let Some(scene) = Scene::new() else { return };
    scene.double.plan(Side::Control, "/sandboxes", Fault::Status(429), 1);
    let quota = scene.refused(&setup(ECHO)).await;
    assert!(matches!(quota, PlatformError::Quota { .. }) && quota.may_pass(), "{quota}");
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
async fn a_message_of_the_platform_never_repeats_the_key() {
    let Some(scene) = Scene::new() else { return };
    scene.double.plan(Side::Control, "/", Fault::StatusSaying(500, format!("bad key {API_KEY}")), 1);
    let told = scene.refused(&setup(ECHO)).await;
    assert!(!told.to_string().contains(API_KEY) && !format!("{told:?}").contains(API_KEY), "{told}");
    scene.double.plan(Side::Control, "/", Fault::StatusSaying(500, "the disk is full".to_owned()), 1);
    let told = scene.refused(&setup(ECHO)).await;
    assert!(told.to_string().contains("the disk is full"), "{told}");
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
    assert!(followed.is_err(), "no connection was made there: {}", String::from_utf8_lossy(&bytes));
}

#[tokio::test(flavor = "multi_thread")]
async fn endless_and_broken_answers_are_refused() {
    let Some(scene) = Scene::new() else { return };
    for (side, path) in [(Side::Control, "/sandboxes"), (Side::Envd, "/Start"), (Side::Envd, "/files")] {
        scene.double.plan(side, path, Fault::Gigabyte, 1);
        let refused = scene.refused(&setup(ECHO)).await;
        assert!(matches!(refused, PlatformError::Protocol { .. }), "{side:?} {path}: {refused}");
        assert!(refused.to_string().contains("bytes"), "it says that a limit was met: {refused}");
    }
    for (side, path) in [(Side::Control, "/sandboxes"), (Side::Envd, "/files"), (Side::Envd, "/SendSignal")] {
        scene.double.plan(side, path, Fault::HalfAnswer, 1);
        let broken = scene.refused(&setup(ECHO)).await;
        assert!(matches!(broken, PlatformError::Unavailable { .. }), "{side:?} {path}: {broken}");
    }
    let memory = cofferdam_tests::process::peak_memory_kib(std::process::id());
    assert!(memory < 512 * 1024, "a gigabyte was not kept: {memory} KiB");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_platform_that_does_not_answer_is_given_up() {
    let Some(scene) = Scene::new() else { return };
    scene.double.plan(Side::Control, "/sandboxes", Fault::Silence, 1);
    let late = scene.refused(&setup(ECHO)).await;
    assert!(matches!(late, PlatformError::Unavailable { .. }), "{late}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_dies_during_the_upload_is_said_to_be_gone() {
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
async fn an_upload_that_arrives_changed_is_not_used() {
    let Some(scene) = Scene::new() else { return };
    let mut lying = setup(ECHO);
    let honest = Arc::clone(&lying.shim);
    lying.shim = Arc::new(move |architecture| {
        let mut shim = honest(architecture)?;
        shim.digest = "0".repeat(64);
        Ok(shim)
    });
    let refused = scene.refused(&lying).await;
    assert!(matches!(refused, PlatformError::Sandbox { .. }), "{refused}");
    assert!(refused.to_string().contains("the upload arrived with other bytes"), "{refused}");
    let directory = scene.double.path(scene.box_id(), "/home/user/.local/lib/cofferdam");
    assert!(
        holds_within(PATIENCE, || std::fs::read_dir(&directory).unwrap().count() == 0),
        "nothing is left"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_does_not_start_says_why() {
    let Some(scene) = Scene::anywhere() else { return };
    let refused = scene.refused(&setup("#!/bin/sh\necho 'hub: no such socket' >&2\nexit 75\n")).await;
    assert!(matches!(refused, PlatformError::Sandbox { .. }), "{refused}");
    let text = refused.to_string();
    assert!(text.contains("hub: no such socket") && text.contains("exit status 75"), "{text}");
    let garbage = scene.refused(&setup(vec![0x7f, b'E', b'L', b'F', 0, 1, 2, 3])).await;
    assert!(matches!(garbage, PlatformError::Sandbox { .. }), "{garbage}");
    let mut none = setup(ECHO);
    none.shim = Arc::new(|_| Err("there is no static shim; build it with `just shim`".to_owned()));
    let missing = scene.refused(&none).await;
    assert!(missing.to_string().contains("just shim"), "{missing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_refuses_is_the_sandbox_s_failure() {
    let Some(scene) = Scene::new() else { return };
    let home = scene.double.path(scene.box_id(), "/home/user/.local");
    std::fs::write(&home, "a file where a directory should be").unwrap();
    let refused = scene.refused(&setup(ECHO)).await;
    assert!(matches!(refused, PlatformError::Sandbox { .. }) && !refused.may_pass(), "{refused}");
    scene.double.plan(
        Side::Envd,
        "/files",
        Fault::StatusSaying(507, "not enough disk space available".into()),
        1,
    );
    std::fs::remove_file(&home).unwrap();
    let full = scene.refused(&setup(ECHO)).await;
    assert!(full.to_string().contains("not enough disk space"), "{full}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_token_may_pass_because_the_next_attempt_asks_for_the_new_one() {
    let Some(scene) = Scene::new() else { return };
    scene.double.plan(Side::Envd, "/", Fault::Status(401), 1);
    let refused = scene.refused(&setup(ECHO)).await;
    assert!(matches!(refused, PlatformError::Unavailable { .. }) && refused.may_pass(), "{refused}");
    assert!(scene.open(&setup(ECHO)).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_never_crosses_the_network_readable() {
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
