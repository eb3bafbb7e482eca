//! The operator at a terminal during an import to Vault: the hidden question for the token, and responses that are lost.

use cofferdam_tests::openbao::{KvEngine, OpenBao};
use cofferdam_tests::terminal::Terminal;
use cofferdam_tests::vault_fault_proxy::{Action, FixedResponse, VaultFaultProxy};
use nix::sys::signal::Signal;
use nix::sys::termios::LocalFlags;
use serde_json::{Value, json};

use super::destinations::{import, with_vault, with_vault_at};
use super::support::{CANARY, Person, TOKEN, at_terminal};

const TOKEN_QUESTION: &str = "Vault token of an operator (it is not shown): ";
const ARGUMENTS: [&str; 5] = ["import", ".mcp.json", "--to", "vault", "--rewrite"];
const FAILURE: FixedResponse =
    FixedResponse { status: 500, headers: "", body: "{\"errors\":[\"refused by the test\"]}" };

/// The import, which has asked for the token and shows nothing of what is typed.
#[track_caller]
fn at_hidden_question(person: &Person) -> Terminal {
    let mut terminal = at_terminal(person, &[&ARGUMENTS[..], &["--kv-path", "imports/mcp"]].concat());
    terminal.wait_for("move it out as a secret? [Y/n] ");
    terminal.type_in("\n");
    terminal.wait_for(TOKEN_QUESTION);
    assert!(!terminal.mode().local_flags.contains(LocalFlags::ECHO), "what is typed would be shown");
    terminal
}

#[track_caller]
fn assert_shows_what_is_typed(terminal: &Terminal) {
    let flags = LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG;
    assert!(terminal.mode().local_flags.contains(flags), "the terminal stays hidden: {}", terminal.shown());
}

#[test]
fn ctrl_c_and_ctrl_d_at_the_hidden_question_change_nothing() {
    let Some(bao) = OpenBao::configured() else { return };
    bao.mount_kv("imports", KvEngine::V2);
    let person = with_vault(&bao);
    let before = person.everything();
    for key in ["\u{3}", "\u{4}"] {
        let mut terminal = at_hidden_question(&person);
        terminal.type_in(key);
        assert_eq!(terminal.exit_code(), Some(66), "{}", terminal.shown());
        assert_shows_what_is_typed(&terminal);
        assert_eq!(person.everything(), before);
    }
}

#[test]
fn a_signal_at_the_hidden_question_ends_the_import_and_restores_the_terminal() {
    let Some(bao) = OpenBao::configured() else { return };
    bao.mount_kv("imports", KvEngine::V2);
    let person = with_vault(&bao);
    let before = person.everything();
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM] {
        let mut terminal = at_hidden_question(&person);
        terminal.type_in("half of a tok");
        terminal.signal(signal);
        assert_eq!(terminal.exit_code(), None, "the signal did not end it: {}", terminal.shown());
        assert_shows_what_is_typed(&terminal);
        assert!(!terminal.shown().contains("half of"), "{}", terminal.shown());
        assert_eq!(person.everything(), before);
    }
}

/// The secret is stored and the response lost, and Vault does not answer what the import then asks.
#[test]
fn an_import_whose_response_was_lost_is_completed_by_the_next_one_and_stored_once() {
    let Some(bao) = OpenBao::configured() else { return };
    bao.mount_kv("imports", KvEngine::V2);
    let proxy = VaultFaultProxy::in_front_of(bao.listens_at);
    let person = with_vault_at(&proxy.address());
    let before = person.read(".mcp.json");
    let mut terminal = at_hidden_question(&person);
    terminal.type_in(&format!("{}\r", bao.root_token));
    terminal.wait_for("Make these changes? [y/N] ");
    proxy.rule("POST imports/data/mcp/github", Action::CutAfter(0));
    proxy.rule("GET imports/data/mcp/github", Action::Respond(FAILURE));
    terminal.type_in("y\n");
    assert_eq!(terminal.exit_code(), Some(69), "{}", terminal.shown());
    assert_eq!(proxy.count("imports/data/mcp/github-2"), 0);
    assert_eq!(person.read(".mcp.json"), before, "the settings were rewritten without their secret");

    proxy.clear_rules();
    let again = ["--kv-path", "imports/mcp", "--rewrite"];
    import(&person, &bao, &again).assert_code(0);
    assert!(!person.read(".mcp.json").contains(CANARY));
    import(&person, &bao, &again).assert_code(0).assert_prints("starts the shim already");
    assert_stored_once(&bao);
}

/// The import looks whether the secret is there.
#[test]
fn a_lost_response_alone_does_not_interrupt_an_import() {
    let Some(bao) = OpenBao::configured() else { return };
    bao.mount_kv("imports", KvEngine::V2);
    let proxy = VaultFaultProxy::in_front_of(bao.listens_at);
    let person = with_vault_at(&proxy.address());
    proxy.rule("POST imports/data/mcp/github", Action::CutAfter(0));
    import(&person, &bao, &["--kv-path", "imports/mcp", "--rewrite"]).assert_code(0);
    assert_stored_once(&bao);
    assert!(!person.read(".mcp.json").contains(CANARY));
}

#[track_caller]
fn assert_stored_once(bao: &OpenBao) {
    let names = bao.call("LIST", "imports/metadata/mcp", Some(&bao.root_token), &Value::Null);
    assert_eq!(names.body["data"]["keys"], json!(["github"]));
    let stored = bao.api("GET", "imports/data/mcp/github", Value::Null);
    assert_eq!(stored["data"]["data"], json!({"github_token": TOKEN}));
    assert_eq!(stored["data"]["metadata"]["version"], 1, "it was written again");
}
