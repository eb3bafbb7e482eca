//! From a sandbox's id to a pipe that carries links.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_platforms::daytona::Via;
use cofferdam_platforms::{
    Architecture, KeepAwake, PlatformError, Progress, SandboxState, Suspension, WhenSuspended,
};
use cofferdam_tests::daytona_double::{DaytonaDouble, ServiceName, Speed};
use cofferdam_tests::deadline::wait_until;

use super::support::{Operator, shim_of, static_shim};

const REAL_TIME: Speed = Speed(1);
/// The idle timeout of 70 s becomes 2 s, the activity interval of 50 s becomes 1.4 s.
const FAST: Speed = Speed(35);
/// The default ping interval of 20 s, at that speed.
const FAST_PING: Duration = Duration::from_millis(570);
/// More than twice the idle timeout, at that speed.
const FAST_IDLE: Duration = Duration::from_secs(5);

fn count_requests(double: &DaytonaDouble, part: &str) -> usize {
    double.requests().iter().filter(|request| request.line.contains(part)).count()
}

fn count_hubs(double: &DaytonaDouble) -> usize {
    double.processes().iter().filter(|line| line.contains(" hub --pin ") && !line.contains("/bin/sh")).count()
}

#[tokio::test]
async fn the_shim_is_uploaded_once_and_a_running_hub_is_reused() {
    let Some(double) = DaytonaDouble::start(REAL_TIME) else { return };
    let operator = Operator::of(&double);
    drop(operator.attach().await);
    let total = static_shim().bytes.len() as u64;
    let steps = std::mem::take(&mut *operator.progress.lock().unwrap());
    assert_eq!(steps.first(), Some(&Progress::Finding));
    assert!(steps.contains(&Progress::Uploading { sent: total, total }), "{steps:?}");
    assert!(steps.ends_with(&[Progress::StartingHub, Progress::Connecting]), "{steps:?}");

    operator.attach().await;
    assert_eq!(*operator.progress.lock().unwrap(), [Progress::Finding, Progress::Connecting]);
    assert_eq!((count_requests(&double, "bulk-upload"), count_hubs(&double)), (1, 1));

    operator.daytona.end_hub(&operator.id, &operator.setup).await.unwrap();
    wait_until("the hub has ended", || count_hubs(&double) == 0);
    operator.attach().await;
    assert_eq!(
        (count_requests(&double, "bulk-upload"), count_hubs(&double)),
        (1, 1),
        "the shim was uploaded again"
    );
}

#[tokio::test]
async fn a_stop_ends_the_pipe_and_after_the_start_a_new_token_is_used() {
    let Some(double) = DaytonaDouble::start(REAL_TIME) else { return };
    let operator = Operator::of(&double);
    let pipe = operator.attach().await;
    let old = double.tokens();
    double.stop();
    pipe.wait_for_end().await;

    let before = double.requests().len();
    assert_eq!(
        operator.daytona.state(&operator.id).await.unwrap(),
        SandboxState::Suspended(Suspension::Stopped)
    );
    assert!(matches!(operator.failure().await, PlatformError::Suspended { .. }));
    let requests = &double.requests()[before..];
    assert!(requests.iter().all(|request| request.service == ServiceName::Control), "{requests:?}");
    assert!(
        requests.iter().all(|request| request.line.starts_with("GET ")),
        "a request could resume the sandbox: {requests:?}"
    );

    double.start_again();
    assert_ne!(double.tokens(), old);
    operator.attach().await;
    assert_eq!(count_requests(&double, "bulk-upload"), 1, "the shim was lost in the stop");
}

#[tokio::test]
async fn a_suspended_sandbox_is_started_on_request() {
    let Some(double) = DaytonaDouble::start(REAL_TIME) else { return };
    let operator = Operator::of(&double);
    for suspend in [DaytonaDouble::stop, DaytonaDouble::archive] {
        suspend(&double);
        let pipe = operator.open_as(WhenSuspended::Resume, KeepAwake::No, Via::Preview).await;
        operator.echo(pipe.unwrap()).await.assert_carries_a_link().await;
        assert!(operator.progress.lock().unwrap().contains(&Progress::Resuming));
    }
}

