//! `exec` with `format = "expiring"`: a credential that expires is replaced before that, without a lost call and
//! without Vault; invalid output of the program is refused with the reason.

use std::collections::BTreeSet;
use std::fs;

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::harness::refusal_of;
use cofferdam_tests::process::is_alive;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Contained in every value that the programs of these tests print.
const CANARY: &str = "CANARY-expiring-0123456789";
/// How long each credential is valid, in seconds: it is replaced after some two thirds of that.
const LIFE: u32 = 12;

/// The lines of a secret whose program prints another token at each run, and counts its runs.
fn rotating_secret(folder: &TempDir) -> String {
    let runs = folder.path().join("runs");
    secret_from_script(&format!(
        "echo run >> '{runs}'; \
         printf '{{\"fields\": {{\"token\": \"{CANARY}-%d\"}}, \"expires\": \"%s\"}}' \
         $(wc -l < '{runs}') $(date -u -d '+{LIFE} seconds' +%Y-%m-%dT%H:%M:%SZ)",
        runs = runs.display()
    ))
}

/// The lines of a secret whose program is a shell script.
fn secret_from_script(script: &str) -> String {
    format!("exec = {:?}\nformat = \"expiring\"", ["sh", "-c", script])
}

fn replacements(world: &World) -> usize {
    let replaced = |record: &Value| {
        record["event"] == "replacement"
            && record["detail"].as_str().is_some_and(|detail| detail.starts_with("replaced: "))
    };
    world.audit().iter().filter(|record| replaced(record)).count()
}

fn variable(process: u32, name: &str) -> Option<String> {
    let environment = fs::read(format!("/proc/{process}/environ")).ok()?;
    let environment = String::from_utf8_lossy(&environment).into_owned();
    environment.split('\0').find_map(|entry| entry.strip_prefix(&format!("{name}=")).map(str::to_owned))
}

#[test]
fn a_process_is_replaced_before_its_credential_expires_and_no_call_is_lost_or_run_twice() {
    let folder = tempfile::tempdir().expect("a folder");
    let world = World::new()
        .capturing()
        .secret("rotating", &rotating_secret(&folder))
        .server("tools", Server::fixture().env("SECRET", "{rotating.token}").allow(&["*"]))
        .start();
    let mut harness = world.connected("tools");
    harness.request("tools/list", json!({}));
    let long = harness.send_call("slow", json!({"ms": 15_000}));
    let mut number = 0_u64;
    let mut in_flight: Vec<Value> = Vec::new();
    wait_until("two processes have taken over", || {
        for _ in 0..20 {
            while in_flight.len() < 4 {
                in_flight.push(harness.send_call("tally", json!({"number": number})));
                number += 1;
            }
            let answer = harness.answer_to(&in_flight.remove(0));
            assert!(answer.get("result").is_some(), "{answer}");
        }
        replacements(&world) == 2
    });
    for id in in_flight.iter().chain([&long]) {
        let answer = harness.answer_to(id);
        assert!(answer.get("result").is_some(), "{answer}");
    }
    let executions = world.executions("tools");
    let tallied = executions.iter().filter(|one| one.tool == "tally");
    let numbers: Vec<u64> = tallied.filter_map(|one| one.arguments["number"].as_u64()).collect();
    let distinct: BTreeSet<u64> = numbers.iter().copied().collect();
    assert_eq!((numbers.len(), distinct.len()), (number as usize, number as usize), "each ran once");
    assert_eq!(world.times_executed("tools", "slow"), 1);

    // Each process has the credential that was current when it was started.
    let processes = world.fixture_processes("tools");
    let last = *processes.last().expect("a process");
    let runs = fs::read_to_string(folder.path().join("runs")).expect("the program ran").lines().count();
    assert!(processes.len() >= 3 && runs >= 3, "{processes:?}, {runs} runs");
    let newest = variable(last, "SECRET").expect("the process has its credential");
    assert!(newest.starts_with(&format!("{CANARY}-")) && newest != format!("{CANARY}-1"), "{newest}");
    wait_until("the first process is gone", || !is_alive(processes[0]));

    // The newest and the former values are scrubbed.
    assert!(harness.call_text("env", json!({})).contains("SECRET=[redacted:rotating.token]"));
    let first = harness.call_text("echo", json!({"text": format!("{CANARY}-1")}));
    assert_eq!(first, "[redacted:rotating.token]");

    let session = &world.sessions()[0];
    let credential = &session["credentials"][0];
    assert_eq!(
        (&credential["secret"], &credential["lease"]),
        (&json!("rotating"), &json!(null)),
        "{credential}"
    );
    assert_eq!(credential["unrevocable"], true, "{credential}");
    assert!(credential["expires-in-seconds"].as_u64() <= Some(u64::from(LIFE)), "{credential}");
    let shown = world.cofferdam_text(&["sessions"]);
    assert!(
        shown.contains("`rotating` from the command `sh`: no lease, cannot be revoked, expires in "),
        "{shown}"
    );
    let printed = world.cofferdam_text(&["kill", session["session"].as_str().expect("an id")]);
    // The value before may still be valid; then two values are reported.
    let (_, reported) = printed
        .split_once("`rotating` from the command `sh`: cannot be revoked; ")
        .unwrap_or_else(|| panic!("{printed}"));
    assert!(reported.contains("expires at 20"), "{printed}");
    let end = world.audit().into_iter().find(|record| record["event"] == "link_end").expect("the link ended");
    let detail = end["detail"].as_str().unwrap_or_default();
    let (_, reported) =
        detail.split_once("; not revocable: `rotating` ").unwrap_or_else(|| panic!("{detail}"));
    assert!(reported.contains("expires at 20"), "{detail}");
    world.assert_secret_not_leaked(&newest);
}

