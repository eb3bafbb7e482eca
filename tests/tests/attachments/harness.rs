//! `attach … --harness`: the servers of the grant are added to the settings of the harness in the sandbox, and other
//! settings stay.

use std::fs;

use cofferdam_tests::daytona_double::DaytonaDouble;

use super::*;

const SHIM: &str = "/home/user/.local/bin/cofferdam-shim";

impl E2bSetup {
    fn home(&self, path: &str) -> PathBuf {
        self.platform.path(&self.sandbox, "/home/user").join(path)
    }

    #[track_caller]
    fn settings(&self, path: &str) -> String {
        fs::read_to_string(self.home(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }
}

#[test]
fn a_harness_in_the_sandbox_finds_the_servers_of_the_grant() {
    let Some(setup) = E2bSetup::new() else { return };
    let own = "{\n  \"z\": 1,\n  \"mcpServers\": {\"db\": {\"command\": \"db-server\"}},\n  \"a\": {\"b\": []}\n}\n";
    fs::write(setup.home(".claude.json"), own).unwrap();
    for (harness, path) in [
        ("claude", ".claude.json"),
        ("codex", ".codex/config.toml"),
        ("gemini", ".gemini/settings.json"),
        ("opencode", ".config/opencode/opencode.json"),
    ] {
        let attach = setup.attach(&["--harness", harness]);
        let settings = setup.settings(path);
        assert!(settings.contains(SHIM) && settings.contains("tools"), "{harness}: {settings}");
        assert!(!attach.printed().contains("warning"), "{}", attach.printed());
        assert_eq!(setup.list()[0].get("warning"), None);
        attach.stop();
        // Once more: nothing is added twice.
        let attach = setup.attach(&["--harness", harness]);
        assert_eq!(setup.settings(path), settings, "{harness}");
        attach.stop();
    }
    let claude = setup.settings(".claude.json");
    let (before, after) = own.split_once("db-server\"}").unwrap();
    assert!(claude.starts_with(before) && claude.ends_with(after), "other bytes have changed: {claude}");
    let claude: Value = serde_json::from_str(&claude).unwrap();
    let entry = &claude["mcpServers"]["tools"];
    assert_eq!(
        (&entry["command"], &entry["args"]),
        (&SHIM.into(), &serde_json::json!(["--server", "tools"]))
    );
    let codex: toml::Table = setup.settings(".codex/config.toml").parse().unwrap();
    assert_eq!(codex["mcp_servers"]["tools"]["command"].as_str(), Some(SHIM));
    assert!(
        setup.platform.path(&setup.sandbox, SHIM).symlink_metadata().is_ok(),
        "the entry's program is there"
    );
}

/// The program of the entry, started in the sandbox as a harness does, lists the tools.
#[test]
fn the_entry_works_as_it_is_written() {
    let Some(setup) = E2bSetup::new() else { return };
    let attach = setup.attach(&["--harness", "claude"]);
    let settings: Value = serde_json::from_str(&setup.settings(".claude.json")).unwrap();
    let entry = &settings["mcpServers"]["tools"];
    let program = setup.platform.path(&setup.sandbox, entry["command"].as_str().unwrap());
    let file = fs::read_link(program).unwrap();
    let mut shim =
        cofferdam_tests::process::command(setup.platform.path(&setup.sandbox, file.to_str().unwrap()));
    shim.args(["--relay", &format!("unix:{}", setup.socket().display())]);
    shim.args(entry["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()));
    let mut harness = Harness::start(shim, "the entry of the harness").initialized();
    assert_eq!(harness.call_text("echo", serde_json::json!({"text": "found"})), "found");
    attach.stop();
}

#[test]
fn an_entry_that_cannot_be_added_is_a_warning_and_the_sandbox_is_attached() {
    let Some(setup) = E2bSetup::new() else { return };
    let own = r#"{"mcpServers": {"tools": {"command": "my-own-server"}}}"#;
    fs::write(setup.home(".claude.json"), own).unwrap();
    let attach = setup.attach(&["--harness", "claude"]);
    attach.wait_until_output_has("warning: settings of Claude Code: `/home/user/.claude.json`");
    attach.wait_until_output_has("it has other entries with the names `tools`");
    attach.wait_until_output_has(&format!(r#""command":"{SHIM}""#));
    assert_eq!(setup.settings(".claude.json"), own);
    assert!(setup.list()[0]["warning"].as_str().unwrap().contains("`tools`"));
    assert_eq!(setup.shim().call_text("echo", serde_json::json!({"text": "attached"})), "attached");
    attach.stop();
}

#[test]
fn an_attachment_of_the_configuration_writes_the_settings_too() {
    let Some(setup) = E2bSetup::with(|builder, sandbox| {
        builder.line(&format!(
            "attach.box1 = {{ platform = 'e2b', sandbox = '{sandbox}', grant = 'dev', harness = 'gemini' }}"
        ))
    }) else {
        return;
    };
    setup.wait_until_state("attached");
    let settings: Value = serde_json::from_str(&setup.settings(".gemini/settings.json")).unwrap();
    assert_eq!(settings["mcpServers"]["tools"]["command"], SHIM);
}

#[test]
fn a_sandbox_of_daytona_gets_the_settings_too() {
    let Some(platform) = DaytonaDouble::start(cofferdam_tests::daytona_double::Speed(1)) else { return };
    let world = on_daytona::builder(&platform).start();
    let codex = platform.root().join("home/daytona/.codex/config.toml");
    fs::create_dir_all(codex.parent().unwrap()).unwrap();
    fs::write(&codex, "# mine\nmodel = 'o9'").unwrap();
    for via in ["preview", "ssh"] {
        let arguments =
            ["daytona", platform.sandbox_id(), "--grant", "dev", "--via", via, "--harness", "codex"];
        let attach = Attach::start(&world, &arguments);
        attach.wait_until_attached(1);
        let settings = fs::read_to_string(&codex).unwrap();
        assert!(settings.starts_with("# mine\nmodel = 'o9'\n\n[mcp_servers.tools]\n"), "{settings}");
        assert!(settings.contains("/home/daytona/.local/bin/cofferdam-shim"), "{settings}");
        attach.stop();
    }
}
