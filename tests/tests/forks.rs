//! Sandboxes that are snapshotted or cloned with their keys: of two copies exactly one continues, the other gets an
//! error with the next step, and a shim that only lost its connection is not taken for a copy.

use cofferdam_tests::cuttable_tcp::CuttableTcp;
use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::harness::{Harness, refusal_of};
use cofferdam_tests::paced_lines::lines_and_left_out;
use cofferdam_tests::process::command;
use cofferdam_tests::relay::{Next, RawRelay, hello};
use cofferdam_tests::sandbox_files::SandboxFiles;
use cofferdam_tests::server::Server;
use cofferdam_tests::tools::Tool;
use cofferdam_tests::world::World;
use relay_proto::control::{Epoch, Hello, Proof, Refusal, Resume, Resumed, Retry, Welcome};
use relay_proto::frame::{Ack, Frame};
use serde_json::{Value, json};

/// A sidecar with a port, and the TCP connections to it, which can be cut.
fn world_with_port() -> (World, CuttableTcp) {
    let tcp = CuttableTcp::start();
    let world = World::new().server("tools", Server::fixture()).relay(&tcp.relay_lines()).start();
    (world, tcp)
}

fn alerts(world: &World) -> Vec<Value> {
    world.audit().into_iter().filter(|record| record["event"] == "alert").collect()
}

/// A sandbox that was connected once and has no link now.
#[track_caller]
fn disconnected_sandbox(world: &World) -> SandboxFiles {
    let sandbox = SandboxFiles::enrolled(world);
    leave(sandbox.connected());
    sandbox
}

#[track_caller]
fn leave(mut harness: Harness) {
    harness.close_stdin();
    harness.wait_for_exit();
}

fn links(world: &World) -> Vec<String> {
    let sessions = world.sessions();
    let all = sessions.as_array().into_iter().flatten();
    let mut ids: Vec<String> = all.filter_map(|link| Some(link["link"].as_str()?.to_owned())).collect();
    ids.sort();
    ids
}

#[test]
fn ten_shims_of_one_sandbox_reconnect_and_none_is_taken_for_a_clone() {
    let (mut world, tcp) = world_with_port();
    let sandbox = SandboxFiles::enrolled(&world);
    let mut shims: Vec<Harness> = (0..10).map(|_| sandbox.connected()).collect();
    let before = links(&world);
    assert_eq!(before.len(), 10);
    let assert_all_echo = |shims: &mut Vec<Harness>, text: &str| {
        let ids: Vec<Value> =
            shims.iter_mut().map(|shim| shim.send_call("echo", json!({"text": text}))).collect();
        for (shim, id) in shims.iter_mut().zip(&ids) {
            let answer = shim.answer_to(id);
            assert_eq!(answer["result"]["content"][0]["text"], text, "{answer}");
        }
    };
    for cut in 0..3 {
        tcp.cut();
        assert_all_echo(&mut shims, &format!("after cut {cut}"));
    }
    assert_eq!(links(&world), before, "not all shims resumed their links");
    // Without links to resume, all shims open new links at the same time.
    world.kill9_sidecar();
    world.start_sidecar();
    assert_all_echo(&mut shims, "after a restart");
    assert_eq!(links(&world).len(), 10);
    assert!(alerts(&world).is_empty(), "{:?}", alerts(&world));
}

#[test]
fn of_two_clones_that_connect_at_once_exactly_one_continues() {
    let (world, _tcp) = world_with_port();
    for round in 0..4 {
        let original = disconnected_sandbox(&world);
        let clone = original.copy();
        let mut shims = [original.shim(), clone.shim()];
        let ids: Vec<Value> = shims.iter_mut().map(Harness::send_initialize).collect();
        let answers: Vec<Value> = shims.iter_mut().zip(&ids).map(|(shim, id)| shim.answer_to(id)).collect();
        let refused: Vec<&Value> = answers.iter().filter(|answer| answer.get("error").is_some()).collect();
        assert_eq!(refused.len(), 1, "round {round}: {answers:?}");
        // For a clone that was connected briefly, the outcome of its request is unknown.
        assert!(["clone_refused", "outcome_unknown"].contains(&refusal_of(refused[0])), "{refused:?}");
        assert!(
            refused[0]["error"]["message"].as_str().unwrap().contains("copy of this sandbox"),
            "{refused:?}"
        );
        assert!(!alerts(&world).is_empty());
        // The sandbox that continues can start new shims too.
        let survivor = if answers[0].get("error").is_none() { &original } else { &clone };
        leave(survivor.connected());
    }
}

