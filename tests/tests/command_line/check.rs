//! `cofferdam check` reports what is missing or not protected on this host: as warnings, or with `--strict` as errors.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use cofferdam_tests::certificates::Authority;
use cofferdam_tests::other_user::open_to_all;
use cofferdam_tests::server::Server;
use cofferdam_tests::world::World;
use serde_json::Value;

use super::printed;
use super::unprivileged::Unprivileged;

/// A value that no output may contain.
const CANARY: &str = "canary-value-in-a-file";

#[track_caller]
fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .expect("the file belongs to this user");
}

/// A world with a secret file of mode 0600 and a server that uses it.
fn sound_world(field: &str) -> World {
    let content = format!("{{\"token\": \"{CANARY}\"}}");
    let server = Server::fixture().env("TOKEN", &format!("{{local.{field}}}"));
    let world = World::new().secret_file("local", &content).server("tools", server).prepare();
    set_mode(&secret_file(&world), 0o600);
    world
}

fn secret_file(world: &World) -> std::path::PathBuf {
    world.layout().root().join("secrets/local")
}

/// Asserts that `check` warns with exit code 0, that `--strict` fails with 78, and that both name the key, its line and what
/// is wrong.
#[track_caller]
pub(crate) fn assert_found(world: &World, key: &str, expected: &str) {
    let config = std::fs::read_to_string(&world.layout().config).expect("it was written");
    let warned = world.cofferdam(&["check"]);
    let (stdout, warnings) = printed(&warned);
    assert_eq!(warned.status.code(), Some(0), "{key}: {warnings}");
    assert!(stdout.contains(": ok ("), "{key}: {stdout}");
    let lines: Vec<&str> = warnings.lines().collect();
    let about_key = |line: &&str| line.contains(&format!("`{key}`")) && line.contains(expected);
    let found =
        lines.iter().position(about_key).unwrap_or_else(|| panic!("no `{key}`: {expected} in {warnings}"));
    assert!(lines[found].contains(" warning: "), "{key}: {warnings}");
    assert!(lines[found + 1].starts_with("  hint: "), "{key}: {warnings}");
    let place = lines[found].split("cofferdam.toml:").nth(1).and_then(|rest| rest.split(':').next());
    let number: usize =
        place.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no line: {warnings}"));
    let last_name = key.rsplit('.').next().expect("a key has a name");
    let line = config.lines().nth(number - 1).unwrap_or_default();
    assert!(line.to_lowercase().contains(&last_name.to_lowercase()), "{key}: line {number} is {line}");

    let strict = world.cofferdam(&["check", "--strict"]);
    let (_, errors) = printed(&strict);
    assert_eq!(strict.status.code(), Some(78), "{key}: {errors}");
    assert!(errors.contains(" error: ") && errors.contains(expected), "{key}: {errors}");
    assert!(![warnings, errors].concat().contains(CANARY), "{key}: the value of a secret was printed");
}

#[test]
fn a_sound_host_has_no_findings() {
    let world = sound_world("token");
    let output = world.cofferdam(&["check", "--strict"]);
    let (_, stderr) = printed(&output);
    assert_eq!((output.status.code(), stderr.as_str()), (Some(0), ""));
}

#[test]
fn a_secret_file_that_is_missing_unusable_or_readable_by_others_is_found() {
    let world = sound_world("token");
    let file = secret_file(&world);
    for (mode, expected) in [
        (0o640, "the users of its group can read"),
        (0o604, "every user of this host can read"),
        (0o644, "every user of this host can read"),
        (0o620, "other users can change"),
    ] {
        set_mode(&file, mode);
        assert_found(&world, "secrets.local.file", expected);
    }
    set_mode(&file, 0o600);
    // Keys are not printed either: in a wrong file they may be secret.
    for (content, expected) in [
        (
            format!("{{\"token\": \"{CANARY}\", \"{CANARY}\": [1]}}"),
            "has a field that is null, a list or an object",
        ),
        (format!("{{\"{CANARY}\": \"{CANARY}\", \"{CANARY}\": \"{CANARY}\"}}"), "has a field twice"),
        (format!("{{\"{CANARY}\": \"short\"}}"), "has a value of fewer than 8 bytes"),
        (format!("{{\"{CANARY}\": \"\"}}"), "has an empty field"),
        (String::new(), "is empty"),
    ] {
        std::fs::write(&file, content).unwrap();
        assert_found(&world, "secrets.local.file", expected);
    }
    std::fs::remove_file(&file).unwrap();
    assert_found(&world, "secrets.local.file", "does not exist");
    std::fs::create_dir(&file).unwrap();
    assert_found(&world, "secrets.local.file", "is not a regular file");
}

