//! Files and directories that cannot be used: each is refused by name, with nothing written.

use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;

use cofferdam_tests::other_user::{USER, copy_programs, open_to_all};
use cofferdam_tests::process::{built, command, output_of};
use cofferdam_tests::tools::cannot_run;

use super::support::{Person, Run, TOKEN, mode, one_server};

#[test]
fn a_syntax_error_is_named_with_line_and_column_and_nothing_is_quoted() {
    for (name, text, place) in [
        (".mcp.json", format!("{{\n  \"mcpServers\": {{\n    \"x\": {TOKEN}\n"), "line 3, column 10: "),
        ("config.toml", format!("[mcp_servers.x]\ncommand = {TOKEN}\n"), "line 2, column 11: "),
        (
            ".mcp.json",
            "{\"mcpServers\": {\"x\": {\"command\": \"a\", \"command\": \"b\"}}}".to_owned(),
            "line 1, column 39: the member `command` is repeated",
        ),
        (".mcp.json", "[]".to_owned(), "it is not an object"),
    ] {
        let person = Person::with(name, &text);
        let before = person.everything();
        person.cofferdam(&["import", name, "--yes", "--rewrite"]).assert_code(65).assert_fails_with(place);
        assert_eq!(person.everything(), before);
    }
}

#[test]
fn a_server_of_e2bs_catalogue_that_is_not_known_is_skipped_and_its_secret_stays_where_it_is() {
    let settings = format!(
        "{{\"mcp\": {{\"exa\": {{\"apiKey\": \"exa-{TOKEN}\"}}, \"slack\": {{\"botToken\": \"{TOKEN}\"}}}}}}"
    );
    let person = Person::with("e2b.json", &settings);
    person
        .cofferdam(&["import", "e2b.json", "--yes"])
        .assert_code(0)
        .assert_prints(
            "slack: NOT IMPORTED: it is a name in E2B's catalogue whose program is not known here: enter its command",
        )
        .assert_prints("its secrets stay where they are");
    assert_eq!(person.read("e2b.json"), settings);
    let stored = person.files_with_secrets().into_iter().filter(|path| path.starts_with(person.secrets()));
    assert_eq!(stored.collect::<Vec<_>>(), [person.secrets().join("exa.json")]);
    assert!(!std::fs::read_to_string(person.configuration()).unwrap().contains("slack"));
}

#[test]
fn a_symbolic_link_and_a_missing_file_are_refused() {
    let person = Person::with("real.json", &one_server());
    symlink("real.json", person.project().join(".mcp.json")).unwrap();
    person
        .cofferdam(&["import", ".mcp.json", "--yes"])
        .assert_code(65)
        .assert_fails_with("it is a symbolic link to");
    person.cofferdam(&["import", "gone.json", "--yes"]).assert_code(66).assert_fails_with("does not exist");
    person.cofferdam(&["import", ".", "--yes"]).assert_code(66).assert_fails_with("it is not a regular file");
    assert_eq!(person.read("real.json"), one_server());
    assert!(!person.configuration().exists());
    // Where files are only looked for, the others are imported.
    person.write(".cursor/mcp.json", "{\"mcpServers\": {\"x\": {\"command\": \"x-server\"}}}");
    person
        .cofferdam(&["import", "--yes"])
        .assert_code(0)
        .assert_prints("not read: it is a symbolic link")
        .assert_prints("[servers.x]");
}

#[test]
fn two_servers_of_one_name_get_two_names_and_the_same_server_twice_is_one() {
    let server = |token: &str| {
        format!(
            "{{\"mcpServers\": {{\"x\": {{\"command\": \"x-server\", \"env\": {{\"X_TOKEN\": \"CANARY-{token}\"}}}}}}}}"
        )
    };
    let person = Person::with("one.json", &server("first"));
    person.write("two.json", &server("second"));
    person.write("same.json", &server("first"));
    person
        .cofferdam(&[
            "import",
            "one.json",
            "./one.json",
            "../project/one.json",
            "two.json",
            "same.json",
            "--yes",
            "--rewrite",
        ])
        .assert_code(0)
        .assert_prints("server x: becomes `x-2`")
        .assert_prints("server x: the configuration has it as `x`");
    let configuration = std::fs::read_to_string(person.configuration()).unwrap();
    assert_eq!(configuration.matches("\n[servers.").count(), 2, "{configuration}");
    assert!(configuration.contains("servers = [\"x\", \"x-2\"]"), "{configuration}");
    assert!(person.read("two.json").contains("\"x-2\"") && !person.read("same.json").contains("\"x-2\""));
    person.cofferdam(&["check"]).assert_code(0);
}