/// Daytona closes idle connections: without pings the pipe ends, with them it does not.
#[tokio::test]
async fn pings_keep_an_idle_pipe_open_beyond_the_idle_timeout_of_the_proxy() {
    let Some(double) = DaytonaDouble::start(FAST) else { return };
    let never = Duration::from_secs(3600);
    let silent = Operator::of(&double).pinging(never);
    silent.attach().await.wait_for_end().await;
    silent.daytona.end_hub(&silent.id, &silent.setup).await.unwrap();

    let operator = Operator::of(&double).pinging(FAST_PING);
    let mut pipe = operator.attach().await;
    tokio::time::sleep(FAST_IDLE).await;
    assert!(pipe.is_open());
    pipe.assert_carries_a_link().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_counts_as_activity_of_the_sandbox_only_on_request() {
    let Some(double) = DaytonaDouble::start(FAST) else { return };
    let operator = Operator::of(&double).pinging(FAST_PING);
    let mut pipe = operator.attach().await;
    tokio::time::sleep(FAST_IDLE).await;
    pipe.assert_carries_a_link().await;
    assert_eq!(double.activity(), 0, "the pipe counts as activity");
    operator.daytona.refresh_activity(&operator.id).await.unwrap();
    assert_eq!(double.activity(), 1);
    drop(pipe);

    let pipe = operator.open_as(WhenSuspended::Refuse, KeepAwake::Yes, Via::Preview).await.unwrap();
    let mut pipe = operator.echo(pipe).await;
    let opened = double.activity();
    assert!(opened > 1);
    wait_until("the open pipe keeps the sandbox awake", || double.activity() > opened + 1);
    pipe.assert_carries_a_link().await;
}

#[tokio::test]
async fn a_port_that_another_program_in_the_sandbox_uses_is_avoided() {
    let Some(double) = DaytonaDouble::start(REAL_TIME) else { return };
    let operator = Operator::of(&double);
    drop(operator.attach().await);
    operator.daytona.end_hub(&operator.id, &operator.setup).await.unwrap();
    let request =
        double.requests().into_iter().find(|request| request.line.contains("/preview-url")).unwrap();
    let port: u16 = request.line.split('/').rev().nth(1).unwrap().parse().unwrap();
    // Accepts connections and does not respond, as another program may.
    let _program = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let _pipe = operator.attach().await;
    assert!(double.processes().iter().all(|line| !line.contains(&format!(":{port} "))));
}

#[tokio::test]
async fn another_version_of_the_shim_replaces_the_hub_without_changing_the_running_file() {
    let Some(double) = DaytonaDouble::start(REAL_TIME) else { return };
    let mut operator = Operator::of(&double);
    let pipe = operator.attach().await;
    let newer = shim_of([&static_shim().bytes[..], b"\n"].concat());
    let given = newer.clone();
    operator.setup.shim = Arc::new(move |_: Architecture| Ok(given.clone()));
    let mut replaced = operator.attach().await;
    pipe.wait_for_end().await;
    replaced.assert_carries_a_link().await;

    let directory = double.root().join("home/daytona/.local/lib/cofferdam");
    for shim in [&static_shim(), &newer] {
        assert!(
            directory.join(format!("cofferdam-shim-{}", shim.digest)).is_file(),
            "a shim that may still run was removed"
        );
    }
    let linked = || {
        let link = std::fs::read_link(double.root().join("home/daytona/.local/bin/cofferdam-shim")).unwrap();
        link.file_name().unwrap().to_owned()
    };
    assert_eq!(linked(), format!("cofferdam-shim-{}", newer.digest).as_str());
    assert_eq!(count_hubs(&double), 1);

    operator.setup.shim = Arc::new(|_: Architecture| Ok(static_shim()));
    operator.attach().await;
    assert_eq!(
        linked(),
        format!("cofferdam-shim-{}", static_shim().digest).as_str(),
        "the link was not switched back"
    );
    assert_eq!(count_requests(&double, "bulk-upload"), 2, "a shim was uploaded again");
}
