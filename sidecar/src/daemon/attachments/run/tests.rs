//! Tests of whole attachments on a scripted platform, in paused time.

use std::sync::Arc;

use cofferdam_platforms::{KeepAwake, SandboxState, Suspension};
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::super::activity::CallCounts;
use super::super::request::Route;
use super::super::scripted::{Call, ScriptedHold, ScriptedPlatform};
use super::super::status::{Kind, Lifetime, OverCause};
use super::*;

/// A running attachment, and the events and tokens with which a test controls it.
struct RunningAttachment {
    platform: ScriptedPlatform,
    status: watch::Receiver<AttachmentStatus>,
    served: mpsc::UnboundedReceiver<UnixStream>,
    events: mpsc::Sender<AttachEvent>,
    enrolment_ended: CancellationToken,
    stop: CancellationToken,
    sidecar_stop: CancellationToken,
    counts: watch::Sender<CallCounts>,
    task: JoinSet<AttachingEnd>,
}

fn start(platform: &ScriptedPlatform, lifetime: Lifetime, history: History) -> RunningAttachment {
    let spec = AttachmentSpec {
        name: "box1".into(),
        platform: "e2b".parse().unwrap(),
        sandbox: "x".parse().unwrap(),
        grant: "dev".parse().unwrap(),
        ttl: None,
        expires: None,
        enrolment: None,
        when_suspended: WhenSuspended::Resume,
        keep_awake: KeepAwake::No,
        via: Route::Preview,
        shim: None,
        harness: None,
    };
    let status = watch::Sender::new(AttachmentStatus {
        name: "box1".into(),
        platform: "e2b".into(),
        kind: Kind::E2b,
        sandbox: "x".into(),
        grant: "dev".into(),
        lifetime,
        enrolment: None,
        warning: None,
        state: AttachmentState::FINDING,
    });
    let (stop, sidecar_stop, ended) =
        (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
    let (served, served_streams) = mpsc::unbounded_channel();
    let (events, events_in) = mpsc::channel(16);
    let mut attaching = Attaching {
        spec,
        clients: platform.clone(),
        setup: HubSetup { shim: Arc::new(|_| Err("none".into())), pin: "k".into(), harness: None },
        status: status.clone(),
        pacing: Pacing::new(lifetime, history),
        hub: RemainingHub::None,
        stop: stop.clone(),
        sidecar_stop: sidecar_stop.clone(),
    };
    let (counts, seen_counts) = watch::channel(CallCounts::default());
    let mut hold = ScriptedHold { served, events: events_in, ended: ended.clone(), counts: seen_counts };
    let mut task = JoinSet::new();
    let watched = status.subscribe();
    task.spawn(async move { attaching.run(&mut hold).await });
    RunningAttachment {
        platform: platform.clone(),
        status: watched,
        served: served_streams,
        events,
        enrolment_ended: ended,
        stop,
        sidecar_stop,
        counts,
        task,
    }
}

impl RunningAttachment {
    async fn wait_for_state(&mut self, name: &str) -> AttachmentState {
        let reached = self.status.wait_for(|status| status.state.name() == name);
        let reached = timeout(Duration::from_secs(3600), reached).await;
        reached.unwrap_or_else(|_| panic!("the state `{name}` was not reached")).unwrap().state.clone()
    }

    /// Lets the hub of the next pipe prove its key. Returns the sidecar's end and the hub's end of the pipe.
    async fn attach_next_pipe(&mut self) -> (UnixStream, tokio::io::DuplexStream) {
        let near = self.served.recv().await.unwrap();
        self.events.send(AttachEvent::Attached { key: "hub".into() }).await.unwrap();
        self.wait_for_state("attached").await;
        (near, self.platform.take_hub().unwrap())
    }

    fn count_calls(&self, wanted: Call) -> usize {
        self.platform.calls().iter().filter(|(call, _)| *call == wanted).count()
    }

    async fn wait_for_end(&mut self) -> AttachingEnd {
        let ended = timeout(Duration::from_secs(60), self.task.join_next()).await;
        ended.expect("the attachment did not end in time").unwrap().unwrap()
    }
}

fn unavailable(retry_after: Option<Duration>) -> PlatformError {
    PlatformError::Unavailable { action: "find the sandbox", why: "503".into(), retry_after }
}

fn suspended() -> PlatformError {
    PlatformError::Suspended { action: "find the sandbox", suspension: Suspension::Paused }
}

#[tokio::test(start_paused = true)]
async fn bytes_are_carried_both_ways_and_a_lost_pipe_is_replaced() {
    let platform = ScriptedPlatform::default();
    platform.respond_to_open(Ok(())).respond_to_open(Ok(()));
    let mut running = start(&platform, Lifetime::Followed, History::NeverAttached);
    for _ in 0..2 {
        let (mut near, mut hub) = running.attach_next_pipe().await;
        near.write_all(b"to the hub").await.unwrap();
        hub.write_all(b"to the sidecar").await.unwrap();
        let mut read = [0; 10];
        hub.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"to the hub");
        let mut read = [0; 14];
        near.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"to the sidecar");
        drop(hub);
        running.wait_for_state("waiting").await;
        assert_eq!(near.read(&mut read).await.unwrap(), 0, "the sidecar's end must be closed too");
    }
    let calls: Vec<Call> = platform.calls().into_iter().map(|(call, _)| call).collect();
    // A sandbox that was attached once is not resumed again.
    assert_eq!(calls[..2], [Call::Open(WhenSuspended::Resume), Call::Open(WhenSuspended::Refuse)]);
}