#[test]
fn of_two_welcomed_clones_the_first_to_send_a_frame_continues() {
    let (world, _tcp) = world_with_port();
    let sandbox = disconnected_sandbox(&world);
    let (mut one, mut other) = (sandbox.relay(), sandbox.relay());
    let first = welcomed(one.open_with(key_hello(&sandbox, None)));
    let second = welcomed(other.open_with(key_hello(&sandbox, None)));
    assert!(first.epoch.is_some() && first.epoch != second.epoch);
    one.send_frame(&Frame::Ping);
    assert_eq!(next(&mut one), Frame::Pong);
    other.send_frame(&Frame::Ack(Ack { seq: 0, window: 1 << 20 }));
    match next(&mut other) {
        Frame::Goodbye(goodbye) => {
            assert_eq!((goodbye.code.as_str(), goodbye.retry), ("clone_refused", Retry::Never));
            assert!(goodbye.message.contains("`cofferdam enroll`"), "{}", goodbye.message);
        }
        frame => panic!("expected a Goodbye, not {frame:?}"),
    }
    one.send_frame(&Frame::Ping);
    assert_eq!(next(&mut one), Frame::Pong);
    assert_eq!(alerts(&world).len(), 1);
}

/// The Hello of an abandoned connection may arrive after that of its successor.
#[test]
fn a_late_hello_does_not_cost_the_owner_its_epoch() {
    let (world, _tcp) = world_with_port();
    let sandbox = disconnected_sandbox(&world);
    let (mut current, mut abandoned) = (sandbox.relay(), sandbox.relay());
    welcomed(current.open_with(key_hello(&sandbox, None)));
    welcomed(abandoned.open_with(key_hello(&sandbox, None)));
    drop(abandoned);
    current.send_frame(&Frame::Ping);
    assert_eq!(next(&mut current), Frame::Pong);
    assert!(alerts(&world).is_empty(), "{:?}", alerts(&world));
}

/// The same with an epoch that is outdated already: unlike a copy, its sender has disconnected.
#[test]
fn a_delayed_hello_with_an_outdated_epoch_raises_no_alert() {
    let (world, _tcp) = world_with_port();
    let sandbox = disconnected_sandbox(&world);
    let before = sandbox.copy();
    leave(sandbox.connected());
    let mut late: Vec<RawRelay> = (0..3).map(|_| before.relay()).collect();
    for late in &mut late {
        late.send_this_hello(key_hello(&before, None));
        late.close_sending();
    }
    wait_until("the late Hellos were received", || world.log().matches("clone_refused").count() == 3);
    assert!(alerts(&world).is_empty(), "{:?}", alerts(&world));
    assert_eq!(refused(before.relay().open_with(key_hello(&before, None))).code, "clone_refused");
    assert_eq!(alerts(&world).len(), 1, "a copy that waits for the response raised no alert");
    leave(sandbox.connected());
}

/// A new link costs an fsync; the link limit is checked before that.
#[test]
fn a_sandbox_over_its_link_limit_causes_no_disk_writes() {
    let tcp = CuttableTcp::start();
    let world =
        World::new().server("tools", Server::fixture()).relay(&tcp.relay_lines()).limit("links = 2").start();
    let sandbox = disconnected_sandbox(&world);
    let current: Vec<RawRelay> = (0..2)
        .map(|_| {
            let mut relay = sandbox.relay();
            welcomed(relay.open_with(key_hello(&sandbox, None)));
            relay
        })
        .collect();
    let written = enrolments(&world);
    for _ in 0..10 {
        let refusal = refused(sandbox.relay().open_with(key_hello(&sandbox, None)));
        assert_eq!(refusal.code, "relay_unavailable");
        assert!(refusal.message.contains("limits.links"), "{}", refusal.message);
    }
    assert_eq!(enrolments(&world), written);
    drop(current);
}

/// A disk may be full for long, and a sandbox can retry all the time.
#[test]
fn enrolments_that_cannot_be_saved_do_not_fill_the_log() {
    const REFUSALS: usize = 30;
    let (world, _tcp) = world_with_port();
    let sandbox = disconnected_sandbox(&world);
    let (store, aside) = (world.layout().state.join("enrolments"), world.layout().state.join("aside"));
    std::fs::rename(&store, &aside).unwrap();
    for _ in 0..REFUSALS {
        let refusal = refused(sandbox.relay().open_with(key_hello(&sandbox, None)));
        assert_eq!((refusal.code.as_str(), refusal.retry), ("relay_unavailable", Retry::AfterMs(2000)));
    }
    world.wait_until("each refusal is in a line or in a count", || {
        let (lines, left_out) = lines_and_left_out(&world.log(), "an enrolment was not saved");
        assert!(lines <= 6, "{lines}");
        lines + left_out == REFUSALS
    });
    std::fs::rename(&aside, &store).unwrap();
    leave(sandbox.connected());
}

