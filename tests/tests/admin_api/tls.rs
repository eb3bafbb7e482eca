//! The admin API over TLS: certificates, tokens, and clients that have neither.

use std::net::{SocketAddr, TcpStream};

use cofferdam_tests::certificates::{Authority, Certified};
use cofferdam_tests::http::send_raw;

use super::*;

/// A sidecar whose admin API is reached over TLS, with client certificates of another authority.
pub(crate) struct Remote {
    pub(crate) world: World,
    pub(crate) address: SocketAddr,
    pub(crate) authority: Authority,
    pub(crate) clients: Authority,
    pub(crate) files: tempfile::TempDir,
}

impl Remote {
    pub(crate) fn start() -> Self {
        Self::with(|builder| builder)
    }

    /// Like [`Self::start`], with changes to the configuration.
    pub(crate) fn with(change: impl FnOnce(Builder) -> Builder) -> Self {
        let (address, authority, clients) = (free_address(), Authority::new(), Authority::new());
        let files = tempfile::tempdir().expect("a temporary directory can be made");
        let (certificate, key) = authority.server(&address.ip().to_string()).write(files.path(), "server");
        let client_ca = clients.write(files.path(), "clients");
        authority.write(files.path(), "authority");
        let builder = two_grants_with(&format!(
            "tls = \"{address}\"\ncert-file = {certificate:?}\nkey-file = {key:?}\nclient-ca-file = {client_ca:?}"
        ));
        let world = change(builder).start();
        wait_until("the port is open", || TcpStream::connect(address).is_ok());
        Self { world, address, authority, clients, files }
    }

    pub(crate) fn client(&self, identity: Option<&Certified>) -> AdminClient {
        AdminClient::tls(self.address, &self.authority, identity)
    }

    fn token(&self, grant: &str) -> String {
        self.world.cofferdam_text(&["token", "create", "--grant", grant])
    }
}

/// The world of [`two_grants`] with further lines of `[admin]`.
fn two_grants_with(admin: &str) -> Builder {
    let tls = free_address();
    World::new()
        .server("tools", Server::fixture())
        .relay(&format!("tls = \"{tls}\""))
        .admin(admin)
        .admin("[grants.other]\nservers = [\"tools\"]\nttl = \"1h\"")
}

/// The server of a session may be able to read the file.
#[test]
fn no_session_is_shown_the_key_of_the_port() {
    let remote = Remote::start();
    let mut shim = remote.world.connected("tools");
    let mut keys = vec![std::fs::read_to_string(remote.files.path().join("server.key")).unwrap()];
    let (_, key) =
        remote.authority.server(&remote.address.ip().to_string()).write(remote.files.path(), "server");
    remote.world.cofferdam_text(&["reload"]);
    keys.push(std::fs::read_to_string(key).unwrap());
    for key in keys {
        let shown = shim.call_text("echo", json!({"text": key}));
        let mut lines = key.lines().filter(|line| !line.starts_with("-----"));
        assert!(lines.all(|line| line.len() < 8 || !shown.contains(line)), "{shown}");
        assert!(shown.contains("[redacted]"), "{shown}");
    }
}

