//! Secrets from real files, variables and commands.

#[path = "secret/support.rs"]
mod support;

use std::time::Duration;

use cofferdam_secrets::{
    ExecFormat, Material, Origin, SecretError, SecretSpec, ShortValues, SourceLimits, VaultOrigin, fetch,
};

#[tokio::test]
async fn a_file_gives_its_fields() {
    let directory = support::TemporaryDirectory::new();
    let json = directory.executable("dev.json", r#"{"token": "ghp_0123456789", "user": "bob"}"#);
    let material = fetch_with(Origin::File(json), &["user"]).await.unwrap();
    assert_eq!(material.fields.len(), 2);
    assert_eq!(needles(&material), ["test.token=ghp_0123456789"]);
    let plain = directory.executable("token", "ghp_0123456789\n");
    assert_eq!(needles(&fetch_with(Origin::File(plain), &[]).await.unwrap()), ["test.value=ghp_0123456789"]);
}

#[tokio::test]
async fn an_unusable_file_is_refused_with_the_reason_and_without_its_content() {
    let directory = support::TemporaryDirectory::new();
    let large = directory.executable("large", &"hunter2".repeat(20_000));
    assert_refused(Origin::File(large), "it holds more than 65536 bytes").await;
    let exact = directory.executable("exact", &"x".repeat(65536));
    assert!(fetch_with(Origin::File(exact), &[]).await.is_ok());
    let short = directory.executable("short", "hunter2\n");
    assert_refused(Origin::File(short), "its field `value` has 7 bytes, fewer than 8").await;
    let empty = directory.executable("empty", "\n");
    assert_refused(Origin::File(empty), "it is empty").await;
    let nested = directory.executable("nested", r#"{"a": {"hunter2": "hunter2"}}"#);
    assert_refused(Origin::File(nested), "its field `a` is null, a list or an object").await;
    let elsewhere =
        Origin::Vault(VaultOrigin::Generated { path: "database/creds/role".parse().unwrap(), write: None });
    assert_refused(elsewhere, "it is in Vault, not on this host").await;
    assert_refused(Origin::File("/no/such/file".into()), "cannot read it: No such file").await;
    assert_refused(Origin::File("/dev/zero".into()), "it is not a regular file").await;
    assert_refused(Origin::File("/tmp".into()), "it is not a regular file").await;
}

#[tokio::test]
async fn a_pipe_instead_of_a_file_does_not_block() {
    let directory = support::TemporaryDirectory::new();
    let pipe = directory.executable("unused", "").with_file_name("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_refused(Origin::File(pipe), "it is not a regular file").await;
}

#[tokio::test]
async fn a_variable_gives_its_value() {
    // Cargo sets it for tests; its value is long enough.
    let name = "CARGO_MANIFEST_DIR";
    let material = fetch_with(Origin::Env(name.into()), &[]).await.unwrap();
    assert_eq!(needles(&material), [format!("test.value={}", std::env::var(name).unwrap())]);
    assert_refused(
        Origin::Env("COFFERDAM_NO_SUCH_VARIABLE".into()),
        "it is not set in the sidecar's environment",
    )
    .await;
}

#[tokio::test]
async fn a_command_gives_its_output() {
    support::prepare();
    let material = fetch_with(exec(r#"echo '{"token": "ghp_0123456789"}'"#), &[]).await.unwrap();
    assert_eq!(needles(&material), ["test.token=ghp_0123456789"]);
    assert_refused(exec("echo hunter2hunter2; exit 1"), "cannot run it: it failed: it exited with code 1")
        .await;
    assert_refused(exec("yes hunter2"), "it holds more than 65536 bytes").await;
    let hanging = source(exec("echo hunter2hunter2; sleep 1000"), &[]);
    let limits = SourceLimits { exec_timeout: Duration::from_millis(500), ..limits() };
    let error = fetch(&hanging, limits).await.unwrap_err();
    assert_reason(&error, "cannot run it: it did not end within 500 ms");
    let missing =
        Origin::Exec { command: vec!["no-such-command".into(), "hunter2".into()], format: ExecFormat::Plain };
    assert_refused(missing, "cannot run it: there is no `no-such-command`").await;
}

fn exec(script: &str) -> Origin {
    Origin::Exec { command: ["sh", "-c", script].map(String::from).into(), format: ExecFormat::Plain }
}

async fn fetch_with(origin: Origin, public: &[&str]) -> Result<Material, SecretError> {
    fetch(&source(origin, public), limits()).await
}

fn source(origin: Origin, public: &[&str]) -> SecretSpec {
    let public = public.iter().map(ToString::to_string).collect();
    SecretSpec { name: "test".parse().expect("a name"), origin, public, short: ShortValues::Refuse }
}

async fn assert_refused(origin: Origin, why: &str) {
    assert_reason(&fetch_with(origin, &[]).await.expect_err("it is refused"), why);
}

/// Asserts that the error gives this reason and shows neither the content nor an argument.
fn assert_reason(error: &SecretError, why: &str) {
    let mut reasons = Vec::new();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        reasons.push(error.to_string());
        cause = error.source();
    }
    let reasons = reasons.join(": ");
    assert!(reasons.starts_with(why), "{reasons}");
    let everything = format!("{error} {reasons} {error:?} {}", error.next_step());
    assert!(!everything.contains("hunter2"), "{everything}");
    assert!(everything.contains("test"), "the secret is not named: {everything}");
}

fn needles(material: &Material) -> Vec<String> {
    let needles = material.needles(&"test".parse().expect("a name"));
    needles
        .iter()
        .map(|needle| format!("{}={}", needle.label, String::from_utf8_lossy(&needle.value)))
        .collect()
}

fn limits() -> SourceLimits {
    SourceLimits { bytes: 64 * 1024, exec_timeout: Duration::from_secs(60) }
}
