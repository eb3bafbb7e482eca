//! Tests with a proxy in front of a real server that answers some requests itself, with fixed responses. Clusters of Vault
//! Enterprise respond with 412, 472 and 473, and OpenBao's standbys with 429 to a client that has a newer state; a single
//! open-source server cannot be made to send these. A further test checks that the proxy changes nothing without a rule.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use cofferdam_tests::deadline::PATIENCE;
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::vault::prepared;
use cofferdam_tests::vault_fault_proxy::{Action, FixedResponse, VaultFaultProxy};
use serde_json::{Value, json};

use crate::support::{Refusal, behind_proxy, refused, survives_behind_proxy};

fn fixed_response(status: u16, headers: &'static str, body: &'static str) -> Action {
    Action::Respond(FixedResponse { status, headers, body })
}

fn survives_fixed_response(act: Action, shown: &[&str]) {
    survives_behind_proxy(
        OpenBao::dev(),
        |_, proxy| proxy.rule("", act),
        Refusal { shown, logged: &["auth/token/create"] },
        |_, proxy| proxy.clear_rules(),
    );
}

#[test]
fn fixed_responses_412_472_and_473_of_nodes_that_do_not_serve() {
    let behind = fixed_response(412, "", r#"{"errors":["required index state not present"]}"#);
    std::thread::scope(|together| {
        together.spawn(|| {
            survives_fixed_response(behind, &["not caught up yet (HTTP 412)", "the sidecar retries"])
        });
        let words = ["standby for disaster recovery (HTTP 472)", "active node"];
        together.spawn(move || survives_fixed_response(fixed_response(472, "", "{}"), &words));
        let words = ["performance standby (HTTP 473)", "active node"];
        together.spawn(move || survives_fixed_response(fixed_response(473, "", "{}"), &words));
    });
}

#[test]
fn a_fixed_response_429_of_a_node_that_is_behind() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let (proxy, world) = behind_proxy(&bao);
    proxy.rule("", fixed_response(429, "retry-after: 1\r\n", r#"{"errors":[]}"#));
    let mut late = world.shim("late");
    refused(&mut late, &["HTTP 429", "or this node is a standby", "the sidecar retries"]);
    proxy.clear_rules();
    world.wait_until("it works", || late.initialize().get("result").is_some());
}

/// Sends every kind of request of the sidecar directly and through the proxy: status, members and the kinds of their
/// values are the same.
#[test]
fn the_fault_proxy_changes_nothing_without_a_rule() {
    let Some(bao) = prepared(OpenBao::dev()) else { return };
    let proxy = VaultFaultProxy::in_front_of(bao.listens_at);
    // A rule that rewrites nothing, and a newer one for another path.
    proxy.rule("sys/mounts", Action::Rewrite(|_| {}));
    proxy.rule("nowhere", fixed_response(473, "", "{}"));
    let certificate = json!({"common_name": "agent.internal"});
    let lookup = json!({"lease_id": "pki/issue/agent/none"});
    let requests: &[(&str, &str, &Value)] = &[
        ("GET", "sys/health", &Value::Null),
        ("GET", "sys/mounts", &Value::Null),
        ("GET", "sys/internal/ui/mounts/secret/github", &Value::Null),
        ("GET", "secret/data/github", &Value::Null),
        ("GET", "secret/data/nothing", &Value::Null),
        ("GET", "nomount/at/all", &Value::Null),
        ("POST", "pki/issue/agent", &certificate),
        ("POST", "pki/issue/unknown", &certificate),
        ("GET", "auth/token/lookup-self", &Value::Null),
        ("POST", "auth/token/create", &json!({"ttl": "1m"})),
        ("POST", "auth/approle/login", &json!({"role_id": "x", "secret_id": "y"})),
        ("PUT", "sys/leases/lookup", &lookup),
    ];
    for (method, path, body) in requests {
        let asked = |address| {
            let (status, body) = exchange(address, method, path, &bao.root_token, body).unwrap();
            (status, shape(&body))
        };
        let (direct, through) = (asked(bao.listens_at), asked(proxy.listens_at()));
        assert_eq!(direct, through, "{method} {path}");
        assert!(direct.0 != 0 && !direct.1.is_empty(), "{method} {path}");
    }
    assert_eq!(proxy.count(""), requests.len());
}

/// The paths of all members and the kinds of their values.
fn shape(value: &Value) -> BTreeMap<String, &'static str> {
    fn walk(value: &Value, at: &str, found: &mut BTreeMap<String, &'static str>) {
        let kind = match value {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(members) => {
                members.iter().for_each(|(name, value)| walk(value, &format!("{at}/{name}"), found));
                "object"
            }
        };
        found.insert(at.to_owned(), kind);
    }
    let mut found = BTreeMap::new();
    walk(value, "", &mut found);
    found
}

/// One request and its response, on a connection that ends with it.
fn exchange(
    address: SocketAddr,
    method: &str,
    path: &str,
    token: &str,
    body: &Value,
) -> io::Result<(u16, Value)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len();
    // HTTP/1.0 has no chunks: what follows the head is the body.
    let head = format!("{method} /v1/{path} HTTP/1.0\r\nHost: {address}\r\nX-Vault-Token: {token}\r\n");
    stream.write_all(format!("{head}Content-Length: {length}\r\n\r\n{body}").as_bytes())?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    let not_http = || io::Error::other("the response is not HTTP");
    let (head, body) = response.split_once("\r\n\r\n").ok_or_else(not_http)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(not_http)?;
    Ok((status, serde_json::from_str(body).unwrap_or(Value::Null)))
}
