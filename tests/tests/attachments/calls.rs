//! Calls during pauses and cut connections: no call is lost, and none runs twice.

use std::time::Duration;

use cofferdam_tests::harness::text_of;
use serde_json::json;

use super::*;

/// In each round sends calls to two shims, interrupts their pipe after some of them, and reads the responses. Every call
/// must have run exactly once.
#[track_caller]
pub(super) fn calls_through_interruptions(
    world: &World,
    [mut first, mut second]: [Harness; 2],
    rounds: usize,
    calls_per_round: usize,
    interrupt: impl Fn(usize),
) {
    for round in 0..rounds {
        let mut sent = Vec::new();
        for number in 0..calls_per_round / 2 {
            let text = |shim: &str| format!("{shim} {round}/{number} {}", "x".repeat(number % 7 * 1000));
            sent.push((first.send_call("echo", json!({"text": text("first")})), text("first")));
            sent.push((second.send_call("echo", json!({"text": text("second")})), text("second")));
            if number == CALLS_BEFORE_INTERRUPTION {
                interrupt(round);
            }
        }
        for (place, (id, text)) in sent.iter().enumerate() {
            let shim = if place % 2 == 0 { &mut first } else { &mut second };
            assert_eq!(text_of(&shim.answer_to(id)), *text);
        }
    }
    let mut texts: Vec<String> =
        world.executions("tools").iter().map(|call| call.arguments["text"].to_string()).collect();
    assert_eq!(texts.len(), rounds * calls_per_round, "calls were lost");
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), rounds * calls_per_round, "calls ran twice");
}

/// How many calls each shim makes in each round.
const CALLS_BEFORE_INTERRUPTION: usize = 20;

#[track_caller]
fn calls_through_cuts_and_pauses(rounds: usize, calls_per_round: usize) {
    let Some(setup) = E2bSetup::new() else { return };
    let attach = setup.attach(&[]);
    let shims = [setup.shim(), setup.shim()];
    calls_through_interruptions(&setup.world, shims, rounds, calls_per_round, |round| match round % 4 {
        0 | 2 => setup.platform.cut(&setup.sandbox),
        1 => setup.platform.restart_envd(&setup.sandbox),
        _ => {
            setup.platform.pause(&setup.sandbox);
            std::thread::sleep(Duration::from_millis(300));
            setup.platform.resume(&setup.sandbox);
        }
    });
    assert!(attach.times_attached() > rounds / 2, "{} pipes", attach.times_attached());
    let secrets = [API_KEY.to_owned(), setup.platform.token(&setup.sandbox)];
    let logged = setup.platform.log().join("\n");
    assert!(secrets.iter().all(|secret| !logged.contains(secret)), "a secret is in the platform's log");
    attach.stop();
}

#[test]
fn calls_survive_cuts_and_pauses() {
    calls_through_cuts_and_pauses(8, 100);
}

#[test]
#[ignore = "minutes: just slow"]
fn ten_thousand_calls_survive_cuts_and_pauses() {
    calls_through_cuts_and_pauses(50, 200);
}
