//! A server on a link of an attached sandbox shows it neither the platform's API key nor the platform's tokens.

use cofferdam_tests::daytona_double;
use serde_json::json;

use super::on_daytona::DaytonaSetup;
use super::*;

/// The server returns each of these values; the sandbox must not get it.
#[track_caller]
fn assert_redacted(shim: &mut Harness, secrets: &[String]) {
    for secret in secrets {
        let text = shim.call_text("echo", json!({"text": format!("it is {secret}.")}));
        assert_eq!(text, "it is [redacted].", "{secret}");
    }
}

#[test]
fn a_server_that_knows_the_key_of_e2b_and_the_token_of_the_sandbox_shows_neither() {
    let Some(setup) = E2bSetup::new() else { return };
    let attach = setup.attach(&[]);
    let mut shim = setup.shim();
    let first = setup.platform.token(&setup.sandbox);
    assert_redacted(&mut shim, &[API_KEY.to_owned(), first.clone()]);
    // Each resume gives a new token; what is searched for stays so for a while.
    setup.platform.pause(&setup.sandbox);
    attach.wait_until_output_has("the sandbox is suspended");
    setup.platform.resume(&setup.sandbox);
    attach.wait_until_attached(2);
    let second = setup.platform.token(&setup.sandbox);
    assert_ne!(first, second);
    assert_redacted(&mut shim, &[first, second]);
    attach.stop();
}

#[test]
fn a_server_that_knows_the_key_of_daytona_and_the_tokens_of_the_sandbox_shows_none() {
    for via in ["preview", "ssh"] {
        let Some(setup) = DaytonaSetup::new() else { return };
        let attach = setup.attach(&["--via", via]);
        let secrets = [&[daytona_double::API_KEY.to_owned()], &setup.platform.tokens()[..]].concat();
        assert_eq!(secrets.len(), if via == "ssh" { 3 } else { 2 }, "{via}");
        assert_redacted(&mut setup.shim(), &secrets);
        attach.stop();
    }
}
