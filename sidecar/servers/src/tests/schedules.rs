//! Random schedules of calls, changes of credentials, crashes and failing starts.
//!
//! What must stay true, whatever the order: each call has one outcome; no process receives a call that another
//! received, or a call that is reported as not run; a response comes from the process that received the call; a call
//! goes to the process of its scope; later calls never go to an earlier process; a process gets the handshake before
//! its first call; in the end the newest credential is in use and base and scope have one process each; none is left
//! after the link ended.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::test_runner::Config as Cases;

use super::*;
use crate::scripted::{Reading, Start};

#[derive(Clone, Debug)]
enum Action {
    Call { scoped: bool, wait: u64 },
    Change { secret: &'static str, lifetime: Option<u64> },
    Exit { newest: bool },
    FailStart { after: u64 },
    Read(Reading),
    SlowStart { after: u64 },
    Wait(u64),
}

/// Calls, changed secrets and slow starts: with these alone, no call may fail.
fn harmless() -> impl Strategy<Value = Action> {
    let secret = prop_oneof![Just("key"), Just("write")];
    prop_oneof![
        6 => (any::<bool>(), 0..20_000_u64).prop_map(|(scoped, wait)| Action::Call { scoped, wait }),
        2 => secret.prop_map(|secret| Action::Change { secret, lifetime: None }),
        4 => (0..8_000_u64).prop_map(Action::Wait),
        1 => (0..8_000_u64).prop_map(|after| Action::SlowStart { after }),
    ]
}

fn anything() -> impl Strategy<Value = Action> {
    let secret = prop_oneof![Just("key"), Just("write")];
    let reading = prop_oneof![Just(Reading::Everything), Just(Reading::Nothing), Just(Reading::PartOfOne)];
    prop_oneof![
        8 => harmless(),
        1 => (secret, 1_000..60_000_u64)
            .prop_map(|(secret, lifetime)| Action::Change { secret, lifetime: Some(lifetime) }),
        2 => any::<bool>().prop_map(|newest| Action::Exit { newest }),
        1 => (0..3_000_u64).prop_map(|after| Action::FailStart { after }),
        1 => reading.prop_map(Action::Read),
    ]
}

proptest! {
    #![proptest_config(Cases { cases: 96, failure_persistence: None, ..Cases::default() })]

    #[test]
    fn without_failures_every_call_is_answered(actions in prop::collection::vec(harmless(), 1..40)) {
        let (_, results) = run(&actions);
        for (id, result) in &results {
            prop_assert!(matches!(result, CallResult::Answered(_)), "call {} was not answered: {:?}", id, result);
        }
    }

    #[test]
    fn whatever_happens_no_call_is_lost_or_made_twice(actions in prop::collection::vec(anything(), 1..60)) {
        run(&actions);
    }
}

fn run(actions: &[Action]) -> (Script, BTreeMap<u32, CallResult>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(schedule(actions))
}

async fn schedule(actions: &[Action]) -> (Script, BTreeMap<u32, CallResult>) {
    let mut fixture = LinkFixture::with(Script::responding(answer_after_wait), &SERVER);
    fixture.make_handshake().await;
    let first_call = fixture.last_id + 1;
    let mut scoped_calls = BTreeSet::new();
    for (number, action) in actions.iter().enumerate() {
        act(&mut fixture, action, number, &mut scoped_calls).await;
    }
    for process in fixture.script.alive() {
        fixture.script.set_reading(process, Reading::Everything);
    }
    // Longer than any drain, backoff or lifetime.
    fixture.run_for(Duration::from_secs(900)).await;
    fixture.change("key", "last", None);
    fixture.change("write", "last", None);
    // After any schedule, both the base and the scope must serve again.
    for tool in ["echo", "write_file"] {
        loop {
            let id = fixture.call(tool, Duration::ZERO);
            if tool != "echo" {
                scoped_calls.insert(id);
            }
            if matches!(fixture.wait_for_outcome(id).await, CallResult::Answered(_)) {
                break;
            }
            fixture.run_for(Duration::from_secs(60)).await;
        }
    }
    fixture.run_for(Duration::from_secs(900)).await;
    assert!(fixture.in_flight.is_empty(), "calls without an outcome: {:?}", fixture.in_flight);
    assert_eq!(
        fixture.script.alive().len(),
        2,
        "one for the base, one for the scope: {:?}",
        fixture.script.log()
    );
    let newest = fixture.launcher.secrets.credentials.newest();
    let held = fixture.servers.secrets(None).expect("the base runs");
    assert_eq!(held[&name("key")].version, newest[&name("key")].version);
    let scope = Arc::clone(fixture.launcher.server().scope("write_file").expect("a scope"));
    let held = fixture.servers.secrets(Some(&scope)).expect("the scope runs");
    assert_eq!(held[&name("write")].version, newest[&name("write")].version);
    let calls: Vec<u32> = (first_call..=fixture.last_id).collect();
    let (script, results) = fixture.finish().await;
    check(&script, &results, &calls, &scoped_calls);
    (script, results)
}

async fn act(fixture: &mut LinkFixture, action: &Action, number: usize, scoped_calls: &mut BTreeSet<u32>) {
    match action {
        Action::Call { scoped, wait } => {
            let id = fixture.call(if *scoped { "write_file" } else { "echo" }, Duration::from_millis(*wait));
            if *scoped {
                scoped_calls.insert(id);
            }
        }
        Action::Change { secret, lifetime } => {
            fixture.change(secret, &format!("value-{number}"), lifetime.map(Duration::from_millis));
        }
        Action::Exit { newest } => {
            let alive = fixture.script.alive();
            if let Some(process) = if *newest { alive.last() } else { alive.first() } {
                fixture.script.exit(*process);
            }
        }
        Action::FailStart { after } => {
            fixture.script.queue_start(Start::FailAfter(Duration::from_millis(*after), launch_error()));
        }
        Action::Wait(time) => fixture.run_for(Duration::from_millis(*time)).await,
        Action::Read(reading) => {
            if let Some(process) = fixture.script.alive().last() {
                fixture.script.set_reading(*process, *reading);
            }
        }
        Action::SlowStart { after } => {
            fixture.script.queue_start(Start::RunAfter(Duration::from_millis(*after)))
        }
    }
}

fn check(script: &Script, results: &BTreeMap<u32, CallResult>, calls: &[u32], scoped_calls: &BTreeSet<u32>) {
    let log = script.log();
    let mut received_by: BTreeMap<u32, usize> = BTreeMap::new();
    let mut initialized = BTreeSet::new();
    for entry in &log {
        let (Entry::Received(received) | Entry::PartlyReceived(received)) = entry else { continue };
        match received.method.as_deref() {
            Some("notifications/initialized") => {
                initialized.insert(received.process);
            }
            Some("tools/call") => {
                let id = call_id(received).expect("a call has an id");
                let earlier = received_by.insert(id, received.process);
                let began_before = log
                    .iter()
                    .any(|entry| matches!(entry, Entry::PartlyReceived(other) if other == received));
                assert!(
                    earlier.is_none() || earlier == Some(received.process) && began_before,
                    "call {id} was received twice"
                );
                assert!(initialized.contains(&received.process), "call {id} came before the handshake");
                let wanted = calls.contains(&id).then(|| received.message.contains("write_"));
                assert_eq!(wanted, Some(received.scope.is_some()), "call {id} is in the wrong scope");
            }
            _ => {}
        }
    }
    for id in calls {
        let process = received_by.get(id);
        match results.get(id).unwrap_or_else(|| panic!("call {id} has no outcome")) {
            CallResult::Answered(result) => {
                assert_eq!(Some(result), process.map(|process| format!(r#"{{"by":{process}}}"#)).as_ref())
            }
            CallResult::Refused(code, why) => {
                assert_eq!(process, None, "call {id} ran, and was refused: {code:?} {why}")
            }
            CallResult::Unknown(why) => {
                assert!(process.is_some(), "call {id} did not run, and is said to be unknown: {why}")
            }
        }
    }
    for in_scope in [false, true] {
        let processes = calls
            .iter()
            .filter(|id| scoped_calls.contains(id) == in_scope)
            .filter_map(|id| received_by.get(id));
        let processes: Vec<usize> = processes.copied().collect();
        assert!(processes.is_sorted(), "a later call went to an earlier process: {processes:?}");
    }
}
