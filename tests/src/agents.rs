//! One scripted turn of the real Claude Code, Codex or Gemini CLI, with a fake model.
//!
//! Each starts the MCP server that it is given over stdio, calls the script's tool, and sends the result to the model in its
//! next request. None may reach anything but loopback.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::fake_model::{Api, FakeModel, Turn};
use crate::http::Request;
use crate::process::{command, output_of};
use crate::tools::Tool;

/// The MCP server's name in the harness's configuration.
pub const SERVER: &str = "srv";

/// A coding agent, which is the harness here.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Agent {
    ClaudeCode,
    Codex,
    GeminiCli,
}

/// The outcome of a turn.
#[derive(Debug)]
pub struct Report {
    pub output: Output,
    pub requests: Vec<Request>,
}

impl Agent {
    /// Makes the agent call `tool` of the server that `argv` starts; `None` where the agent is not installed.
    #[track_caller]
    pub fn call(self, argv: &[String], tool: &str, arguments: Value) -> Option<Report> {
        let program = self.tool().path()?;
        let home = tempfile::tempdir().expect("a temporary directory can be made");
        let model = model_for(self, SERVER, tool, arguments);
        let mut command = command(program);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", home.path()).env("LANG", "C.UTF-8").current_dir(home.path());
        match self {
            Self::ClaudeCode => claude(&mut command, home.path(), argv, &model),
            Self::Codex => codex(&mut command, home.path(), argv, &model),
            Self::GeminiCli => gemini(&mut command, home.path(), argv, &model),
        }
        let output = output_of(command, &format!("{self:?}"));
        Some(Report { output, requests: model.requests() })
    }

    /// Its program; `None` where it is not installed.
    #[track_caller]
    pub fn program(self) -> Option<PathBuf> {
        self.tool().path()
    }

    /// The name by which users start it.
    pub fn command_name(self) -> &'static str {
        match self {
            Self::ClaudeCode => "claude",
            Self::Codex => "codex",
            Self::GeminiCli => "gemini",
        }
    }

    /// Adds to a `cofferdam run`: the command with a prompt, and where its model is. Its MCP servers are not named here.
    pub fn arguments_in_sandbox(self, command: &mut Command, model: &FakeModel) {
        match self {
            Self::ClaudeCode => {
                command.env("ANTHROPIC_BASE_URL", model.url()).env("ANTHROPIC_API_KEY", "not-a-key");
                command.env("IS_SANDBOX", "1").env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
                command.args([
                    "--env",
                    "IS_SANDBOX",
                    "--env",
                    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
                    "--",
                    "claude",
                ]);
                command.args(["-p", "go", "--output-format", "json", "--allowedTools", "mcp__tools,Bash"]);
            }
            Self::Codex => {
                command.env("SCRIPTED_KEY", "not-a-key").args(["--env", "SCRIPTED_KEY", "--", "codex"]);
                let provider = format!(
                    "model_providers.scripted={{name=\"scripted\",base_url=\"{}/v1\",env_key=\"SCRIPTED_KEY\",wire_api=\"responses\",\
                     request_max_retries=0,stream_max_retries=0}}",
                    model.url()
                );
                for setting in
                    [&provider, "model=\"scripted\"", "model_provider=\"scripted\"", "features.plugins=false"]
                {
                    command.args(["-c", setting]);
                }
                command.args(["exec", "--skip-git-repo-check", "--json"]);
                command.args(["--dangerously-bypass-approvals-and-sandbox", "go"]);
            }
            Self::GeminiCli => {
                gemini_model(command, model);
                command.args(["--", "gemini"]).args(GEMINI_ARGUMENTS);
            }
        }
    }

    fn tool(self) -> Tool {
        match self {
            Self::ClaudeCode => Tool::ClaudeCode,
            Self::Codex => Tool::Codex,
            Self::GeminiCli => Tool::GeminiCli,
        }
    }

    fn api(self) -> Api {
        match self {
            Self::ClaudeCode => Api::Anthropic,
            Self::Codex => Api::OpenAi,
            Self::GeminiCli => Api::Gemini,
        }
    }
}

/// A model that makes the agent call one tool of a server, and then finish.
pub fn model_for(agent: Agent, server: &str, tool: &str, arguments: Value) -> FakeModel {
    let model = held_model_for(agent, server, tool, arguments);
    model.release();
    model
}

/// The same, but it answers no request before it is released.
pub fn held_model_for(agent: Agent, server: &str, tool: &str, arguments: Value) -> FakeModel {
    let call = Turn::Call { server: server.to_owned(), tool: tool.to_owned(), arguments };
    FakeModel::start_held(agent.api(), vec![call, Turn::Say("FINISHED".to_owned())])
}

