//! One sandbox with an enrolment: all its servers are of one session, and one of them needs no credential.

use serde_json::{Value, json};

use crate::harness::Harness;
use crate::sandbox::Sandbox;
use crate::server::Server;
use crate::vault::leave;
use crate::wire::Wire;
use crate::world::{Builder, World};

#[derive(Debug)]
pub struct Site {
    pub world: World,
    sandbox: Sandbox,
    /// A server that was there before anything was bad.
    steady: Harness,
    _wire: Wire,
}

/// What the steady server is called.
const STEADY: &str = "steady";

impl Site {
    /// Of the world that is built here, and a steady server.
    #[track_caller]
    pub fn start(builder: Builder) -> Self {
        let wire = Wire::start();
        let steady = Server::fixture().allow(&["*"]);
        let world = builder.server(STEADY, steady).relay(&wire.relay_lines()).start();
        let sandbox = Sandbox::enrolled(&world);
        let steady = shim(&sandbox, STEADY).initialized();
        Self { world, sandbox, steady, _wire: wire }
    }

    /// A harness on a new shim of the sandbox that asks for this server.
    #[track_caller]
    pub fn shim(&self, server: &str) -> Harness {
        shim(&self.sandbox, server)
    }

    /// The same, with the legacy handshake done.
    #[track_caller]
    pub fn connected(&self, server: &str) -> Harness {
        self.shim(server).initialized()
    }

    /// The steady server answers, as ever.
    #[track_caller]
    pub fn goes_on(&mut self) {
        assert_eq!(self.steady.call_text("echo", json!({"text": "unharmed"})), "unharmed");
        assert_eq!(self.world.fixture_processes(STEADY).len(), 1, "it never ended");
    }

    /// The same, and it is of the session that this other server is of, whose shim is there.
    #[track_caller]
    pub fn goes_on_beside(&mut self, server: &str) {
        self.goes_on();
        let links = self.world.sessions();
        let session = |server: &str| {
            let links: Vec<&Value> =
                links.as_array().into_iter().flatten().filter(|link| link["server"] == server).collect();
            assert_eq!(links.len(), 1, "{server}: {links:?}");
            links[0]["session"].clone()
        };
        assert_eq!(session(STEADY), session(server), "{links}");
    }

    /// The steady server's shim goes too.
    #[track_caller]
    pub fn leave(self) -> World {
        leave(self.steady);
        self.world
    }
}

/// A refusal of this server's, for want of a credential, in these words; gives the whole sentence.
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

#[track_caller]
fn shim(sandbox: &Sandbox, server: &str) -> Harness {
    let mut command = sandbox.command();
    command.args(["--server", server]);
    Harness::start(command, "cofferdam-shim")
}
