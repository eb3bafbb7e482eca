//! The pipe over the system's `ssh`, with a real `sshd` instead of Daytona's gateway.

use cofferdam_platforms::daytona::Via;
use cofferdam_platforms::{KeepAwake, Pipe, PlatformError, WhenSuspended};
use cofferdam_tests::daytona_double::{DaytonaDouble, Speed};
use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::process::built;
use cofferdam_tests::tools::Tool;

use super::support::Operator;

/// The double, if an SSH client and server are installed.
fn double() -> Option<DaytonaDouble> {
    let (_client, _server) = (Tool::Ssh.path()?, Tool::Sshd.path()?);
    cofferdam_process::use_keeper_program(built("COFFERDAM_BIN", "cofferdam"));
    DaytonaDouble::start(Speed(1))
}

async fn open(operator: &Operator) -> Result<Pipe, PlatformError> {
    operator.open_as(WhenSuspended::Refuse, KeepAwake::No, Via::Ssh).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hub_runs_as_a_command_of_ssh() {
    let Some(double) = double() else { return };
    let operator = Operator::of(&double);
    let pipe = open(&operator).await.unwrap_or_else(|error| panic!("{error}"));
    let mut echo = operator.echo(pipe).await;
    echo.assert_carries_a_link().await;

    let token = double.tokens().pop().unwrap();
    assert!(token.starts_with("ssh"), "no SSH token was issued");
    assert_eq!(processes_with(&token), Vec::<String>::new(), "the token is in a command line or environment");
    assert!(!processes_with("cofferdam-ssh-").is_empty(), "no process has the settings file as an argument");
    let left = settings_left(&token);
    assert_eq!(left, Vec::<String>::new(), "the settings are still there after connecting");

    drop(echo);
    wait_until("ssh ends with its pipe", || processes_with(&operator.setup.pin).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_over_ssh_replaces_one_through_the_preview_proxy_and_vice_versa() {
    let Some(double) = double() else { return };
    let operator = Operator::of(&double);
    let preview = operator.attach().await;
    let pipe = open(&operator).await.unwrap_or_else(|error| panic!("{error}"));
    preview.wait_for_end().await;
    let mut echo = operator.echo(pipe).await;
    echo.assert_carries_a_link().await;
    drop(echo);
    wait_until("ssh ends with its pipe", || processes_with(&operator.setup.pin).is_empty());
    operator.attach().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_for_a_refusal_by_the_gateway_does_not_contain_the_token() {
    let Some(double) = double() else { return };
    let operator = Operator::of(&double);
    double.refuse_ssh();
    let error = open(&operator).await.err().expect("the gateway refuses");
    assert!(matches!(error, PlatformError::Unavailable { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("`ssh` exited") && text.contains("Permission denied"), "{text}");
    let token = double.tokens().pop().unwrap();
    assert!(!text.contains(&token), "{text}");
    assert_eq!(settings_left(&token), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_key_of_the_gateway_is_refused_until_the_operator_removes_the_old_key() {
    let Some(double) = double() else { return };
    let operator = Operator::of(&double);
    double.keep_ssh_address();
    drop(open(&operator).await.unwrap_or_else(|error| panic!("{error}")));
    wait_until("ssh ends with its pipe", || processes_with(&operator.setup.pin).is_empty());
    let known_hosts = double.root().join("known_hosts");
    let remembered = std::fs::read_to_string(&known_hosts).unwrap();

    // The double starts a gateway with a new key for every token.
    let error = open(&operator).await.err().expect("the key is another one");
    assert!(!error.may_succeed_later(), "{error}");
    let text = error.to_string();
    assert!(text.contains("has changed, so the connection may be intercepted"), "{text}");
    assert_eq!(std::fs::read_to_string(&known_hosts).unwrap(), remembered, "the old key was replaced");

    let (_, command) = text.split_once('`').and_then(|(_, rest)| rest.split_once("with `")).unwrap();
    let mut forget = cofferdam_tests::process::command("sh");
    forget.arg("-c").arg(command.trim_end_matches('`'));
    let forgotten = cofferdam_tests::process::output_of(forget, "ssh-keygen");
    assert!(forgotten.status.success(), "the command in the message fails: {forgotten:?}");
    let pipe = open(&operator).await.unwrap_or_else(|error| panic!("{error}"));
    operator.echo(pipe).await.assert_carries_a_link().await;
}

/// The processes of the machine with this text in their arguments or environment, except those of the double.
fn processes_with(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("Linux has it").flatten() {
        for part in ["cmdline", "environ"] {
            let content = std::fs::read(entry.path().join(part)).unwrap_or_default();
            let content = String::from_utf8_lossy(&content).replace('\0', " ");
            // File names in the arguments of the double's `bwrap` contain the token, and `sshd` passes its account's name on.
            let is_of_double =
                ["/gateway/", "sshd: ", "SSH_CONNECTION="].iter().any(|part| content.contains(part));
            if content.contains(text) && !is_of_double {
                found.push(content);
            }
        }
    }
    found
}

/// Settings files of the client that contain the token.
fn settings_left(token: &str) -> Vec<String> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(std::path::PathBuf::from);
    let directories = [runtime, Some("/dev/shm".into()), Some(std::env::temp_dir())];
    let mut left = Vec::new();
    for directory in directories.into_iter().flatten() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let is_settings = entry.file_name().to_string_lossy().starts_with("cofferdam-ssh-");
            let config = entry.path().join("config");
            let content = std::fs::read_to_string(&config).unwrap_or_default();
            if is_settings && content.contains(token) {
                left.push(config.display().to_string());
            }
        }
    }
    left
}