#[test]
fn invalid_program_output_is_refused_with_the_reason_and_never_quoted() {
    let with = |fields: &str, expires: &str| {
        secret_from_script(&format!("printf '%s' '{{\"fields\": {fields}, \"expires\": {expires}}}'"))
    };
    let token = format!("{{\"token\": \"{CANARY}\"}}");
    let cases = [
        ("plain", secret_from_script(&format!("echo {CANARY}")), "it printed neither an object"),
        (
            "cut",
            secret_from_script(&format!("printf '{{\"fields\": {{\"token\": \"{CANARY}'")),
            "it printed neither an object",
        ),
        (
            "endless",
            secret_from_script(&format!("printf '%s' '{{\"fields\": {token}}}'")),
            "it printed no `expires`",
        ),
        ("past", with(&token, "\"2020-01-01T00:00:00Z\""), "expired at 2020-01-01T00:00:00.000Z"),
        ("unreadable", with(&token, &format!("\"{CANARY}\"")), "its `expires` is not a time in RFC 3339"),
        (
            "nested",
            with(&format!("{{\"token\": [\"{CANARY}\"]}}"), "\"2999-01-01T00:00:00Z\""),
            "is null, a list or an object",
        ),
        ("large", secret_from_script(&format!("yes {CANARY}")), "it holds more than 65536 bytes"),
        ("failing", secret_from_script(&format!("echo {CANARY}; exit 3")), "it failed: "),
    ];
    let mut world = World::new().limit("secret-exec-timeout = \"1m\"");
    for (name, secret, _) in &cases {
        let server = Server::fixture().env("SECRET", &format!("{{{name}.token}}"));
        world = world.secret(name, secret).server(name, server);
    }
    let world = world.start();
    for (name, _, why) in &cases {
        let refused = world.shim(name).initialize();
        assert_eq!(refusal_of(&refused), "credential_unavailable", "{name}: {refused}");
        let message = refused["error"]["message"].as_str().unwrap_or_default();
        let whole = format!("load the secret `{name}`: ");
        assert!(message.contains(&whole) && message.contains(why), "{name}: {message}");
        assert!(message.contains("tried again in ") && !message.contains(CANARY), "{name}: {message}");
    }
    assert!(world.executions("plain").is_empty());
    world.assert_secret_not_leaked(CANARY);
}

#[test]
fn a_program_that_hangs_is_ended_and_refused() {
    let world = World::new()
        .limit("secret-exec-timeout = \"500ms\"")
        .secret("hanging", &secret_from_script("sleep 86399"))
        .server("tools", Server::fixture().env("SECRET", "{hanging.token}"))
        .start();
    let refused = world.shim("tools").initialize();
    assert_eq!(refusal_of(&refused), "credential_unavailable", "{refused}");
    let message = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("it did not end within 500 ms"), "{message}");
}

#[test]
fn the_form_of_aws_gives_its_fields_and_a_distant_expiry_is_accepted() {
    let aws = json!({
        "Version": 1, "AccessKeyId": format!("{CANARY}-id"), "SecretAccessKey": format!("{CANARY}-key"),
        "SessionToken": format!("{CANARY}-session"), "Expiration": "9999-12-31T23:59:59Z"
    });
    let server = Server::fixture()
        .env("AWS_ACCESS_KEY_ID", "{aws.access_key_id}")
        .env("AWS_SECRET_ACCESS_KEY", "{aws.secret_access_key}")
        .env("AWS_SESSION_TOKEN", "{aws.session_token}");
    let world = World::new()
        .secret("aws", &secret_from_script(&format!("printf '%s' '{aws}'")))
        .server("tools", server)
        .start();
    let mut harness = world.connected("tools");
    let process: u32 = harness.call_text("process", json!({})).parse().expect("a process's number");
    for (name, end) in
        [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "key"), ("AWS_SESSION_TOKEN", "session")]
    {
        assert_eq!(variable(process, name), Some(format!("{CANARY}-{end}")), "{name}");
    }
}
