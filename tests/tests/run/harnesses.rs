//! The real Claude Code and the real Codex in a sandbox, with settings that `run` generated and a fake model.

use std::path::Path;

use cofferdam_tests::agents::{Agent, Report, model_for};
use cofferdam_tests::local_run::{LocalRun, contents};
use cofferdam_tests::process::{built, output_of};
use cofferdam_tests::sandboxes::PodmanEngine;
use serde_json::json;

use super::{CANARY, text, user};

const LOGIN: &str =
    r#"{"claudeAiOauth":{"accessToken":"login-of-the-user"},"mcpOAuth":{"other":"token-of-another-server"}}"#;

#[test]
fn claude_code_in_bubblewrap() {
    calls_a_tool(Agent::ClaudeCode, &[], None);
}

#[test]
fn codex_in_bubblewrap() {
    calls_a_tool(Agent::Codex, &[], None);
}

#[test]
fn claude_code_in_podman() {
    let Some(podman) = PodmanEngine::open() else { return };
    calls_a_tool(Agent::ClaudeCode, &["--sandbox", "podman"], Some(&podman));
}

#[test]
fn codex_in_podman() {
    let Some(podman) = PodmanEngine::open() else { return };
    calls_a_tool(Agent::Codex, &["--sandbox", "podman"], Some(&podman));
}

fn calls_a_tool(agent: Agent, options: &[&str], podman: Option<&PodmanEngine>) {
    let Some(program) = agent.program() else { return };
    let user = user();
    for path in [".claude/.credentials.json", ".claude.json", ".codex/config.toml", ".ssh/id_ed25519"] {
        user.write(path, LOGIN);
    }
    user.write("project/README.md", "a project");
    let before = contents(&user.home());
    let model = model_for(agent, "tools", "leak", json!({}));
    let mut command = user.command(options);
    let programs = named_as_installed(&user, agent, &program);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", programs.display()));
    agent.arguments_in_sandbox(&mut command, &model);
    if let Some(podman) = podman {
        podman.configure(&mut command);
    }
    let report =
        Report { output: output_of(command, &format!("{agent:?} in a sandbox")), requests: model.requests() };
    let result = report.tool_result();
    assert!(result.contains("[redacted:local.value]") && !result.contains(CANARY), "{result}");
    report.assert_finished();
    let said = text(&report.output.stderr);
    assert!(
        said.contains("network: host, loopback services of this machine included · home: hidden"),
        "{said}"
    );
    let after: Vec<_> =
        contents(&user.home()).into_iter().filter(|(path, _)| !path.starts_with(&programs)).collect();
    assert_eq!(after, before, "the user's files are as they were");
    user.assert_nothing_left();
}

/// A directory on the PATH whose only entry is a link to the harness, as installers make it.
fn named_as_installed(user: &LocalRun, agent: Agent, program: &Path) -> std::path::PathBuf {
    let directory = user.home().join(".local/bin");
    std::fs::create_dir_all(&directory).expect("a temporary directory is writable");
    std::os::unix::fs::symlink(program, directory.join(agent.command_name())).expect("it is new");
    directory
}

/// The sandbox sees the login of its harness, and nothing else of the home.
#[test]
fn only_the_login_is_inside_and_only_a_refreshed_one_comes_back() {
    let user = user();
    let login = user.write(".claude/.credentials.json", LOGIN);
    user.write(".claude.json", r#"{"mcpServers":{"other":{"env":{"TOKEN":"token-of-another-server"}}}}"#);
    // A program that has the harness's name: it prints what it sees and refreshes the login.
    let script = r#"#!/bin/sh
cat "$HOME"/.claude.json "$HOME"/.claude/.credentials.json
echo '{"claudeAiOauth":{"accessToken":"refreshed"},"mcpOAuth":{}}' > "$HOME"/.claude/.credentials.json
"#;
    let program = user.program("claude", script);
    let output = user.output(&["--network", "none", "--", &program.display().to_string()]);
    let seen = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(seen.contains("login-of-the-user") && !seen.contains("token-of-another-server"), "{seen}");
    assert!(seen.contains(r#""--server","tools""#), "{seen}");
    let after = std::fs::read_to_string(login).expect("it is still there");
    assert_eq!(
        after,
        r#"{"claudeAiOauth":{"accessToken":"refreshed"},"mcpOAuth":{"other":"token-of-another-server"}}"#
    );
    user.assert_nothing_left();
}

/// The commands of the guide, with a stand-in that reads the settings that Claude Code would read.
#[test]
fn the_quick_start_of_the_guide_works_as_written() {
    let guide = include_str!("../../../packaging/guide/run.md");
    let block =
        guide.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).expect("it has commands");
    let (build, commands) = block.split_once('\n').expect("two lines");
    assert_eq!(build, "cargo build --release --workspace", "this step made the programs that are tested");
    let user = user();
    let config = user.write(".config/cofferdam/cofferdam.toml", "");
    std::fs::copy(&user.world.layout().config, config).expect("the home is writable");
    let programs = user.home().join("programs");
    std::fs::create_dir(&programs).expect("the home is writable");
    for (variable, name) in [("COFFERDAM_BIN", "cofferdam"), ("COFFERDAM_SHIM_BIN", "cofferdam-shim")] {
        std::fs::hard_link(built(variable, name), programs.join(name))
            .or_else(|_| std::fs::copy(built(variable, name), programs.join(name)).map(drop))
            .expect("the programs can be copied");
    }
    user.program("claude", "#!/bin/sh\ncat ~/.claude.json; cofferdam-shim status\n");
    let mut shell = cofferdam_tests::process::command("bash");
    shell.args(["-euc", commands]).current_dir(user.project()).env_clear();
    shell.env("PATH", user.search_path()).env("HOME", user.home()).env("TMPDIR", user.temporary());
    let output = output_of(shell, "the quick start");
    let seen = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(seen.contains(r#""--server","tools""#) && seen.contains("servers  tools"), "{seen}");
    user.assert_nothing_left();
}
