//! Where secrets go: files, and key-value engines of a real OpenBao.

use cofferdam_tests::openbao::{KvEngine, OpenBao};
use serde_json::json;

use super::support::{Person, Run, TOKEN, one_server};

pub(crate) fn with_vault(bao: &OpenBao) -> Person {
    with_vault_at(&bao.address())
}

/// A person with one server in the settings, and a configuration with this Vault.
pub(crate) fn with_vault_at(address: &str) -> Person {
    let person = Person::with(".mcp.json", &one_server());
    let text =
        format!("[vault]\naddress = \"{address}\"\nauth = {{ method = \"token-file\", path = \"token\" }}\n");
    person.write_configuration(&text);
    person
}

#[track_caller]
pub(crate) fn import(person: &Person, bao: &OpenBao, arguments: &[&str]) -> Run {
    let mut command = person.command(&["import", ".mcp.json", "--to", "vault", "--yes"]);
    command.args(arguments).env("VAULT_TOKEN", &bao.root_token);
    let run = Run::of(&cofferdam_tests::process::output_of(command, "an import to Vault"));
    assert!(
        !run.printed.contains(super::support::CANARY) && !run.stderr.contains(super::support::CANARY),
        "{}{}",
        run.printed,
        run.stderr
    );
    run
}

#[test]
fn secrets_are_stored_in_both_versions_of_the_key_value_engine_and_never_over_others() {
    let Some(bao) = OpenBao::configured() else { return };
    for (mount, engine, path) in [("imports-one", KvEngine::V1, ""), ("imports-two", KvEngine::V2, "data/")] {
        bao.mount_kv(mount, engine);
        let person = with_vault(&bao);
        let prefix = format!("{mount}/mcp");
        let stored = |name: &str| {
            let answer = bao.api("GET", &format!("{mount}/{path}mcp/{name}"), serde_json::Value::Null);
            if path.is_empty() { answer["data"].clone() } else { answer["data"]["data"].clone() }
        };
        import(&person, &bao, &["--kv-path", &prefix, "--rewrite"])
            .assert_code(0)
            .assert_prints("cofferdam vault setup");
        assert_eq!(stored("github"), json!({"github_token": TOKEN}));
        assert_eq!(person.files_with_secrets().len(), 1, "the backup alone has it");
        person.cofferdam(&["check"]).assert_code(0);
        let configuration = std::fs::read_to_string(person.configuration()).unwrap();
        assert!(configuration.contains(&format!("kv = \"{prefix}/github\"")), "{configuration}");
        person.cofferdam(&["import", ".mcp.json", "--undo"]).assert_code(0);
        import(&person, &bao, &["--kv-path", &prefix]).assert_code(0).assert_prints("nothing to do");

        // Another secret of that name is left as it is.
        let other = with_vault(&bao);
        other.write(".mcp.json", &one_server().replace("345678\"", "345679\""));
        import(&other, &bao, &["--kv-path", &prefix]).assert_code(0).assert_prints("mcp/github-2");
        assert_eq!(stored("github"), json!({"github_token": TOKEN}));
    }
}

#[test]
fn an_engine_that_does_not_exist_and_a_configuration_without_vault_change_nothing() {
    let Some(bao) = OpenBao::configured() else { return };
    let person = with_vault(&bao);
    let before = person.everything();
    import(&person, &bao, &["--kv-path", "nowhere/mcp", "--rewrite"])
        .assert_code(69)
        .assert_fails_with("--kv-path");
    assert_eq!(person.everything(), before);
    let person = Person::with(".mcp.json", &one_server());
    import(&person, &bao, &[]).assert_code(78).assert_fails_with("no [vault]");
    assert!(!person.configuration().exists());
}
