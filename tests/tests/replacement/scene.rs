//! Worlds with a server whose secrets a test can change.

use std::fs;

use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::harness::Harness;
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::process::is_alive;
use cofferdam_tests::server::Server;
use cofferdam_tests::vault::{CANARY, prepared, world};
use cofferdam_tests::world::World;
use serde_json::json;

/// A world with the server `tools`, and the OpenBao with its secrets.
pub(crate) struct Scene {
    pub(crate) bao: OpenBao,
    pub(crate) world: World,
    versions: u32,
}

impl Scene {
    /// The server is the fixture in its plain mode.
    pub(crate) fn plain() -> Option<Self> {
        Self::with_fixture_that("plain")
    }

    /// The server is the fixture in this mode.
    pub(crate) fn with_fixture_that(mode: &str) -> Option<Self> {
        Self::with_server(fixture(mode).allow(&["*"]))
    }

    /// Like [`Self::plain`], with a further line in the server's table.
    pub(crate) fn with_server_line(line: &str) -> Option<Self> {
        Self::with_server(fixture("plain").line(line).allow(&["*"]))
    }

    /// Like [`Self::plain`], with a line in `[limits]`.
    pub(crate) fn with_limit(limit: &str) -> Option<Self> {
        Self::with_server_and_limit(fixture("plain").allow(&["*"]), limit)
    }

    /// The server must use the secret `github`.
    pub(crate) fn with_server(server: Server) -> Option<Self> {
        Self::with_server_and_limit(server, "")
    }

    fn with_server_and_limit(server: Server, limit: &str) -> Option<Self> {
        let bao = prepared(OpenBao::dev())?;
        let world = world(&bao)
            .secret("github", "kv = \"secret/github\"\nrefresh = \"1s\"")
            .limit(limit)
            .server("tools", server)
            .start();
        Some(Self { bao, world, versions: 0 })
    }

    /// Like [`Self::plain`], but the tools `rw_*` are in a scope with another secret.
    pub(crate) fn with_scope() -> Option<Self> {
        Self::with_scope_and_fixture_that("plain")
    }

    /// Like [`Self::with_scope`], with the fixture in another mode.
    pub(crate) fn with_scope_and_fixture_that(mode: &str) -> Option<Self> {
        let bao = prepared(OpenBao::dev())?;
        bao.write_secret("writer", json!({"token": CANARY}));
        bao.policy("agent", &[("secret/data/github", &["read"]), ("secret/data/writer", &["read"])]);
        let server = fixture(mode)
            .line("[[servers.tools.scopes]]\ntools = ['rw_*']\nenv = { SECRET = '{writer.token}' }");
        let world = world(&bao)
            .secret("github", "kv = \"secret/github\"\nrefresh = \"1s\"")
            .secret("writer", "kv = \"secret/writer\"\nrefresh = \"1s\"")
            .server("tools", server)
            .start();
        Some(Self { bao, world, versions: 0 })
    }

    /// Gives the secret a new value and returns it.
    pub(crate) fn change_secret(&mut self) -> String {
        self.change_of("github")
    }

    /// Gives the secret of the scope a new value and returns it.
    pub(crate) fn change_secret_of_scope(&mut self) -> String {
        self.change_of("writer")
    }

    /// Changes the secret and waits until a process with the new one has taken over.
    pub(crate) fn change_secret_and_wait(&mut self) {
        self.change_and_wait(Self::change_secret);
    }

    /// Changes the secret of the scope, and waits until a process with the new one has taken over.
    pub(crate) fn change_secret_of_scope_and_wait(&mut self) -> String {
        self.change_and_wait(Self::change_secret_of_scope)
    }

    pub(crate) fn processes(&self) -> Vec<u32> {
        self.world.fixture_processes("tools")
    }

    pub(crate) fn alive(&self) -> Vec<u32> {
        self.processes().into_iter().filter(|process| is_alive(*process)).collect()
    }

    /// The audit records of replacements with this result.
    pub(crate) fn replacement_records(&self, outcome: &str) -> Vec<String> {
        let begins = format!("{outcome}: ");
        let records = self.world.audit().into_iter().filter(|record| record["event"] == "replacement");
        let details = records.filter_map(|record| record["detail"].as_str().map(str::to_owned));
        details.filter(|detail| detail.starts_with(&begins)).collect()
    }

    /// What `sessions --json` shows about the replacement of the first link.
    pub(crate) fn shown_in_sessions(&self) -> String {
        self.world.sessions()[0]["replacement"].as_str().unwrap_or_default().to_owned()
    }

    /// The methods that the n-th process received.
    pub(crate) fn methods_received(&self, process: usize) -> Vec<String> {
        let methods_received = self.world.received("tools").into_iter().nth(process).unwrap_or_default();
        methods_received.iter().filter_map(|message| message["method"].as_str().map(str::to_owned)).collect()
    }

    fn change_of(&mut self, secret: &str) -> String {
        self.versions += 1;
        let value = format!("{CANARY}-version-{}", self.versions);
        self.bao.write_secret(secret, json!({"token": value}));
        value
    }

    fn change_and_wait(&mut self, change: fn(&mut Self) -> String) -> String {
        let before = self.replacement_records("replaced").len();
        let value = change(self);
        wait_until("another process has taken over", || self.replacement_records("replaced").len() > before);
        value
    }
}

fn fixture(mode: &str) -> Server {
    Server::fixture_that(mode).env("SECRET", "{github.token}")
}

/// The process that runs calls now.
#[track_caller]
pub(crate) fn process(harness: &mut Harness) -> u32 {
    harness.call_text("process", json!({})).parse().expect("a process's number")
}

/// The same for a call in the scope.
#[track_caller]
pub(crate) fn process_of_scope(harness: &mut Harness) -> u32 {
    harness.call_text("rw_process", json!({})).parse().expect("a process's number")
}

/// Waits for one more progress notification of a call.
#[track_caller]
pub(crate) fn wait_for_more_progress(harness: &mut Harness) {
    let received = String::from_utf8_lossy(harness.received()).into_owned();
    for _ in 0..=received.matches("notifications/progress").count() {
        harness.message_with_method("notifications/progress");
    }
}

/// The value of a process's environment variable.
pub(crate) fn variable(process: u32, name: &str) -> Option<String> {
    let environment = fs::read(format!("/proc/{process}/environ")).ok()?;
    let begins = format!("{name}=");
    let environment = String::from_utf8_lossy(&environment).into_owned();
    environment.split('\0').find_map(|entry| entry.strip_prefix(&begins).map(str::to_owned))
}
