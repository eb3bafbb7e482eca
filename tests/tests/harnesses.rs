//! The real Claude Code and the real Codex, each calling a tool and getting its result into the next model request.
//!
//! Some tests use the bare fixture, so that a failure of the agents' driver is not mistaken for one of the product.

use cofferdam_tests::agents::Agent;
use cofferdam_tests::process::built;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use serde_json::json;

const SECRET: &str = "harness-secret-7f3Kq9/Zx+18";

#[test]
fn claude_code_calls_the_bare_fixture() {
    calls_the_bare_fixture(Agent::ClaudeCode, &[]);
}

#[test]
fn claude_code_calls_the_bare_fixture_that_supports_initialize_only() {
    calls_the_bare_fixture(Agent::ClaudeCode, &["legacy"]);
}

#[test]
fn codex_calls_the_bare_fixture() {
    calls_the_bare_fixture(Agent::Codex, &[]);
}

#[test]
fn claude_code_calls_a_tool_through_shim_and_sidecar() {
    calls_through_shim_and_sidecar(Agent::ClaudeCode, Server::fixture());
}

#[test]
fn claude_code_falls_back_to_initialize_through_shim_and_sidecar() {
    calls_through_shim_and_sidecar(Agent::ClaudeCode, Server::fixture_that("legacy"));
}

#[test]
fn codex_calls_a_tool_through_shim_and_sidecar() {
    calls_through_shim_and_sidecar(Agent::Codex, Server::fixture());
}

#[test]
fn claude_code_sees_no_secret() {
    sees_no_secret(Agent::ClaudeCode);
}

#[test]
fn codex_sees_no_secret() {
    sees_no_secret(Agent::Codex);
}

fn calls_the_bare_fixture(agent: Agent, arguments: &[&str]) {
    let mut argv = vec![built("COFFERDAM_FIXTURE_BIN", "fixture-server").display().to_string()];
    argv.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    let Some(report) = agent.call(&argv, "echo", json!({"text": "echoed-by-the-fixture"})) else { return };
    assert!(report.tool_result().contains("echoed-by-the-fixture"));
    report.assert_finished();
}

fn calls_through_shim_and_sidecar(agent: Agent, server: Server) {
    let world = World::new().server("tools", server).start();
    let Some(report) = agent.call(&shim_argv(&world), "echo", json!({"text": "through-shim-and-sidecar"}))
    else {
        return;
    };
    assert!(report.tool_result().contains("through-shim-and-sidecar"));
    report.assert_finished();
    assert_eq!(world.times_executed("tools", "echo"), 1);
    let decisions = world.decisions();
    assert_eq!(decisions.len(), 1, "{decisions:?}");
    assert_eq!(decisions[0]["tool"], "echo");
}

fn sees_no_secret(agent: Agent) {
    let server = Server::fixture().env("SECRET", "{local.value}");
    let world = World::new().secret_file("local", SECRET).server("tools", server).capturing().start();
    let Some(report) = agent.call(&shim_argv(&world), "leak", json!({})) else { return };
    let result = report.tool_result();
    assert!(result.contains("[redacted:local.value]"), "{result}");
    for request in &report.requests {
        cofferdam_tests::encodings::assert_absent(
            "a model request",
            request.body.to_string().as_bytes(),
            SECRET,
        );
    }
    world.assert_secret_not_leaked(SECRET);
}

fn shim_argv(world: &World) -> Vec<String> {
    let shim = built("COFFERDAM_SHIM_BIN", "cofferdam-shim").display().to_string();
    vec![shim, "--relay".to_owned(), world.link(), "--server".to_owned(), "tools".to_owned()]
}
