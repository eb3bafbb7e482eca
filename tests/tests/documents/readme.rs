//! README.md: its configuration is valid, its harness settings start the shim, its command lines are run by the suite,
//! and it is short.

use std::path::Path;

use cofferdam_tests::harness::Harness;
use cofferdam_tests::markdown::{blocks, rows, spans};
use cofferdam_tests::process::{built, command, output_of};
use cofferdam_tests::server::Server;
use cofferdam_tests::tools::Tool;
use cofferdam_tests::world::World;
use serde_json::{Value, json};

use super::promises::{exists, sources};
use super::{CI, JUSTFILE, QUICK_STARTS, README, SANDBOXES, SUITE, check, root, run_shim};

#[test]
fn the_readme_is_short() {
    let lines: Vec<&str> = README.lines().collect();
    assert!(lines.len() <= 150, "{} lines", lines.len());
    for (number, line) in lines.iter().enumerate() {
        assert!(line.chars().count() <= 120, "line {} has over 120 characters", number + 1);
    }
}

#[test]
fn the_configuration_of_the_readme_is_valid() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let file = directory.path().join("cofferdam.toml");
    std::fs::write(&file, configuration()).expect("a temporary directory is writable");
    let printed = check(&file);
    assert!(printed.contains("1 server, 1 secret, 1 grant"), "{printed}");
}

