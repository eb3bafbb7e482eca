//! What the sandbox can read and what it can change.

use cofferdam_tests::run_user::contents;
use cofferdam_tests::tools::Tool;

use super::sandbox_kind::SandboxKind;
use super::{CANARY, text, user};

#[test]
fn the_home_and_other_files_of_the_user_are_not_inside() {
    assert_only_the_project_is_visible(SandboxKind::bubblewrap());
}

#[test]
fn the_home_and_other_files_of_the_user_are_not_inside_podman() {
    assert_only_the_project_is_visible(SandboxKind::podman());
}

#[test]
fn the_home_and_other_files_of_the_user_are_not_inside_gvisor() {
    assert_only_the_project_is_visible(SandboxKind::gvisor());
}

#[track_caller]
fn assert_only_the_project_is_visible(kind: Option<SandboxKind>) {
    let Some(kind) = kind else { return };
    let user = user();
    user.write(".ssh/id_ed25519", CANARY);
    user.write("other/notes", CANARY);
    user.write("project/here", "of the project");
    let script = format!(
        "cat here; ls -A {home} {home}/.ssh {home}/other {state} {secrets} /root /var/lib /etc/shadow 2>&1; \
         cat {home}/.ssh/id_ed25519 {home}/other/notes 2>&1; cat /proc/1/environ | tr '\\0' '\\n'; \
         cat /proc/net/dev; echo written > new; echo lost > {home}/lost",
        home = user.home().display(),
        state = user.world.layout().state.display(),
        secrets = user.world.layout().root().join("secrets").display(),
    );
    let mut command = kind.command(&user, &["--", "sh", "-c", &script]);
    command.env("GITHUB_TOKEN", CANARY);
    let output = cofferdam_tests::process::output_of(command, "cofferdam run");
    let seen = text(&output.stdout);
    assert!(output.status.success(), "{seen}\n{}", text(&output.stderr));
    assert!(seen.contains("of the project"), "{seen}");
    let interfaces = seen.lines().filter(|line| line.contains(": ") && line.trim_end().ends_with(" 0"));
    let interfaces: Vec<&str> = interfaces.filter_map(|line| line.trim().split(':').next()).collect();
    assert_eq!(interfaces, ["lo"], "{seen}");
    // The names occur in error messages, but never as entries of a listing.
    let listed = seen.lines().any(|line| ["id_ed25519", "notes", "other", ".ssh"].contains(&line.trim()));
    assert!(!seen.contains(CANARY) && !listed, "{seen}");
    assert_eq!(std::fs::read(user.project().join("new")).expect("the project is writable"), b"written\n");
    assert!(!user.home().join("lost").exists());
    kind.assert_nothing_left(&user);
}

#[test]
fn a_configuration_in_the_project_is_refused() {
    if Tool::Bubblewrap.path().is_none() {
        return;
    }
    let user = user();
    let config = user.project().join("cofferdam.toml");
    std::fs::copy(&user.world.layout().config, &config).expect("the project is writable");
    let mut command = user.world.cofferdam_command();
    command.env("HOME", user.home()).env("TMPDIR", user.temporary()).current_dir(user.project());
    command
        .arg("run")
        .arg("--shim")
        .arg(cofferdam_tests::process::built("COFFERDAM_SHIM_BIN", "cofferdam-shim"));
    command.args(["--", "true"]);
    let output = cofferdam_tests::process::output_of(command, "cofferdam run");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{stderr}");
    assert!(stderr.contains("the configuration (`") && stderr.contains("move it out"), "{stderr}");
    // The sandbox could also replace a symbolic link to a configuration elsewhere.
    std::fs::remove_file(&config).expect("it was just written");
    std::os::unix::fs::symlink(&user.world.layout().config, &config).expect("the project is writable");
    let mut command = user.world.cofferdam_command();
    command.env("HOME", user.home()).env("TMPDIR", user.temporary()).current_dir(user.project());
    command.args(["run", "-c"]).arg(&config);
    command.arg("--shim").arg(cofferdam_tests::process::built("COFFERDAM_SHIM_BIN", "cofferdam-shim"));
    command.args(["--dry-run", "--", "true"]);
    let output = cofferdam_tests::process::output_of(command, "cofferdam run");
    assert_eq!(output.status.code(), Some(78), "{}", text(&output.stderr));
}

#[test]
fn a_warning_names_files_that_look_like_credentials() {
    let user = user();
    user.write("project/.env", CANARY);
    user.write("project/sub/.mcp.json", CANARY);
    let output = user.output(&["--dry-run", "--", "true"]);
    let stderr = text(&output.stderr);
    assert!(stderr.contains("warning: the sandbox can read files that look like credentials"), "{stderr}");
    assert!(
        stderr.contains("project/.env") && stderr.contains("sub/.mcp.json") && !stderr.contains(CANARY),
        "{stderr}"
    );
}

#[test]
fn a_dry_run_prints_the_command_line_and_leaves_nothing() {
    let user = user();
    user.write("project/it's here/file", "x");
    let before = contents(user.world.layout().root());
    let mut command =
        user.command(&["--dry-run", "--mount", "it's here:/data:ro", "--", "echo", "two words"]);
    command.env("ANTHROPIC_API_KEY", CANARY).args(["--"]);
    let output = cofferdam_tests::process::output_of(command, "cofferdam run");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let line = text(&output.stdout);
    assert!(line.contains(r"it'\''s here' /data") && line.contains("'two words'"), "{line}");
    assert!(line.contains("--unshare-all") && !line.contains(CANARY), "{line}");
    assert!(text(&output.stderr).contains("network: none · home: hidden · tools: tools through the relay"));
    assert_eq!(contents(user.world.layout().root()), before);
    user.assert_nothing_left();
}

#[test]
fn no_value_of_an_environment_variable_is_in_a_command_line() {
    let user = user();
    user.program("podman", "#!/bin/sh\n");
    user.program("claude", "#!/bin/sh\n");
    for kind in ["bwrap", "podman", "gvisor"] {
        let arguments = ["--dry-run", "--sandbox", kind, "--env", "OTHER_TOKEN", "--", "claude"];
        let mut command = user.command(&arguments);
        command.env("ANTHROPIC_API_KEY", CANARY).env("OTHER_TOKEN", CANARY).env("PATH", user.search_path());
        let output = cofferdam_tests::process::output_of(command, "cofferdam run");
        assert!(output.status.success(), "{kind}: {}", text(&output.stderr));
        let line = text(&output.stdout);
        assert!(
            !line.is_empty() && !line.contains(CANARY) && !text(&output.stderr).contains(CANARY),
            "{line}"
        );
        assert!(kind != "podman" || line.contains("--env OTHER_TOKEN "), "{line}");
        assert!(text(&output.stderr).contains("harness login: inside, in a variable"), "{kind}");
    }
}