#[test]
fn a_client_needs_a_token_or_a_certificate_of_the_authority() {
    let remote = Remote::start();
    assert_eq!(remote.client(None).get("/v1/sessions").refusal(), (401, "unauthorized"));
    assert_eq!(remote.client(None).get("/v1/openapi.json").refusal(), (401, "unauthorized"));
    assert_eq!(remote.client(None).get("/nowhere").refusal(), (401, "unauthorized"));

    let certified = remote.client(Some(&remote.clients.client("orchestrator")));
    certified.get("/v1/sessions").ok();
    assert!(certified.send("POST", "/v1/reload", None).ok()["policy"].is_string());
    // A request with a token has only the token's rights, even over a connection with a client certificate.
    let with_dev_token = certified.with_token(&remote.token("dev"));
    assert_eq!(with_dev_token.send("POST", "/v1/reload", None).refusal(), (403, "forbidden"));

    for stranger in [remote.authority.client("orchestrator"), Authority::new().client("orchestrator")] {
        let client = remote.client(Some(&stranger));
        let response = client.raw(&client.request("GET", "/v1/sessions", "", ""));
        assert!(response.is_none(), "{response:?}");
    }
    let with_token = remote.client(None).with_token(&remote.token("dev"));
    assert!(enrol(&with_token, "dev", "box")["expires-in-seconds"].is_u64());
    assert_eq!(with_token.post("/v1/enrolments", &json!({"grant": "other"})).refusal(), (403, "forbidden"));

    // Without TLS there is no HTTP response.
    let plain = send_raw(remote.address, b"GET /v1/sessions HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert!(plain.is_none(), "{plain:?}");
}

#[test]
fn unknown_tokens_from_one_address_are_rate_limited() {
    let remote = Remote::start();
    let (client, token) = (remote.client(None), remote.token("dev"));
    let (start, last_digit) = token.trim().split_at(token.trim().len() - 1);
    let wrong = client.with_token(&format!("{start}{}", if last_digit == "0" { "1" } else { "0" }));
    client.with_token(&token).get("/v1/sessions").ok();
    let wrong_token_statuses: Vec<u16> = (0..10).map(|_| wrong.get("/v1/sessions").status).collect();
    assert!(wrong_token_statuses.iter().all(|status| *status == 401), "{wrong_token_statuses:?}");
    let refused = wrong.get("/v1/sessions");
    assert_eq!(refused.refusal(), (429, "too_many_failures"));
    assert!(refused.head.contains("retry-after: "), "{}", refused.head);
    // A valid token from the same address, certificates and the admin socket are not affected.
    client.with_token(&token).get("/v1/sessions").ok();
    remote.client(Some(&remote.clients.client("orchestrator"))).get("/v1/sessions").ok();
    AdminClient::socket(&remote.world).with_token(&token).get("/v1/sessions").ok();
}

#[test]
fn a_sandbox_is_attached_and_watched_over_tls() {
    let remote = Remote::start();
    let client = remote.client(None).with_token(&remote.token("dev"));
    let mut events = watch(&client);
    let mut attachment = client.open(&attach_request(&client, "dev", "box"));
    read_until(&mut *attachment, "\"answer\":\"attaching\"");
    read_until(&mut *events, "event: enrolment-created");
    let enrolment = client.get("/v1/sessions").ok()["attached"][0]["enrolment"].as_str().unwrap().to_owned();
    let upgrade = "connection: upgrade\r\nupgrade: cofferdam-pipe\r\n";
    let mut pipe = client.open(&client.request("POST", &format!("/v1/attach/{enrolment}/pipe"), upgrade, ""));
    read_until(&mut *pipe, "\r\n\r\n");
    // A login banner, as a shell prints it: these bytes are not a hub's, so the sidecar must close the pipe.
    pipe.write_all(b"Last login: today\n").unwrap();
    assert!(ends(&mut *pipe), "a pipe without a hub stayed open");
    read_until(&mut *attachment, "\"news\":\"lost\"");
    drop(attachment);
    let state = || client.get("/v1/sessions").ok()["attached"][0]["state"].clone();
    wait_until("it is detached", || state() == "detached");
}

#[test]
fn a_reload_reads_the_certificate_again_and_a_bad_one_does_not_replace_it() {
    let remote = Remote::start();
    let token = remote.token("dev");
    let renewed = Authority::new();
    let write = |authority: &Authority| {
        authority.server(&remote.address.ip().to_string()).write(remote.files.path(), "server")
    };
    let is_served = |authority: &Authority| {
        let client = AdminClient::tls(remote.address, authority, None).with_token(&token);
        client
            .raw(&client.request("GET", "/v1/sessions", "", ""))
            .is_some_and(|response| response.status == 200)
    };
    let (certificate, _) = write(&renewed);
    assert!(is_served(&remote.authority) && !is_served(&renewed));
    remote.world.cofferdam_text(&["reload"]);
    assert!(is_served(&renewed) && !is_served(&remote.authority));
    std::fs::write(&certificate, "not a certificate").unwrap();
    remote.world.cofferdam_text(&["reload"]);
    assert!(is_served(&renewed));
    assert!(remote.world.log().contains("the previous certificate stays in use"), "{}", remote.world.log());
}

#[test]
fn silent_clients_do_not_block_the_port() {
    let remote = Remote::start();
    // Each group has more clients than the port has slots (64): the first sends nothing, the second finishes the TLS
    // handshake and then sends no request.
    let _silent: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(remote.address).unwrap()).collect();
    let idle: Vec<_> = (0..80).map(|_| remote.client(None).connect().unwrap()).collect();
    let client = remote.client(None).with_token(&remote.token("dev"));
    client.get("/v1/sessions").ok();
    drop(idle);
}

#[test]
fn files_that_cannot_be_used_are_named_at_the_start() {
    let files = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let (certificate, key) = authority.server("localhost").write(files.path(), "server");
    let (_, other_key) = authority.server("localhost").write(files.path(), "other");
    let missing = files.path().join("missing");
    for (certificate, key, client_ca, expected) in [
        (&missing, &key, &certificate, "admin.cert-file"),
        (&key, &key, &certificate, "no certificate in PEM form"),
        (&certificate, &certificate, &certificate, "no private key in PEM form"),
        (&certificate, &other_key, &certificate, "does the key of `admin.key-file` belong to it"),
        (&certificate, &key, &key, "admin.client-ca-file"),
    ] {
        let mut world = two_grants_with(&format!(
            "tls = \"{}\"\ncert-file = {certificate:?}\nkey-file = {key:?}\nclient-ca-file = {client_ca:?}",
            free_address()
        ))
        .prepare();
        world.launch();
        let status = world.sidecar().wait(cofferdam_tests::deadline::PATIENCE);
        assert_eq!(status.code(), Some(78), "{}", world.log());
        assert!(world.log().contains(expected), "{expected} is not in {}", world.log());
    }
}
