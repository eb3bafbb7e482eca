//! Unique values for everything secret that Vault receives or sends, and a search for them wherever they must not be;
//! and a comparison of the two audit logs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::encodings::{assert_absent, contains};
use cofferdam_tests::http_fixture::{Behaviour, HttpFixture};
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::process::{
    children_of, command, command_line, environment_variable, output_of, without_capabilities,
};
use cofferdam_tests::server::Server;
use cofferdam_tests::vault::{
    app_role_with, lease_id, prepared, token_file_auth, world_with_vault_at, write_file,
};
use cofferdam_tests::vault_fault_proxy::VaultFaultProxy;
use cofferdam_tests::vault_logins::{create_app_role, wrapped_secret_id};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

#[test]
fn secrets_from_vault_are_found_only_in_the_server_that_should_have_them() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let stored_value = write_unique_secret(&bao);
    let role_id = create_app_role(&bao, &mut app_role_with(&["sidecar", "agent"], "10m"));
    let wrapped = write_file(&bao, "wrapped", &wrapped_secret_id(&bao));
    let auth = format!(
        "auth = {{ method = \"approle\", role-id-file = {role_id:?}, secret-id-file = {wrapped:?}, secret-id-wrapped = true, role = \"agent\" }}"
    );
    let proxy = VaultFaultProxy::in_front_of(bao.listens_at);
    let web = HttpFixture::start(Behaviour::Json);
    let mut world = world_with_vault_at(&proxy.address(), &auth)
        .secret("github", "kv = \"secret/github\"")
        .secret("cert", "vault = \"pki/issue/agent\"\nwrite = { common_name = \"agent.internal\" }")
        .server("stored", Server::fixture().env("SECRET", "{github.token}").allow(&["*"]))
        .server("leased", Server::fixture().env("SECRET", "{cert.private_key}").allow(&["*"]))
        .server(
            "web",
            Server::http(&web.url()).header("authorization", "Bearer {github.token}").allow(&["*"]),
        )
        .server("bare", Server::fixture().allow(&["*"]))
        .capturing()
        .start();
    let mut shims = ["stored", "leased", "web", "bare"].map(|server| world.connected(server));
    // Servers that leak their secrets in every encoding.
    for harness in &mut shims[..2] {
        harness.call("env", json!({}));
        for place in ["result", "error", "error-data", "stderr", "log", "key", "escapes"] {
            harness.call("leak", json!({"in": place, "as": "plain"}));
        }
        for form in ["base64", "hex", "percent", "json"] {
            harness.call("leak", json!({"in": "result", "as": form}));
        }
    }
    assert!(shims[2].call("headers", json!({})).to_string().contains("[redacted:github.token]"));
    let (stored, leased) = (world.fixture_processes("stored")[0], world.fixture_processes("leased")[0]);
    let leased_key = environment_variable(leased, "SECRET");
    let values = secrets(&proxy, &bao, &stored_value, &leased_key);
    wait_until("the servers' stderr is logged", || world.log().matches("using").count() >= 2);

    let sidecar = world.sidecar().id();
    let state = files_below(&world.layout().state);
    assert!(state.iter().any(|path| path.to_string_lossy().contains("/vault/")), "{state:?}");
    for (what, value) in &values {
        for line in value.lines().filter(|line| line.len() >= 20 && !line.contains("-----")) {
            world.assert_secret_not_leaked(line);
            for path in &state {
                assert_absent(&format!("{what} in {}", path.display()), &std::fs::read(path).unwrap(), line);
            }
            for shim in &shims {
                assert_absent(&format!("{what} at the harness"), shim.received(), line);
                assert_absent(&format!("{what} on the shim's stderr"), shim.stderr().as_bytes(), line);
            }
            let should_have_it = match *what {
                "the stored value" => Some(stored),
                "the leased key" => Some(leased),
                _ => None,
            };
            assert_eq!(processes_with(line), Vec::from_iter(should_have_it), "{what}");
        }
    }
    assert!(std::fs::read_dir(format!("/proc/{sidecar}")).is_ok(), "the sidecar exited during the search");
}