#[test]
fn a_configuration_with_errors_is_not_extended() {
    let person = Person::with(".mcp.json", &one_server());
    std::fs::create_dir_all(person.configuration().parent().unwrap()).unwrap();
    for text in ["servers = 1\n", "[servers.x]\n", "not toml"] {
        std::fs::write(person.configuration(), text).unwrap();
        let before = person.everything();
        person.cofferdam(&["import", ".mcp.json", "--yes", "--rewrite"]).assert_code(78);
        assert_eq!(person.everything(), before);
    }
    std::fs::write(person.configuration(), "grants.a.servers = []\ngrants.b.servers = []\n").unwrap();
    person.cofferdam(&["import", ".mcp.json", "--yes"]).assert_code(64).assert_fails_with("--grant NAME");
    person.cofferdam(&["import", ".mcp.json", "--yes", "--grant", "b"]).assert_code(0);
    person.cofferdam(&["check"]).assert_code(0);
}

#[test]
fn undo_of_a_file_that_was_not_imported_names_those_that_were() {
    let person = Person::with(".mcp.json", &one_server());
    person.cofferdam(&["import", ".mcp.json", "--undo"]).assert_code(66).assert_fails_with("no import of");
    person.cofferdam(&["import", "--forget", "--yes"]).assert_code(0).assert_prints("there are no backups");
    person.import(".mcp.json");
    person.cofferdam(&["import", "other.json", "--undo"]).assert_code(66).assert_fails_with(".mcp.json`");
}

#[test]
fn a_directory_without_write_permission_is_found_before_anything_is_written() {
    let Some(programs) = copy_programs() else { return };
    let person = Person::with(".mcp.json", &one_server());
    let home = person.home();
    open_to_all(home.parent().unwrap());
    for path in [home.clone(), person.project(), person.project().join(".mcp.json")] {
        chown(path, Some(USER), Some(USER)).unwrap();
    }
    std::fs::set_permissions(person.project(), std::fs::Permissions::from_mode(0o555)).unwrap();
    let before = person.everything();
    let import = || {
        let mut import = person.through(
            command(programs.path().join("cofferdam")),
            &["import", ".mcp.json", "--yes", "--rewrite"],
        );
        import.uid(USER).gid(USER);
        Run::of(&output_of(import, "an import of another user"))
    };
    import().assert_code(77).assert_fails_with("this user may not write to the directory");
    assert_eq!(person.everything(), before);
    std::fs::set_permissions(person.project(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o555)).unwrap();
    import().assert_code(77);
    assert_eq!(person.everything(), before);
    std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o755)).unwrap();
    import().assert_code(0);
}

#[test]
fn a_full_disk_is_reported_and_loses_nothing() {
    // Each size leaves room for more of the steps: a tmpfs counts pages of 4 KiB.
    let mut outcomes = Vec::new();
    for kibibytes in [4, 8, 16, 24, 256] {
        let person = Person::with(".mcp.json", &one_server());
        let directory = person.configuration().parent().unwrap().to_owned();
        std::fs::create_dir_all(&directory).unwrap();
        // The import and what checks it share one mount namespace.
        let script = r#"mount -t tmpfs -o "size=$1k" none "$2" || exit 99
            "$3" import .mcp.json --yes --rewrite -c "$2/cofferdam.toml"; code=$?
            find "$2" -name '.*.new' | grep . && exit 98
            exit $code"#;
        let mut import = command("unshare");
        import.args(["-m", "sh", "-c", script, "sh"]).arg(kibibytes.to_string()).arg(&directory);
        import.arg(built("COFFERDAM_BIN", "cofferdam"));
        import.env("HOME", person.home()).current_dir(person.project());
        let run = Run::of(&output_of(import, "an import on a small disk"));
        if run.code == Some(99) || run.code == Some(1) {
            cannot_run("a tmpfs can be mounted by root only");
            return;
        }
        if run.code != Some(0) {
            let run = run.assert_code(73);
            assert!(run.stderr.contains("No space left on device"), "{}", run.stderr);
            assert_eq!(person.read(".mcp.json"), one_server());
            outcomes.push(false);
        } else {
            outcomes.push(true);
        }
    }
    assert!(outcomes.contains(&false) && outcomes.ends_with(&[true]), "{outcomes:?}");
}

