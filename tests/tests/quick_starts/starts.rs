//! Runs packaging/guide/quick-starts.md. `run::harnesses` runs the quick start for a laptop, `run::imported` the one for a project
//! with settings, [`super::team`] the one for a team, `sdk::python` the one for an orchestrator.

use cofferdam_tests::daytona_double::{self, DaytonaDouble, Speed};
use cofferdam_tests::e2b_double::{self, E2bDouble, SandboxUser};
use cofferdam_tests::markdown::blocks;
use cofferdam_tests::sandboxes::Podman;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;

use super::{Host, guide, section, stdout_of};

/// The only block of this language in a section of the page.
#[track_caller]
fn block(heading: &str, language: &str) -> String {
    let all = blocks(section(&guide("quick-starts.md"), heading), language);
    let [only] = <[String; 1]>::try_from(all).expect("one block of each language");
    only
}

#[test]
fn the_docker_image_of_the_guide_reaches_its_servers() {
    let Some(podman) = Podman::open() else { return };
    let host = Host::start(World::new().server("tools", Server::fixture()));
    podman.write_program(&host.program("docker"));
    let printed = stdout_of(host.shell(&block("A Docker image", "sh")), "the quick start");
    assert!(printed.lines().any(|line| line == "tools"), "{printed}");
    assert!(printed.contains("its sandbox cannot connect again"), "{printed}");
}

/// A host with the configuration of the guide, but with another key file and the addresses of a double. The returned
/// directory contains the key file.
#[track_caller]
fn with_platform(heading: &str, key_file: &str, api_key: &str, lines: &str) -> (Host, tempfile::TempDir) {
    let toml = block(heading, "toml");
    let keys = tempfile::tempdir().expect("a temporary directory can be made");
    let key = keys.path().join("key");
    std::fs::write(&key, api_key).expect("a temporary directory is writable");
    assert!(toml.contains(key_file), "{toml}");
    let toml = toml.replace(key_file, &key.display().to_string());
    // The block ends with the platform's table, so these are further lines of that table.
    let toml = format!("{toml}{lines}");
    (Host::start(World::new().server("tools", Server::fixture()).admin(&toml)), keys)
}

#[track_caller]
fn assert_attached_and_ended(host: &Host, heading: &str, sandbox: &str) {
    let mut shell = host.shell(&block(heading, "sh"));
    shell.env("SANDBOX_ID", sandbox);
    let printed = stdout_of(shell, "the quick start");
    let listed = printed.lines().find(|line| line.starts_with("box1 ")).expect("the attachment is listed");
    assert!(listed.contains(sandbox) && listed.contains("attached"), "{printed}");
    assert!(printed.contains("attachment box1: ended"), "{printed}");
}

#[test]
fn a_sandbox_of_e2b_is_attached_as_the_guide_says() {
    let Some(platform) = E2bDouble::start() else { return };
    let sandbox = platform.create(SandboxUser::Usual);
    let lines = format!("api-url = '{}'\nsandbox-url = '{}'", platform.api_url(), platform.sandbox_url());
    let (host, _keys) = with_platform("E2B", "/etc/cofferdam/e2b-key", e2b_double::API_KEY, &lines);
    assert_attached_and_ended(&host, "E2B", &sandbox);
}

#[test]
fn a_sandbox_of_daytona_is_attached_as_the_guide_says() {
    let Some(platform) = DaytonaDouble::start(Speed(1)) else { return };
    let lines = format!("api-url = '{}'\nsandbox-url = '{}'", platform.api_url(), platform.proxy_url());
    let (host, _keys) =
        with_platform("Daytona", "/etc/cofferdam/daytona-key", daytona_double::API_KEY, &lines);
    assert_attached_and_ended(&host, "Daytona", platform.sandbox_id());
}

/// The commands for a laptop and for an orchestrator are those of pages whose tests run them.
#[test]
fn the_other_quick_starts_are_run_by_other_tests() {
    let laptop = block("On a laptop", "sh");
    assert!(blocks(&guide("run.md"), "sh")[0].lines().any(|line| line == laptop.trim()), "{laptop}");
    assert!(include_str!("../run/harnesses.rs").contains("guide/run.md"));
    assert!(include_str!("../sdk/python.rs").contains("guide/quick-starts.md"));
    let headings = guide("quick-starts.md");
    let headings: Vec<&str> = headings.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    assert!(include_str!("../run/imported.rs").contains("guide/quick-starts.md"));
    assert_eq!(
        headings,
        [
            "On a laptop",
            "A project with an `.mcp.json`",
            "A team with Vault",
            "A Docker image",
            "E2B",
            "Daytona",
            "An orchestrator"
        ]
    );
}
