//! The quick start for a team with Vault: the tokens of a project's `.mcp.json` go to a real OpenBao, and a session gets them from
//! there.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use cofferdam_tests::agents::{Agent, model_for};
use cofferdam_tests::claude_at_terminal::{assert_exits_at_ctrl_c, result_of_prompt};
use cofferdam_tests::deadline::{PATIENCE, wait_until};
use cofferdam_tests::installed_programs::InstalledPrograms;
use cofferdam_tests::markdown::blocks;
use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::other_user::in_user_namespace;
use cofferdam_tests::process::{Running, built, into_file, read};
use cofferdam_tests::run_user::contents;
use cofferdam_tests::terminal::Terminal;
use cofferdam_tests::tools::Tool;
use cofferdam_tests::vault::session_tokens;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{guide, section};

const CANARY: &str = "CANARY-of-the-team-4711";
const ADDRESS: &str = "https://vault.example.com:8200";

/// A member of the team, with a project and its settings, and what they have installed.
struct Member {
    home: tempfile::TempDir,
    programs: InstalledPrograms,
}

impl Member {
    #[track_caller]
    fn new(configuration: &str) -> Self {
        let home = tempfile::Builder::new().prefix("home-").tempdir().expect("a directory can be made");
        let member = Self { home, programs: InstalledPrograms::new() };
        let fixture = built("COFFERDAM_FIXTURE_BIN", "fixture-server");
        let servers = json!({"mcpServers": {"tools": {"command": fixture, "env": {"SECRET": CANARY}}}});
        member.write("project/.mcp.json", &servers.to_string());
        // Otherwise Claude Code asks its model whether the tool may be called, and the fake model does not know.
        member.write("project/.claude/settings.json", r#"{"permissions":{"allow":["mcp__tools"]}}"#);
        member.write(".config/cofferdam/cofferdam.toml", configuration);
        member
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.home.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a file is in a directory")).expect("it is writable");
        std::fs::write(path, text).expect("the home is writable");
    }

    /// A shell that runs these lines in the project and stops at the first that fails.
    fn shell(&self, lines: &str) -> Command {
        let mut shell = in_user_namespace("bash");
        shell.args(["-euo", "pipefail", "-c", lines]).current_dir(self.home.path().join("project"));
        let path = format!("{}:{}", self.home.path().join("bin").display(), self.programs.path().display());
        shell.env_clear().env("HOME", self.home.path()).stdin(Stdio::null());
        shell.env("PATH", format!("{path}:/usr/local/bin:/usr/bin:/bin"));
        shell
    }

    fn files_with_token(&self) -> Vec<PathBuf> {
        let has_token = |bytes: &[u8]| bytes.windows(CANARY.len()).any(|window| window == CANARY.as_bytes());
        let all = contents(self.home.path()).into_iter();
        all.filter(|(_, bytes)| has_token(bytes)).map(|(path, _)| path).collect()
    }
}

#[test]
fn a_team_moves_its_settings_to_vault() {
    let (Some(claude), Some(_)) = (Agent::ClaudeCode.program(), Tool::Bubblewrap.path()) else { return };
    let Some(bao) = OpenBao::dev() else { return };
    let page = guide("quick-starts.md");
    let section = section(&page, "A team with Vault");
    let [toml] = &blocks(section, "toml")[..] else { panic!("one block of TOML") };
    let [operator, session] = &blocks(section, "sh")[..] else { panic!("two blocks of commands") };
    assert!(toml.contains(ADDRESS), "{toml}");
    let member = Member::new(&toml.replace(ADDRESS, &bao.address()));
    member.write("bin/.keep", "");
    std::os::unix::fs::symlink(claude, member.home.path().join("bin/claude")).expect("it is new");

    let log = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    let printed = || String::from_utf8_lossy(&read(log.path())).into_owned();
    let mut shell = member.shell(operator);
    shell.env("VAULT_TOKEN", &bao.root_token).stdout(into_file(log.path())).stderr(into_file(log.path()));
    let mut sidecar = Running::spawn(shell, "the operator's commands");
    wait_until("the sidecar is ready", || {
        assert!(sidecar.is_running(), "{}", printed());
        printed().contains("ready; listening on")
    });
    let stored = bao.api("GET", "secret/data/cofferdam/tools", Value::Null);
    assert_eq!(stored["data"]["data"], json!({"secret": CANARY}));

    let model = model_for(Agent::ClaudeCode, "tools", "leak", json!({}));
    let mut shell = member.shell(session);
    shell.env("ANTHROPIC_BASE_URL", model.url()).env("ANTHROPIC_AUTH_TOKEN", "not-a-key");
    let mut terminal = Terminal::of(shell);
    let result = result_of_prompt(&mut terminal, &model);
    assert!(result.contains("[redacted:tools.secret]") && !result.contains(CANARY), "{result}");
    let tokens = session_tokens(&bao);
    assert!(tokens.iter().any(|token| token["policies"] == json!(["cofferdam-dev"])), "{tokens:?}");
    assert_exits_at_ctrl_c(&mut terminal);
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.shown());
    wait_until("the session's token is revoked", || session_tokens(&bao).is_empty());
    assert_eq!(member.files_with_token(), Vec::<PathBuf>::new());
    assert!(!printed().contains(CANARY), "{}", printed());
    sidecar.signal(Signal::SIGTERM);
    assert!(sidecar.wait(PATIENCE).success(), "{}", printed());
}
