//! `cofferdam attach e2b` and `[attach.NAME]`, with a real sidecar and a double of E2B.

mod calls;
mod dial_out;
mod expiry;
mod harness;
mod interrupts;
mod key_in_vault;
mod life;
mod on_daytona;
mod refusals;
mod tokens;

use std::path::PathBuf;

use cofferdam_tests::attach::{Attach, connected, shim_binary};
use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::e2b_double::{API_KEY, E2bDouble, SandboxUser};
use cofferdam_tests::harness::Harness;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::{Builder, World};
use serde_json::Value;

/// A platform with one sandbox, and a sidecar that knows the platform.
struct E2bSetup {
    world: World,
    platform: E2bDouble,
    sandbox: String,
    user: SandboxUser,
}

impl E2bSetup {
    /// `None` if bubblewrap is missing, which is reported.
    #[track_caller]
    fn new() -> Option<Self> {
        Self::with(|builder, _| builder)
    }

    /// Like [`Self::new`], with a sandbox whose processes run as root.
    #[track_caller]
    fn as_root() -> Option<Self> {
        Self::of_user(SandboxUser::Root, |builder, _| builder)
    }

    /// Like [`Self::new`], with changes to the configuration, which get the sandbox's id.
    #[track_caller]
    fn with(change: impl FnOnce(Builder, &str) -> Builder) -> Option<Self> {
        Self::of_user(SandboxUser::Usual, change)
    }

    #[track_caller]
    fn of_user(user: SandboxUser, change: impl FnOnce(Builder, &str) -> Builder) -> Option<Self> {
        let platform = E2bDouble::start()?;
        let sandbox = platform.create(user);
        let world = change(builder(&platform), &sandbox).start();
        Some(Self { world, platform, sandbox, user })
    }

    /// Starts `attach e2b` for the sandbox with these further arguments.
    #[track_caller]
    fn start_attach(&self, arguments: &[&str]) -> Attach {
        let words = ["e2b", &self.sandbox, "--grant", "dev"];
        Attach::start(&self.world, &[&words, arguments].concat())
    }

    /// Like [`Self::start_attach`], but waits until the sandbox is attached.
    #[track_caller]
    fn attach(&self, arguments: &[&str]) -> Attach {
        let attach = self.start_attach(arguments);
        attach.wait_until_attached(1);
        attach
    }

    /// The path on this machine of the hub's socket in the sandbox.
    fn socket(&self) -> PathBuf {
        let inside = match self.user {
            SandboxUser::Root => "/run/cofferdam/relay/relay.sock",
            SandboxUser::Usual => "/tmp/cofferdam-1000/relay.sock",
        };
        self.platform.path(&self.sandbox, inside)
    }

    /// A harness in the sandbox.
    #[track_caller]
    fn shim(&self) -> Harness {
        wait_until("the hub's socket is there", || self.socket().exists());
        connected(&format!("unix:{}", self.socket().display()), "tools")
    }

    #[track_caller]
    fn list(&self) -> Vec<Value> {
        let text = self.world.cofferdam_text(&["attach", "list", "--json"]);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("not a list: {error} in {text}"))
    }

    /// The state of the only attachment; empty if there is none.
    #[track_caller]
    fn state(&self) -> String {
        self.list().first().and_then(|status| status["state"].as_str()).unwrap_or_default().to_owned()
    }

    /// Waits until nothing of an attachment is left: no entry, no hub, no enrolment that has not ended.
    #[track_caller]
    fn assert_nothing_left(&self) {
        // The command may exit before the sidecar has removed the attachment.
        wait_until("no attachment is listed", || self.list().is_empty());
        wait_until("the hub has ended", || self.platform.processes(&self.sandbox).is_empty());
        assert_eq!(self.world.cofferdam_text(&["enrolments", "--json"]).trim(), "[]");
    }

    #[track_caller]
    fn wait_until_state(&self, state: &str) {
        wait_until(&format!("the attachment is {state}"), || self.state() == state);
    }
}

/// A configuration with the platform and one server.
fn builder(platform: &E2bDouble) -> Builder {
    // Dotted keys, so that a test can add further ones.
    let platform = format!(
        "platforms.e2b.api-key = '{{e2b-key.value}}'\nplatforms.e2b.api-url = '{}'\n\
         platforms.e2b.sandbox-url = '{}'\nplatforms.e2b.shim = '{}'",
        platform.api_url(),
        platform.sandbox_url(),
        shim_binary().display()
    );
    World::new().server("tools", Server::fixture()).secret_file("e2b-key", API_KEY).line(&platform)
}

/// A table `[attach.NAME]` on one line.
fn attach_line(name: &str, platform: &str, sandbox: &str) -> String {
    format!("attach.{name} = {{ platform = '{platform}', sandbox = '{sandbox}', grant = 'dev' }}")
}
