//! Runs the commands of the guide as they are written there, with a real sidecar: the quick starts, and the recipes for
//! `attach exec`. Both programs are in one directory, where the sidecar finds the shim. The hosted platforms are doubles, whose
//! addresses are added to the configuration of the guide.

mod recipes;
mod starts;
mod team;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cofferdam_tests::installed_programs::InstalledPrograms;
use cofferdam_tests::process::{command, output_of};
use cofferdam_tests::world::{Builder, World};

/// A user's host: a home with a configuration, a sidecar that runs with it, and programs on the path.
struct Host {
    world: World,
    home: tempfile::TempDir,
    programs: InstalledPrograms,
}

impl Host {
    #[track_caller]
    fn start(builder: Builder) -> Self {
        let home = tempfile::Builder::new().prefix("home-").tempdir().expect("a directory can be made");
        let programs = InstalledPrograms::new();
        let host = Self { world: builder.program(programs.sidecar()).start(), home, programs };
        for directory in [".config/cofferdam", "bin", "project"] {
            std::fs::create_dir_all(host.home.path().join(directory)).expect("the home is writable");
        }
        let config = host.home.path().join(".config/cofferdam/cofferdam.toml");
        std::fs::copy(&host.world.layout().config, config).expect("the home is writable");
        host
    }

    /// The path at which the commands find a further program of this name.
    fn program(&self, name: &str) -> PathBuf {
        self.home.path().join("bin").join(name)
    }

    fn project(&self) -> PathBuf {
        self.home.path().join("project")
    }

    /// A shell that runs these lines in the project's directory and stops at the first that fails.
    fn shell(&self, lines: &str) -> Command {
        let mut shell = command("bash");
        shell.args(["-euo", "pipefail", "-c", lines]).current_dir(self.project()).env_clear();
        shell.env("HOME", self.home.path()).env("PATH", self.search_path()).stdin(Stdio::null());
        shell
    }

    fn search_path(&self) -> String {
        let own = [self.home.path().join("bin"), self.programs.path().to_owned()];
        format!("{}:{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", own[0].display(), own[1].display())
    }
}

/// Runs a shell, asserts that it succeeds, and returns its stdout.
#[track_caller]
fn stdout_of(shell: Command, what: &str) -> String {
    let output = output_of(shell, what);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{what}: {}\n{stdout}\n{stderr}", output.status);
    stdout
}

/// One section of a document, up to the next heading of the same level.
#[track_caller]
fn section<'document>(document: &'document str, heading: &str) -> &'document str {
    let (_, rest) =
        document.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("no section {heading}"));
    rest.split("\n## ").next().expect("a split has a first part")
}

fn guide(name: &str) -> String {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/guide");
    std::fs::read_to_string(packaging.join(name)).expect("the guide has this page")
}
