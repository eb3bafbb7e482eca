//! Checks the documents as far as a program can: the commands that they show work, the files and tests that they name
//! exist.
//!
//! | module | documents |
//! |---|---|
//! | [`comparison`] | packaging/COMPARISON.md |
//! | [`configuration`] | packaging/guide/configuration.md, which is generated from the schema |
//! | [`guide`] | packaging/guide and packaging/examples |
//! | [`paths`] | the files that ARCHITECTURE.md and CONTRIBUTING.md name |
//! | [`promises`] | packaging/SPECIFICATION.md and packaging/THREAT-MODEL.md, and the tests that COMPARISON.md names |
//! | [`protocol`] | relay-proto/PROTOCOL.md |
//! | [`readme`], [`readme_mounts`] | README.md |

mod comparison;
mod configuration;
mod guide;
mod paths;
mod promises;
mod protocol;
mod readme;
mod readme_mounts;

use std::path::{Path, PathBuf};
use std::process::Output;

use cofferdam_tests::process::{built, command, output_of};

const ARCHITECTURE: &str = include_str!("../../../ARCHITECTURE.md");
const BENCHMARKS: &str = include_str!("../../../packaging/BENCHMARKS.md");
const CI: &str = include_str!("../../../.ci/run");
const COMPARISON: &str = include_str!("../../../packaging/COMPARISON.md");
const CONTRIBUTING: &str = include_str!("../../../CONTRIBUTING.md");
const JUSTFILE: &str = include_str!("../../../Justfile");
const OPERATIONS: &str = include_str!("../../../packaging/guide/operations.md");
const PROTOCOL: &str = include_str!("../../../relay-proto/PROTOCOL.md");
const QUICK_STARTS: &str = include_str!("../../../packaging/guide/quick-starts.md");
const README: &str = include_str!("../../../README.md");
const SANDBOXES: &str = include_str!("../../../packaging/guide/sandboxes.md");
const SPECIFICATION: &str = include_str!("../../../packaging/SPECIFICATION.md");
const SUITE: &str = include_str!("../../run");
const THREAT_MODEL: &str = include_str!("../../../packaging/THREAT-MODEL.md");
const TOOLS: &str = include_str!("../../tools");
const TROUBLESHOOTING: &str = include_str!("../../../packaging/guide/troubleshooting.md");

/// Folders by which the documents name tests, as in `sidecar/audit::chain::a_test`.
const CRATES: [&str; 21] = [
    "relay-proto",
    "relay-proto/carriage",
    "shim",
    "sidecar",
    "sidecar/audit",
    "sidecar/base",
    "sidecar/confine",
    "sidecar/egress",
    "sidecar/import",
    "sidecar/net",
    "sidecar/packages",
    "sidecar/platforms",
    "sidecar/policy",
    "sidecar/process",
    "sidecar/scrub",
    "sidecar/secrets",
    "sidecar/servers",
    "sidecar/vault",
    "sidecar/vault-setup",
    "tests",
    "tests/bench",
];

#[track_caller]
fn check(file: &Path) -> String {
    let file = file.display().to_string();
    cofferdam(&["check", "-c", &file])
}

/// The output of a `cofferdam` command in an empty home directory; it must succeed.
#[track_caller]
fn cofferdam(arguments: &[&str]) -> String {
    let home = tempfile::tempdir().expect("a temporary directory can be made");
    let mut command = command(built("COFFERDAM_BIN", "cofferdam"));
    command.env_clear().env("HOME", home.path()).args(arguments);
    let Output { status, stdout, stderr } = output_of(command, "cofferdam");
    assert!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).expect("the output is UTF-8")
}

fn run_shim(arguments: &[&str]) -> Output {
    let mut command = command(built("COFFERDAM_SHIM_BIN", "cofferdam-shim"));
    command.env_clear().args(arguments);
    output_of(command, "cofferdam-shim")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the workspace").to_owned()
}
