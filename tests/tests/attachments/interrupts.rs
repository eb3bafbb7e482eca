//! Ctrl-C at each step of `attach` leaves nothing behind: no entry, no hub, no enrolment, no temporary file in the sandbox.

use std::path::Path;

use cofferdam_tests::daytona_double::{DaytonaDouble, Speed};
use cofferdam_tests::e2b_double::{Fault, Side};
use cofferdam_tests::port::free_address;
use nix::sys::signal::Signal;

use super::on_daytona::DaytonaSetup;
use super::*;

/// Waits until a command has printed this text, or that it is attached: steps that pass quickly are not all shown.
#[track_caller]
pub(crate) fn wait_until_step(attach: &Attach, text: &str) {
    wait_until(&format!("the command has reached {text:?}"), || {
        let printed = attach.printed();
        printed.contains(text) || printed.contains("attached (")
    });
}

/// Whether a command sent the request at which it was to be interrupted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Reached {
    No,
    Yes,
}

/// Interrupts a command once the platform has got the request that it does not respond to, or once the command is attached
/// without that request; `respond` then lets the platform respond to all requests.
#[track_caller]
fn interrupt(
    mut attach: Attach,
    step: &str,
    has_request: impl Fn() -> bool,
    respond: impl FnOnce(),
) -> Reached {
    wait_until(&format!("the command has reached {step}"), || has_request() || attach.times_attached() > 0);
    let reached = if has_request() { Reached::Yes } else { Reached::No };
    if reached == Reached::No {
        respond();
    }
    attach.signal(Signal::SIGINT);
    assert!(attach.wait().success(), "{step}: {}", attach.printed());
    reached
}

/// The directory of Codex's settings, which `--harness codex` creates.
const SETTINGS_DIRECTORY: &str = ".codex";

/// What `attach` creates in a directory for a short time: uploads and enrolment strings; and a directory that was created for the
/// settings of a harness and is empty.
pub(super) fn temporary_files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let is_empty = std::fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_none());
                if is_empty && name == SETTINGS_DIRECTORY {
                    found.push(path.clone());
                }
                directories.push(path);
            } else if name.contains(".cofferdam-")
                || name.contains(".part-")
                || name.ends_with(".new")
                || directory.ends_with("private")
            {
                found.push(path);
            }
        }
    }
    found
}

/// The configuration of a sidecar that sandboxes can dial with `wss://`.
fn with_wss(builder: Builder) -> Builder {
    let address = free_address();
    builder.relay(&format!("tls = \"{address}\"\nadvertise = \"wss://{address}/relay\""))
}

#[test]
fn an_interrupt_leaves_nothing_at_any_request_to_e2b() {
    let Some(mut setup) = E2bSetup::with(|builder, _| with_wss(builder)) else { return };
    for arguments in [&["--harness", "claude"][..], &["--dial-out", "--harness", "codex"]] {
        for side in [Side::Control, Side::Envd] {
            let mut number = 0;
            loop {
                // A new sandbox, so that the shim is uploaded each time.
                setup.sandbox = setup.platform.create(SandboxUser::Usual);
                let heads =
                    |setup: &E2bSetup| setup.platform.heads().iter().filter(|head| head.side == side).count();
                let before = heads(&setup);
                setup.platform.plan_after(side, number, Fault::Silence);
                let step = format!("request {number} to {side:?} with {arguments:?}");
                let attach = setup.start_attach(arguments);
                let has_request = || heads(&setup) > before + number;
                let reached = interrupt(attach, &step, has_request, || setup.platform.clear_faults());
                eprintln!("{step}: {reached:?}");
                setup.assert_nothing_left();
                if reached == Reached::No {
                    break;
                }
                number += 1;
            }
            // Otherwise the loop ended too early.
            let (least, last) = if side == Side::Control { (1, 3) } else { (9, 20) };
            assert!((least..last).contains(&number), "{number} requests to {side:?} with {arguments:?}");
        }
    }
}

#[test]
fn an_interrupt_leaves_nothing_at_any_request_to_daytona() {
    let Some(platform) = DaytonaDouble::start(Speed(1)) else { return };
    let world = with_wss(on_daytona::builder(&platform)).start();
    let setup = DaytonaSetup { world, platform };
    for arguments in [&["--harness", "claude"][..], &["--via", "dial-out", "--harness", "codex"]] {
        let mut number = 0;
        loop {
            // So that the shim is uploaded each time.
            let home = setup.platform.root().join("home/daytona");
            for directory in [".local/lib", ".local/bin", ".codex"] {
                let _ = std::fs::remove_dir_all(home.join(directory));
            }
            let _ = std::fs::remove_file(home.join(".claude.json"));
            let before = setup.platform.requests().len();
            setup.platform.silence_after(number);
            let step = format!("request {number} with {arguments:?}");
            let attach = setup.start_attach(arguments);
            let has_request = || setup.platform.requests().len() > before + number;
            let reached = interrupt(attach, &step, has_request, || setup.platform.silence_none());
            eprintln!("{step}: {reached:?}");
            setup.assert_gone();
            if reached == Reached::No {
                break;
            }
            number += 1;
        }
        assert!((11..30).contains(&number), "{number} requests with {arguments:?}");
    }
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
