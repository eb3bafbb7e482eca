//! The configuration, and what it names on this host.

use std::fs;

use cofferdam_tests::process::output_of;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;

use super::examined::{
    CANARY, Examined, doctor, examine, examine_with, prepared, scratch, search_path, set_mode, sound,
};

#[test]
fn a_sound_world_has_no_error_and_the_server_is_really_started() {
    let world = prepared(sound());
    let examined = examine(&world);
    examined.assert_no_error();
    examined.assert_good("config-ok", "cofferdam.toml", "1 server, 1 secret, 1 grant");
    examined.assert_good("server-ok", "server tools", "fixture-server 1; ");
    assert_eq!(world.fixture_processes("tools").len(), 1, "the server was not started, or several times");
    assert_eq!(super::examined::processes_left(&world, "tools"), Vec::<u32>::new());
    // Nothing of the sidecar's own state was made.
    assert_eq!(fs::read_dir(&world.layout().state).unwrap().count(), 0);
}

#[test]
fn without_any_configuration_it_names_init_and_import_and_examines_the_host() {
    let world = prepared(sound());
    let mut command = world.cofferdam_command();
    command
        .env("PATH", search_path(&world, &["true"]))
        .current_dir(scratch(&world))
        .args(["doctor", "--json"]);
    let examined = examine_with(&world, command);
    let next = "run `cofferdam init` for a first configuration, or `cofferdam import`";
    examined.assert_error("config-missing", "configuration", "found no configuration", next);
    assert_eq!(examined.code, 66);
    assert!(!examined.with_code("sandbox-none").is_empty(), "{:#}", examined.report);
}

#[test]
fn a_configuration_that_is_not_there_gets_the_command_that_makes_it() {
    let world = prepared(sound());
    fs::remove_file(&world.layout().config).unwrap();
    let examined = examine(&world);
    examined.assert_error("config-unreadable", "cofferdam.toml", "No such file", "cofferdam init -c /");
    assert_eq!(examined.code, 66);
}

#[test]
fn every_mistake_in_the_file_is_a_finding_with_its_line() {
    let world = prepared(sound().line("stat-dir = \"/x\"").grant("tll = \"8h\""));
    let examined = examine(&world);
    examined.assert_error("config-invalid", "cofferdam.toml", "unknown key", "did you mean `state-dir`?");
    examined.assert_error("config-invalid", "cofferdam.toml", "unknown key", "did you mean `ttl`?");
    assert_eq!(examined.code, 78);
    let lines: Vec<_> =
        examined.with_code("config-invalid").iter().filter_map(|finding| finding["line"].as_u64()).collect();
    assert_eq!(lines[0], 2, "{lines:?}");
    assert!(examined.with_code("server-ok").is_empty(), "a server of a wrong configuration was started");
}

#[test]
fn a_configuration_that_others_can_change_is_an_error() {
    let world = prepared(sound());
    set_mode(&world.layout().config, 0o666);
    let examined = examine(&world);
    examined.assert_error("config-writable", "cofferdam.toml", "other users", "chmod go-w /");
    assert_eq!(examined.code, 77);
}

#[test]
fn a_secret_that_is_missing_exposed_or_unusable_is_found() {
    let world = prepared(sound());
    let file = world.layout().root().join("secrets/local");
    set_mode(&file, 0o644);
    let examined = examine(&world);
    examined.assert_error(
        "secret-exposed",
        "secrets.local.file",
        "every user of this host can read",
        "chmod 600",
    );
    assert_eq!(examined.code, 77);
    set_mode(&file, 0o640);
    let examined = examine(&world);
    examined.assert_warning(
        "secret-exposed-to-group",
        "secrets.local.file",
        "its group can read",
        "chmod 600",
    );
    examined.assert_no_error();
    set_mode(&file, 0o600);
    fs::write(&file, "short").unwrap();
    examine(&world).assert_error("secret-invalid", "secrets.local.file", "fewer than 8 bytes", "");
    fs::write(&file, "73519824").unwrap();
    let examined = examine(&world);
    examined.assert_warning(
        "secret-guessable",
        "secrets.local.file",
        "could be found by guessing",
        "use a longer one",
    );
    examined.assert_no_error();
    fs::remove_file(&file).unwrap();
    let examined = examine(&world);
    examined.assert_error(
        "secret-missing",
        "secrets.local.file",
        "does not exist",
        "create it with mode 0600",
    );
    assert_eq!(examined.code, 66);
    examined.assert_error(
        "server-no-credential",
        "server tools",
        "the secret `local` from the file",
        "correct the secret",
    );
}

#[test]
fn a_variable_that_is_not_set_is_a_warning_and_a_missing_field_an_error() {
    let unset = World::new()
        .secret("local", "env = \"DOCTOR_TEST_VARIABLE\"")
        .server("tools", Server::fixture().env("SECRET", "{local.value}"));
    let examined = examine(&prepared(unset));
    examined.assert_warning(
        "secret-unset",
        "secrets.local.env",
        "is not set",
        "set it where `cofferdam serve` runs",
    );
    let field = World::new()
        .secret_file("local", &format!("{{\"token\": \"{CANARY}\"}}"))
        .server("tools", Server::fixture().env("SECRET", "{local.tokne}"));
    let examined = examine(&prepared(field));
    examined.assert_error(
        "secret-field-missing",
        "servers.tools.env.SECRET",
        "no field `tokne`",
        "correct the name",
    );
}

