//! Failures of the platform and of the sandbox, and the errors for the operator.

use std::net::TcpListener;
use std::time::Duration;

use cofferdam_platforms::daytona::Via;
use cofferdam_platforms::{KeepAwake, PlatformError, WhenSuspended};
use cofferdam_tests::daytona_double::{DaytonaDouble, Fault, ServiceName, Speed};

use super::support::Operator;

/// Parts of the paths of all requests that open a pipe.
const EVERY_STEP: [&str; 7] = [
    "/api/sandbox/",
    "/preview-url",
    "/process/session/",
    "/process/execute",
    "/bulk-upload",
    "/exec",
    "/process/session",
];

#[tokio::test]
async fn a_wrong_key_and_an_unknown_sandbox_are_different_errors() {
    let Some(double) = DaytonaDouble::start(Speed(1)) else { return };
    let stranger = Operator::with_key(&double, "dtn_wrong");
    let refused = stranger.failure().await;
    assert!(matches!(refused, PlatformError::Unauthorized { status: 401, .. }), "{refused}");
    assert!(!refused.may_succeed_later());
    assert!(!refused.to_string().contains("dtn_wrong"), "{refused}");
    let mut operator = Operator::of(&double);
    operator.id = "0f1b2c3d-aaaa-bbbb-cccc-000000000000".parse().unwrap();
    let unknown = operator.failure().await;
    assert!(matches!(unknown, PlatformError::NoSandbox { .. }), "{unknown}");
    assert!(matches!(operator.daytona.state(&operator.id).await, Err(PlatformError::NoSandbox { .. })));
}

#[tokio::test]
async fn limits_of_the_account_are_reported_as_such() {
    let Some(double) = DaytonaDouble::start(Speed(1)) else { return };
    let operator = Operator::of(&double);
    double.fail_next("/api/sandbox/", Fault::Status(429, None));
    assert!(matches!(operator.failure().await, PlatformError::Quota { .. }));
    double.stop();
    double.fail_next("/start", Fault::Status(403, None));
    let full = operator.open_as(WhenSuspended::Resume, KeepAwake::No, Via::Preview).await.err().unwrap();
    assert!(
        matches!(&full, PlatformError::Quota { why, .. } if why.contains("as planned by the test")),
        "{full}"
    );
}

/// At each step an outage is a temporary error, and an attempt after it succeeds.
#[tokio::test]
async fn outages_are_temporary_errors_at_every_step() {
    let Some(double) = DaytonaDouble::start(Speed(1)) else { return };
    let operator = Operator::of(&double);
    for step in EVERY_STEP {
        double.fail_next(step, Fault::Status(503, Some(7)));
        let error = operator.failure().await;
        let retry_after = match &error {
            PlatformError::Unavailable { retry_after, .. } => *retry_after,
            other => panic!("{step}: {other}"),
        };
        assert_eq!(retry_after, Some(Duration::from_secs(7)), "{step}: {error}");
        double.fail_next(step, Fault::Cut);
        let error = operator.failure().await;
        assert!(matches!(error, PlatformError::Unavailable { .. }), "{step}: {error}");
    }
    operator.attach().await;
}

