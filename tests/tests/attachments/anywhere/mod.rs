//! Attachments on E2B as a user sees them, on the double or on the real platform that `COFFERDAM_E2B_URL` names. Every call is
//! made by the shim in the sandbox.

mod calls;
mod life;
mod processors;
mod refusals;

use cofferdam_tests::e2b_platform::E2bPlatform;
use cofferdam_tests::process::is_alive;

use super::*;

/// A platform with one sandbox, and a sidecar that knows the platform.
struct Anywhere {
    world: World,
    platform: E2bPlatform,
    sandbox: String,
}

impl Anywhere {
    /// `None` if a tool is missing, which is reported.
    #[track_caller]
    fn new() -> Option<Self> {
        Self::with(|builder, _| builder)
    }

    /// Like [`Self::new`], with changes to the configuration, which get the sandbox's id.
    #[track_caller]
    fn with(change: impl FnOnce(Builder, &str) -> Builder) -> Option<Self> {
        Some(Self::on(E2bPlatform::start()?, change))
    }

    /// Like [`Self::with`], for a test that pauses or deletes sandboxes or needs several. `None` also if the platform cannot do
    /// that, which is reported.
    #[track_caller]
    fn with_control_api(change: impl FnOnce(Builder, &str) -> Builder) -> Option<Self> {
        let platform = E2bPlatform::start()?;
        platform.has_control_api().then(|| Self::on(platform, change))
    }

    #[track_caller]
    fn on(platform: E2bPlatform, change: impl FnOnce(Builder, &str) -> Builder) -> Self {
        let sandbox = platform.create();
        let world = change(builder_on(&platform), &sandbox).start();
        Self { world, platform, sandbox }
    }

    /// Calls a tool with the shim in the sandbox; returns the text of the result.
    #[track_caller]
    fn call(&self, tool: &str, arguments: &str) -> String {
        let call = format!("PATH=$HOME/.local/bin:$PATH cofferdam-shim call tools {tool} '{arguments}'");
        let ran = self.platform.run(&self.sandbox, &call);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.stdout.trim_end().to_owned()
    }

    #[track_caller]
    fn assert_echoes(&self, text: &str) {
        assert_eq!(self.call("echo", &format!("{{\"text\": \"{text}\"}}")), text);
    }

    #[track_caller]
    fn has_hub(&self) -> bool {
        self.has_hub_in(&self.sandbox)
    }

    #[track_caller]
    fn has_hub_in(&self, sandbox: &str) -> bool {
        self.platform.processes(sandbox).iter().any(|line| line.contains(" hub --pin "))
    }

    /// Waits until nothing of an attachment is left in the sandbox and the sidecar.
    #[track_caller]
    fn assert_nothing_left(&self) {
        wait_until("the hub has ended", || !self.has_hub());
        self.assert_nothing_left_in_the_sidecar();
    }

    #[track_caller]
    fn assert_nothing_left_in_the_sidecar(&self) {
        for list in [&["attach", "list", "--json"][..], &["enrolments", "--json"]] {
            wait_until(&format!("{list:?} is empty"), || self.world.cofferdam_text(list).trim() == "[]");
        }
        let servers = self.world.fixture_processes("tools");
        wait_until("the servers have ended", || servers.iter().all(|id| !is_alive(*id)));
    }
}

/// A configuration with the platform and one server.
fn builder_on(platform: &E2bPlatform) -> Builder {
    builder_for(platform.api_url(), platform.sandbox_url(), platform.api_key())
}

impl PlatformSetup for Anywhere {
    fn with_own_key() -> Option<Self> {
        Self::new()
    }

    fn world(&self) -> &World {
        &self.world
    }

    fn world_mut(&mut self) -> &mut World {
        &mut self.world
    }

    fn builder_of_another_sidecar(&self) -> Builder {
        builder_on(&self.platform)
    }

    fn arguments(&self, sandbox: Option<&str>) -> Vec<String> {
        ["e2b", sandbox.unwrap_or(&self.sandbox), "--grant", "dev"].map(String::from).to_vec()
    }

    fn assert_echoes(&self, text: &str) {
        self.assert_echoes(text);
    }

    fn assert_nothing_left(&self) {
        self.assert_nothing_left();
    }
}