#[test]
fn a_directory_for_secrets_that_others_can_read_is_closed_and_ignored_by_git() {
    for (ignored, expected) in [
        (None, "*\n"),
        (Some("/other\n!*.json"), "/other\n!*.json\n*\n"),
        (Some("# all\n*\n"), "# all\n*\n"),
        (Some("*\n!github.json\n"), "*\n!github.json\n*\n"),
    ] {
        let person = Person::with(".mcp.json", &one_server());
        std::fs::create_dir_all(person.secrets().join("import")).unwrap();
        for directory in [person.secrets(), person.secrets().join("import")] {
            std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let ignore = person.secrets().join(".gitignore");
        if let Some(text) = ignored {
            std::fs::write(&ignore, text).unwrap();
        }
        person.import(".mcp.json");
        assert_eq!((mode(&person.secrets()), mode(&person.secrets().join("import"))), (0o700, 0o700));
        assert_eq!(std::fs::read_to_string(&ignore).unwrap(), expected);
    }
}

#[test]
fn a_record_of_a_newer_version_is_refused_with_the_way_out() {
    let person = Person::with(".mcp.json", &one_server());
    person.import(".mcp.json");
    let record = person.secrets().join("import/record.json");
    let newer =
        std::fs::read_to_string(&record).unwrap().replace("\"version\": 1", "\"version\": 2, \"new\": {}");
    std::fs::write(&record, newer).unwrap();
    person.write(".mcp.json", &one_server().replace("\"github\"", "\"other\""));
    let before = person.everything();
    for arguments in [
        &["import", ".mcp.json", "--undo"][..],
        &["import", "--forget", "--yes"],
        &["import", ".mcp.json", "--yes", "--rewrite"],
    ] {
        person
            .cofferdam(arguments)
            .assert_code(65)
            .assert_fails_with(
                "record.json` is of a newer version: its format is 2, and this version knows 1",
            )
            .assert_fails_with("run this with the newer version, which knows its backups");
        assert_eq!(person.everything(), before, "{arguments:?}");
    }
}

#[test]
fn paths_that_a_shell_would_split_are_quoted_in_the_next_commands() {
    let person = Person::with(".mcp.json", &one_server());
    let configuration = person.home().join("my conf/it's.toml");
    let mut import = command(built("COFFERDAM_BIN", "cofferdam"));
    import.env_clear().env("HOME", person.home()).current_dir(person.project());
    import.args(["import", ".mcp.json", "--yes", "--rewrite", "-c"]).arg(&configuration);
    let run = Run::of(&output_of(import, "an import")).assert_code(0);
    let option = format!("-c '{}/my conf/it'\\''s.toml'", person.home().display());
    for next in ["cofferdam check", "cofferdam run", "cofferdam import --forget"] {
        assert!(run.printed.contains(&format!("{next} {option}")), "{next} {option}: {}", run.printed);
    }
}

/// The sample of the README, in which tables are inline, extended in each form that an editor may give it.
#[test]
fn a_configuration_keeps_comments_inline_tables_and_line_ends_when_it_is_extended() {
    let readme = include_str!("../../../README.md");
    let sample = cofferdam_tests::markdown::blocks(readme, "toml").remove(0);
    assert!(sample.contains("grants.dev = {"), "{sample}");
    for (name, before) in [
        ("as it is", sample.clone()),
        ("with carriage returns", sample.replace('\n', "\r\n")),
        ("without a last line end", sample.trim_end().to_owned()),
        ("with a byte order mark", format!("\u{feff}# mine\n{sample}")),
    ] {
        let person = Person::with(".mcp.json", &one_server().replace("\"github\"", "\"tracker\""));
        person.write_configuration(&before);
        person.import(".mcp.json");
        let after = std::fs::read_to_string(person.configuration()).unwrap();
        person.cofferdam(&["check"]);
        for line in before.lines().filter(|line| !line.contains("grants.dev")) {
            assert!(after.lines().any(|kept| kept == line), "{name}: `{line}` is not in:\n{after}");
        }
        let grant = after.lines().find(|line| line.starts_with("grants.dev")).expect(&after);
        assert!(
            grant.contains("\"tracker\"") && grant.contains("# what a sandbox may use"),
            "{name}: {grant}"
        );
        let is_windows = before.contains("\r\n");
        assert_eq!(
            after.matches("\r\n").count() == after.matches('\n').count(),
            is_windows,
            "{name}: {after:?}"
        );
        // Twice is once.
        person.cofferdam(&["import", ".mcp.json", "--undo"]).assert_code(0);
        person.import(".mcp.json");
        assert_eq!(std::fs::read_to_string(person.configuration()).unwrap(), after, "{name}");
    }
}

#[test]
fn an_entry_that_was_changed_since_is_left_and_no_earlier_import_is_claimed() {
    let person = Person::with(".mcp.json", &one_server());
    person.import(".mcp.json");
    let changed =
        person.read(".mcp.json").replace("cofferdam-shim", "other-server").replace("--server", "--port");
    person.write(".mcp.json", &changed);
    let undone = person.cofferdam(&["import", ".mcp.json", "--undo"]).assert_code(0);
    assert!(undone.printed.contains("github changed since and left as it is"), "{}", undone.printed);
    assert!(!undone.printed.contains("an earlier import"), "{}", undone.printed);
}
