//! The real Claude Code, Codex and Gemini CLI in a sandbox, with settings that `run` generated and a fake model.

use std::path::{Path, PathBuf};
use std::process::Command;

use cofferdam_tests::agents::{Agent, Report, held_model_for, model_for};
use cofferdam_tests::deadline::wait_until;
use cofferdam_tests::local_run::{LocalRun, contents};
use cofferdam_tests::process::{Running, built, into_file, is_alive, output_of, send};
use cofferdam_tests::sandboxes::PodmanEngine;
use cofferdam_tests::tools::Tool;
use cofferdam_tests::{deadline::PATIENCE, fake_model::FakeModel};
use nix::sys::signal::Signal;
use serde_json::json;

use super::terminal::Terminal;
use super::{CANARY, text, user};

const LOGIN: &str =
    r#"{"claudeAiOauth":{"accessToken":"login-of-the-user"},"mcpOAuth":{"other":"token-of-another-server"}}"#;

/// A kind of sandbox that these harnesses run in.
enum SandboxKind {
    Bubblewrap,
    Podman(PodmanEngine),
}

impl SandboxKind {
    #[track_caller]
    fn bubblewrap() -> Option<Self> {
        Tool::Bubblewrap.path().map(|_| Self::Bubblewrap)
    }

    #[track_caller]
    fn podman() -> Option<Self> {
        PodmanEngine::open().map(Self::Podman)
    }

    fn options(&self) -> &'static [&'static str] {
        match self {
            Self::Bubblewrap => &[],
            Self::Podman(_) => &["--sandbox", "podman"],
        }
    }
}

/// A user with one of the harnesses installed, and files that must neither change nor be visible in the sandbox.
struct HarnessUser {
    user: LocalRun,
    agent: Agent,
    kind: SandboxKind,
    programs: PathBuf,
    before: Vec<(PathBuf, Vec<u8>)>,
}

impl HarnessUser {
    #[track_caller]
    fn new(agent: Agent, kind: Option<SandboxKind>) -> Option<Self> {
        let (kind, program) = (kind?, agent.program()?);
        let user = user();
        for path in [".claude/.credentials.json", ".claude.json", ".codex/config.toml", ".ssh/id_ed25519"] {
            user.write(path, LOGIN);
        }
        user.write("project/README.md", "a project");
        let before = contents(&user.home());
        let programs = install_link(&user, agent, &program);
        Some(Self { user, agent, kind, programs, before })
    }

    /// `cofferdam run`, without a command.
    fn command(&self) -> Command {
        let mut command = self.user.command(self.kind.options());
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.programs.display()));
        if let SandboxKind::Podman(podman) = &self.kind {
            podman.configure(&mut command);
        }
        command
    }

    #[track_caller]
    fn assert_nothing_changed_or_left(&self) {
        let after = contents(&self.user.home()).into_iter();
        let after: Vec<_> = after.filter(|(path, _)| !path.starts_with(&self.programs)).collect();
        assert_eq!(after, self.before, "the user's files have changed");
        if let SandboxKind::Podman(podman) = &self.kind {
            assert_eq!(podman.containers(), "");
        }
        self.user.assert_nothing_left();
    }
}

#[test]
fn claude_code_in_bubblewrap() {
    assert_calls_a_tool(Agent::ClaudeCode, SandboxKind::bubblewrap());
}

#[test]
fn codex_in_bubblewrap() {
    assert_calls_a_tool(Agent::Codex, SandboxKind::bubblewrap());
}

#[test]
fn gemini_cli_in_bubblewrap() {
    assert_calls_a_tool(Agent::GeminiCli, SandboxKind::bubblewrap());
}

#[test]
fn claude_code_in_podman() {
    assert_calls_a_tool(Agent::ClaudeCode, SandboxKind::podman());
}

#[test]
fn codex_in_podman() {
    assert_calls_a_tool(Agent::Codex, SandboxKind::podman());
}

#[test]
fn gemini_cli_in_podman() {
    assert_calls_a_tool(Agent::GeminiCli, SandboxKind::podman());
}

