//! The real Claude Code, Codex and Gemini CLI in a sandbox, with settings that `run` generated and a fake model.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cofferdam_tests::agents::{Agent, Report, held_model_for, model_for, shell_model_for};
use cofferdam_tests::claude_at_terminal::assert_exits_at_ctrl_c;
use cofferdam_tests::deadline::{holds_within, wait_until};
use cofferdam_tests::process::{Running, built, into_file, is_alive, output_of, send};
use cofferdam_tests::run_user::{RunUser, contents};
use cofferdam_tests::terminal::Terminal;
use cofferdam_tests::{deadline::PATIENCE, fake_model::FakeModel};
use nix::sys::signal::Signal;
use serde_json::json;

use super::sandbox_kind::SandboxKind;
use super::{CANARY, text, user};

const LOGIN: &str =
    r#"{"claudeAiOauth":{"accessToken":"login-of-the-user"},"mcpOAuth":{"other":"token-of-another-server"}}"#;

/// A user with one of the harnesses installed, and files that must neither change nor be visible in the sandbox.
struct HarnessUser {
    run_user: RunUser,
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
        Some(Self { run_user: user, agent, kind, programs, before })
    }

    /// `cofferdam run`, without a command.
    fn command(&self) -> Command {
        let mut command = self.kind.command(&self.run_user, &[]);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.programs.display()));
        command
    }

    fn files_except_programs(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let files = contents(&self.run_user.home()).into_iter();
        files.filter(|(path, _)| !path.starts_with(&self.programs)).collect()
    }

    #[track_caller]
    fn assert_nothing_changed_or_left(&self) {
        assert_eq!(self.files_except_programs(), self.before, "the user's files have changed");
        self.kind.assert_nothing_left(&self.run_user);
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
    let Some(user) = HarnessUser::new(agent, kind) else { return };
    let model = model_for(agent, "tools", "leak", json!({}));
    let mut command = user.command();
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
    user.assert_nothing_changed_or_left();
}

#[test]
fn the_shell_of_claude_code_cannot_read_the_home() {
    assert_shell_cannot_read_the_home(Agent::ClaudeCode, SandboxKind::bubblewrap());
    assert_shell_cannot_read_the_home(Agent::ClaudeCode, SandboxKind::podman());
}

#[test]
fn the_shell_of_codex_cannot_read_the_home() {
    assert_shell_cannot_read_the_home(Agent::Codex, SandboxKind::bubblewrap());
    assert_shell_cannot_read_the_home(Agent::Codex, SandboxKind::podman());
}

/// The model asks the harness to read the user's private files, and a file of the project, with its own shell tool.
fn assert_shell_cannot_read_the_home(agent: Agent, kind: Option<SandboxKind>) {
    let Some(mut user) = HarnessUser::new(agent, kind) else { return };
    for path in [".ssh/id_ed25519", ".bash_history", "other-project/.env"] {
        user.run_user.write(path, CANARY);
    }
    user.before = user.files_except_programs();
    let home = user.run_user.home();
    let home = home.display();
    let script = format!(
        "cat README.md; cat ~/.ssh/id_ed25519 ~/.bash_history {home}/.ssh/id_ed25519 {home}/.bash_history \
         {home}/other-project/.env 2>&1; ls -A {home}; find / -xdev -name id_ed25519 2>/dev/null; echo the-end"
    );
    let model = shell_model_for(agent, &script);
    let mut command = user.command();
    agent.arguments_in_sandbox(&mut command, &model);
    let output = output_of(command, &format!("{agent:?} in a sandbox"));
    let report = Report { output, requests: model.requests() };
    let result = report.tool_result();
    assert!(result.contains("a project") && result.contains("the-end"), "the shell did not run: {result}");
    assert!(result.contains("No such file or directory"), "{result}");
    assert!(!result.contains("other-project\\n") && !result.contains(CANARY), "{result}");
    let conversation: String = report.requests.iter().map(|request| request.body.to_string()).collect();
    assert!(!conversation.contains(CANARY), "the model has seen a private file");
    report.assert_finished();
    user.assert_nothing_changed_or_left();
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
    let Some(user) = HarnessUser::new(agent, kind) else { return };
    let model: FakeModel = held_model_for(agent, "tools", "leak", json!({}));
    let mut command = user.command();
    agent.arguments_in_sandbox(&mut command, &model);
    let (out, err) =
        (user.run_user.world.layout().root().join("out"), user.run_user.world.layout().root().join("err"));
    command.stdin(std::process::Stdio::null()).stdout(into_file(&out)).stderr(into_file(&err));
    let mut run = Running::spawn(command, "a harness in a sandbox");
    wait_until("the harness asks its model", || !model.requests().is_empty());
    let sidecar = user.run_user.wait_for_sidecar();
    send(sidecar, Signal::SIGKILL);
    wait_until("the sidecar is gone", || !is_alive(sidecar));
    model.release();
    let status = run.wait(PATIENCE * 3);
    let read = |path: &Path| std::fs::read(path).unwrap_or_default();
    let output = std::process::Output { status, stdout: read(&out), stderr: read(&err) };
    let report = Report { output, requests: model.requests() };
    assert!(report.tool_result().contains("[redacted:local.value]"), "{}", report.tool_result());
    report.assert_finished();
    user.assert_nothing_changed_or_left();
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
    let Some(user) = HarnessUser::new(agent, kind) else { return };
    let Some(program) = agent.program() else { return };
    let mut outside = cofferdam_tests::process::command(program);
    outside.arg("--no-such-option").env("HOME", user.run_user.temporary());
    let expected = output_of(outside, "a harness outside").status.code();
    std::fs::remove_dir_all(user.run_user.temporary()).expect("it may have files of the harness");
    std::fs::create_dir(user.run_user.temporary()).expect("it was just removed");
    let mut command = user.command();
    command.args(["--", user.agent.command_name(), "--no-such-option"]);
    let output = output_of(command, "a harness in a sandbox");
    assert_eq!(output.status.code(), expected, "{}", text(&output.stderr));
    assert!(expected.is_some_and(|code| code != 0));
    user.assert_nothing_changed_or_left();
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
    let Some(user) = HarnessUser::new(agent, kind) else { return };
    let model = model_for(agent, "tools", "leak", json!({}));
    let mut command = user.command();
    command.env("ANTHROPIC_BASE_URL", model.url()).env("ANTHROPIC_API_KEY", "not-a-key");
    command.env("OPENAI_BASE_URL", model.url()).env("OPENAI_API_KEY", "not-a-key");
    // With `--quiet` only the harness writes to the terminal.
    command.args(["--quiet", "--", agent.command_name()]);
    let mut terminal = Terminal::of(command);
    terminal.wait_for(match agent {
        Agent::ClaudeCode => "Claude",
        Agent::Codex => "Codex",
        Agent::GeminiCli => unreachable!("no test runs Gemini CLI at a terminal"),
    });
    terminal.wait_until_still();
    let drawn = terminal.shown().len();
    terminal.resize(40, 132);
    wait_until("the harness redraws", || terminal.shown().len() > drawn);
    assert_exits_at_ctrl_c(&mut terminal);
    user.assert_nothing_changed_or_left();
}