/// The files of enrolments with their inode numbers: each write creates another inode.
fn enrolments(world: &World) -> Vec<(std::path::PathBuf, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    let files =
        std::fs::read_dir(world.layout().state.join("enrolments")).expect("the store is there").flatten();
    let mut files: Vec<_> =
        files.map(|file| (file.path(), file.metadata().expect("its files stay").ino())).collect();
    files.sort();
    files
}

/// A request for another enrolment's link is an alert; it cannot fill the audit with alerts.
#[test]
fn resuming_a_link_of_another_sandbox_is_refused_and_alerts_are_limited() {
    let (world, _tcp) = world_with_port();
    let (owner, thief) = (disconnected_sandbox(&world), disconnected_sandbox(&world));
    let welcome = welcomed(owner.relay().open_with(key_hello(&owner, None)));
    for _ in 0..20 {
        assert_eq!(refused(thief.relay().open_with(key_hello(&thief, Some(&welcome)))).code, "clone_refused");
        // Over the shared socket too, where links have no enrolment.
        let mut client = RawRelay::connect(&world.layout().relay);
        let asked = Hello { resume: Some(resume(&welcome)), ..hello("tools", &[1]) };
        assert_eq!(refused(client.open_with(asked)).code, "clone_refused");
    }
    // The owner can still use the token.
    let resumed = welcomed(owner.relay().open_with(key_hello(&owner, Some(&welcome))));
    assert_eq!((resumed.resumed, &resumed.link), (Resumed::Resumed, &welcome.link));
    let count = alerts(&world).len();
    assert!((2..=12).contains(&count), "{count}");
}

#[test]
fn with_copied_state_one_shim_continues_and_the_other_gets_the_next_step() {
    let (world, _tcp) = world_with_port();
    let original = SandboxFiles::enrolled(&world);
    let mut running = original.connected();
    let clone = original.copy();
    let mut copied = clone.connected();
    assert_eq!(copied.call_text("echo", json!({"text": "the copy was first"})), "the copy was first");
    assert!(alerts(&world).is_empty(), "there is no alert yet");

    // The original needs a new link, and its state is outdated now.
    let mut refused = original.shim();
    let answer = refused.initialize();
    assert_eq!(refusal_of(&answer), "clone_refused", "{answer}");
    for word in ["cloned", "`cofferdam enroll`", "/run/cofferdam/enroll"] {
        assert!(answer["error"]["message"].as_str().unwrap().contains(word), "{word}: {answer}");
        wait_until("stderr has it", || refused.stderr().contains(word));
        let trouble = original.status()["trouble"].clone();
        assert_eq!(trouble["code"], "clone_refused");
        assert!(trouble["message"].as_str().unwrap().contains(word), "{word}: {trouble}");
    }
    let alert = alerts(&world).remove(0);
    assert!(alert["detail"].as_str().unwrap().contains("outdated copy"), "{alert}");
    assert!(refused.is_running());
    assert_eq!(copied.call_text("echo", json!({"text": "on"})), "on");

    // The advice in the message helps, without a restart.
    original.put(&cofferdam_tests::sandbox_files::enroll(&world, &[]));
    let mut response = Value::Null;
    wait_until("the sandbox is enrolled again", || {
        response = refused.call("echo", json!({"text": "afresh"}));
        response.get("result").is_some()
    });
    leave(original.connected());
    drop((running.is_running(), copied));
}

#[test]
fn stolen_state_is_detected_at_the_owners_next_use() {
    let (world, _tcp) = world_with_port();
    let owner = disconnected_sandbox(&world);
    let thief = owner.copy();
    leave(thief.connected());
    assert!(alerts(&world).is_empty());
    let answer = owner.shim().initialize();
    assert_eq!(refusal_of(&answer), "clone_refused");
    assert_eq!(alerts(&world).len(), 1);
    // In the other order: if the owner uses it first, the thief is refused.
    let owner = disconnected_sandbox(&world);
    let thief = owner.copy();
    leave(owner.connected());
    assert_eq!(refusal_of(&thief.shim().initialize()), "clone_refused");
    assert_eq!(alerts(&world).len(), 2);
    leave(owner.connected());
}

