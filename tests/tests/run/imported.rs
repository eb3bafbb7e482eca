//! A person with plaintext tokens in the `.mcp.json` of a project: after `import --rewrite` the real Claude Code in a sandbox has
//! its old tools, and after `import --forget` no plaintext token is left.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use cofferdam_tests::agents::{Agent, Report, model_for};
use cofferdam_tests::claude_at_terminal::{assert_exits_at_ctrl_c, result_of_prompt};
use cofferdam_tests::installed_programs::InstalledPrograms;
use cofferdam_tests::markdown::blocks;
use cofferdam_tests::other_user::in_user_namespace;
use cofferdam_tests::process::{built, output_of};
use cofferdam_tests::run_user::{RunUser, contents};
use cofferdam_tests::terminal::Terminal;
use cofferdam_tests::tools::Tool;
use cofferdam_tests::world::World;
use serde_json::json;

use super::{CANARY, text};

/// Servers whose name in the configuration is the same, and another one.
const SERVERS: [&str; 2] = ["tools", "Order Book"];

/// A person with Claude Code and a project with its old settings.
struct Importer {
    user: RunUser,
    programs: InstalledPrograms,
}

/// What there is of Cofferdam before the import.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Configuration {
    Missing,
    WithoutServers,
}

impl Importer {
    #[track_caller]
    fn new(configuration: Configuration) -> Option<Self> {
        let (Some(claude), Some(_)) = (Agent::ClaudeCode.program(), Tool::Bubblewrap.path()) else {
            return None;
        };
        let user = RunUser::new(World::new());
        let fixture = built("COFFERDAM_FIXTURE_BIN", "fixture-server");
        let server = json!({"command": fixture, "env": {"SECRET": CANARY}});
        let servers = json!({"mcpServers": {SERVERS[0]: server, SERVERS[1]: {"command": fixture, "args": ["plain"], "env": {"SECRET": CANARY}}}});
        user.write("project/.mcp.json", &format!("{servers:#}\n"));
        if configuration == Configuration::WithoutServers {
            let config = user.write(".config/cofferdam/cofferdam.toml", "");
            std::fs::copy(&user.world.layout().config, config).expect("the home is writable");
        }
        let programs = user.home().join(".local/bin");
        std::fs::create_dir_all(&programs).expect("the home is writable");
        std::os::unix::fs::symlink(claude, programs.join("claude")).expect("it is new");
        Some(Self { user, programs: InstalledPrograms::new() })
    }

    /// A shell of the person, who is not root, so that every file of a default place is below the home.
    fn bash(&self, lines: &str) -> Command {
        let mut bash = in_user_namespace("bash");
        bash.args(["-euo", "pipefail", "-c", lines]).current_dir(self.user.project()).env_clear();
        let path = [self.user.home().join(".local/bin"), self.programs.path().to_owned()];
        let path = path.map(|path| path.display().to_string()).join(":");
        bash.env("PATH", format!("{path}:{}", std::env::var("PATH").unwrap_or_default()));
        bash.env("HOME", self.user.home()).env("TMPDIR", self.user.temporary()).stdin(Stdio::null());
        bash
    }

    #[track_caller]
    fn run(&self, lines: &str) -> String {
        let output = output_of(self.bash(lines), lines);
        let printed = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{lines}: {printed}");
        assert!(!printed.contains(CANARY), "{printed}");
        printed
    }

    /// The files of the person and the sidecar with a plaintext token.
    fn files_with_token(&self) -> Vec<PathBuf> {
        let has_token = |bytes: &[u8]| bytes.windows(CANARY.len()).any(|window| window == CANARY.as_bytes());
        let all = [self.user.home(), self.user.temporary(), self.user.world.layout().root().to_owned()];
        let all = all.iter().flat_map(|directory| contents(directory));
        all.filter(|(_, bytes)| has_token(bytes)).map(|(path, _)| path).collect()
    }

    #[track_caller]
    fn assert_tokens_are_stored_only(&self) {
        let stored = self.user.home().join(".config/cofferdam/secrets");
        let expected = [stored.join("order-book.json"), stored.join("tools.json")];
        assert_eq!(self.files_with_token(), expected);
    }
}

