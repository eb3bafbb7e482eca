//! The command at a terminal: it asks for the token without showing it, and once for a confirmation.

use cofferdam_tests::openbao::OpenBao;
use cofferdam_tests::run_user::contents;
use cofferdam_tests::terminal::Terminal;
use cofferdam_tests::vault::new_token;
use nix::sys::termios::LocalFlags;

use super::support::{set_up, state_of, world};

const QUESTION: &str = "Vault token of an operator (it is not shown): ";

/// The command on a terminal that is its controlling terminal, without a token in the environment.
fn at_terminal(world: &cofferdam_tests::world::World) -> Terminal {
    at_terminal_with(world, &[])
}

fn at_terminal_with(world: &cofferdam_tests::world::World, arguments: &[&str]) -> Terminal {
    let command = world.cofferdam_command();
    let mut on_terminal = cofferdam_tests::process::command("/usr/bin/setsid");
    on_terminal.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    on_terminal.args(["--ctty", "--wait"]).arg(command.get_program());
    on_terminal.args(["vault", "setup"]).args(arguments).arg("-c").arg(&world.layout().config);
    Terminal::of(on_terminal)
}

#[test]
fn a_typed_token_is_not_shown_and_one_question_is_asked() {
    let Some(bao) = OpenBao::configured() else { return };
    let world = world(&bao).prepare();
    let token = bao.create_token(new_token(&["root"]).ttl("10m"));
    let mut terminal = at_terminal(&world);
    terminal.wait_for(QUESTION);
    terminal.type_in(&format!("x\u{7f}{token}\r"));
    terminal.wait_for("Make these changes? [y/N] ");
    assert!(terminal.mode().local_flags.contains(LocalFlags::ECHO), "the terminal stays hidden");
    terminal.type_in("y\n");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.shown());
    let shown = terminal.shown();
    assert!(!shown.contains(&token) && shown.contains("your token: from what was typed"), "{shown}");
    assert_eq!(shown.matches("[y/N]").count(), 1, "{shown}");
    assert!(state_of(&bao).contains_key("sys/policies/acl/agent-dev"));
}

#[test]
fn ctrl_c_and_no_change_nothing() {
    let Some(bao) = OpenBao::configured() else { return };
    let world = world(&bao).prepare();
    let before = state_of(&bao);
    let mut terminal = at_terminal(&world);
    terminal.wait_for(QUESTION);
    terminal.type_in("\u{3}");
    assert_eq!(terminal.exit_code(), Some(66), "{}", terminal.shown());
    assert!(terminal.mode().local_flags.contains(LocalFlags::ECHO), "the terminal stays hidden");
    for answer in ["n\n", "\n", "\u{3}"] {
        let mut terminal = at_terminal(&world);
        terminal.wait_for(QUESTION);
        terminal.type_in(&format!("{}\r", bao.root_token));
        terminal.wait_for("Make these changes? [y/N] ");
        terminal.type_in(answer);
        assert_ne!(terminal.exit_code(), Some(0), "{}", terminal.shown());
        assert_eq!(state_of(&bao), before);
    }
}

#[test]
fn ctrl_c_and_no_remove_nothing() {
    let Some(bao) = OpenBao::configured() else { return };
    let world = world(&bao).prepare();
    set_up(&world, &bao.root_token, &["--yes"]).assert_code(0);
    let before = (state_of(&bao), contents(world.layout().root()));
    for key in ["\u{3}", "\u{4}"] {
        let mut terminal = at_terminal_with(&world, &["--remove"]);
        terminal.wait_for(QUESTION);
        terminal.type_in(key);
        assert_eq!(terminal.exit_code(), Some(66), "{}", terminal.shown());
        assert!(terminal.mode().local_flags.contains(LocalFlags::ECHO), "the terminal stays hidden");
        assert_eq!((state_of(&bao), contents(world.layout().root())), before);
    }
    for answer in ["n\n", "\n", "\u{3}", "\u{4}"] {
        let mut terminal = at_terminal_with(&world, &["--remove"]);
        terminal.wait_for(QUESTION);
        terminal.type_in(&format!("{}\r", bao.root_token));
        terminal.wait_for("[y/N] ");
        terminal.type_in(answer);
        assert_ne!(terminal.exit_code(), Some(0), "{}", terminal.shown());
        assert_eq!((state_of(&bao), contents(world.layout().root())), before, "after {answer:?}");
    }
    set_up(&world, &bao.root_token, &["--remove", "--yes"]).assert_code(0);
    assert_ne!(state_of(&bao), before.0, "there was nothing to remove");
}

#[test]
fn what_another_party_makes_during_the_question_is_not_overwritten() {
    let Some(bao) = OpenBao::configured() else { return };
    let world = world(&bao).prepare();
    let mut terminal = at_terminal(&world);
    terminal.wait_for(QUESTION);
    terminal.type_in(&format!("{}\r", bao.root_token));
    terminal.wait_for("Make these changes? [y/N] ");
    bao.policy("cofferdam", &[("elsewhere", &["read"])]);
    let policy = state_of(&bao)["sys/policies/acl/cofferdam"].clone();
    terminal.type_in("y\n");
    assert_eq!(terminal.exit_code(), Some(69), "{}", terminal.shown());
    terminal.wait_for("the policy `cofferdam` was changed by another party while this command ran");
    assert_eq!(state_of(&bao)["sys/policies/acl/cofferdam"], policy);
}