/// The sidecar's memory holds all secrets, so it must not be written to a core file.
#[test]
fn a_sidecar_that_dies_of_a_signal_leaves_no_core() {
    use std::os::unix::process::ExitStatusExt;
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let value = write_unique_secret(&bao);
    let mut world = world_with_vault_at(&bao.address(), &token_file_auth(&bao))
        .secret("github", "kv = \"secret/github\"")
        .server("stored", Server::fixture().env("SECRET", "{github.token}").allow(&["*"]))
        .start();
    let _harness = world.connected("stored");
    let id = world.sidecar().id();
    // Raises the core limit again, where this machine permits that.
    let mut raise = command("prlimit");
    raise.args(["--pid", &id.to_string(), "--core=unlimited:unlimited"]);
    let _ = output_of(raise, "prlimit");
    let directory = std::fs::read_link(format!("/proc/{id}/cwd")).unwrap();
    world.sidecar().signal(Signal::SIGABRT);
    let status = world.sidecar().wait(cofferdam_tests::deadline::PATIENCE);
    assert_eq!(status.signal(), Some(Signal::SIGABRT as i32));
    assert!(!status.core_dumped(), "{status}");
    let cores = std::fs::read_dir(directory).unwrap().flatten();
    let has_secret = |path: &PathBuf| contains(&std::fs::read(path).unwrap_or_default(), value.as_bytes());
    let cores: Vec<PathBuf> = cores
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("core")))
        .filter(|path| path.is_file() && has_secret(path))
        .collect();
    assert!(cores.is_empty(), "{cores:?}");
}

/// A process of the same user, without capabilities, cannot read the memory either.
#[test]
fn no_process_of_the_same_user_reads_the_sidecar_or_a_keeper() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let value = write_unique_secret(&bao);
    let mut world = world_with_vault_at(&bao.address(), &token_file_auth(&bao))
        .secret("github", "kv = \"secret/github\"")
        // Root without capabilities may not make the user namespace of a confined server. The keeper is the same for both.
        .server("stored", Server::fixture().env("SECRET", "{github.token}").allow(&["*"]).unconfined())
        .without_capabilities()
        .start();
    let _harness = world.connected("stored");
    let read_as_same_user = |process: u32, file: &str| {
        let mut read_as_same_user = without_capabilities("cat");
        read_as_same_user.arg(format!("/proc/{process}/{file}"));
        output_of(read_as_same_user, "cat")
    };
    // The same user can read a server's process, so the machine does not forbid it in general.
    let server = world.fixture_processes("stored")[0];
    assert!(contains(&read_as_same_user(server, "environ").stdout, value.as_bytes()));
    let sidecar = world.sidecar().id();
    let keepers: Vec<u32> =
        children_of(sidecar).into_iter().filter(|child| command_line(*child).contains(" keeper")).collect();
    assert_eq!(keepers.len(), 1, "{keepers:?}");
    for (who, process) in [("the sidecar", sidecar), ("its keeper", keepers[0])] {
        for file in ["environ", "maps", "mem"] {
            let read = read_as_same_user(process, file);
            let complaint = String::from_utf8_lossy(&read.stderr);
            assert!(read.stdout.is_empty() && complaint.contains("Permission denied"), "{who}: {read:?}");
        }
        let limits = std::fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
        let core = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).unwrap();
        assert_eq!(core.split_whitespace().collect::<Vec<_>>(), ["0", "0", "bytes"], "{who}");
    }
}

