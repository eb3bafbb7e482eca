//! `cofferdam attach e2b` and `[attach.NAME]`, with a real sidecar and a double of E2B.

mod anywhere;
mod bad_input;
mod calls;
mod conflicts;
mod dial_out;
mod expiry;
mod external;
mod harness;
mod interrupts;
mod key_in_vault;
mod life;
mod on_daytona;
mod platform_setup;
mod progress;
mod second_platform;
mod secrets;
mod tokens;

use std::path::PathBuf;

use cofferdam_tests::attach::{Attach, connected, shim_binary};
use cofferdam_tests::deadline::{Deadline, GONE_WITHIN, holds_before, wait_until};
use cofferdam_tests::e2b_double::{API_KEY, E2bDouble, SandboxUser};
use cofferdam_tests::harness::Harness;
use cofferdam_tests::process::is_alive;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::{Builder, World};
use interrupts::temporary_files;
use platform_setup::PlatformSetup;
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
        Some(Self::on(E2bDouble::start()?, user, change))
    }

    /// Like [`Self::new`], with a platform whose clock is this many times faster than real time.
    #[track_caller]
    fn at_speed(speed: u32) -> Option<Self> {
        Some(Self::on(E2bDouble::with_speed(speed)?, SandboxUser::Usual, |builder, _| builder))
    }

    #[track_caller]
    fn on(platform: E2bDouble, user: SandboxUser, change: impl FnOnce(Builder, &str) -> Builder) -> Self {
        let sandbox = platform.create(user);
        let world = change(builder(&platform), &sandbox).start();
        Self { world, platform, sandbox, user }
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

    /// The state of the only attachment; empty if there is none.
    #[track_caller]
    fn state(&self) -> String {
        self.list().first().and_then(|status| status["state"].as_str()).unwrap_or_default().to_owned()
    }

    /// Asserts that within the promised time nothing of an attachment is left: no entry, no process in the sandbox, no
    /// server, no enrolment that has not ended, no temporary file in the sandbox.
    #[track_caller]
    fn assert_nothing_left(&self) {
        self.assert_nothing_left_by(Deadline::after(GONE_WITHIN));
    }

    /// Like [`Self::assert_nothing_left`], for a time that began before the command which ended the attachment.
    #[track_caller]
    fn assert_nothing_left_by(&self, deadline: Deadline) {
        let servers = self.world.fixture_processes("tools");
        let home = self.platform.path(&self.sandbox, self.user_home());
        let left = || {
            let list = self.list();
            let processes = self.platform.process_configs(&self.sandbox);
            let servers: Vec<&u32> = servers.iter().filter(|id| is_alive(**id)).collect();
            let enrolments = self.world.cofferdam_text(&["enrolments", "--json"]).trim().to_owned();
            let files = temporary_files(&home);
            let is_left = !list.is_empty()
                || !processes.is_empty()
                || !servers.is_empty()
                || enrolments != "[]"
                || !files.is_empty();
            is_left.then(|| format!("{list:?}, {processes:?}, servers {servers:?}, {enrolments}, {files:?}"))
        };
        assert!(holds_before(deadline, || left().is_none()), "left after {GONE_WITHIN:?}: {:?}", left());
    }

    fn user_home(&self) -> &'static str {
        match self.user {
            SandboxUser::Root => "/root",
            SandboxUser::Usual => "/home/user",
        }
    }

    #[track_caller]
    fn wait_until_state(&self, state: &str) {
        wait_until(&format!("the attachment is {state}"), || self.state() == state);
    }
}

/// A configuration with the platform and one server.
fn builder(platform: &E2bDouble) -> Builder {
    builder_for(&platform.api_url(), Some(&platform.sandbox_url()), API_KEY)
}

/// A configuration with the platform at these addresses and one server.
fn builder_for(api_url: &str, sandbox_url: Option<&str>, api_key: &str) -> Builder {
    let shim = format!("platforms.e2b.shim = '{}'", shim_binary().display());
    builder_without_shim(api_url, sandbox_url, api_key).line(&shim)
}

/// Like [`builder_for`], for a program that contains its shims.
fn builder_without_shim(api_url: &str, sandbox_url: Option<&str>, api_key: &str) -> Builder {
    // Dotted keys, so that a test can add further ones.
    let platform =
        format!("platforms.e2b.api-key = '{{e2b-key.value}}'\nplatforms.e2b.api-url = '{api_url}'");
    let world = World::new().server("tools", Server::fixture()).secret_file("e2b-key", api_key);
    let sandbox_url = sandbox_url.map(|url| format!("platforms.e2b.sandbox-url = '{url}'"));
    world.line(&platform).line(&sandbox_url.unwrap_or_default())
}

/// A table `[attach.NAME]` on one line.
fn attach_line(name: &str, platform: &str, sandbox: &str) -> String {
    format!("attach.{name} = {{ platform = '{platform}', sandbox = '{sandbox}', grant = 'dev' }}")
}
