//! The systemd units, as far as `systemd-analyze` can tell without starting them.

use std::path::{Path, PathBuf};

use cofferdam_tests::process::{command, output_of};
use cofferdam_tests::tools::Tool;
use serde_json::Value;

fn unit(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/systemd").join(name)
}

/// Unknown keys are printed to stderr and do not change the exit code.
#[test]
fn systemd_knows_every_key_of_the_units() {
    let Some(analyze) = Tool::SystemdAnalyze.path() else { return };
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    // The program has to exist where the unit says.
    let program = directory.path().join("cofferdam");
    std::fs::copy("/bin/true", &program).expect("a temporary directory is writable");
    for name in ["cofferdam.service", "cofferdam.socket"] {
        let text = std::fs::read_to_string(unit(name)).expect("the unit is there");
        let text = text.replace("/usr/bin/cofferdam", &program.display().to_string());
        std::fs::write(directory.path().join(name), text).expect("a temporary directory is writable");
    }
    let mut verify = command(&analyze);
    verify.args(["verify", "--man=no"]);
    verify.args(["cofferdam.service", "cofferdam.socket"].map(|name| directory.path().join(name)));
    let output = output_of(verify, "systemd-analyze verify");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{stderr}");
}

#[test]
fn the_service_is_hardened_and_says_why_where_it_is_not() {
    let Some(analyze) = Tool::SystemdAnalyze.path() else { return };
    let mut security = command(&analyze);
    security.args(["security", "--offline=yes", "--threshold=35", "--json=short", "--no-pager"]);
    security.arg(unit("cofferdam.service"));
    let output = output_of(security, "systemd-analyze security");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "the exposure is above 3.5:\n{text}");
    let checks: Vec<Value> = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let missing =
        checks.iter().filter(|check| check["set"] == false).filter_map(|check| check["name"].as_str());
    let service = std::fs::read_to_string(unit("cofferdam.service")).expect("the unit is there");
    // `RestrictNamespaces=~user` is explained once for all kinds, an address family where it is allowed.
    let unexplained: Vec<&str> = missing
        .map(|name| &name[..=name.find('=').expect("a directive")])
        .filter(|name| !service.contains(&format!("#   {name}")) && *name != "RestrictAddressFamilies=")
        .collect();
    assert!(unexplained.is_empty(), "not set, and no reason is given: {unexplained:?}");
}
