//! Ctrl-C at each step of `attach` leaves nothing behind: no entry, no hub, no enrolment.

use cofferdam_tests::e2b_double::{Fault, Side};
use nix::sys::signal::Signal;

use super::*;

/// Waits until a command has printed this text, or that it is attached: steps that pass quickly are not all shown.
#[track_caller]
pub(crate) fn wait_until_step(attach: &Attach, text: &str) {
    wait_until(&format!("the command has reached {text:?}"), || {
        let printed = attach.printed();
        printed.contains(text) || printed.contains("attached (")
    });
}

/// Interrupts a command at this step.
#[track_caller]
fn interrupt_at(setup: &E2bSetup, text: &str) {
    let mut attach = setup.start_attach(&[]);
    wait_until_step(&attach, text);
    attach.signal(Signal::SIGINT);
    assert!(attach.wait().success(), "{text}: {}", attach.printed());
    setup.assert_nothing_left();
}

#[test]
fn an_interrupt_leaves_nothing_at_any_step() {
    // The platform does not respond to the request of the step, so that the step lasts until the interrupt.
    for (side, path, text) in [
        (Side::Control, "/sandboxes/", "finding the sandbox"),
        (Side::Envd, "/files", "uploading the shim"),
        (Side::Envd, "process.Process/Start", "finding the sandbox"),
        (Side::Envd, "process.Process/StreamInput", "starting the hub"),
    ] {
        let Some(setup) = E2bSetup::new() else { return };
        setup.platform.plan(side, path, Fault::Silence, 100);
        interrupt_at(&setup, text);
    }
    let Some(setup) = E2bSetup::new() else { return };
    for text in ["finding the sandbox", "uploading the shim", "starting the hub", "attached ("] {
        interrupt_at(&setup, text);
    }
    setup.platform.pause(&setup.sandbox);
    interrupt_at(&setup, "the sandbox is suspended");
}
