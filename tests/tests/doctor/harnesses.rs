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
    examined.assert_warning(
        "harness-shim-missing",
        ".claude.json",
        "`gone` starts `/nonexistent/cofferdam-shim`, which this machine does not have",
        "cofferdam shim --out",
    );
    examined.assert_warning(
        "harness-link-stale",
        ".codex/config.toml",
        "`unix:/nonexistent/relay.sock`, a socket that this machine does not have",
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
    let what = "it is not valid: line 1, column 5: ";
    examined.assert_warning("harness-unreadable", ".codex/config.toml", what, "correct the file");
    examined.assert_no_error();
    assert!(!with_settings("{}", "").with_code("harness-none").is_empty());
}

#[test]
fn entries_that_only_a_sandbox_can_start_are_no_error() {
    let world = prepared(sound());
    let written = world.cofferdam(&["harness", "claude", "--write"]);
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let examined = examine(&world);
    examined.assert_warning(
        "harness-shim-missing",
        ".claude.json",
        "`tools` starts `cofferdam-shim`, which this machine does not have: that is right for a sandbox",
        "outside of a sandbox",
    );
    examined.assert_no_error();
}

#[test]
fn entries_of_every_harness_are_found_also_with_comments_and_by_another_name_of_the_shim() {
    let world = prepared(sound());
    let home = world.layout().root();
    for (file, text) in [
        (
            ".gemini/settings.json",
            r#"{"mcpServers": {"g": {"command": "cofferdam-shim", "args": ["--server", "tols"]}}}"#,
        ),
        (
            ".cursor/mcp.json",
            "{\n// mine\n\"mcpServers\": {\"c\": {\"command\": \"/opt/cs\", \"args\": [\"--server\", \"tools\"]},},}",
        ),
        (
            ".config/opencode/opencode.jsonc",
            r#"{"mcp": {"o": {"type": "local", "command": ["cofferdam-shim", "--server", "tols"]}} /* mine */}"#,
        ),
        (
            ".config/Code/User/mcp.json",
            r#"{"servers": {"v": {"command": "cofferdam-shim", "args": ["--relay", "nonsense"]}}}"#,
        ),
        (
            "scratch/.mcp.json",
            r#"{"mcpServers": {"p": {"command": "cofferdam-shim", "args": ["--server=tols"]}}}"#,
        ),
    ] {
        let path = home.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let examined = super::examined::Examined::of(&cofferdam_tests::process::output_of(
        super::examined::doctor(&world),
        "cofferdam doctor",
    ));
    for (code, file, what) in [
        ("harness-server-unknown", ".gemini/settings.json", "`g` names the server `tols`"),
        ("harness-server-unknown", "opencode.jsonc", "`o` names the server `tols`"),
        ("harness-server-unknown", "scratch/.mcp.json", "`p` names the server `tols`"),
        ("harness-link-stale", "Code/User/mcp.json", "`v` has a link that the shim does not understand"),
    ] {
        examined.assert_error(code, file, what, "");
    }
    examined.assert_warning(
        "harness-shim-missing",
        ".cursor/mcp.json",
        "`c` starts `/opt/cs`",
        "cofferdam shim",
    );
}