fn assert_calls_a_tool(agent: Agent, kind: Option<SandboxKind>) {
    let Some(harness) = HarnessUser::new(agent, kind) else { return };
    let model = model_for(agent, "tools", "leak", json!({}));
    let mut command = harness.command();
    agent.arguments_in_sandbox(&mut command, &model);
    let output = output_of(command, &format!("{agent:?} in a sandbox"));
    let report = Report { output, requests: model.requests() };
    let result = report.tool_result();
    assert!(result.contains("[redacted:local.value]") && !result.contains(CANARY), "{result}");
    report.assert_finished();
    let stderr = text(&report.output.stderr);
    assert!(
        stderr.contains("network: host, loopback services of this machine included · home: hidden"),
        "{stderr}"
    );
    harness.assert_nothing_changed_or_left();
}

#[test]
fn claude_code_in_bubblewrap_while_the_sidecar_is_killed() {
    assert_calls_a_tool_after_the_sidecar_restarted(Agent::ClaudeCode, SandboxKind::bubblewrap());
}

#[test]
fn codex_in_bubblewrap_while_the_sidecar_is_killed() {
    assert_calls_a_tool_after_the_sidecar_restarted(Agent::Codex, SandboxKind::bubblewrap());
}

#[test]
fn claude_code_in_podman_while_the_sidecar_is_killed() {
    assert_calls_a_tool_after_the_sidecar_restarted(Agent::ClaudeCode, SandboxKind::podman());
}

#[test]
fn codex_in_podman_while_the_sidecar_is_killed() {
    assert_calls_a_tool_after_the_sidecar_restarted(Agent::Codex, SandboxKind::podman());
}

/// The sidecar is killed when the harness has listed the tools, before the model requests a call.
fn assert_calls_a_tool_after_the_sidecar_restarted(agent: Agent, kind: Option<SandboxKind>) {
    let Some(harness) = HarnessUser::new(agent, kind) else { return };
    let model: FakeModel = held_model_for(agent, "tools", "leak", json!({}));
    let mut command = harness.command();
    agent.arguments_in_sandbox(&mut command, &model);
    let (out, err) =
        (harness.user.world.layout().root().join("out"), harness.user.world.layout().root().join("err"));
    command.stdin(std::process::Stdio::null()).stdout(into_file(&out)).stderr(into_file(&err));
    let mut run = Running::spawn(command, "a harness in a sandbox");
    wait_until("the harness asks its model", || !model.requests().is_empty());
    let sidecar = harness.user.wait_for_sidecar();
    send(sidecar, Signal::SIGKILL);
    wait_until("the sidecar is gone", || !is_alive(sidecar));
    model.release();
    let status = run.wait(PATIENCE * 3);
    let read = |path: &Path| std::fs::read(path).unwrap_or_default();
    let output = std::process::Output { status, stdout: read(&out), stderr: read(&err) };
    let report = Report { output, requests: model.requests() };
    assert!(report.tool_result().contains("[redacted:local.value]"), "{}", report.tool_result());
    report.assert_finished();
    harness.assert_nothing_changed_or_left();
}

#[test]
fn the_exit_code_of_claude_code() {
    assert_returns_the_exit_code(Agent::ClaudeCode, SandboxKind::bubblewrap());
    assert_returns_the_exit_code(Agent::ClaudeCode, SandboxKind::podman());
}

#[test]
fn the_exit_code_of_codex() {
    assert_returns_the_exit_code(Agent::Codex, SandboxKind::bubblewrap());
    assert_returns_the_exit_code(Agent::Codex, SandboxKind::podman());
}

fn assert_returns_the_exit_code(agent: Agent, kind: Option<SandboxKind>) {
    let Some(harness) = HarnessUser::new(agent, kind) else { return };
    let Some(program) = agent.program() else { return };
    let mut outside = cofferdam_tests::process::command(program);
    outside.arg("--no-such-option").env("HOME", harness.user.temporary());
    let expected = output_of(outside, "a harness outside").status.code();
    std::fs::remove_dir_all(harness.user.temporary()).expect("it may have files of the harness");
    std::fs::create_dir(harness.user.temporary()).expect("it was just removed");
    let mut command = harness.command();
    command.args(["--", harness.agent.command_name(), "--no-such-option"]);
    let output = output_of(command, "a harness in a sandbox");
    assert_eq!(output.status.code(), expected, "{}", text(&output.stderr));
    assert!(expected.is_some_and(|code| code != 0));
    harness.assert_nothing_changed_or_left();
}

#[test]
fn claude_code_at_a_terminal_in_bubblewrap() {
    assert_usable_at_a_terminal(Agent::ClaudeCode, SandboxKind::bubblewrap());
}

