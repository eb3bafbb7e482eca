//! The API key and the tokens are where they must be, and nowhere else.

use std::path::Path;

use cofferdam_platforms::daytona::Via;
use cofferdam_platforms::{KeepAwake, WhenSuspended};
use cofferdam_tests::daytona_double::{API_KEY, DaytonaDouble, ServiceName, Speed};

use super::support::Operator;

#[tokio::test]
async fn the_key_goes_to_the_control_api_and_tokens_travel_as_headers() {
    let Some(double) = DaytonaDouble::start(Speed(1)) else { return };
    let operator = Operator::of(&double);
    let mut tokens = double.tokens();
    drop(operator.attach().await);
    double.stop();
    let resumed = operator.open_as(WhenSuspended::Resume, KeepAwake::Yes, Via::Preview).await.unwrap();
    operator.echo(resumed).await.carries_a_link().await;
    tokens.extend(double.tokens());
    tokens.push(API_KEY.to_owned());

    let requests = double.requests();
    for service in [ServiceName::Control, ServiceName::Preview, ServiceName::Toolbox] {
        assert!(requests.iter().any(|request| request.service == service), "{service:?} was used");
    }
    for request in &requests {
        let logged = format!("{} {}", request.line, request.body);
        let found = tokens.iter().find(|token| logged.contains(token.as_str()));
        assert!(found.is_none(), "a platform logs this: {request}");
        for (name, value) in &request.headers {
            let expected = match (request.service, name.as_str()) {
                (ServiceName::Control, "authorization") => value == &format!("Bearer {API_KEY}"),
                (ServiceName::Preview | ServiceName::Toolbox, "x-daytona-preview-token") => value != API_KEY,
                _ => !tokens.iter().any(|token| value.contains(token.as_str())),
            };
            assert!(expected, "{name} of {request}");
        }
    }
    search(&double.root(), &tokens);
}

/// Fails if a file of the sandbox contains one of these.
fn search(directory: &Path, tokens: &[String]) {
    for entry in std::fs::read_dir(directory).expect("the directory is there").flatten() {
        let kind = entry.file_type().expect("it has a type");
        if kind.is_dir() {
            search(&entry.path(), tokens);
        } else if kind.is_file() {
            let content = std::fs::read(entry.path()).expect("it is readable");
            let found = tokens.iter().any(|token| memmem(&content, token.as_bytes()));
            assert!(!found, "a token is in {}", entry.path().display());
        }
    }
}

fn memmem(content: &[u8], token: &[u8]) -> bool {
    content.windows(token.len()).any(|window| window == token)
}