#[test]
fn a_value_that_could_be_guessed_is_found() {
    let world = sound_world("token");
    let file = secret_file(&world);
    for (content, expected) in [
        ("{\"token\": \"73519824\"}", "a value in the source of"),
        ("{\"token\": \"ghp_0123456789abcdef\\n46028135\"}", "a line of a value"),
    ] {
        std::fs::write(&file, content).unwrap();
        assert_found(&world, "secrets.local.file", expected);
        assert_found(&world, "secrets.local.file", "could be found by guessing");
        let (_, stderr) = printed(&world.cofferdam(&["check"]));
        assert!(!stderr.contains("73519824") && !stderr.contains("46028135"), "{stderr}");
    }
    let world = World::new().secret_env("local", "COFFERDAM_TEST_SET", "73519824").prepare();
    assert_found(&world, "secrets.local.env", "could be found by guessing");
    // A public value is not searched for at all.
    let world =
        World::new().secret_file_with("local", "{\"user\": \"73519824\"}", "public = [\"user\"]").prepare();
    set_mode(&secret_file(&world), 0o600);
    assert_eq!(printed(&world.cofferdam(&["check", "--strict"])).1, "");
}

#[test]
fn a_field_that_the_secret_does_not_have_is_found() {
    assert_found(&sound_world("tokne"), "servers.tools.env.TOKEN", "has no field `tokne`");
    let http = Server::http("https://mcp.example.com/mcp").header("X-Token", "{local.tokne}");
    let scopes = "scopes = [{ tools = [\"write_*\"], env = { TOKEN = \"{local.tokne}\" } }]";
    let builder = World::new().secret_file("local", CANARY);
    assert_found(
        &builder.clone().server("web", http).prepare(),
        "servers.web.headers.x-token",
        "has no field `tokne`",
    );
    let with_scopes = builder.server("tools", Server::fixture().line(scopes)).prepare();
    assert_found(&with_scopes, "servers.tools.scopes", "has no field `tokne`");
}

#[test]
fn a_variable_that_is_not_set_is_found() {
    let world = World::new().secret("local", "env = \"COFFERDAM_TEST_UNSET\"").prepare();
    assert_found(&world, "secrets.local.env", "is not set");
    let world = World::new().secret_env("local", "COFFERDAM_TEST_SET", CANARY).prepare();
    assert_eq!(world.cofferdam(&["check", "--strict"]).status.code(), Some(0));
}

#[test]
fn programs_and_directories_that_do_not_exist_are_found_and_nothing_is_run() {
    let world = World::new().server("tools", Server::command(["no-such-program-of-cofferdam"])).prepare();
    assert_found(&world, "servers.tools.command", "is not on the PATH");
    let world = World::new().server("tools", Server::command(["/no/such/program"])).prepare();
    assert_found(&world, "servers.tools.command", "does not exist");
    let file = world.layout().config.to_str().unwrap();
    let other = World::new().server("tools", Server::command([file])).prepare();
    assert_found(&other, "servers.tools.command", "is not executable");
    let world =
        World::new().server("tools", Server::fixture().line("cwd = \"/no/such/directory\"")).prepare();
    assert_found(&world, "servers.tools.cwd", "does not exist");
    let world = World::new().secret_exec("local", &["no-such-program-of-cofferdam"]).prepare();
    assert_found(&world, "secrets.local.exec", "is not on the PATH");

    let marker = world.layout().root().join("was-run");
    let world = World::new().secret_exec("local", &["touch", marker.to_str().unwrap()]).prepare();
    assert_eq!(world.cofferdam(&["check", "--strict"]).status.code(), Some(0));
    assert!(!marker.exists(), "the command of a secret was run");
}

