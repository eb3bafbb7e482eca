//! The registries that the settings of this machine name, with one small package of each.

use std::path::Path;

use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use serde_json::json;

use crate::{text_of, to_its_end};

/// Runs `install` with the settings of the user who runs the tests.
#[track_caller]
fn install(world: &World) -> String {
    let mut command = world.cofferdam_command();
    let is_setting = |name: &str| {
        ["HOME", "XDG_CONFIG_HOME"].contains(&name)
            || name.starts_with("PIP_")
            || name.to_lowercase().starts_with("npm_config_")
    };
    command.envs(std::env::vars().filter(|(name, _)| is_setting(name)));
    command.args(["install", "--yes", "-c"]).arg(&world.layout().config);
    let output = to_its_end(command);
    assert!(output.status.success(), "{}", text_of(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_package_of_the_npm_registry_is_installed_with_its_dependency() {
    let world = World::new().server("tool", Server::package("npm:mkdirp@0.5.6")).prepare();
    let shown = install(&world);
    assert!(shown.contains("  + minimist ") && shown.contains("  + mkdirp 0.5.6\n"), "{shown}");
    world.cofferdam_text(&["check", "--strict"]);
}

/// It is the server of `tests/requirements.txt`.
#[test]
fn a_server_of_the_python_package_index_answers() {
    let requirements = Path::new(env!("CARGO_MANIFEST_DIR")).join("requirements.txt");
    let requirements = std::fs::read_to_string(requirements).expect("the pins are there");
    let pin = requirements.lines().find(|line| line.starts_with("mcp-server-time==")).expect("it is pinned");
    let server = Server::package(&format!("pypi:{pin}")).line("args = [\"--local-timezone\", \"UTC\"]");
    let mut world = World::new().server("time", server).prepare();
    let shown = install(&world);
    assert!(shown.contains("  + pydantic "), "{shown}");
    world.start_sidecar();
    let text = world.connected("time").call_text("get_current_time", json!({"timezone": "UTC"}));
    assert!(text.contains("\"UTC\""), "{text}");
}