#[test]
fn both_audit_logs_can_be_joined() {
    let Some(bao) = prepared(OpenBao::configured()) else { return };
    let web = HttpFixture::start(Behaviour::Json);
    let world = world_with_vault_at(&bao.address(), &token_file_auth(&bao))
        .secret("github", "kv = \"secret/github\"")
        .secret("cert", "vault = \"pki/issue/agent\"\nwrite = { common_name = \"agent.internal\" }")
        .server("both", Server::fixture().env("SECRET", "{github.token} {cert.serial_number}").allow(&["*"]))
        .server(
            "web",
            Server::http(&web.url()).header("authorization", "Bearer {github.token}").allow(&["*"]),
        )
        .start();
    let mut shims = [world.connected("both"), world.connected("both"), world.connected("web")];
    shims[0].call("echo", json!({"text": "x"}));
    shims[1].call("echo", json!({"text": "x"}));
    shims[2].call("headers", json!({}));
    let sessions: BTreeSet<String> = world
        .sessions()
        .as_array()
        .unwrap()
        .iter()
        .map(|session| session["session"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(sessions.len(), 3);

    // Vault's audit: every read names the session that it was for.
    let vault_records: Vec<Value> =
        bao.audit().into_iter().filter(|record| record["type"] == "response").collect();
    let is_read = |record: &&Value| {
        let path = record["request"]["path"].as_str().unwrap_or_default();
        let by_operator = record["auth"]["policies"] == json!(["root"]);
        !by_operator && (path.starts_with("secret/data/") || path.starts_with("pki/issue/"))
    };
    let reads: Vec<&Value> = vault_records.iter().filter(is_read).collect();
    assert!(reads.len() >= 5, "{}", reads.len());
    for read in &reads {
        let metadata = &read["auth"]["metadata"];
        assert!(sessions.contains(metadata["session"].as_str().unwrap_or_default()), "{read}");
        assert_eq!((&metadata["sandbox"], &metadata["grant"]), (&json!("shared socket"), &json!("dev")));
    }
    // The sidecar's audit: each credential of a call names one request of Vault's audit, in the same session and with
    // the right path.
    let decisions = world.decisions();
    assert_eq!(decisions.len(), 3);
    for decision in decisions {
        let secrets = decision["secrets"].as_array().unwrap();
        assert!(!secrets.is_empty(), "{decision}");
        for secret in secrets {
            let request = secret["vault_request"].as_str().unwrap();
            let found: Vec<&Value> =
                vault_records.iter().filter(|record| record["request"]["id"] == request).collect();
            assert_eq!(found.len(), 1, "{request}");
            assert_eq!(found[0]["auth"]["metadata"]["session"], decision["session"]);
            let path = if secret["name"] == "cert" { "pki/issue/agent" } else { "secret/data/github" };
            assert_eq!(found[0]["request"]["path"], path);
            assert_eq!(secret["lease"].is_string(), secret["name"] == "cert", "{secret}");
        }
    }
}

/// Gives the stored secret a value that no other test on this machine has.
fn write_unique_secret(bao: &OpenBao) -> String {
    let value = format!("ghp-CANARY-{}", bao.directory.path().display()).replace(['/', '.'], "-");
    bao.write_secret("github", json!({"token": value}));
    value
}

/// Everything secret that was sent to or from Vault, with a description.
fn secrets(
    proxy: &VaultFaultProxy,
    bao: &OpenBao,
    stored_value: &str,
    leased_key: &str,
) -> Vec<(&'static str, String)> {
    let mut values = vec![
        ("the stored value", stored_value.to_owned()),
        ("the leased key", leased_key.to_owned()),
        ("a lease's id", format!("pki/issue/agent/{}", lease_id(bao))),
    ];
    let mut tokens = BTreeSet::new();
    for seen in proxy.seen() {
        tokens.extend(seen.token);
        if seen.path == "auth/approle/login" {
            let secret_id = seen.body["secret_id"].as_str().expect("a login shows its secret-id");
            values.push(("the secret-id", secret_id.to_owned()));
        }
    }
    // The wrap, the login, and at least one for each session that needs Vault.
    assert!(tokens.len() >= 5, "{}", tokens.len());
    values.extend(tokens.into_iter().map(|token| ("a token", token)));
    assert!(values.iter().any(|(what, _)| *what == "the secret-id"));
    values
}

/// Which processes of this machine have a text in their environment or command line.
fn processes_with(text: &str) -> Vec<u32> {
    let ids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let shows = |id: &u32| {
        ["environ", "cmdline"].iter().any(|file| {
            let shown = std::fs::read(format!("/proc/{id}/{file}")).unwrap_or_default();
            contains(&shown, text.as_bytes())
        })
    };
    ids.filter(shows).collect()
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}
