//! The command at a terminal: one question for each secret, one before anything is written.

use cofferdam_tests::terminal::Terminal;
use nix::sys::termios::LocalFlags;

use super::support::{CANARY, Person, TOKEN, at_terminal};

const SECRET_QUESTION: &str = "move it out as a secret? [Y/n] ";
const LAST_QUESTION: &str = "Make these changes? [y/N] ";

fn person() -> Person {
    Person::with(
        ".mcp.json",
        &format!(
            "{{\"mcpServers\": {{\"x\": {{\"command\": \"x-server\", \"env\": {{\"A_TOKEN\": \"{TOKEN}\", \"B_KEY\": \"not-a-secret\"}}}}}}}}"
        ),
    )
}

#[track_caller]
fn wait_for_questions(terminal: &Terminal, text: &str, count: usize) {
    cofferdam_tests::deadline::wait_until("the question is asked", || {
        terminal.shown().matches(text).count() >= count
    });
}

#[test]
fn each_secret_can_be_refused_and_nothing_is_shown_of_it() {
    let person = person();
    let mut terminal = at_terminal(&person, &["import", ".mcp.json", "--rewrite"]);
    wait_for_questions(&terminal, SECRET_QUESTION, 1);
    terminal.type_in("what\n");
    wait_for_questions(&terminal, SECRET_QUESTION, 2);
    terminal.type_in("\n");
    wait_for_questions(&terminal, SECRET_QUESTION, 3);
    terminal.type_in("n\n");
    terminal.wait_for(LAST_QUESTION);
    terminal.type_in("y\n");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.shown());
    assert!(!terminal.shown().contains(CANARY), "{}", terminal.shown());
    let configuration = std::fs::read_to_string(person.configuration()).unwrap();
    assert!(
        configuration.contains("B_KEY = \"not-a-secret\"") && configuration.contains("{x.a_token}"),
        "{configuration}"
    );
    assert!(!person.read(".mcp.json").contains(CANARY));
}

#[test]
fn ctrl_c_and_no_at_every_question_change_nothing() {
    let person = person();
    let before = person.everything();
    for answered in 0..3 {
        for interruption in ["\u{3}", "\u{4}", "n\n"] {
            // No to a secret is an answer, not an interruption.
            if interruption == "n\n" && answered < 2 {
                continue;
            }
            let mut terminal = at_terminal(&person, &["import", ".mcp.json", "--rewrite"]);
            for number in 1..=answered {
                wait_for_questions(&terminal, SECRET_QUESTION, number);
                terminal.type_in("\n");
            }
            match answered {
                2 => terminal.wait_for(LAST_QUESTION),
                _ => wait_for_questions(&terminal, SECRET_QUESTION, answered + 1),
            }
            terminal.type_in(interruption);
            assert_ne!(terminal.exit_code(), Some(0), "{}", terminal.shown());
            assert!(terminal.mode().local_flags.contains(LocalFlags::ECHO | LocalFlags::ICANON));
            assert_eq!(person.everything(), before);
        }
    }
}

#[test]
fn a_file_that_another_program_changes_during_the_question_is_left_alone_and_nothing_is_written() {
    let person = person();
    let mut terminal = at_terminal(&person, &["import", ".mcp.json", "--rewrite"]);
    for number in 1..=2 {
        wait_for_questions(&terminal, SECRET_QUESTION, number);
        terminal.type_in("\n");
    }
    terminal.wait_for(LAST_QUESTION);
    let changed = "{\"mcpServers\": {\"other\": {\"command\": \"other-server\"}}}";
    person.write(".mcp.json", changed);
    terminal.type_in("y\n");
    assert_eq!(terminal.exit_code(), Some(69), "{}", terminal.shown());
    terminal.wait_for("was changed by another program meanwhile");
    assert_eq!(person.read(".mcp.json"), changed);
    assert!(!person.configuration().exists() && person.files_with_secrets().is_empty());
}

#[test]
fn forgetting_asks_and_no_keeps_the_backups() {
    let person = person();
    person.import(".mcp.json");
    let before = person.everything();
    for answer in ["n\n", "\u{3}", "\u{4}"] {
        let mut terminal = at_terminal(&person, &["import", "--forget"]);
        terminal.wait_for("Delete these backups?");
        terminal.type_in(answer);
        assert_ne!(terminal.exit_code(), Some(0), "{}", terminal.shown());
        assert_eq!(person.everything(), before);
    }
}

#[test]
fn without_a_terminal_the_command_needs_to_be_told_not_to_ask() {
    let person = person();
    let before = person.everything();
    person.cofferdam(&["import", ".mcp.json"]).assert_code(64).assert_fails_with("give --yes, or --dry-run");
    assert_eq!(person.everything(), before);
}

/// An import to a Vault that does not exist, by a person without a token.
fn without_token(arguments: &[&str]) -> (Person, Vec<String>) {
    let person = person();
    person.write_configuration(
        "[vault]\naddress = \"http://127.0.0.1:9\"\nauth = { method = \"token-file\", path = \"token\" }\n",
    );
    let import = ["import", ".mcp.json", "--to", "vault"].into_iter().chain(arguments.iter().copied());
    (person, import.map(str::to_owned).collect())
}

#[test]
fn a_dry_run_and_yes_ask_for_no_vault_token() {
    for (option, code, shown) in [
        ("--dry-run", 0, "not compared with Vault: there is no Vault token of an operator"),
        ("--yes", 66, "set VAULT_TOKEN or BAO_TOKEN"),
    ] {
        let (person, arguments) = without_token(&[option]);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let before = person.everything();
        let mut terminal = at_terminal(&person, &arguments);
        cofferdam_tests::deadline::wait_until("the import has ended", || terminal.has_exited());
        assert_eq!(terminal.exit_code(), Some(code), "{}", terminal.shown());
        // What the import wrote last may still be on its way through the terminal.
        terminal.wait_for(shown);
        assert!(!terminal.shown().contains("it is not shown"), "{}", terminal.shown());
        assert_eq!(person.everything(), before);
    }
    let (person, arguments) = without_token(&["--dry-run"]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    person.cofferdam(&arguments).assert_code(0).assert_prints("store Vault's `secret/cofferdam/x`");
}