#[tokio::test]
async fn a_proxy_that_fails_while_connecting_is_tried_again() {
    let Some(double) = DaytonaDouble::start(Speed(1)) else { return };
    let operator = Operator::of(&double);
    drop(operator.attach().await);
    let upgrades =
        || double.requests().iter().filter(|request| request.service == ServiceName::Preview).count();
    let before = upgrades();
    for fault in [Fault::Status(502, None), Fault::Cut] {
        double.fail_next_upgrade(fault);
        drop(operator.attach().await);
    }
    assert_eq!(upgrades(), before + 4, "each attempt takes two upgrades");
    // This is how the proxy refuses a token.
    double.fail_next_upgrade(Fault::Redirect("https://auth.daytona.test".into()));
    let error = operator.failure().await;
    assert!(matches!(error, PlatformError::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("token is refused"), "{error}");
    operator.attach().await;
    assert_eq!(upgrades(), before + 6, "one upgrade for the redirect and one for the next attempt");
}

#[tokio::test]
async fn redirects_are_not_followed_at_any_step() {
    let Some(double) = DaytonaDouble::start(Speed(1)) else { return };
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let address = format!("http://{}/", elsewhere.local_addr().unwrap());
    let operator = Operator::of(&double);
    for step in EVERY_STEP {
        double.fail_next(step, Fault::Redirect(address.clone()));
        let error = operator.failure().await;
        assert!(matches!(error, PlatformError::Protocol { .. }), "{step}: {error}");
        assert!(error.to_string().contains("redirect"), "{step}: {error}");
    }
    assert!(elsewhere.accept().is_err(), "the other host was contacted");
}

#[tokio::test]
async fn a_response_of_a_gigabyte_is_refused() {
    let Some(double) = DaytonaDouble::start(Speed(1)) else { return };
    let operator = Operator::of(&double);
    for step in ["/api/sandbox/", "/process/execute"] {
        for announced in [true, false] {
            double.fail_next(step, Fault::Gigabyte { announced });
            let error = operator.failure().await;
            assert!(matches!(error, PlatformError::Protocol { .. }), "{step}: {error}");
            assert!(error.to_string().contains("bytes"), "{step}: {error}");
        }
    }
    let memory = cofferdam_tests::process::peak_memory_kib(std::process::id());
    assert!(memory < 512 * 1024, "the response was buffered: {memory} KiB");
}

#[tokio::test]
async fn an_incomplete_response_is_a_temporary_error_at_every_step() {
    let Some(double) = DaytonaDouble::start(Speed(1)) else { return };
    let operator = Operator::of(&double);
    for step in EVERY_STEP {
        double.fail_next(step, Fault::HalfResponse);
        let error = operator.failure().await;
        assert!(matches!(error, PlatformError::Unavailable { .. }), "{step}: {error}");
    }
    operator.attach().await;
}

#[tokio::test]
async fn a_stop_during_the_upload_leaves_no_incomplete_shim_under_its_final_name() {
    let Some(double) = DaytonaDouble::start(Speed(1)) else { return };
    let operator = Operator::of(&double);
    double.fail_next("/bulk-upload", Fault::StopAfter(300_000));
    let error = operator.failure().await;
    assert!(matches!(error, PlatformError::Unavailable { .. }), "{error}");
    let directory = double.root().join("home/daytona/.local/lib/cofferdam");
    let left: Vec<_> =
        std::fs::read_dir(&directory).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(!left.is_empty(), "the double did not write the received part");
    assert!(left.iter().all(|name| name.to_string_lossy().contains(".part-")), "{left:?}");
    assert!(matches!(operator.failure().await, PlatformError::Suspended { .. }));
    double.start_again();
    operator.attach().await;
}

#[tokio::test]
async fn the_error_says_why_a_sandbox_cannot_run_the_shim() {
    let Some(double) = DaytonaDouble::start(Speed(1)) else { return };
    let mut operator = Operator::of(&double);
    let directory = double.root().join("home/daytona/.local");
    std::fs::write(&directory, "a file where a directory should be").unwrap();
    let error = operator.failure().await;
    assert!(matches!(error, PlatformError::Sandbox { .. }), "{error}");
    assert!(error.to_string().contains("cannot write to `/home/daytona/.local/lib/cofferdam`"), "{error}");
    std::fs::remove_file(&directory).unwrap();

    operator.setup.shim = std::sync::Arc::new(|_| Err("no shim is built; run `just shim`".into()));
    let error = operator.failure().await;
    assert!(error.to_string().contains("run `just shim`"), "{error}");

    let broken = super::support::shim_of(b"#!/bin/sh\necho no such library >&2; exit 127\n".to_vec());
    operator.setup.shim = std::sync::Arc::new(move |_| Ok(broken.clone()));
    let error = operator.failure().await;
    assert!(matches!(error, PlatformError::Sandbox { .. }), "{error}");
    assert!(
        error.to_string().contains("exit code 127") && error.to_string().contains("no such library"),
        "{error}"
    );
}

#[tokio::test]
async fn the_hub_of_another_sidecar_is_not_replaced() {
    let Some(double) = DaytonaDouble::start(Speed(1)) else { return };
    let first = Operator::of(&double);
    let mut pipe = first.attach().await;
    let error = Operator::of(&double).failure().await;
    assert!(matches!(error, PlatformError::Unavailable { .. }), "not a temporary error: {error}");
    assert!(
        error.to_string().contains("another hub") || error.to_string().contains("exit code 75"),
        "{error}"
    );
    pipe.assert_carries_a_link().await;
}
