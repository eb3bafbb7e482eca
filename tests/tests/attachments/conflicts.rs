//! Two commands, or two sidecars, request the same sandbox: one of them attaches it, and the other is refused. The same tests run
//! on both platforms; those on E2B are in `anywhere`.

use super::bad_input::GIVES_UP_WITHIN;
use super::on_daytona::DaytonaSetup;
use super::*;

/// Asserts that one of two commands, which give their attachments the names `box1` and `box2`, attaches the sandbox, and that
/// the other is refused because of that. The attached command ends when it is dropped.
#[track_caller]
pub(super) fn assert_one_is_attached(mut both: [Attach; 2]) -> Attach {
    wait_until("one of them is attached", || both.iter().any(|attach| attach.times_attached() == 1));
    let refused = both.iter().position(|attach| attach.times_attached() == 0).expect("one is not attached");
    assert_eq!(both[refused].wait().code(), Some(69), "{}", both[refused].printed());
    let attached = format!("is attached as `box{}` already", 2 - refused);
    assert!(both[refused].printed().contains(&attached), "{}", both[refused].printed());
    let [first, second] = both;
    if refused == 0 { second } else { first }
}

/// Two commands of one sidecar request the sandbox at the same time.
#[track_caller]
pub(super) fn assert_one_of_two_commands_attaches<S: PlatformSetup>() {
    let Some(setup) = S::with_own_key() else { return };
    let both = ["box1", "box2"].map(|name| setup.start_attach(&["--name", name]));
    let attached = assert_one_is_attached(both);
    setup.assert_echoes("once");
    attached.stop();
    setup.assert_nothing_left();
}

/// The hub of the first sidecar keeps the sandbox; the second sidecar is refused, and attaches it once the first has ended.
/// On Daytona the second sidecar retries for half a minute, because a hub that is just ending looks the same.
#[track_caller]
pub(super) fn assert_another_sidecar_does_not_take_over<S: PlatformSetup>() {
    let Some(setup) = S::with_own_key() else { return };
    let other = setup.builder_of_another_sidecar().start();
    let arguments = setup.arguments(None);
    let first = setup.attach(&[]);
    let mut second = Attach::start(&other, &arguments);
    assert_eq!(second.wait_within(GIVES_UP_WITHIN).code(), Some(69), "{}", second.printed());
    assert!(second.printed().contains("another hub"), "{}", second.printed());
    setup.assert_echoes("still");
    assert_eq!(first.times_attached(), 1, "the first sidecar lost its pipe");
    first.stop();
    setup.assert_nothing_left();
    let third = Attach::start(&other, &arguments);
    third.wait_until_attached(1);
    third.stop();
    wait_until("the second sidecar has ended its attachment", || {
        other.cofferdam_text(&["attach", "list", "--json"]).trim() == "[]"
    });
}

#[test]
fn of_two_commands_at_once_one_attaches_the_daytona_sandbox() {
    assert_one_of_two_commands_attaches::<DaytonaSetup>();
}

#[test]
fn a_daytona_sandbox_of_another_sidecar_is_not_taken_over() {
    assert_another_sidecar_does_not_take_over::<DaytonaSetup>();
}