/// A model that makes the agent run one command with its own shell tool, and then finish.
pub fn shell_model_for(agent: Agent, command: &str) -> FakeModel {
    let script = vec![Turn::Shell(command.to_owned()), Turn::Say("FINISHED".to_owned())];
    FakeModel::start(agent.api(), script)
}

impl Report {
    /// The tool's result as the model saw it in the request after the call.
    ///
    /// # Panics
    /// When no request carries one, with the whole output of the harness.
    #[track_caller]
    pub fn tool_result(&self) -> String {
        let results = self.requests.iter().flat_map(|request| {
            let messages = request.body["messages"].as_array().into_iter().flatten();
            let blocks = messages.filter_map(|message| message["content"].as_array()).flatten();
            let items = request.body["input"].as_array().into_iter().flatten();
            let contents = request.body["contents"].as_array().into_iter().flatten();
            let parts = contents.filter_map(|content| content["parts"].as_array()).flatten();
            blocks.chain(items).chain(parts).filter(is_result)
        });
        let mut results: Vec<String> = results.map(Value::to_string).collect();
        match results.pop() {
            Some(result) => result,
            None => {
                panic!(
                    "no tool result reached the model in {} requests{}",
                    self.requests.len(),
                    self.transcript()
                )
            }
        }
    }

    /// Asserts that the harness succeeded and printed the model's final text.
    #[track_caller]
    pub fn assert_finished(&self) {
        let printed = String::from_utf8_lossy(&self.output.stdout);
        assert!(
            self.output.status.success() && printed.contains("FINISHED"),
            "{}{}",
            self.output.status,
            self.transcript()
        );
    }

    fn transcript(&self) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let requests: Vec<String> =
            self.requests.iter().map(|request| cut(&request.body.to_string())).collect();
        let (stdout, stderr) = (text(&self.output.stdout), text(&self.output.stderr));
        format!("\n--- stdout\n{stdout}\n--- stderr\n{stderr}\n--- requests\n{}", requests.join("\n"))
    }
}

fn is_result(value: &&Value) -> bool {
    value["type"] == "tool_result"
        || value["type"] == "function_call_output"
        || value.get("functionResponse").is_some()
}

fn claude(command: &mut Command, home: &Path, argv: &[String], model: &FakeModel) {
    let server = json!({"type": "stdio", "command": argv[0], "args": argv[1..]});
    let config = home.join("mcp.json");
    let text = json!({"mcpServers": {SERVER: server}}).to_string();
    std::fs::write(&config, text).expect("a temporary directory is writable");
    command.env("ANTHROPIC_BASE_URL", model.url()).env("ANTHROPIC_API_KEY", "not-a-key");
    for switch in ["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_AUTOUPDATER", "IS_SANDBOX"] {
        command.env(switch, "1");
    }
    command.args(["-p", "go", "--strict-mcp-config", "--output-format", "json"]);
    command.args(["--allowedTools", &format!("mcp__{SERVER}")]).arg("--mcp-config").arg(config);
}

fn codex(command: &mut Command, home: &Path, argv: &[String], model: &FakeModel) {
    let url = model.url();
    let config = format!(
        r#"
model = "scripted"
model_provider = "scripted"
check_for_update_on_startup = false
[analytics]
enabled = false
[features]
plugins = false
[model_providers.scripted]
name = "scripted"
base_url = "{url}/v1"
env_key = "SCRIPTED_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
[mcp_servers.{SERVER}]
command = {:?}
args = {:?}
required = true
"#,
        argv[0],
        &argv[1..]
    );
    std::fs::write(home.join("config.toml"), config).expect("a temporary directory is writable");
    command.env("CODEX_HOME", home).env("SCRIPTED_KEY", "not-a-key");
    command.args([
        "exec",
        "--skip-git-repo-check",
        "--json",
        "--dangerously-bypass-approvals-and-sandbox",
        "go",
    ]);
}

fn gemini(command: &mut Command, home: &Path, argv: &[String], model: &FakeModel) {
    let settings = json!({
        "mcpServers": {SERVER: {"command": argv[0], "args": argv[1..]}},
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": false}},
    });
    let directory = home.join(".gemini");
    std::fs::create_dir_all(&directory).expect("a temporary directory is writable");
    std::fs::write(directory.join("settings.json"), settings.to_string())
        .expect("a temporary directory is writable");
    gemini_model(command, model);
    command.args(GEMINI_ARGUMENTS);
}

/// Without a model's name, Gemini CLI asks one model which other one to use.
fn gemini_model(command: &mut Command, model: &FakeModel) {
    command.env("GOOGLE_GEMINI_BASE_URL", model.url()).env("GEMINI_API_KEY", "not-a-key");
    command.env("GEMINI_MODEL", "gemini-2.5-flash");
}

const GEMINI_ARGUMENTS: [&str; 5] = ["-p", "go", "--yolo", "--output-format", "json"];

fn cut(text: &str) -> String {
    text.chars().take(3000).collect()
}