#[test]
fn epochs_that_were_never_issued_are_refused() {
    let (world, _tcp) = world_with_port();
    let sandbox = disconnected_sandbox(&world);
    let old = sandbox.saved()["epoch"].clone();
    leave(sandbox.connected());
    let valid = sandbox.saved()["epoch"].clone();
    assert_ne!(old, valid, "the new link changed the epoch");
    let invalid = [old, json!(""), json!("0"), json!("f".repeat(64)), json!("f".repeat(12_000))];
    for epoch in invalid {
        let thief = sandbox.copy();
        thief.edit(|saved| saved["epoch"] = epoch.clone());
        let answer = thief.shim().initialize();
        assert_eq!(refusal_of(&answer), "clone_refused", "{epoch:.80}: {answer}");
    }
    // Without an epoch the shim sends its ticket, which is used up.
    let thief = sandbox.copy();
    thief.edit(|saved| drop(saved.as_object_mut().unwrap().remove("epoch")));
    assert_eq!(refusal_of(&thief.shim().initialize()), "ticket_refused");
    leave(sandbox.connected());
    assert!(alerts(&world).len() >= 6, "{:?}", alerts(&world));
}

#[test]
fn a_goodbye_before_the_welcome_does_not_advance_the_epoch() {
    let (world, _tcp) = world_with_port();
    let sandbox = disconnected_sandbox(&world);
    let mut relay = sandbox.relay();
    relay.send_this_hello(key_hello(&sandbox, None));
    relay.send_frame(&Frame::Goodbye(relay_proto::control::Goodbye {
        code: "done".into(),
        message: String::new(),
        retry: Retry::Never,
    }));
    while !matches!(relay.next_frame(), Next::Closed) {}
    leave(sandbox.connected());
    assert!(alerts(&world).is_empty(), "{:?}", alerts(&world));
}

#[test]
fn a_link_whose_connection_answers_is_kept_and_a_dead_one_is_replaced() {
    let (world, _tcp) = world_with_port();
    let sandbox = disconnected_sandbox(&world);
    let mut first = sandbox.relay();
    let welcome = welcomed(first.open_with(key_hello(&sandbox, None)));
    first.send_frame(&Frame::Ack(Ack { seq: 0, window: 1 << 20 }));

    // A copy of the memory, while the original is alive and answers the ping.
    let mut copy = sandbox.relay();
    copy.send_this_hello(key_hello(&sandbox, Some(&welcome)));
    loop {
        match first.next_frame() {
            Next::Frame(frame) if *frame == Frame::Ping => break,
            Next::Frame(_) => {}
            other => panic!("expected a Ping, not {other:?}"),
        }
    }
    first.send_frame(&Frame::Pong);
    let refusal = refused(next(&mut copy));
    assert_eq!((refusal.code.as_str(), refusal.retry), ("clone_refused", Retry::Never));
    assert!(refusal.message.contains("`cofferdam enroll`"), "{}", refusal.message);
    wait_until("the copy is reported", || alerts(&world).len() == 1);

    // The original does not respond any more: its connection is dead, but neither end was closed. The first to
    // reconnect gets the link.
    let mut second = sandbox.relay();
    let replaced = welcomed(second.open_with(key_hello(&sandbox, Some(&welcome))));
    assert_eq!((replaced.resumed, &replaced.link), (Resumed::Resumed, &welcome.link));
    assert_ne!(replaced.token, welcome.token);
    second.send_frame(&Frame::Ack(Ack { seq: 0, window: 1 << 20 }));
    second.send_frame(&Frame::Ping);
    assert_eq!(next(&mut second), Frame::Pong);

    // Another copy comes too late, with an outdated token.
    let mut late = sandbox.relay();
    let refusal = refused(late.open_with(key_hello(&sandbox, Some(&welcome))));
    assert_eq!((refusal.code.as_str(), refusal.retry), ("clone_refused", Retry::Never));
    wait_until("the late copy is reported", || alerts(&world).len() == 2);
}

