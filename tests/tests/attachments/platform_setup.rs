//! What the set-ups of both platforms have in common, for tests that are the same on each.

use serde_json::json;

use super::on_daytona::{self, DaytonaSetup};
use super::*;

/// A platform with one sandbox, and a sidecar that knows the platform.
pub(super) trait PlatformSetup: Sized {
    /// A sidecar with the key of the account that owns the sandbox. `None` if a tool is missing, which is reported.
    fn with_own_key() -> Option<Self>;

    fn world(&self) -> &World;

    fn world_mut(&mut self) -> &mut World;

    /// The configuration of another sidecar that knows the platform.
    fn builder_of_another_sidecar(&self) -> Builder;

    /// The arguments of `attach` for this sandbox, or for the platform's own.
    fn arguments(&self, sandbox: Option<&str>) -> Vec<String>;

    /// Asserts that a call of a shim in the sandbox is answered with this text.
    fn assert_echoes(&self, text: &str);

    /// Asserts that nothing of an attachment is left in the sidecar and the sandbox.
    fn assert_nothing_left(&self);

    /// Starts `attach` for the sandbox with these further arguments.
    #[track_caller]
    fn start_attach(&self, further: &[&str]) -> Attach {
        let arguments = self.arguments(None);
        let arguments = arguments.iter().map(String::as_str).chain(further.iter().copied());
        Attach::start(self.world(), &arguments.collect::<Vec<_>>())
    }

    /// Like [`Self::start_attach`], but waits until the sandbox is attached.
    #[track_caller]
    fn attach(&self, further: &[&str]) -> Attach {
        let attach = self.start_attach(further);
        attach.wait_until_attached(1);
        attach
    }

    /// Runs `attach` with these arguments to its end: the exit code, and what was printed.
    #[track_caller]
    fn refused(&self, arguments: &[&str]) -> (i32, String) {
        let mut attach = Attach::start(self.world(), arguments);
        let code = attach.wait().code().expect("the command was killed");
        (code, attach.printed())
    }

    /// The attachments of the sidecar.
    #[track_caller]
    fn list(&self) -> Vec<Value> {
        let text = self.world().cofferdam_text(&["attach", "list", "--json"]);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("not a list: {error} in {text}"))
    }
}

/// A set-up whose platform is a double.
pub(super) trait DoubleSetup: PlatformSetup {
    /// `None` if bubblewrap is missing, which is reported.
    fn with_key(api_key: &str) -> Option<Self>;

    /// Whether a hub runs in the sandbox.
    fn has_hub(&self) -> bool;

    /// The temporary files of `attach` in the sandbox.
    fn files_left(&self) -> Vec<PathBuf>;
}

impl PlatformSetup for E2bSetup {
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
        builder(&self.platform)
    }

    fn arguments(&self, sandbox: Option<&str>) -> Vec<String> {
        ["e2b", sandbox.unwrap_or(&self.sandbox), "--grant", "dev"].map(String::from).to_vec()
    }

    fn assert_echoes(&self, text: &str) {
        assert_eq!(self.shim().call_text("echo", json!({"text": text})), text);
    }

    fn assert_nothing_left(&self) {
        self.assert_nothing_left();
    }
}

impl DoubleSetup for E2bSetup {
    fn with_key(api_key: &str) -> Option<Self> {
        Self::with(|builder, _| builder.secret_file("e2b-key", api_key))
    }

    fn has_hub(&self) -> bool {
        self.platform.exists(&self.sandbox) && !self.platform.processes(&self.sandbox).is_empty()
    }

    fn files_left(&self) -> Vec<PathBuf> {
        match self.platform.exists(&self.sandbox) {
            true => temporary_files(&self.platform.path(&self.sandbox, "/")),
            // The files of a deleted sandbox are deleted with it.
            false => Vec::new(),
        }
    }
}

impl PlatformSetup for DaytonaSetup {
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
        on_daytona::builder(&self.platform)
    }

    fn arguments(&self, sandbox: Option<&str>) -> Vec<String> {
        let sandbox = sandbox.unwrap_or(self.platform.sandbox_id());
        ["daytona", sandbox, "--grant", "dev"].map(String::from).to_vec()
    }

    fn assert_echoes(&self, text: &str) {
        assert_eq!(self.shim().call_text("echo", json!({"text": text})), text);
    }

    fn assert_nothing_left(&self) {
        self.assert_gone();
    }
}

impl DoubleSetup for DaytonaSetup {
    fn with_key(api_key: &str) -> Option<Self> {
        Self::with(|builder, _| builder.secret_file("daytona-key", api_key))
    }

    fn has_hub(&self) -> bool {
        self.has_hub()
    }

    fn files_left(&self) -> Vec<PathBuf> {
        temporary_files(&self.platform.root())
    }
}