#[test]
fn a_program_or_directory_that_is_missing_is_found() {
    let missing = sound().server("gone", Server::command(["/nonexistent/server"]));
    let examined = examine(&prepared(missing));
    examined.assert_error("program-missing", "servers.gone.command", "does not exist", "install it");
    examined.assert_error(
        "server-not-started",
        "server gone",
        "it does not start",
        "install the program of `servers.gone.command`",
    );
    assert_eq!(examined.code, 78);
    examined.assert_good("server-ok", "server tools", "");
    let nowhere = sound().server("nowhere", Server::fixture().line("cwd = \"/nonexistent\""));
    let examined = examine(&prepared(nowhere));
    examined.assert_error("directory-missing", "servers.nowhere.cwd", "does not exist", "create it");
}

#[test]
fn a_permission_that_nothing_refines_is_a_warning() {
    let manifest = tempfile::NamedTempFile::new().expect("make a file");
    let permissions = "[\"mcp.ac.network.client\", \"mcp.ac.system.exec\"]";
    fs::write(manifest.path(), format!("{{\"permissions\": {permissions}}}")).expect("write the manifest");
    let bounded = Server::command(["/usr/bin/false"])
        .confined()
        .line(&format!("manifest = {:?}", manifest.path().display().to_string()));
    let examined = examine(&prepared(sound().server("bounded", bounded)));
    let next = "add a line such as `hosts = [\"api.example.com:443\"]` to `servers.bounded.confine`";
    examined.assert_warning("permission-unrefined", "servers.bounded.manifest", "`confine.hosts`", next);
    assert_eq!(examined.with_code("permission-unrefined").len(), 1, "{:#}", examined.report);
}

#[test]
fn the_text_for_a_person_has_the_same_findings_and_fits_the_terminal() {
    let world = prepared(sound().server("gone", Server::command(["/nonexistent/server"])));
    let mut command = doctor(&world);
    let json = Examined::of(&output_of(doctor(&world), "cofferdam doctor"));
    // The same arguments without `--json`.
    let arguments: Vec<_> =
        command.get_args().filter(|word| *word != "--json").map(ToOwned::to_owned).collect();
    let mut text_command = world.cofferdam_command();
    text_command.env("PATH", search_path(&world, &["sh", "sleep", "true"])).args(&arguments);
    let output = output_of(text_command, "cofferdam doctor");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(json.code), "{text}");
    for finding in json.report["findings"].as_array().unwrap() {
        let severity = finding["severity"].as_str().unwrap();
        if severity != "ok" {
            assert!(text.contains(&format!("[{}]", finding["code"].as_str().unwrap())), "{finding}: {text}");
        }
    }
    assert!(text.contains("\n         why:  ") && text.contains("\n         next: "), "{text}");
    assert!(text.ends_with(" errors, 3 warnings\n") || text.contains(" error"), "{text}");

    command = world.cofferdam_command();
    command.env("PATH", search_path(&world, &["sh", "sleep", "true"])).args(&arguments);
    let mut terminal = cofferdam_tests::terminal::Terminal::of(command);
    terminal.resize(40, 80);
    terminal.wait_for("[program-missing]");
    assert_eq!(terminal.exit_code(), Some(json.code));
}

#[test]
fn a_program_that_may_not_be_executed_is_found() {
    let world = prepared(sound().server("plain", Server::command(["/etc/passwd"])));
    let examined = examine(&world);
    examined.assert_error(
        "program-not-executable",
        "servers.plain.command",
        "is not executable",
        "make it executable",
    );
    assert_eq!(examined.code, 78);
}

#[test]
fn a_secret_that_cannot_be_read_is_found() {
    let world = prepared(sound());
    let file = world.layout().root().join("secrets/local");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    set_mode(&file, 0o700);
    let examined = examine(&world);
    examined.assert_error("secret-unreadable", "secrets.local.file", "not a regular file", "name a file");
    assert_eq!(examined.code, 66);
}

#[test]
fn a_state_directory_that_cannot_be_made_is_found() {
    let world = prepared(sound());
    fs::remove_dir(&world.layout().state).unwrap();
    fs::write(&world.layout().state, "").unwrap();
    let examined = examine(&world);
    let what = "a part of its path is not a directory";
    examined.assert_error("directory-not-writable", "state-dir", what, "choose another");
    assert_eq!(examined.code, 73);
}

#[test]
fn files_of_a_tls_port_that_are_missing_or_no_certificates_are_found() {
    let address = cofferdam_tests::port::free_address();
    let files = "cert-file = \"cert\"\nkey-file = \"key\"\nclient-ca-file = \"ca\"";
    let world = prepared(sound().admin(&format!("tls = \"{address}\"\n{files}")));
    let examined = examine(&world);
    examined.assert_error("file-unreadable", "admin.cert-file", "does not exist", "create it");
    assert_eq!(examined.code, 66);
    for name in ["cert", "key", "ca"] {
        let file = world.layout().root().join(name);
        fs::write(&file, "not PEM").unwrap();
        set_mode(&file, 0o600);
    }
    let examined = examine(&world);
    examined.assert_error("admin-tls-invalid", "admin", "PEM format", "correct the files");
    assert_eq!(examined.code, 78);
}

/// A pipe that no program writes to stands for a file system that hangs.
#[test]
fn a_probe_that_hangs_is_given_up_and_the_others_run() {
    let world = prepared(sound());
    fs::remove_file(&world.layout().config).unwrap();
    nix::unistd::mkfifo(&world.layout().config, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let examined = examine(&world);
    examined.assert_warning(
        "probe-timeout",
        "configuration",
        "did not end within 15 s",
        "run `cofferdam doctor` again",
    );
    assert!(!examined.with_code("harness-none").is_empty(), "{:#}", examined.report);
}