/// Creates a directory for the PATH whose only entry is a link to the harness, as installers create it.
fn install_link(user: &RunUser, agent: Agent, program: &Path) -> std::path::PathBuf {
    let directory = user.home().join(".local/bin");
    std::fs::create_dir_all(&directory).expect("a temporary directory is writable");
    std::os::unix::fs::symlink(program, directory.join(agent.command_name())).expect("it is new");
    directory
}

/// Runs the commands of the guide at a terminal, with the real Claude Code and a fake model.
#[test]
fn the_quick_start_of_the_guide_works_as_written() {
    let guide = include_str!("../../../packaging/guide/run.md");
    let block =
        guide.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).expect("it has commands");
    let (build, commands) = block.split_once('\n').expect("several lines");
    assert_eq!(build, "cargo build --release --workspace", "this step made the programs that are tested");
    let Some(harness) = HarnessUser::new(Agent::ClaudeCode, SandboxKind::bubblewrap()) else { return };
    let user = &harness.run_user;
    let config = user.write(".config/cofferdam/cofferdam.toml", "");
    std::fs::copy(&user.world.layout().config, config).expect("the home is writable");
    // Otherwise Claude Code asks its model whether the tool may be called, and the fake model does not know.
    user.write("project/.claude/settings.json", r#"{"permissions":{"allow":["mcp__tools"]}}"#);
    let built_in = user.home().join("clone/target/release");
    std::fs::create_dir_all(&built_in).expect("the home is writable");
    let dynamic_shim = ("COFFERDAM_DYNAMIC_SHIM_BIN", "cofferdam-shim");
    for (variable, name) in [("COFFERDAM_BIN", "cofferdam"), dynamic_shim] {
        std::fs::hard_link(built(variable, name), built_in.join(name))
            .or_else(|_| std::fs::copy(built(variable, name), built_in.join(name)).map(drop))
            .expect("the programs can be copied");
    }
    let model = model_for(Agent::ClaudeCode, "tools", "leak", json!({}));
    let mut shell = cofferdam_tests::process::command("bash");
    shell.args(["-euc", commands]).current_dir(user.home().join("clone")).env_clear();
    let path = std::env::var("PATH").unwrap_or_default();
    shell.env("PATH", format!("{}:{path}", harness.programs.display()));
    shell.env("HOME", user.home()).env("TMPDIR", user.temporary());
    shell.env("ANTHROPIC_BASE_URL", model.url()).env("ANTHROPIC_AUTH_TOKEN", "not-a-key");
    let mut terminal = Terminal::of(shell);
    let result = || {
        let mut requests = model.requests().into_iter().map(|request| request.body.to_string());
        requests.rfind(|body| body.contains("tool_result"))
    };
    // Claude Code asks whether the directory is trusted: the second answer is yes.
    terminal.wait_for("safety");
    for key in ["\x1b[B", "\r"] {
        terminal.wait_until_still();
        terminal.type_in(key);
    }
    // Its display never rests, so the prompt is typed again until the model has a request.
    let called = holds_within(PATIENCE * 2, || {
        if model.requests().is_empty() {
            terminal.type_in("go\r");
        }
        holds_within(Duration::from_secs(2), || result().is_some())
    });
    assert!(called, "{}", terminal.shown());
    let result = result().unwrap_or_default();
    assert!(result.contains("[redacted:local.value]") && !result.contains(CANARY), "{result}");
    terminal.wait_for("FINISHED");
    assert_exits_at_ctrl_c(&mut terminal);
    user.assert_nothing_left();
}
