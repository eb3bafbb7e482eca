//! The API key and the tokens are in the headers for them, and nowhere else.

use std::path::Path;
use std::sync::Arc;

use cofferdam_platforms::daytona::Via;
use cofferdam_platforms::{KeepAwake, PlatformError, WhenSuspended};
use cofferdam_tests::daytona_double::{API_KEY, DaytonaDouble, Fault, ServiceName, Speed};
use cofferdam_tests::encodings;

use super::support::Operator;

#[tokio::test]
async fn the_key_is_sent_to_the_control_api_only_and_tokens_only_in_headers() {
    let Some(double) = DaytonaDouble::start(Speed(1)) else { return };
    let operator = Operator::of(&double);
    let mut tokens = double.tokens();
    drop(operator.attach().await);
    double.stop();
    let resumed = operator.open_as(WhenSuspended::Resume, KeepAwake::Yes, Via::Preview).await.unwrap();
    operator.echo(resumed).await.assert_carries_a_link().await;
    tokens.extend(double.tokens());
    tokens.push(API_KEY.to_owned());

    let requests = double.requests();
    for service in [ServiceName::Control, ServiceName::Preview, ServiceName::Toolbox] {
        assert!(requests.iter().any(|request| request.service == service), "{service:?} was not used");
    }
    for request in &requests {
        let logged = format!("{} {}", request.line, request.body);
        let found = tokens.iter().find(|token| logged.contains(token.as_str()));
        assert!(found.is_none(), "a secret is in what a platform logs: {request}");
        for (name, value) in &request.headers {
            let expected = match (request.service, name.as_str()) {
                (ServiceName::Control, "authorization") => value == &format!("Bearer {API_KEY}"),
                (ServiceName::Preview | ServiceName::Toolbox, "x-daytona-preview-token") => value != API_KEY,
                _ => !tokens.iter().any(|token| value.contains(token.as_str())),
            };
            assert!(expected, "{name} of {request}");
        }
    }
    assert_absent_in_files(&double.root(), &tokens);
}

/// Whatever the platform or the sandbox sends back, no error contains the key or a token.
#[tokio::test]
async fn an_error_never_contains_the_key_or_a_token() {
    let Some(double) = DaytonaDouble::start(Speed(1)) else { return };
    let mut operator = Operator::of(&double);
    let secrets = [API_KEY.to_owned(), double.tokens().remove(0)];
    let check = |place: &str, error: PlatformError| {
        let shown = format!("{error} {error:?}");
        for secret in &secrets {
            encodings::assert_absent(place, shown.as_bytes(), secret);
        }
        assert!(shown.contains("[redacted:"), "{place}: the text is missing or was not redacted: {shown}");
    };
    let echo = format!("refused {} {}", secrets[0], secrets[1]);
    // Only the key: the client gets the sandbox's token after this request, and does not know it yet.
    double.fail_next("/api/sandbox/", Fault::Saying(500, format!("refused {API_KEY}")));
    check("the control API", operator.failure().await);
    for step in ["/process/execute", "/bulk-upload", "/exec"] {
        double.fail_next(step, Fault::Saying(500, echo.clone()));
        check(step, operator.failure().await);
        double.fail_next(step, Fault::Redirect(format!("https://{}/", secrets[1])));
        check(step, operator.failure().await);
    }
    // The log of the hub, with a secret at the position where a shortened log would begin.
    for padding in [0, 170, 590, 4000] {
        let script = format!("#!/bin/sh\necho '{}{echo}' >&2\nexit 127\n", "x".repeat(padding));
        let shim = super::support::shim_of(script.into_bytes());
        operator.setup.shim = Arc::new(move |_| Ok(shim.clone()));
        let error = operator.failure().await;
        let shown = error.to_string();
        assert!(shown.contains("exit code 127"), "{shown}");
        for secret in &secrets {
            encodings::assert_absent("the hub's log", shown.as_bytes(), secret);
            assert!(
                !shown.contains(&secret[secret.len() / 2..]),
                "half of a secret is in the error: {shown}"
            );
        }
    }
}

/// Asserts that no file below the directory contains one of the tokens.
fn assert_absent_in_files(directory: &Path, tokens: &[String]) {
    for entry in std::fs::read_dir(directory).expect("the directory is there").flatten() {
        let kind = entry.file_type().expect("it has a type");
        if kind.is_dir() {
            assert_absent_in_files(&entry.path(), tokens);
        } else if kind.is_file() {
            let content = std::fs::read(entry.path()).expect("it is readable");
            let found = tokens.iter().any(|token| contains(&content, token.as_bytes()));
            assert!(!found, "a token is in {}", entry.path().display());
        }
    }
}

fn contains(content: &[u8], token: &[u8]) -> bool {
    content.windows(token.len()).any(|window| window == token)
}