#[tokio::test(start_paused = true)]
async fn while_a_sandbox_is_suspended_only_its_state_is_queried() {
    let platform = ScriptedPlatform::default();
    platform.respond_to_open(Err(suspended()));
    for _ in 0..50 {
        platform.respond_to_state(Ok(SandboxState::Suspended(Suspension::Paused)));
    }
    platform.respond_to_state(Ok(SandboxState::Running)).respond_to_open(Ok(()));
    let mut running = start(&platform, Lifetime::Detached, History::Attached);
    running.wait_for_state("suspended").await;
    let (_near, _hub) = running.attach_next_pipe().await;
    let calls = platform.calls();
    assert_eq!(calls.iter().filter(|(call, _)| *call == Call::State).count(), 51);
    assert_eq!(
        (calls[0].0, calls[52].0),
        (Call::Open(WhenSuspended::Refuse), Call::Open(WhenSuspended::Refuse))
    );
    let pauses = calls[20..51].windows(2).map(|pair| pair[1].1 - pair[0].1);
    for pause in pauses {
        assert!((Duration::from_secs(4)..=Duration::from_secs(8)).contains(&pause), "{pause:?}");
    }
    let pause = calls[52].1 - calls[51].1;
    assert!(pause < Duration::from_millis(10), "the resumed sandbox was opened only after {pause:?}");
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_honoured() {
    let platform = ScriptedPlatform::default();
    platform.respond_to_open(Err(unavailable(Some(Duration::from_secs(60))))).respond_to_open(Ok(()));
    let mut running = start(&platform, Lifetime::Configured, History::NeverAttached);
    let AttachmentState::Waiting { why, retry_in_ms } = running.wait_for_state("waiting").await else {
        unreachable!()
    };
    assert_eq!((why.as_str(), retry_in_ms), ("find the sandbox: 503", 60_000));
    running.attach_next_pipe().await;
    let calls = platform.calls();
    assert!(calls[1].1 - calls[0].1 >= Duration::from_secs(60));
}

/// The promised times of SPECIFICATION.md, for faults and suspensions of many lengths. The platform responds at once, so a
/// part of the time is left for requests and for the start of the hub.
#[tokio::test(start_paused = true)]
async fn after_a_fault_or_a_resume_the_sandbox_is_attached_again_within_the_promised_time() {
    let error_page = || PlatformError::Protocol { action: "find the sandbox", why: "not JSON".into() };
    let (soon, later) = (Duration::from_secs(8), Duration::from_secs(20));
    let ten_minutes = Duration::from_secs(600);
    for seconds in [0, 1, 3, 9, 30, 61, 200, 333, 590, 601, 900, 3600, 7203, 86_400] {
        let lasts = Duration::from_millis(seconds * 1000 + 137);
        let after_resume = if lasts < ten_minutes { soon } else { later };
        for (error, promised) in [
            ((|| unavailable(None)) as fn() -> PlatformError, soon),
            (error_page, soon),
            (suspended, after_resume),
        ] {
            let platform = ScriptedPlatform::default();
            platform.respond_to_open(Ok(()));
            let mut running = start(&platform, Lifetime::Detached, History::Attached);
            let (_near, hub) = running.attach_next_pipe().await;
            let end = Instant::now() + lasts;
            platform.disturb_until(end, error);
            drop(hub);
            let near = timeout(lasts + promised, running.served.recv()).await;
            assert!(near.is_ok(), "not attached {promised:?} after {lasts:?} of: {}", error());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_pipe_whose_hub_does_not_prove_its_key_is_replaced() {
    let platform = ScriptedPlatform::default();
    platform.respond_to_open(Ok(())).respond_to_open(Ok(()));
    let mut running = start(&platform, Lifetime::Configured, History::NeverAttached);
    let AttachmentState::Waiting { why, .. } = running.wait_for_state("waiting").await else {
        unreachable!()
    };
    assert_eq!(why, "wait for the hub in the sandbox: no result within 30 seconds");
    drop(running.served.recv().await);
    drop(platform.take_hub());
    running.attach_next_pipe().await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_key_is_read_again_before_it_is_sent_again() {
    let platform = ScriptedPlatform::default();
    let refused = || PlatformError::Unauthorized { action: "find the sandbox", status: 401 };
    platform.respond_to_open(Err(refused())).respond_to_open(Err(refused())).respond_to_open(Ok(()));
    let mut running = start(&platform, Lifetime::Configured, History::NeverAttached);
    running.wait_for_state("refused").await;
    running.attach_next_pipe().await;
    assert_eq!(platform.keys(), [KeyUse::Held, KeyUse::ReadAgain, KeyUse::ReadAgain]);
    let calls = platform.calls();
    assert!(calls[1].1 - calls[0].1 < Duration::from_secs(1), "a replaced key must be used at once");
    assert!(calls[2].1 - calls[1].1 > Duration::from_secs(60), "a wrong key must be tried rarely");

    let platform = ScriptedPlatform::default();
    platform.respond_to_open(Err(refused())).respond_to_open(Err(refused()));
    let mut running = start(&platform, Lifetime::Followed, History::NeverAttached);
    assert_eq!(running.wait_for_end().await, AttachingEnd::Over);
    let state = running.status.borrow().state.clone();
    assert!(matches!(state, AttachmentState::Over { cause: OverCause::Unauthorized, .. }), "{state:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stop_or_the_end_of_the_enrolment_ends_the_attachment_in_every_state() {
    type OpenResult = fn() -> Option<Result<(), PlatformError>>;
    let open_results: [OpenResult; 4] = [
        || None,
        || Some(Err(unavailable(Some(Duration::from_secs(300))))),
        || Some(Err(suspended())),
        || Some(Ok(())),
    ];
    for open_result in open_results {
        for (end, expected) in [
            ((|running| running.stop.cancel()) as fn(&RunningAttachment), AttachingEnd::Stopped),
            (|running| running.enrolment_ended.cancel(), AttachingEnd::EnrolmentEnded),
        ] {
            let platform = ScriptedPlatform::default();
            open_result().into_iter().for_each(|result| _ = platform.respond_to_open(result));
            let mut running = start(&platform, Lifetime::Detached, History::Attached);
            sleep(Duration::from_secs(3)).await;
            let began = Instant::now();
            end(&running);
            assert_eq!(running.wait_for_end().await, expected);
            assert!(began.elapsed() <= CLOSE_TIMEOUT, "{:?}", began.elapsed());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_hub_ends_with_the_attachment_but_not_with_a_pipe_or_the_sidecar() {
    for (end, times) in [
        ((|running| running.stop.cancel()) as fn(&RunningAttachment), 1),
        (|running| running.enrolment_ended.cancel(), 1),
        (|running| running.sidecar_stop.cancel(), 0),
    ] {
        let platform = ScriptedPlatform::default();
        platform.respond_to_open(Ok(())).respond_to_open(Ok(()));
        let mut running = start(&platform, Lifetime::Detached, History::Attached);
        let (_near, hub) = running.attach_next_pipe().await;
        drop(hub);
        let _pipe = running.attach_next_pipe().await;
        assert_eq!(running.count_calls(Call::EndHub), 0, "the hub was ended although the next pipe uses it");
        end(&running);
        running.wait_for_end().await;
        assert_eq!(running.count_calls(Call::EndHub), times);
    }
}

#[tokio::test(start_paused = true)]
async fn calls_are_reported_as_use_of_the_sandbox_and_an_idle_pipe_is_not() {
    let platform = ScriptedPlatform::default();
    platform.respond_to_open(Ok(()));
    let mut running = start(&platform, Lifetime::Detached, History::Attached);
    let _pipe = running.attach_next_pipe().await;
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(running.count_calls(Call::RefreshActivity), 0, "an idle pipe was reported as use");

    running.counts.send_replace(CallCounts { made: 1, in_flight: 0 });
    sleep(Duration::from_secs(15)).await;
    assert_eq!(running.count_calls(Call::RefreshActivity), 1);
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(running.count_calls(Call::RefreshActivity), 1, "one call must be reported once");

    // A long call counts as use of the sandbox until its response.
    running.counts.send_replace(CallCounts { made: 2, in_flight: 1 });
    sleep(Duration::from_secs(600)).await;
    let reported = running.count_calls(Call::RefreshActivity);
    assert!((15..=21).contains(&reported), "{reported} reports in ten minutes");
}

/// Links send a goodbye when the sidecar stops, which must reach the hub.
#[tokio::test(start_paused = true)]
async fn the_last_bytes_reach_the_hub_when_the_sidecar_stops() {
    let platform = ScriptedPlatform::default();
    platform.respond_to_open(Ok(()));
    let mut running = start(&platform, Lifetime::Detached, History::Attached);
    let (mut near, mut hub) = running.attach_next_pipe().await;
    running.sidecar_stop.cancel();
    sleep(Duration::from_secs(2)).await;
    near.write_all(b"goodbye").await.unwrap();
    drop(near);
    let mut read = Vec::new();
    hub.read_to_end(&mut read).await.unwrap();
    assert_eq!(read, b"goodbye");
    assert_eq!(running.wait_for_end().await, AttachingEnd::Stopped);
}