#[test]
fn late_bytes_do_not_keep_a_dead_connection() {
    let (world, _tcp) = world_with_port();
    let sandbox = disconnected_sandbox(&world);
    let mut first = sandbox.relay();
    let welcome = welcomed(first.open_with(key_hello(&sandbox, None)));
    first.send_frame(&Frame::Ack(Ack { seq: 0, window: 1 << 20 }));
    let mut second = sandbox.relay();
    second.send_this_hello(key_hello(&sandbox, Some(&welcome)));
    // These frames arrive while the sidecar waits for a pong; only a pong would keep the connection.
    for _ in 0..3 {
        first.send_frame(&Frame::Ping);
        first.send_frame(&Frame::Ack(Ack { seq: 0, window: 1 << 20 }));
    }
    assert_eq!(welcomed(next(&mut second)).resumed, Resumed::Resumed);
    assert!(alerts(&world).is_empty(), "{:?}", alerts(&world));
}

#[test]
fn on_a_socket_a_copy_gets_a_link_of_its_own() {
    let world = World::new().server("tools", Server::fixture()).start();
    let mut first = RawRelay::connect(&world.layout().relay);
    let welcome = welcomed(first.open_with(hello("tools", &[1])));
    first.send_frame(&Frame::Ack(Ack { seq: 0, window: 1 << 20 }));
    let stale = Resume { token: relay_proto::control::ResumeToken("0".repeat(64)), ..resume(&welcome) };
    let mut copy = RawRelay::connect(&world.layout().relay);
    let refusal = refused(copy.open_with(Hello { resume: Some(stale), ..hello("tools", &[1]) }));
    assert_eq!((refusal.code.as_str(), refusal.retry), ("clone_refused", Retry::AfterMs(1000)));
}

/// The Hello of a shim with this sandbox's key and epoch.
#[track_caller]
fn key_hello(sandbox: &SandboxFiles, link: Option<&Welcome>) -> Hello {
    let epoch = sandbox.saved()["epoch"].as_str().map(|epoch| Epoch(epoch.to_owned()));
    Hello { proof: Proof::Key { epoch }, resume: link.map(resume), ..hello("tools", &[1]) }
}

fn resume(welcome: &Welcome) -> Resume {
    Resume { link: welcome.link.clone(), token: welcome.token.clone(), received: 0 }
}

#[track_caller]
fn next(relay: &mut RawRelay) -> Frame {
    match relay.next_frame() {
        Next::Frame(frame) => *frame,
        other => panic!("expected a frame, not {other:?}"),
    }
}

#[track_caller]
fn welcomed(frame: Frame) -> Welcome {
    match frame {
        Frame::Welcome(welcome) => welcome,
        other => panic!("expected a Welcome, not {other:?}"),
    }
}

#[track_caller]
fn refused(frame: Frame) -> Refusal {
    match frame {
        Frame::Refusal(refusal) => refusal,
        other => panic!("expected a Refusal, not {other:?}"),
    }
}

/// E2B writes a sandbox's id to a file; a copy of the sandbox has another id there.
#[test]
fn a_shim_whose_sandbox_has_another_id_does_not_resume_the_originals_link() {
    let Some(bubblewrap) = Tool::Bubblewrap.path() else { return };
    let world = World::new().server("tools", Server::fixture()).capturing().start();
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let id = directory.path().join("e2b/.E2B_SANDBOX_ID");
    std::fs::create_dir(directory.path().join("e2b")).unwrap();
    std::fs::write(&id, "original\n").unwrap();
    let shim = world.shim_command();
    let mut boxed = command(bubblewrap);
    boxed.env_clear().args(["--ro-bind", "/", "/", "--dev", "/dev", "--bind"]).arg(directory.path());
    boxed.arg("/run").arg("--").arg(shim.get_program()).args(shim.get_args()).args(["--server", "tools"]);
    let mut shim = Harness::start(boxed, "cofferdam-shim").initialized();
    let first = links(&world);
    world.cut_connections();
    assert_eq!(shim.call_text("echo", json!({"text": "same id"})), "same id");
    assert_eq!(links(&world), first, "it is resumed");

    let slow = shim.send_call("slow", json!({"ms": 300}));
    wait_until("it runs", || world.times_executed("tools", "slow") == 1);
    std::fs::write(&id, "copy\n").unwrap();
    world.cut_connections();
    assert_eq!(refusal_of(&shim.answer_to(&slow)), "outcome_unknown");
    assert_eq!(shim.call_text("echo", json!({"text": "other id"})), "other id");
    assert!(links(&world).iter().any(|link| !first.contains(link)), "it has a link of its own");
    assert_eq!(world.times_executed("tools", "slow"), 1);
    assert!(alerts(&world).is_empty());
}
