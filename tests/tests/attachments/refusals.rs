//! What is refused: wrong keys, unknown sandboxes, second attachments, unusable shims; with the right exit code, and nothing
//! left behind.

use cofferdam_tests::e2b_double::{Fault, Side};

use super::*;

impl Scene {
    /// Runs `attach` with these arguments to its end: the exit code, and what was printed.
    #[track_caller]
    fn refused(&self, arguments: &[&str]) -> (i32, String) {
        let mut attach = Attach::start(&self.world, arguments);
        let code = attach.wait().code().expect("it was not killed");
        (code, attach.printed())
    }
}

#[test]
fn a_wrong_key_is_no_permission() {
    let Some(scene) = Scene::with(|builder, _| builder.secret_file("e2b-key", "e2b_of_another_account"))
    else {
        return;
    };
    let (code, printed) = scene.refused(&["e2b", &scene.sandbox, "--grant", "dev"]);
    assert_eq!(code, 77, "{printed}");
    assert!(printed.contains("refused the API key") && printed.contains("`api-key`"), "{printed}");
    scene.assert_nothing_left();
    scene.world.assert_secret_not_leaked("e2b_of_another_account");
}

#[test]
fn an_unknown_sandbox_is_no_input_and_an_id_cannot_be_a_path() {
    let Some(scene) = Scene::new() else { return };
    for (id, said) in [("i0unknown", "has no sandbox `i0unknown`"), ("../v2", "is not the id of a sandbox")] {
        let (code, printed) = scene.refused(&["e2b", id, "--grant", "dev"]);
        assert_eq!(code, 66, "{printed}");
        assert!(printed.contains(said), "{printed}");
    }
    scene.assert_nothing_left();
}

#[test]
fn a_platform_or_a_grant_that_is_not_configured_is_a_configuration_error() {
    let Some(scene) = Scene::new() else { return };
    for (arguments, said) in [
        (&["daytona", &scene.sandbox, "--grant", "dev"][..], "add a table `[platforms.daytona]`"),
        (&["e2b", &scene.sandbox, "--grant", "dev", "--platform", "cube"], "`cube` is not of the kind `e2b`"),
        (&["e2b", &scene.sandbox, "--grant", "prod"], "there is no grant `prod`"),
    ] {
        let (code, printed) = scene.refused(arguments);
        assert_eq!(code, 78, "{printed}");
        assert!(printed.contains(said), "{printed}");
    }
    scene.assert_nothing_left();
}

#[test]
fn a_key_that_cannot_be_read_is_a_configuration_error() {
    let Some(scene) = Scene::with(|builder, _| builder.secret("e2b-key", "env = 'COFFERDAM_TEST_UNSET'"))
    else {
        return;
    };
    let (code, printed) = scene.refused(&["e2b", &scene.sandbox, "--grant", "dev"]);
    assert_eq!(code, 78, "{printed}");
    assert!(printed.contains("read the API key of the platform `e2b`"), "{printed}");
    scene.assert_nothing_left();
}

#[test]
fn a_sandbox_is_attached_once() {
    let Some(scene) = Scene::new() else { return };
    let first = scene.attach(&["--name", "box1"]);
    let (code, printed) = scene.refused(&["e2b", &scene.sandbox, "--grant", "dev", "--name", "box2"]);
    assert_eq!(code, 69, "{printed}");
    assert!(printed.contains("is attached as `box1` already"), "{printed}");
    let other = scene.platform.create(SandboxUser::Usual);
    let (code, printed) = scene.refused(&["e2b", &other, "--grant", "dev", "--name", "box1"]);
    assert_eq!(code, 69, "{printed}");
    assert!(printed.contains("the name `box1` belongs to another attachment"), "{printed}");
    assert_eq!(scene.shim().call_text("echo", serde_json::json!({"text": "still"})), "still");
    first.stop();
    scene.assert_nothing_left();
}

#[test]
fn a_dynamic_shim_is_refused_with_the_way_to_build_the_static_one() {
    let Some(scene) = Scene::new() else { return };
    // A small program that needs libraries, as every system has it.
    let (code, printed) = scene.refused(&["e2b", &scene.sandbox, "--grant", "dev", "--shim", "/usr/bin/env"]);
    assert_eq!(code, 69, "{printed}");
    assert!(printed.contains("needs libraries") && printed.contains("--profile shim"), "{printed}");
    scene.assert_nothing_left();
}

#[test]
fn an_outage_at_the_start_is_waited_for_and_retry_after_is_honoured() {
    let Some(scene) = Scene::new() else { return };
    scene.platform.plan(Side::Control, "/sandboxes/", Fault::StatusRetryAfter(503, 2), 1);
    scene.platform.plan(Side::Control, "/sandboxes/", Fault::Cut, 1);
    let attach = scene.start_attach(&[]);
    attach.wait_until_output_has("retrying in 2 s");
    attach.wait_until_attached(1);
    attach.stop();
    scene.assert_nothing_left();
}

#[test]
fn attachments_are_limited() {
    let Some(scene) = Scene::with(|builder, _| builder.limit("attachments = 1")) else { return };
    let first = scene.attach(&[]);
    let other = scene.platform.create(SandboxUser::Usual);
    let (code, printed) = scene.refused(&["e2b", &other, "--grant", "dev"]);
    assert_eq!(code, 69, "{printed}");
    assert!(printed.contains("its share of `limits.attachments` allows (1)"), "{printed}");
    first.stop();
}

#[test]
fn the_template_names_the_shim_by_its_digest() {
    let Some(scene) = Scene::new() else { return };
    let shim = shim_binary().display().to_string();
    let lines = scene.world.cofferdam_text(&["attach", "e2b", "--template", "--shim", &shim]);
    assert!(lines.contains("COPY cofferdam-shim /usr/local/lib/cofferdam/cofferdam-shim-"), "{lines}");
}
