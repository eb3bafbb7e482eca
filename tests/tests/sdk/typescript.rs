//! The TypeScript SDK, from its built package.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use cofferdam_tests::process::command;
use cofferdam_tests::tools::Tool;

use super::packages::{built_packages, only_file};
use super::setup::{SdkSetup, first_code_block, packaging, run};

/// A user's project with our package and the platforms' packages installed.
struct Project {
    directory: tempfile::TempDir,
    node: PathBuf,
    /// The directory of the other packages.
    modules: PathBuf,
}

impl Project {
    /// `None` if a tool is missing, which is reported.
    fn new() -> Option<Self> {
        let (node, modules, e2b) = (Tool::Node.path()?, Tool::NodeModules.path()?, Tool::E2bSdk.path()?);
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let packages = built_packages()?;
        let ours = directory.path().join("node_modules/@cofferdam/sdk");
        fs::create_dir_all(&ours).expect("the directory is writable");
        std::os::unix::fs::symlink(e2b, directory.path().join("node_modules/e2b"))
            .expect("a link can be made");
        let mut unpack = command("tar");
        unpack.args(["--strip-components=1", "-xzf"]).arg(only_file(&packages, ".tgz")).arg("-C").arg(ours);
        run(unpack, "tar");
        fs::write(directory.path().join("package.json"), r#"{"type": "module"}"#).expect("it is writable");
        Some(Self { directory, node, modules })
    }

    /// A command that runs a file of the package's tests with Node.
    fn script(&self, file: &str) -> Command {
        let mut script = command(&self.node);
        script.arg(packaging().join("typescript/test").join(file));
        script
    }

    /// Sets the environment variables with the paths of the modules.
    fn add_module_paths(&self, script: &mut Command) {
        let sdk = self.directory.path().join("node_modules/@cofferdam/sdk/dist");
        script.env("COFFERDAM_SDK", sdk.join("index.js")).env("COFFERDAM_SDK_DIRECTORY", sdk);
        script.env("E2B_MODULE", self.modules.join("e2b")).env("TYPESCRIPT", self.modules.join("typescript"));
        script.env("DAYTONA_MODULE", self.modules.join("@daytona/sdk"));
        script.env("COFFERDAM_OPENAPI", packaging().join("../sidecar/openapi.json"));
    }

    /// Compiles a file with `tsc --strict`.
    fn compile(&self, file: &str) {
        let mut compile = command(&self.node);
        compile.arg(self.modules.join("typescript/bin/tsc")).current_dir(self.directory.path());
        compile.args([
            "--strict",
            "--target",
            "ES2022",
            "--lib",
            "ES2022,ESNext.Disposable,DOM",
            "--module",
            "NodeNext",
        ]);
        compile
            .args(["--skipLibCheck", "--types", "node", "--typeRoots"])
            .arg(self.modules.join("@types"))
            .arg(file);
        run(compile, "tsc");
    }
}

/// Runs a scenario with a sidecar on this host.
#[track_caller]
fn assert_scenario_succeeds(name: &str) {
    let (Some(project), Some(mut setup)) = (Project::new(), SdkSetup::new()) else { return };
    let mut script = project.script("scenarios.mjs");
    script.arg(name);
    setup.use_socket(&mut script);
    project.add_module_paths(&mut script);
    script.env("SIDECAR", setup.world.sidecar().id().to_string());
    assert!(run(script, name).contains("done\n"));
}

#[test]
fn a_sandbox_of_the_e2b_sdk_is_attached_until_it_is_ended_or_aborted() {
    assert_scenario_succeeds("e2b");
}

#[test]
fn a_sandbox_of_the_daytona_sdk_is_attached() {
    assert_scenario_succeeds("daytona");
}

#[test]
fn refused_requests_throw_specific_errors() {
    assert_scenario_succeeds("refusals");
}

#[test]
fn sandboxes_are_enrolled_and_changes_watched() {
    assert_scenario_succeeds("enrol_and_watch");
}

#[test]
fn the_sdk_reports_that_the_sidecar_has_exited() {
    assert_scenario_succeeds("sidecar_gone");
}

#[test]
fn over_tls_the_bearer_token_and_the_server_certificate_are_verified() {
    let (Some(project), Some(setup)) = (Project::new(), SdkSetup::new()) else { return };
    let mut script = project.script("scenarios.mjs");
    script.arg("over_tls");
    let token = setup.use_tls(&mut script);
    project.add_module_paths(&mut script);
    let printed = run(script, "over_tls");
    assert!(printed.contains("done\n") && !printed.contains(&token));
}

#[test]
fn the_typescript_unit_tests_pass() {
    let Some(project) = Project::new() else { return };
    let mut script = command(&project.node);
    script.arg("--test").arg(packaging().join("typescript/test/pure.mjs"));
    project.add_module_paths(&mut script);
    let printed = run(script, "pure.mjs");
    assert!(printed.contains("# pass 5"), "{printed}");
}

#[test]
fn the_quick_start_works_as_written() {
    let readme = fs::read_to_string(packaging().join("typescript/README.md")).expect("there is a README");
    let (Some(project), Some(setup)) = (Project::new(), SdkSetup::new()) else { return };
    fs::write(project.directory.path().join("start.ts"), first_code_block(&readme, "typescript"))
        .expect("it is writable");
    project.compile("start.ts");
    let mut script = command(&project.node);
    script.arg(project.directory.path().join("start.js"));
    setup.use_socket(&mut script);
    let printed = run(script, "the quick start");
    assert!(printed.contains("tools"), "{printed}");
}
