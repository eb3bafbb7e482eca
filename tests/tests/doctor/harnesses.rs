//! Settings of harnesses that name a shim, a link or a server that is not there.

use std::fs;

use serde_json::json;

use super::examined::{Examined, examine, prepared, sound};

/// What is found with these settings of Claude Code, and these of Codex.
#[track_caller]
fn with_settings(claude: &str, codex: &str) -> Examined {
    let world = prepared(sound());
    let home = world.layout().root();
    fs::write(home.join(".claude.json"), claude).expect("the test's own files and processes are at hand");
    fs::create_dir(home.join(".codex")).expect("the test's own files and processes are at hand");
    fs::write(home.join(".codex/config.toml"), codex)
        .expect("the test's own files and processes are at hand");
    examine(&world)
}

#[test]
fn entries_with_a_stale_link_a_missing_shim_or_an_unknown_server_are_found() {
    let claude = json!({"projects": {"/p": {"mcpServers": {
        "gone": {"command": "/nonexistent/cofferdam-shim", "args": ["--server", "tools"]},
        "other": {"command": "gh-server", "args": ["--relay", "unix:/nonexistent/relay.sock"]},
    }}}});
    let shim = cofferdam_tests::process::built("COFFERDAM_SHIM_BIN", "cofferdam-shim");
    let codex = format!(
        "[mcp_servers.stale]\ncommand = {shim:?}\nargs = [\"--relay\", \"unix:/nonexistent/relay.sock\", \"--server\", \"tols\"]\n"
    );
    let examined = with_settings(&claude.to_string(), &codex);
    examined.assert_error(
        "harness-shim-missing",
        ".claude.json",
        "`gone` starts `/nonexistent/cofferdam-shim`",
        "cofferdam shim --out",
    );
    examined.assert_error(
        "harness-link-stale",
        ".codex/config.toml",
        "`unix:/nonexistent/relay.sock`",
        "write `unix:/",
    );
    examined.assert_error(
        "harness-server-unknown",
        ".codex/config.toml",
        "the server `tols`",
        "did you mean `tools`?",
    );
    assert_eq!(examined.code, 78);
    assert!(!examined.report.to_string().contains("gh-server"), "an entry of another server is no finding");
}

#[test]
fn entries_that_fit_are_good_and_an_unreadable_file_is_a_warning() {
    let shim = cofferdam_tests::process::built("COFFERDAM_SHIM_BIN", "cofferdam-shim");
    let claude = json!({"mcpServers": {"ours": {"command": shim, "args": ["--server", "tools"]}}});
    let examined = with_settings(&claude.to_string(), "not toml = ");
    examined.assert_good("harness-ok", ".claude.json", "starts the shim for ours");
    examined.assert_warning("harness-unreadable", ".codex/config.toml", "not valid TOML", "correct the file");
    examined.assert_no_error();
    assert!(!with_settings("{}", "").with_code("harness-none").is_empty());
}
