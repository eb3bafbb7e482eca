//! An enrolled sandbox whose links share a session. One of its servers needs no credential, so faults of Vault must
//! not affect it.

use serde_json::{Value, json};

use crate::cuttable_tcp::CuttableTcp;
use crate::harness::Harness;
use crate::sandbox_files::SandboxFiles;
use crate::server::Server;
use crate::vault::leave;
use crate::world::{Builder, World};

#[derive(Debug)]
pub struct SharedSession {
    pub world: World,
    sandbox: SandboxFiles,
    /// Connected to a server without a credential, before a fault is injected.
    without_credential: Harness,
    _tcp: CuttableTcp,
}

/// The name of the server without a credential.
const SERVER_WITHOUT_CREDENTIAL: &str = "steady";

impl SharedSession {
    /// Starts the world with one more server, which needs no credential.
    #[track_caller]
    pub fn start(builder: Builder) -> Self {
        let tcp = CuttableTcp::start();
        let server = Server::fixture().allow(&["*"]);
        let world = builder.server(SERVER_WITHOUT_CREDENTIAL, server).relay(&tcp.relay_lines()).start();
        let sandbox = SandboxFiles::enrolled(&world);
        let without_credential = shim(&sandbox, SERVER_WITHOUT_CREDENTIAL).initialized();
        Self { world, sandbox, without_credential, _tcp: tcp }
    }

    /// Starts a shim of the sandbox for this server, with a harness on its stdio.
    #[track_caller]
    pub fn shim(&self, server: &str) -> Harness {
        shim(&self.sandbox, server)
    }

    /// Like [`Self::shim`], with the legacy handshake made.
    #[track_caller]
    pub fn connected(&self, server: &str) -> Harness {
        self.shim(server).initialized()
    }

    /// Asserts that the server without a credential still responds, in the process that it began with.
    #[track_caller]
    pub fn assert_server_without_credential_responds(&mut self) {
        assert_eq!(self.without_credential.call_text("echo", json!({"text": "unharmed"})), "unharmed");
        assert_eq!(
            self.world.fixture_processes(SERVER_WITHOUT_CREDENTIAL).len(),
            1,
            "the process of the server without a credential was replaced"
        );
    }

    /// Asserts the same, and that this server is in the session of the server `other`, which has one link.
    #[track_caller]
    pub fn assert_server_without_credential_shares_session_with(&mut self, other: &str) {
        self.assert_server_without_credential_responds();
        let links = self.world.sessions();
        let session = |server: &str| {
            let links: Vec<&Value> =
                links.as_array().into_iter().flatten().filter(|link| link["server"] == server).collect();
            assert_eq!(links.len(), 1, "{server}: {links:?}");
            links[0]["session"].clone()
        };
        assert_eq!(session(SERVER_WITHOUT_CREDENTIAL), session(other), "{links}");
    }

    /// Ends the shim of the server without a credential; returns the world.
    #[track_caller]
    pub fn leave(self) -> World {
        leave(self.without_credential);
        self.world
    }
}

/// Asserts that this server is refused with `credential_unavailable` and a message that has these words; returns the
/// message.
#[track_caller]
pub fn refused(harness: &mut Harness, server: &str, words: &[&str]) -> String {
    let answer = harness.initialize();
    let text = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
    let server = format!("`{server}`");
    for word in ["credential_unavailable", server.as_str()].iter().chain(words) {
        assert!(text.contains(word), "{word}: {text}");
    }
    text
}

/// Asserts that a line of the log under the reference of this refusal has these words, and that the refusal has none of
/// them: they are for the host only.
#[track_caller]
pub fn assert_logged_only(world: &World, refusal: &str, words: &[&str]) {
    for word in words {
        assert!(!refusal.contains(word), "the sandbox is told `{word}`: {refusal}");
    }
    let reference = refusal.split_once("under link=").map(|(_, rest)| rest);
    let reference = reference.and_then(|rest| rest.split(|letter: char| !letter.is_alphanumeric()).next());
    let reference = format!("link={}", reference.unwrap_or_else(|| panic!("no reference in {refusal}")));
    let log = world.log();
    let is_it = |line: &&str| line.contains(&reference) && words.iter().all(|word| line.contains(word));
    assert!(log.lines().any(|line| is_it(&line)), "no line under {reference} with {words:?}: {log}");
}

#[track_caller]
fn shim(sandbox: &SandboxFiles, server: &str) -> Harness {
    let mut command = sandbox.command();
    command.args(["--server", server]);
    Harness::start(command, "cofferdam-shim")
}
