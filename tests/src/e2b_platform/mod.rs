//! The E2B platform of the tests that need no more than the platform's own API: the double, or a real platform.
//!
//! | variable | the platform of these tests |
//! |---|---|
//! | none | a new double for each test |
//! | `COFFERDAM_E2B_URL` and `COFFERDAM_E2B_API_KEY` | the control API at this address, for example `https://api.e2b.app`; `COFFERDAM_E2B_SANDBOX_URL` replaces the address of `envd` |
//! | `COFFERDAM_E2B_URL` alone | an `envd` without a platform at this address; a double is its control API |
//!
//! What a test does in a sandbox, it does with the real Python SDK, on each of these platforms. Tests that need the double's
//! clock, log or faults use [`E2bDouble`] itself.

mod sdk;

use std::process::Command;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use crate::e2b_double::{API_KEY, E2bDouble, SandboxUser};
use crate::process::{command, output_of};
use crate::tools::{Tool, cannot_run};
use sdk::SdkProcess;

/// The directory below the home of a sandbox in which tests create their own files.
pub const TEST_DIRECTORY: &str = "cofferdam-test";

const URL: &str = "COFFERDAM_E2B_URL";
const KEY: &str = "COFFERDAM_E2B_API_KEY";
const SANDBOX_URL: &str = "COFFERDAM_E2B_SANDBOX_URL";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/e2b_platform/sdk.py");

/// A platform on which sandboxes can be created. On drop, sandboxes that were created on a real platform are ended.
pub struct E2bPlatform {
    origin: Origin,
    api_url: String,
    sandbox_url: Option<String>,
    api_key: String,
    created: Mutex<Vec<String>>,
    sdk_process: Mutex<Option<SdkProcess>>,
}

enum Origin {
    Double(E2bDouble),
    /// A real `envd`, with a double of the control API.
    LoneEnvd(E2bDouble),
    Platform,
}

/// How another process of these tests is told of a double, as of a real platform.
#[derive(Clone, Copy, Debug)]
pub enum ExternalAs {
    LoneEnvd,
    Platform,
}

/// What a command in a sandbox has printed, and its exit code.
#[derive(Debug)]
pub struct InSandbox {
    pub code: i64,
    pub stdout: String,
    pub stderr: String,
}

impl E2bPlatform {
    /// `None` if a tool is missing, which is reported.
    #[track_caller]
    pub fn start() -> Option<Self> {
        Tool::Python.path()?;
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let (Some(api_url), Some(api_key)) = (variable(URL), variable(KEY)) else {
            let double = E2bDouble::start()?;
            let (api_url, api_key) = (double.api_url(), API_KEY.to_owned());
            let (origin, sandbox_url) = match variable(URL) {
                None => {
                    let sandbox_url = double.sandbox_url();
                    (Origin::Double(double), sandbox_url)
                }
                Some(envd) => (Origin::LoneEnvd(double), envd),
            };
            return Some(Self::new(origin, api_url, Some(sandbox_url), api_key));
        };
        let sandbox_url = variable(SANDBOX_URL);
        Some(Self::new(Origin::Platform, api_url, sandbox_url, api_key))
    }

    fn new(origin: Origin, api_url: String, sandbox_url: Option<String>, api_key: String) -> Self {
        let (created, sdk_process) = (Mutex::default(), Mutex::default());
        Self { origin, api_url, sandbox_url, api_key, created, sdk_process }
    }

    pub fn api_url(&self) -> &str {
        &self.api_url
    }

    /// The address of `envd`, unless the platform reports it.
    pub fn sandbox_url(&self) -> Option<&str> {
        self.sandbox_url.as_deref()
    }

    pub fn api_key(&self) -> &str {
        &self.api_key
    }

    /// A new running sandbox; returns its id.
    #[track_caller]
    pub fn create(&self) -> String {
        match &self.origin {
            Origin::Double(double) => double.create(SandboxUser::Usual),
            Origin::LoneEnvd(double) => {
                let id = double.create(SandboxUser::Usual);
                // Each id is of the same sandbox, which earlier tests have used.
                self.run(
                    &id,
                    &format!("rm -rf ~/.local/lib/cofferdam ~/.local/bin/cofferdam-shim ~/{TEST_DIRECTORY}"),
                );
                id
            }
            Origin::Platform => {
                let id = self.sdk(&["create"])["id"].as_str().expect("the SDK prints the id").to_owned();
                self.created.lock().expect("no holder panics").push(id.clone());
                id
            }
        }
    }

    /// Runs a shell command in the sandbox, as its default user.
    #[track_caller]
    pub fn run(&self, sandbox: &str, shell_command: &str) -> InSandbox {
        self.ran(&["run", sandbox, shell_command])
    }

    /// Runs a shell command in the sandbox as root; it must succeed.
    #[track_caller]
    pub fn run_as_root(&self, sandbox: &str, shell_command: &str) {
        let ran = self.ran(&["run", sandbox, shell_command, "root"]);
        assert_eq!(ran.code, 0, "{ran:?}");
    }

