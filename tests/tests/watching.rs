//! The port for health checks and metrics: it shows no secret, and answers this host only.

use std::net::{SocketAddr, TcpStream};

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::http::send_raw;
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::port::free_address;
use cofferdam_tests::server::Server;
use cofferdam_tests::vault::{CANARY, leave, prepared, world, world_with_tools_server};
use cofferdam_tests::world::{Builder, World};
use serde_json::{Value, json};

const ARGUMENT: &str = "an-argument-that-is-not-counted";

#[test]
fn metrics_count_events_and_contain_no_secret() {
    let address = free_address();
    let server = Server::fixture().env("SECRET", "{local.value}").allow(&["echo"]);
    let world = watched(World::new().secret_file("local", CANARY).server("tools", server), address).start();
    assert_eq!(get(address, "/healthz").0, 200);
    assert_eq!(get(address, "/readyz").0, 200);
    let before = get(address, "/metrics").1;
    assert_eq!(number(&before, "cofferdam_links"), Some(0));
    let mut harness = world.connected("tools");
    for _ in 0..3 {
        harness.call_text("echo", json!({"text": ARGUMENT}));
    }
    harness.call("env", json!({}));
    let text = get(address, "/metrics").1;
    let requests = |outcome: &str| {
        number(&text, &format!("cofferdam_requests_total{{server=\"tools\",outcome=\"{outcome}\"}}"))
    };
    // The handshake and three calls.
    assert_eq!(
        (requests("result"), requests("denied"), requests("unknown")),
        (Some(4), Some(1), Some(0)),
        "{text}"
    );
    for name in ["cofferdam_sessions", "cofferdam_links", "cofferdam_server_processes"] {
        assert_eq!(number(&text, name), Some(1), "{name} in\n{text}");
    }
    assert!(number(&text, "cofferdam_audit_records") > number(&before, "cofferdam_audit_records"), "{text}");
    assert_eq!(number(&text, "cofferdam_audit_writes_total{outcome=\"failed\"}"), Some(0), "{text}");
    for private in [CANARY, ARGUMENT, "echo", "SECRET"] {
        assert!(!text.contains(private), "{private} in\n{text}");
    }
    assert!(text.contains("application/openmetrics-text") && text.ends_with("# EOF\n"), "{text}");
    leave(harness);
    wait_until("everything has ended", || {
        let text = get(address, "/metrics").1;
        ["cofferdam_sessions", "cofferdam_links", "cofferdam_server_processes"]
            .iter()
            .all(|name| number(&text, name) == Some(0))
    });
}

#[test]
fn a_handshake_that_is_kept_for_replaying_counts_as_memory_of_its_link() {
    let address = free_address();
    let world = watched(World::new().server("tools", Server::fixture()), address).start();
    let charged = || {
        number(&get(address, "/metrics").1, "cofferdam_link_memory_bytes").expect("there is such a metric")
    };
    let _small = world.connected("tools");
    let of_one_link = charged();
    const LARGE: u64 = 300 * 1024;
    let mut harness = world.shim("tools");
    let client = json!({"name": "test", "version": "1", "title": "x".repeat(LARGE as usize)});
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
    assert!(harness.request("initialize", params).get("result").is_some());
    let small_buffers = 64 * 1024;
    let expected = 2 * of_one_link + LARGE - small_buffers;
    wait_until("the handshake is charged", || charged() >= expected);
}

#[test]
fn unexpected_requests_get_no_metrics_and_delay_no_other() {
    let address = free_address();
    let mut world = watched(World::new().server("tools", Server::fixture()), address).start();
    let status_of =
        |head: &str| send_raw(address, format!("{head}\r\n\r\n").as_bytes()).map(|(status, _)| status);
    let here = format!("Host: {address}");
    assert_eq!(status_of(&format!("GET /metrics HTTP/1.1\r\n{here}")), Some(200));
    assert_eq!(status_of("GET /metrics HTTP/1.1\r\nHost: localhost"), Some(200));
    assert_eq!(status_of(&format!("POST /metrics HTTP/1.1\r\n{here}\r\nContent-Length: 0")), Some(405));
    assert_eq!(status_of(&format!("GET /metrics/x HTTP/1.1\r\n{here}")), Some(404));
    assert_eq!(status_of(&format!("POST / HTTP/1.1\r\n{here}\r\nContent-Length: 0")), Some(404));
    for foreign in ["Host: evil.example", "Host: evil.example:7480", "X-No-Host: at all"] {
        assert_eq!(status_of(&format!("GET /metrics HTTP/1.1\r\n{foreign}")), Some(421), "{foreign}");
    }
    let many: String = (0..100).map(|number| format!("\r\nX-{number}: x")).collect();
    assert_eq!(status_of(&format!("GET /metrics HTTP/1.1\r\n{here}{many}")), Some(431));
    let long = format!("GET /metrics HTTP/1.1\r\n{here}\r\nX: {}", "x".repeat(100_000));
    assert_ne!(status_of(&long), Some(200));
    assert_ne!(status_of("nonsense"), Some(200));
    // More silent connections than slots: those that have been silent longest are closed.
    let sidecar = world.sidecar().id();
    let open = || std::fs::read_dir(format!("/proc/{sidecar}/fd")).map(Iterator::count).unwrap();
    let before = open();
    let _silent: Vec<TcpStream> = (0..60).map(|_| TcpStream::connect(address).unwrap()).collect();
    assert_eq!(get(address, "/healthz").0, 200);
    // Most of the silent connections are closed by now.
    assert!(open() < before + 40, "{before} and {} now", open());
}

