//! Connection problems: reported on the shim's stderr, in its status and in the response to a waiting call, with the
//! next step.

use cofferdam_tests::harness::Harness;
use cofferdam_tests::port::free_address;
use cofferdam_tests::process::output_of;
use cofferdam_tests::proxy::{Proxy, ProxyBehaviour};
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;

use crate::support::{Peers, Sandbox, with_a_port};

struct Case {
    what: &'static str,
    arguments: Vec<String>,
    /// Texts that every message must have: the problem and the next step.
    texts: [String; 2],
}

/// The cases run at the same time: each takes as long as the handshake timeout.
#[test]
fn each_connection_problem_is_reported_with_the_next_step() {
    let peers = Peers::new();
    let (world, place) = with_a_port(|builder, _| builder);
    let old = peers.tls(&[&rustls::version::TLS12], |_| async {});
    let plain_web_server = peers.web_server("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let not_found = peers.web_server("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    let other = peers.tcp(|mut stream| async move {
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.9\r\n").await;
    });
    let unused = free_address();
    let proxy = |behaviour| Proxy::start(behaviour).address;
    let requires_password =
        proxy(ProxyBehaviour::Answers("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"));
    let forbids = proxy(ProxyBehaviour::Answers("HTTP/1.1 403 Forbidden\r\n\r\n"));
    let (hangs, closes) = (proxy(ProxyBehaviour::Hangs), proxy(ProxyBehaviour::Closes));
    let relay = |link: String| vec!["--relay".to_owned(), link];
    let through = |proxy: String| vec!["--proxy".to_owned(), format!("http://{proxy}")];
    let case = |what, arguments, trouble: String, next: &str| Case {
        what,
        arguments,
        texts: [trouble, next.to_owned()],
    };
    let cases = [
        case(
            "TLS 1.2",
            relay(format!("tls://{old}")),
            "no TLS newer than 1.2".into(),
            "use a `wss://` address",
        ),
        case(
            "HTTPS",
            relay(format!("tls://{plain_web_server}")),
            "not the relay protocol".into(),
            "`relay.advertise`",
        ),
        case("no TLS", relay(format!("tls://{other}")), "does not speak TLS".into(), "`relay.advertise`"),
        case(
            "no listener",
            relay(format!("tls://{unused}")),
            format!("TCP connection to {unused}"),
            "does a program listen there",
        ),
        case(
            "no such name",
            relay("tls://relay.invalid:7443".into()),
            "cannot resolve `relay.invalid`".into(),
            "does this sandbox have a resolver",
        ),
        case(
            "upgrades stripped",
            relay(format!("wss://{plain_web_server}/")),
            "does not forward WebSocket upgrades".into(),
            "configure it to forward this path with HTTP/1.1",
        ),
        case(
            "another path",
            relay(format!("wss://{not_found}/x")),
            "HTTP status 404".into(),
            "is the path of the relay's address correct",
        ),
        case(
            "407",
            through(requires_password.to_string()),
            format!("the proxy {requires_password} requires a user and a password"),
            "http://USER:PASSWORD@HOST:PORT",
        ),
        case(
            "407 again",
            through(format!("u:hunter2@{requires_password}")),
            "rejected the user and the password".into(),
            "correct them",
        ),
        case(
            "403",
            through(forbids.to_string()),
            format!("connections to {place} (status 403)"),
            "use another proxy with `--proxy`",
        ),
        case(
            "proxy hangs",
            through(hangs.to_string()),
            format!("connecting through the proxy {hangs} took longer than"),
            "use another proxy with `--proxy`",
        ),
        case(
            "proxy closes",
            through(closes.to_string()),
            format!("the proxy {closes} closed"),
            "is it an HTTP proxy",
        ),
        case(
            "vsock",
            relay("vsock:1:4294967290".into()),
            "connect to vsock:1:4294967290".into(),
            "`relay.vsock-dir`",
        ),
    ];
    let mut waiting: Vec<(Case, Sandbox, Harness, Value)> = cases
        .into_iter()
        .enumerate()
        .map(|(number, case)| {
            let sandbox = Sandbox::enrolled(&world, &number.to_string());
            let arguments: Vec<&str> = case.arguments.iter().map(String::as_str).collect();
            let mut shim = sandbox.shim(&arguments);
            let id = shim.send_initialize();
            (case, sandbox, shim, id)
        })
        .collect();
    waiting.push({
        let enrolment = world.cofferdam_text(&["enroll", "--grant", "dev"]).trim().to_owned();
        let (start, pin) = ("cofferdam:1:".len(), "00".repeat(32));
        let foreign = format!("{}{pin}{}", &enrolment[..start], &enrolment[start + 64..]);
        let sandbox = Sandbox::with(&world, "foreign", foreign);
        let mut shim = sandbox.shim(&[]);
        let id = shim.send_initialize();
        (case("wrong pin", Vec::new(), format!("but {pin} is pinned"), "`cofferdam key`"), sandbox, shim, id)
    });
    for (case, sandbox, mut shim, id) in waiting {
        let Case { what, arguments, texts } = case;
        let answer = shim.answer_to(&id);
        let refusal = answer["error"]["message"].as_str().unwrap_or_default().to_owned();
        let status = output_of(sandbox.status(&arguments), "cofferdam-shim status");
        assert_eq!(status.status.code(), Some(69), "{what}");
        let places = [
            ("answer", refusal),
            ("stderr", shim.stderr()),
            ("status", String::from_utf8_lossy(&status.stderr).into()),
        ];
        for (place, text) in places {
            for part in &texts {
                assert!(text.contains(part), "{what}: {part:?} in the {place}: {text}");
            }
            assert!(text.contains("relay_unavailable") || place == "stderr", "{what}: {place}: {text}");
            assert!(!text.contains("hunter2"), "{what}: {text}");
        }
        assert!(shim.is_running(), "{what}: the shim exited although its stdin is open");
    }
}