    #[track_caller]
    fn ran(&self, action: &[&str]) -> InSandbox {
        let ran = self.sdk(action);
        let text = |name: &str| ran[name].as_str().unwrap_or_default().to_owned();
        InSandbox { code: ran["code"].as_i64().unwrap_or(-1), stdout: text("stdout"), stderr: text("stderr") }
    }

    /// Starts a shell command in the sandbox, which goes on when the sandbox was paused and is resumed. Its output is lost.
    #[track_caller]
    pub fn start_in_background(&self, sandbox: &str, shell_command: &str) {
        self.sdk(&["start", sandbox, shell_command]);
    }

    /// The command lines of the processes that `envd` has started in the sandbox and that still run.
    #[track_caller]
    pub fn processes(&self, sandbox: &str) -> Vec<String> {
        let listed = self.sdk(&["processes", sandbox]);
        let lines = listed["processes"].as_array().into_iter().flatten();
        lines.filter_map(|line| line.as_str().map(str::to_owned)).collect()
    }

    /// Whether sandboxes can be paused and deleted, and are separate machines: not with an `envd` without a platform. If not, the
    /// test is reported as not run.
    #[track_caller]
    pub fn has_control_api(&self) -> bool {
        let has = !matches!(self.origin, Origin::LoneEnvd(_));
        if !has {
            cannot_run(&format!(
                "{URL} names an envd without a platform, which has one sandbox and cannot pause it"
            ));
        }
        has
    }

    #[track_caller]
    pub fn pause(&self, sandbox: &str) {
        self.sdk(&["pause", sandbox]);
    }

    #[track_caller]
    pub fn resume(&self, sandbox: &str) {
        self.sdk(&["resume", sandbox]);
    }

    /// Ends the sandbox, as its owner can at any time. An `envd` without a platform cannot: see [`Self::has_control_api`].
    #[track_caller]
    pub fn delete(&self, sandbox: &str) {
        self.sdk(&["kill", sandbox]);
        self.created.lock().expect("no holder panics").retain(|created| created != sandbox);
    }

    #[track_caller]
    pub fn is_paused(&self, sandbox: &str) -> bool {
        self.sdk(&["state", sandbox])["state"] == "paused"
    }

    #[track_caller]
    fn sdk(&self, action: &[&str]) -> Value {
        self.act(action).unwrap_or_else(|error| panic!("the SDK of E2B, {action:?}: {error}"))
    }

    fn act(&self, action: &[&str]) -> Result<Value, String> {
        let mut process = self.sdk_process.lock().unwrap_or_else(PoisonError::into_inner);
        process.get_or_insert_with(|| SdkProcess::start(self.sdk_command())).act(action)
    }

    fn sdk_command(&self) -> Command {
        let mut script = command(Tool::Python.path().expect("it was there at the start"));
        script.arg(SCRIPT).env("E2B_DEBUG", "false");
        script.env("E2B_API_URL", &self.api_url).env("E2B_API_KEY", &self.api_key);
        if let Some(url) = &self.sandbox_url {
            script.env("E2B_SANDBOX_URL", url);
        }
        script
    }
}

impl Drop for E2bPlatform {
    fn drop(&mut self) {
        for sandbox in self.created.lock().expect("no holder panics").iter() {
            if let Err(error) = self.act(&["kill", sandbox]) {
                eprintln!("the sandbox {sandbox} may still run on the platform: {error}");
            }
        }
    }
}

/// Runs the tests of this test program whose names contain `filter` once more, in another process, with a double as their
/// external platform. Fails unless this many tests have passed and the double was used.
#[track_caller]
pub fn assert_tests_pass_externally(filter: &str, external: ExternalAs, count: usize) {
    if Tool::Python.path().is_none() {
        return;
    }
    let Some(double) = E2bDouble::start() else { return };
    let mut tests = command(std::env::current_exe().expect("a test program has a path"));
    // Tests that a lone `envd` cannot run are not missing in the list of this suite.
    tests.env_remove("CI").env_remove("COFFERDAM_SKIPPED");
    match external {
        ExternalAs::LoneEnvd => {
            double.serve_alone(&double.create(SandboxUser::Usual));
            // One after the other, because they use the same sandbox. Those that it cannot run are skipped.
            tests.args([filter, "--test-threads", "1"]).env("COFFERDAM_SKIP", "1");
            tests.env(URL, double.sandbox_url()).env_remove(KEY).env_remove(SANDBOX_URL);
        }
        ExternalAs::Platform => {
            tests.args([filter, "--test-threads", "2"]);
            tests.env(URL, double.api_url()).env(KEY, API_KEY).env(SANDBOX_URL, double.sandbox_url());
        }
    }
    let output = output_of(tests, "the tests on an external platform");
    let printed = String::from_utf8_lossy(&output.stdout);
    let expected = format!("test result: ok. {count} passed; 0 failed");
    assert!(output.status.success() && printed.contains(&expected), "{expected:?} is not in:\n{printed}");
    let used = double.log().iter().any(|line| line.starts_with("Start "));
    assert!(used, "the tests did not use the external platform");
}