#[test]
fn the_harness_settings_of_the_readme_start_the_shim() {
    let claude: Value = serde_json::from_str(&only(blocks(README, "json"))).expect("the JSON parses");
    let [_, codex] = <[String; 2]>::try_from(blocks(README, "toml")).expect("two blocks of TOML");
    let codex: toml::Table = codex.parse().expect("the TOML for Codex parses");
    let codex = serde_json::to_value(codex).unwrap();
    let granted: toml::Table = configuration().parse().unwrap();
    let granted = granted["grants"]["dev"]["servers"].as_array().unwrap();
    let help = String::from_utf8(run_shim(&["--help"]).stdout).unwrap();
    for servers in [&claude["mcpServers"], &codex["mcp_servers"]] {
        let (name, server) = servers.as_object().unwrap().iter().next().expect("one server");
        assert_eq!(server["command"], "cofferdam-shim");
        let arguments: Vec<&str> =
            server["args"].as_array().unwrap().iter().map(|argument| argument.as_str().unwrap()).collect();
        assert_eq!(arguments, ["--server", name]);
        assert!(help.contains(&format!("{} NAME", arguments[0])), "{help}");
        assert!(granted.iter().any(|server| server.as_str() == Some(name)), "{name} is not granted");
        // The shim's stdin is empty, so it exits with success if it accepts the command line.
        let output = run_shim(&arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(codex["mcp_servers"]["github"]["required"], true, "Codex waits for required servers only");
    let shown =
        spans(README).find(|span| span.starts_with("\"--relay\"")).expect("how to name another socket");
    let [flag, link] = serde_json::from_str::<[String; 2]>(&format!("[{shown}]")).expect("two arguments");
    assert!(
        run_shim(&[&flag, &link]).status.success() && spans(README).any(|span| span == "COFFERDAM_RELAY")
    );
}

#[test]
fn every_command_line_of_the_readme_is_one_that_the_suite_runs() {
    // `tests/run` has the machine's musl target in a variable; the README writes it in full.
    assert!(SUITE.contains("musl=$(uname -m)-unknown-linux-musl"), "tests/run sets its target");
    let suite = SUITE.replace("\"$musl\"", "\"$(uname -m)-unknown-linux-musl\"");
    let has_line =
        |text: &str, line: &str| text.lines().any(|other| other.trim().trim_end_matches(" &") == line);
    for line in blocks(README, "sh").iter().flat_map(|block| block.lines()) {
        let known = match line {
            "cargo run --release -- demo" => {
                assert_one_default_program();
                let demo = include_str!("../demo.rs");
                has_line(JUSTFILE, line)
                    && has_line(&suite, "cargo build --release --locked")
                    && suite.contains("COFFERDAM_BIN=$target/release/cofferdam\n")
                    && demo.contains(r#"built("COFFERDAM_BIN", "cofferdam")"#)
                    && demo.contains(r#".arg("demo")"#)
            }
            // The quick start of the guide, which a test runs as it is written there.
            "cd ~/project" | "cofferdam run -- claude" => {
                has_line(include_str!("../../../packaging/guide/run.md"), line)
                    && include_str!("../run/harnesses.rs").contains("guide/run.md")
            }
            // A test runs these lines of the guide as they are written there.
            "sh dist/install.sh" => {
                has_line(include_str!("../../../packaging/guide/install.md"), line)
                    && include_str!("../packaging/walk.rs").contains("commands_of_guide(INSTALLER)")
            }
            "tests/run" => has_line(CI, "step tests tests/run") && has_line(JUSTFILE, "tests/run {{ARGS}}"),
            "shim/check-toolchain" => {
                has_line(JUSTFILE, "@shim/check-toolchain")
                    && include_str!("../shim_toolchain.rs").contains("shim/check-toolchain")
            }
            line => has_line(&suite, line) && has_line(JUSTFILE, line),
        };
        assert!(known, "the suite, the Justfile or the guide does not run `{line}` as the README does");
    }
    let shim_path = spans(README)
        .find(|span| span.starts_with("target/"))
        .expect("the README says where the built shim is");
    assert!(
        suite.contains(&shim_path.replace("target/*-unknown-linux-musl", "$target/$musl")),
        "{shim_path}"
    );
}

/// A row of the table of sandboxes, and the test that runs its command.
struct SandboxRow {
    /// How the row begins.
    start: &'static str,
    test: &'static str,
    /// The words that the row shares with the text that the test runs.
    words: &'static str,
    text: &'static str,
}

const SANDBOX_ROWS: [SandboxRow; 7] = [
    SandboxRow {
        start: "made here",
        test: "tests::run::the_quick_start_of_the_guide_works_as_written",
        words: "cofferdam run -- claude",
        text: include_str!("../../../packaging/guide/run.md"),
    },
    SandboxRow {
        start: "your own, with bubblewrap",
        test: "tests::documents::the_mount_for_bubblewrap_works_as_written",
        words: "bwrap --ro-bind",
        text: README,
    },
    SandboxRow {
        start: "your own, with Docker",
        test: "tests::documents::the_mount_for_docker_works_as_written",
        words: "docker run -v ",
        text: README,
    },
    SandboxRow {
        start: "a container or host that runs",
        test: "tests::quick_starts::the_recipe_for_ssh_reaches_a_host",
        words: "-- ssh -T box1 cofferdam-shim hub --pin {pin}",
        text: SANDBOXES,
    },
    SandboxRow {
        start: "E2B",
        test: "tests::quick_starts::a_sandbox_of_e2b_is_attached_as_the_guide_says",
        words: "cofferdam attach e2b ",
        text: QUICK_STARTS,
    },
    SandboxRow {
        start: "Daytona",
        test: "tests::quick_starts::a_sandbox_of_daytona_is_attached_as_the_guide_says",
        words: "cofferdam attach daytona ",
        text: QUICK_STARTS,
    },
    SandboxRow {
        start: "remote",
        test: "tests::quick_starts::an_enrolled_sandbox_connects_as_the_guide_says",
        words: "cofferdam enroll --grant dev --name box1",
        text: SANDBOXES,
    },
];

#[test]
fn every_row_of_the_table_of_sandboxes_is_run_by_a_test() {
    let (_, table) = README.split_once("| sandbox | command on the host |\n").expect("the table is there");
    let table = table.split("\n\n").next().expect("a split has a first part");
    let rows: Vec<Vec<String>> = rows(table).collect();
    assert_eq!(rows.len(), SANDBOX_ROWS.len(), "a row has no test, or a test has no row: {rows:?}");
    let sources = sources();
    for (row, SandboxRow { start, test, words, text }) in rows.iter().zip(SANDBOX_ROWS) {
        assert!(row[0].starts_with(start), "{row:?} is not the row of {test}");
        assert!(exists(test, &sources), "{test} is no test");
        assert!(row[1].contains(words) && text.contains(words), "{test} does not run {row:?}");
    }
}

#[test]
fn the_mount_of_the_readme_is_enough_and_cannot_be_changed() {
    let docker = spans(README).find(|span| span.starts_with("docker run")).expect("how Docker mounts it");
    let shown = spans(README).find(|span| span.starts_with("bwrap ")).expect("how bubblewrap mounts it");
    let words: Vec<&str> = shown.split(' ').collect();
    let ["bwrap", flag, outside, inside, "…"] = words[..] else { panic!("{shown}") };
    let relay: toml::Table = configuration().parse().unwrap();
    let socket = relay["relay"]["unix"].as_str().unwrap();
    assert_eq!((outside, inside), (Path::new(socket).parent().unwrap().to_str().unwrap(), outside));
    assert_eq!(docker, format!("docker run -v {outside}:{inside}:ro …"));

    let Some(bubblewrap) = Tool::Bubblewrap.path() else { return };
    let world = World::new().server("tools", Server::fixture()).start();
    let directory = world.layout().relay.parent().unwrap();
    let mut shim = command(&bubblewrap);
    shim.args(["--unshare-all", "--die-with-parent", flag]).arg(directory).arg(inside);
    // The static shim needs no libraries; a shim that was built with the tests does.
    for libraries in ["/lib", "/lib64", "/usr/lib"] {
        shim.args(["--ro-bind-try", libraries, libraries]);
    }
    shim.arg("--ro-bind").arg(built("COFFERDAM_SHIM_BIN", "cofferdam-shim")).args(["/shim", "/shim"]);
    let mut shim = Harness::start(shim, "cofferdam-shim in bubblewrap");
    shim.initialize();
    assert_eq!(shim.call_text("echo", json!({"text": "from inside"})), "from inside");

    let mut removal = command(&bubblewrap);
    removal.args(["--unshare-all", "--ro-bind", "/", "/", flag]).arg(directory).arg(directory);
    removal.arg("rm").arg(&world.layout().relay);
    assert!(!output_of(removal, "rm in bubblewrap").status.success());
    assert!(world.layout().relay.exists(), "the sandbox removed the socket");
}

/// Asserts that `cargo run` is unambiguous: the workspace's default is one package with one program.
fn assert_one_default_program() {
    let mut cargo = command(env!("CARGO"));
    cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path"]);
    cargo.arg(root().join("Cargo.toml"));
    let metadata = output_of(cargo, "cargo metadata").stdout;
    let metadata: Value = serde_json::from_slice(&metadata).expect("cargo writes JSON");
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let defaults = list(&metadata["workspace_default_members"]);
    let packages =
        list(&metadata["packages"]).into_iter().filter(|package| defaults.contains(&package["id"]));
    let targets = packages.flat_map(|package| list(&package["targets"]));
    let programs: Vec<Value> = targets
        .filter(|target| target["kind"] == json!(["bin"]))
        .map(|target| target["name"].clone())
        .collect();
    assert_eq!(programs, ["cofferdam"]);
}

fn configuration() -> String {
    blocks(README, "toml").into_iter().next().expect("the README has a configuration")
}

#[track_caller]
fn only(mut all: Vec<String>) -> String {
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}
