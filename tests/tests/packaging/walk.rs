//! The way of a new user, by the commands of the guide as they are written: a clean Debian without a compiler, and a project
//! whose `.mcp.json` has a token in plain text. The release is installed from `dist/`, the settings are imported, and Claude Code
//! has its old tools in a sandbox; then the token is in the stored secrets alone.
//!
//! The model is a script. Node and Claude Code, which such a user has, are those of this machine. The system is booted, which needs
//! the tools of `tests/tools --dist`, so this runs in `just slow`.

use std::time::Duration;

use cofferdam_tests::agents::{Agent, model_for};
use cofferdam_tests::booted_debian::{BootedDebian, Shared};
use cofferdam_tests::claude_at_terminal::{assert_exits_at_ctrl_c, result_of_prompt};
use cofferdam_tests::deadline::Stopwatch;
use cofferdam_tests::terminal::Terminal;
use cofferdam_tests::tools::Tool;
use serde_json::json;

use super::packages::INSTALLER;
use super::published::Published;
use super::{commands_of, commands_of_guide};

/// What root installs for sandboxes.
pub(crate) const SECTION: &str = "Sandboxes on this machine";

const TOKEN: &str = "ghp_CANARY0123456789abcdefghij012345678";
const USER: &str = "person";
/// Not a measure of the machine: it takes some ten seconds of this on two busy cores.
const AT_MOST: Duration = Duration::from_secs(5 * 60);

/// A project with a real server that npx starts, and Claude Code's permission to call it: its question about that goes to the
/// model, and the script has no answer to it.
fn project() -> String {
    let server = json!({
        "command": "npx",
        "args": ["-y", "mcp-server-everything"],
        "env": {"GITHUB_PERSONAL_ACCESS_TOKEN": TOKEN},
    });
    let settings = json!({"mcpServers": {"everything": server}});
    let permissions = json!({"permissions": {"allow": ["mcp__everything"]}});
    format!(
        "useradd --create-home --shell /bin/bash {USER}\n\
         mkdir --parents /home/{USER}/project/.claude && cd /home/{USER}/project && ln -s /dist ..\n\
         echo '{settings}' > .mcp.json && echo '{permissions}' > .claude/settings.json\n\
         chown --recursive {USER}: /home/{USER}\n"
    )
}

/// npx, which without a network finds the commands of packages that are installed for all users, npm, which comes with it, and a
/// package repository that needs no network.
const TOOLS: &str = "\
    ln -s /opt/npm/bin/npx-cli.js /usr/local/bin/npx\n\
    ln -s /opt/npm/bin/npm-cli.js /usr/local/bin/npm\n\
    ln -s /usr/lib/node_modules/@modelcontextprotocol/server-everything/dist/index.js /usr/bin/mcp-server-everything\n\
    rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*\n\
    echo 'deb [trusted=yes] file:/packages ./' > /etc/apt/sources.list && apt-get update\n\
    ! command -v cargo && ! command -v gcc && ! command -v bwrap\n";

#[test]
#[ignore = "minutes: just slow"]
fn a_person_with_a_clean_debian_gets_the_old_tools_in_a_sandbox() {
    let (Some(claude), Some(packages)) = (Agent::ClaudeCode.program(), Tool::GuideRepository.path()) else {
        return;
    };
    let Some(published) = Published::open() else { return };
    let shared = Shared::default().path(published.directory(), "/dist").path(&packages, "/packages");
    let shared = shared.path(&claude, "/usr/local/bin/claude");
    let Some(shared) = shared.node().and_then(Shared::npm) else { return };
    let Some(modules) = Tool::NodeModules.path() else { return };
    let shared = shared.path(&modules, "/usr/lib/node_modules");
    let Some(debian) = BootedDebian::boot(&shared) else { return };
    debian.succeeds(TOOLS);
    debian.succeeds(&project());

    let time = Stopwatch::start();
    let [as_root] = &commands_of_guide(SECTION)[..] else { panic!("the section has one block") };
    debian.succeeds(as_root);
    let [install] = &commands_of_guide(INSTALLER)[..] else { panic!("one block") };
    let page = include_str!("../../../packaging/guide/quick-starts.md");
    let [start] = &commands_of(page, "A project with an `.mcp.json`")[..] else { panic!("one block") };
    let model = model_for(Agent::ClaudeCode, "everything", "get-env", json!({}));
    let mut shell = debian.shell_of(USER, "", &format!("{install}cd project\n{start}"));
    shell.env("ANTHROPIC_BASE_URL", model.url()).env("ANTHROPIC_AUTH_TOKEN", "not-a-key");
    let mut terminal = Terminal::of(shell);
    let result = result_of_prompt(&mut terminal, &model);
    assert!(result.contains("GITHUB_PERSONAL_ACCESS_TOKEN") && result.contains("[redacted:"), "{result}");
    assert!(!model.all_requests().iter().any(|request| request.body.to_string().contains(TOKEN)));
    assert_exits_at_ctrl_c(&mut terminal);
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.shown());
    assert!(time.elapsed() < AT_MOST, "it took {:.0} s", time.elapsed().as_secs_f64());
    println!("from `dist/` to the tools of the old `.mcp.json`: {:.1} s", time.elapsed().as_secs_f64());

    assert!(!terminal.shown().contains(TOKEN), "{}", terminal.shown());
    let with_token = debian.succeeds(&format!(
        "grep --recursive --files-with-matches --text --fixed-strings {TOKEN} \
         /dev/shm /etc /home /mnt /opt /root /run /srv /tmp /usr/local /var || true"
    ));
    assert_eq!(with_token.trim(), format!("/home/{USER}/.config/cofferdam/secrets/everything.json"));
}
