//! Refused attachments: wrong keys, unknown sandboxes, second attachments, unusable shims. Each has its exit code and leaves
//! nothing behind.

use super::super::conflicts::{
    assert_another_sidecar_does_not_take_over, assert_one_of_two_commands_attaches,
};
use super::*;

#[test]
fn a_wrong_key_is_no_permission() {
    let Some(setup) = Anywhere::with(|builder, _| builder.secret_file("e2b-key", "e2b_of_another_account"))
    else {
        return;
    };
    let (code, printed) = setup.refused(&["e2b", &setup.sandbox, "--grant", "dev"]);
    assert_eq!(code, 77, "{printed}");
    assert!(printed.contains("refused the API key") && printed.contains("`api-key`"), "{printed}");
    setup.assert_nothing_left();
    setup.world.assert_secret_not_leaked("e2b_of_another_account");
}

#[test]
fn an_unknown_sandbox_is_no_input_and_an_id_cannot_be_a_path() {
    let Some(setup) = Anywhere::new() else { return };
    // Older SDKs append the id of a client, by which the platform finds the sandbox too.
    let longer = format!("{}-client", setup.sandbox);
    let by_that_id = format!("is `{}`; attach it by that id", setup.sandbox);
    for (id, said) in [
        ("i0unknown", "has no sandbox `i0unknown`"),
        ("../v2", "is not the id of a sandbox"),
        (&longer, &by_that_id),
    ] {
        let (code, printed) = setup.refused(&["e2b", id, "--grant", "dev"]);
        assert_eq!(code, 66, "{printed}");
        assert!(printed.contains(said), "{printed}");
    }
    setup.assert_nothing_left();
}

#[test]
fn a_platform_or_a_grant_that_is_not_configured_is_a_configuration_error() {
    let Some(setup) = Anywhere::new() else { return };
    for (arguments, said) in [
        (&["daytona", &setup.sandbox, "--grant", "dev"][..], "add a table `[platforms.daytona]`"),
        (&["e2b", &setup.sandbox, "--grant", "dev", "--platform", "cube"], "`cube` is not of the kind `e2b`"),
        (&["e2b", &setup.sandbox, "--grant", "prod"], "there is no grant `prod`"),
    ] {
        let (code, printed) = setup.refused(arguments);
        assert_eq!(code, 78, "{printed}");
        assert!(printed.contains(said), "{printed}");
    }
    setup.assert_nothing_left();
}

#[test]
fn a_key_that_cannot_be_read_is_a_configuration_error() {
    let Some(setup) = Anywhere::with(|builder, _| builder.secret("e2b-key", "env = 'COFFERDAM_TEST_UNSET'"))
    else {
        return;
    };
    let (code, printed) = setup.refused(&["e2b", &setup.sandbox, "--grant", "dev"]);
    assert_eq!(code, 78, "{printed}");
    assert!(printed.contains("read the API key of the platform `e2b`"), "{printed}");
    setup.assert_nothing_left();
}

#[test]
fn a_sandbox_is_attached_once() {
    let Some(setup) = Anywhere::new() else { return };
    let other = setup.platform.create();
    let first = setup.attach(&["--name", "box1"]);
    let (code, printed) = setup.refused(&["e2b", &setup.sandbox, "--grant", "dev", "--name", "box2"]);
    assert_eq!(code, 69, "{printed}");
    assert!(printed.contains("is attached as `box1` already"), "{printed}");
    let (code, printed) = setup.refused(&["e2b", &other, "--grant", "dev", "--name", "box1"]);
    assert_eq!(code, 69, "{printed}");
    assert!(printed.contains("the name `box1` belongs to another attachment"), "{printed}");
    setup.assert_echoes("still");
    first.stop();
    setup.assert_nothing_left();
}

#[test]
fn a_dynamic_shim_is_refused_with_the_command_that_builds_a_static_one() {
    let Some(setup) = Anywhere::new() else { return };
    // A small dynamic program that every system has.
    let (code, printed) = setup.refused(&["e2b", &setup.sandbox, "--grant", "dev", "--shim", "/usr/bin/env"]);
    assert_eq!(code, 69, "{printed}");
    assert!(printed.contains("needs libraries") && printed.contains("--profile shim"), "{printed}");
    setup.assert_nothing_left();
}

#[test]
fn attachments_are_limited() {
    let Some(setup) = Anywhere::with(|builder, _| builder.limit("attachments = 1")) else { return };
    let first = setup.attach(&[]);
    let other = setup.platform.create();
    let (code, printed) = setup.refused(&["e2b", &other, "--grant", "dev"]);
    assert_eq!(code, 69, "{printed}");
    assert!(printed.contains("its share of `limits.attachments` allows (1)"), "{printed}");
    first.stop();
    setup.assert_nothing_left();
}

#[test]
fn the_template_names_the_shim_by_its_digest() {
    let Some(setup) = Anywhere::new() else { return };
    let shim = shim_binary().display().to_string();
    let lines = setup.world.cofferdam_text(&["attach", "e2b", "--template", "--shim", &shim]);
    assert!(lines.contains("COPY cofferdam-shim /usr/local/lib/cofferdam/cofferdam-shim-"), "{lines}");
}

#[test]
fn of_two_commands_at_once_one_attaches_the_sandbox() {
    assert_one_of_two_commands_attaches::<Anywhere>();
}

#[test]
fn a_sandbox_of_another_sidecar_is_not_taken_over() {
    assert_another_sidecar_does_not_take_over::<Anywhere>();
}