/// The servers whose tools Claude Code offers to its model, by their names there. It may offer tools by their names alone.
fn offered(report: &Report) -> BTreeSet<String> {
    let requests: Vec<String> = report.requests.iter().map(|request| request.body.to_string()).collect();
    let names = requests.iter().flat_map(|request| request.split("mcp__").skip(1));
    names.filter_map(|name| Some(name.split_once("__")?.0.to_owned())).collect()
}

/// Imports, calls a tool of this server from Claude Code in a sandbox, and deletes the backups.
#[track_caller]
fn assert_tools_are_those_of_the_old_settings(importer: &Importer, server: &str) {
    importer.run("cofferdam import .mcp.json --rewrite --yes");
    // Claude Code writes a space in the name of a server as `_`.
    let shown = server.replace(' ', "_");
    let model = model_for(Agent::ClaudeCode, &shown, "leak", json!({}));
    let mut run = importer.bash(&format!(
        "cofferdam run --env IS_SANDBOX --env CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC -- \
         claude -p go --output-format json --allowedTools mcp__{shown}"
    ));
    run.env("ANTHROPIC_BASE_URL", model.url()).env("ANTHROPIC_API_KEY", "not-a-key");
    run.env("IS_SANDBOX", "1").env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
    let report = Report { output: output_of(run, "claude in a sandbox"), requests: model.requests() };
    let expected: BTreeSet<String> = SERVERS.iter().map(|name| name.replace(' ', "_")).collect();
    assert_eq!(offered(&report), expected);
    let result = report.tool_result();
    assert!(result.contains("[redacted") && !result.contains(CANARY), "{result}");
    report.assert_finished();
    importer.run("cofferdam import --forget --yes");
    importer.assert_tokens_are_stored_only();
    importer.user.assert_nothing_left();
}

#[test]
fn claude_code_has_the_tools_of_the_old_settings_once_and_no_plaintext_token_is_left() {
    for server in SERVERS {
        let Some(importer) = Importer::new(Configuration::WithoutServers) else { return };
        assert_tools_are_those_of_the_old_settings(&importer, server);
    }
}

#[test]
fn import_makes_the_configuration_of_a_person_who_has_none() {
    let Some(importer) = Importer::new(Configuration::Missing) else { return };
    let configuration = importer.user.home().join(".config/cofferdam/cofferdam.toml");
    assert!(!configuration.exists(), "there is a configuration before the import");
    assert_tools_are_those_of_the_old_settings(&importer, SERVERS[0]);
    assert!(configuration.exists(), "the import has made no configuration");
}

/// Runs the commands of the guide at a terminal, with the real Claude Code and a fake model.
#[test]
fn the_quick_start_for_a_project_with_settings_works_as_written() {
    let guide = include_str!("../../../packaging/guide/quick-starts.md");
    let section =
        guide.split("## A project with an `.mcp.json`\n").nth(1).expect("the guide has the section");
    let section = section.split("\n## ").next().expect("a split has a first part");
    let [commands] = <[String; 1]>::try_from(blocks(section, "sh")).expect("one block of commands");
    let Some(importer) = Importer::new(Configuration::Missing) else { return };
    // Otherwise Claude Code asks its model whether the tool may be called, and the fake model does not know.
    importer.user.write("project/.claude/settings.json", r#"{"permissions":{"allow":["mcp__tools"]}}"#);
    let model = model_for(Agent::ClaudeCode, "tools", "leak", json!({}));
    let mut shell = importer.bash(&commands);
    shell.env("ANTHROPIC_BASE_URL", model.url()).env("ANTHROPIC_AUTH_TOKEN", "not-a-key");
    let mut terminal = Terminal::of(shell);
    let result = result_of_prompt(&mut terminal, &model);
    assert!(result.contains("[redacted") && !result.contains(CANARY), "{result}");
    assert_exits_at_ctrl_c(&mut terminal);
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.shown());
    importer.assert_tokens_are_stored_only();
    importer.user.assert_nothing_left();
}