#[test]
fn certificates_and_keys_that_cannot_be_used_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let (certificate, key) = authority.server("localhost").write(directory.path(), "one");
    let (_, other_key) = authority.server("localhost").write(directory.path(), "other");
    let missing = directory.path().join("none.pem");
    set_mode(&key, 0o600);
    set_mode(&other_key, 0o600);
    let world = |certificate: &Path, key: &Path| {
        let lines = format!("cert-file = {certificate:?}\nkey-file = {key:?}");
        World::new().admin(&format!("tls = \"127.0.0.1:7481\"\n{lines}")).prepare()
    };
    assert_eq!(world(&certificate, &key).cofferdam(&["check", "--strict"]).status.code(), Some(0));
    assert_found(&world(&missing, &key), "admin.cert-file", "does not exist");
    assert_found(&world(&certificate, &missing), "admin.key-file", "does not exist");
    assert_found(&world(&certificate, &certificate), "admin.key-file", "contains no private key");
    let mismatch = world(&certificate, &other_key).cofferdam(&["check", "--strict"]);
    assert_eq!(mismatch.status.code(), Some(78), "{}", printed(&mismatch).1);
    assert!(printed(&mismatch).1.contains("does the key of `admin.key-file` belong to it?"));
    set_mode(&key, 0o644);
    assert_found(&world(&certificate, &key), "admin.key-file", "every user of this host can read");
}

#[test]
fn files_of_the_login_to_vault_are_checked() {
    let with_auth = |file: &Path| -> World {
        let vault = format!(
            "vault = {{ address = \"http://127.0.0.1:8200\", auth = {{ method = \"token-file\", path = {file:?} }} }}"
        );
        World::new().line(&vault).prepare()
    };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    assert_found(&with_auth(&file), "vault.auth.path", "does not exist");
    std::fs::write(&file, CANARY).unwrap();
    set_mode(&file, 0o640);
    assert_found(&with_auth(&file), "vault.auth.path", "the users of its group can read");
    set_mode(&file, 0o600);
    assert_eq!(with_auth(&file).cofferdam(&["check", "--strict"]).status.code(), Some(0));
}

/// Root may write everywhere, so the check runs as another user.
#[test]
fn directories_that_the_user_may_not_write_to_are_found() {
    let Some(user) = Unprivileged::new() else { return };
    let world = World::new().prepare();
    open_to_all(world.layout().root());
    let check = |arguments: &[&str]| {
        let mut command = user.command("cofferdam");
        command.arg("check").args(arguments).arg("-c").arg(&world.layout().config);
        cofferdam_tests::process::output_of(command, "cofferdam check")
    };
    let warned = check(&[]);
    let (_, warnings) = printed(&warned);
    assert_eq!(warned.status.code(), Some(0), "{warnings}");
    for key in ["state-dir", "relay.unix", "admin.socket"] {
        assert!(
            warnings.contains(&format!("may not write to the directory of `{key}`")),
            "{key}: {warnings}"
        );
    }
    assert_eq!(check(&["--strict"]).status.code(), Some(78));
}

#[test]
fn findings_and_problems_are_printed_as_json() {
    let world = sound_world("tokne");
    let output = world.cofferdam(&["check", "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let report: Value = serde_json::from_slice(&output.stdout).expect("the output is JSON");
    let [finding] = &report["findings"].as_array().unwrap()[..] else { panic!("{report}") };
    assert_eq!(
        (&finding["severity"], &finding["key"]),
        (&"warning".into(), &"servers.tools.env.TOKEN".into())
    );
    assert!(finding["line"].is_u64() && finding["hint"].is_string(), "{report}");

    let strict = world.cofferdam(&["check", "--json", "--strict"]);
    assert_eq!(strict.status.code(), Some(78));
    let report: Value = serde_json::from_slice(&strict.stdout).expect("the output is JSON");
    assert_eq!(report["findings"][0]["severity"], "error");

    std::fs::write(&world.layout().config, "colour = 1\n").unwrap();
    let invalid = world.cofferdam(&["check", "--json"]);
    assert_eq!(invalid.status.code(), Some(78));
    let report: Value = serde_json::from_slice(&invalid.stdout).expect("the output is JSON");
    assert_eq!(
        (&report["findings"][0]["severity"], &report["findings"][0]["line"]),
        (&"error".into(), &1.into())
    );
}