#[test]
fn claude_code_at_a_terminal_in_podman() {
    assert_usable_at_a_terminal(Agent::ClaudeCode, SandboxKind::podman());
}

#[test]
fn codex_at_a_terminal_in_bubblewrap() {
    assert_usable_at_a_terminal(Agent::Codex, SandboxKind::bubblewrap());
}

#[test]
fn codex_at_a_terminal_in_podman() {
    assert_usable_at_a_terminal(Agent::Codex, SandboxKind::podman());
}

/// Asserts that the harness draws its interface, redraws it when the window changes, and exits at Ctrl-C.
fn assert_usable_at_a_terminal(agent: Agent, kind: Option<SandboxKind>) {
    let Some(harness) = HarnessUser::new(agent, kind) else { return };
    let model = model_for(agent, "tools", "leak", json!({}));
    let mut command = harness.command();
    command.env("ANTHROPIC_BASE_URL", model.url()).env("ANTHROPIC_API_KEY", "not-a-key");
    command.env("OPENAI_BASE_URL", model.url()).env("OPENAI_API_KEY", "not-a-key");
    // With `--quiet` only the harness writes to the terminal.
    command.args(["--quiet", "--", agent.command_name()]);
    let mut terminal = Terminal::of(command);
    terminal.wait_for(match agent {
        Agent::ClaudeCode => "Claude",
        Agent::Codex | Agent::GeminiCli => "Codex",
    });
    terminal.wait_until_still();
    let drawn = terminal.shown().len();
    terminal.resize(40, 132);
    wait_until("the harness redraws", || terminal.shown().len() > drawn);
    // After the first Ctrl-C the harness may only ask for confirmation.
    let ended = cofferdam_tests::deadline::holds_within(PATIENCE, || {
        let ended = terminal.has_exited();
        if !ended {
            terminal.type_in("\x03");
        }
        ended
    });
    assert!(ended, "{}", terminal.shown());
    harness.assert_nothing_changed_or_left();
}

/// Creates a directory for the PATH whose only entry is a link to the harness, as installers create it.
fn install_link(user: &LocalRun, agent: Agent, program: &Path) -> std::path::PathBuf {
    let directory = user.home().join(".local/bin");
    std::fs::create_dir_all(&directory).expect("a temporary directory is writable");
    std::os::unix::fs::symlink(program, directory.join(agent.command_name())).expect("it is new");
    directory
}

/// The login of the harness is in the sandbox, and nothing else of the home.
#[test]
fn only_the_login_is_inside_and_only_a_refreshed_login_is_copied_back() {
    let user = user();
    let login = user.write(".claude/.credentials.json", LOGIN);
    user.write(".claude.json", r#"{"mcpServers":{"other":{"env":{"TOKEN":"token-of-another-server"}}}}"#);
    // A program with the harness's name, which prints its settings and its login and refreshes the login.
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

/// Runs the commands of the guide, with a script instead of Claude Code that prints its settings.
#[test]
fn the_quick_start_of_the_guide_works_as_written() {
    let guide = include_str!("../../../packaging/guide/run.md");
    let block =
        guide.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).expect("it has commands");
    let (build, commands) = block.split_once('\n').expect("several lines");
    assert_eq!(build, "cargo build --release --workspace", "this step made the programs that are tested");
    let user = user();
    let config = user.write(".config/cofferdam/cofferdam.toml", "");
    std::fs::copy(&user.world.layout().config, config).expect("the home is writable");
    let built_in = user.home().join("clone/target/release");
    std::fs::create_dir_all(&built_in).expect("the home is writable");
    for (variable, name) in [("COFFERDAM_BIN", "cofferdam"), ("COFFERDAM_SHIM_BIN", "cofferdam-shim")] {
        std::fs::hard_link(built(variable, name), built_in.join(name))
            .or_else(|_| std::fs::copy(built(variable, name), built_in.join(name)).map(drop))
            .expect("the programs can be copied");
    }
    user.program("claude", "#!/bin/sh\ncat ~/.claude.json; cofferdam-shim status\n");
    let mut shell = cofferdam_tests::process::command("bash");
    shell.args(["-euc", commands]).current_dir(user.home().join("clone")).env_clear();
    shell.env("PATH", user.search_path()).env("HOME", user.home()).env("TMPDIR", user.temporary());
    let output = output_of(shell, "the quick start");
    let seen = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(seen.contains(r#""--server","tools""#) && seen.contains("servers  tools"), "{seen}");
    user.assert_nothing_left();
}