#[test]
fn readiness_waits_for_the_login_and_vault_requests_are_counted() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let address = free_address();
    bao.freeze();
    let world = watched(world_with_tools_server(&bao), address).start();
    let (status, text) = get(address, "/readyz");
    assert_eq!(status, 503, "{text}");
    assert!(text.contains("not logged in to Vault"), "{text}");
    assert_eq!(get(address, "/healthz").0, 200);
    assert_eq!(number(&get(address, "/metrics").1, "cofferdam_vault_logged_in"), Some(0));
    bao.thaw();
    wait_until("the sidecar is ready", || get(address, "/readyz").0 == 200);
    let _harness = world.connected("tools");
    let text = get(address, "/metrics").1;
    for (name, expected) in [
        ("cofferdam_vault_logged_in", 1),
        ("cofferdam_vault_logins_total{outcome=\"done\"}", 1),
        ("cofferdam_vault_reads_total{outcome=\"done\"}", 1),
        ("cofferdam_vault_reads_total{outcome=\"failed\"}", 0),
        ("cofferdam_vault_revocations_total{outcome=\"revoked\"}", 0),
    ] {
        assert_eq!(number(&text, name), Some(expected), "{name} in\n{text}");
    }
    assert!(number(&text, "cofferdam_vault_session_tokens_total{outcome=\"done\"}") >= Some(1), "{text}");
    let session = world.sessions()[0]["session"].as_str().unwrap().to_owned();
    world.cofferdam_text(&["kill", &session]);
    let text = get(address, "/metrics").1;
    // The token of the lease, and the session's other token if it had one.
    assert!(number(&text, "cofferdam_vault_revocations_total{outcome=\"revoked\"}") >= Some(1), "{text}");
    assert_eq!(number(&text, "cofferdam_vault_time_to_revoke_seconds_count"), Some(1), "{text}");
}

#[test]
fn failures_of_vault_are_counted_by_kind() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let address = free_address();
    let server = Server::fixture().env("SECRET", "{other.token}").allow(&["*"]);
    let world =
        watched(world(&bao).secret("other", "kv = \"secret/other\"").server("tools", server), address)
            .start();
    assert!(world.shim("tools").initialize().get("error").is_some());
    let text = get(address, "/metrics").1;
    assert_eq!(number(&text, "cofferdam_vault_reads_total{outcome=\"failed\"}"), Some(1), "{text}");
    assert!(number(&text, "cofferdam_vault_failures_total{kind=\"denied\"}") >= Some(1), "{text}");
    assert!(!text.contains("secret/other") && !text.contains(CANARY), "{text}");
}

#[test]
fn sessions_shows_each_lease_and_its_last_error() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let write = "write = { common_name = \"agent.internal\", ttl = \"8s\" }";
    let world = world(&bao)
        .secret("cert", &format!("vault = \"pki/issue/agent\"\n{write}"))
        .secret("github", "kv = \"secret/github\"")
        .server("tools", Server::fixture().file("key.pem", "{cert.private_key}").allow(&["*"]))
        .server("other", Server::fixture().env("SECRET", "{github.token}").allow(&["*"]))
        .start();
    let mut harness = world.connected("tools");
    let _other = world.connected("other");
    harness.call("env", json!({}));
    let of = |server: &str| {
        let sessions = world.sessions();
        let link = sessions.as_array().unwrap().iter().find(|link| link["server"] == server).cloned();
        link.expect("it is shown")["credentials"].clone()
    };
    let credentials = of("tools");
    assert_eq!(credentials.as_array().map(Vec::len), Some(1), "{credentials}");
    let lease = &credentials[0];
    assert_eq!(
        (&lease["secret"], &lease["origin"]),
        (&json!("cert"), &json!("Vault's `pki/issue/agent`")),
        "{credentials}"
    );
    assert!(lease["expires-in-seconds"].as_u64().is_some_and(|left| left <= 8), "{credentials}");
    assert_eq!((&lease["renewals"], &lease["last-error"]), (&json!(0), &json!(null)), "{credentials}");
    // The lease has the same name as in the audit.
    let audited: Vec<Value> =
        world.decisions().iter().map(|decision| decision["secrets"][0]["lease"].clone()).collect();
    assert!(audited.contains(&lease["lease"]) && lease["lease"].is_string(), "{credentials} and {audited:?}");
    let kv = of("other");
    assert_eq!((&kv[0]["secret"], &kv[0]["lease"]), (&json!("github"), &json!(null)), "{kv}");
    let text = world.cofferdam_text(&["sessions"]);
    for words in
        ["`cert` from Vault's `pki/issue/agent`: lease ", "`github` from Vault's `secret/github`: no lease, "]
    {
        assert!(text.contains(words), "{words} in\n{text}");
    }
    bao.freeze();
    wait_until("the error is shown", || of("tools")[0]["last-error"].is_string());
    let text = world.cofferdam_text(&["sessions"]);
    assert!(text.contains("; last error: ") && !text.contains(CANARY), "{text}");
    bao.thaw();
    wait_until("the error is cleared", || {
        let credentials = of("tools");
        credentials[0]["last-error"].is_null() && credentials[0]["expires-in-seconds"].as_u64() > Some(0)
    });
}

fn watched(builder: Builder, address: SocketAddr) -> Builder {
    builder.admin(&format!("http = \"{address}\""))
}

/// The status, and the whole response.
#[track_caller]
fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    send_raw(address, request.as_bytes()).unwrap_or_else(|| panic!("no response to {path}"))
}

/// The value of the metric with this name and labels.
fn number(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    value.trim().parse().ok()
}
