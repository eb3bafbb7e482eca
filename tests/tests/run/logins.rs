//! The copy of a harness's login: what is inside, and what comes back. The harness is a script, because only a model's
//! provider refreshes tokens.

use std::path::PathBuf;
use std::process::Output;

use cofferdam_tests::run_user::RunUser;
use cofferdam_tests::tools::Tool;

use super::{text, user};

const LOGIN: &str = r#"{"claudeAiOauth":{"accessToken":"login-of-the-user","expiresAt":1,"refreshToken":"r1","subscriptionType":"max"},"mcpOAuth":{"other":"token-of-another-server"}}"#;

/// A user who is logged in to Claude Code.
struct LoggedIn {
    user: RunUser,
    login: PathBuf,
}

impl LoggedIn {
    #[track_caller]
    fn new() -> Option<Self> {
        Tool::Bubblewrap.path()?;
        let user = user();
        let login = user.write(".claude/.credentials.json", LOGIN);
        user.write(".claude.json", r#"{"mcpServers":{"other":{"env":{"TOKEN":"token-of-another-server"}}}}"#);
        Some(Self { user, login })
    }

    /// Runs a program with the harness's name that prints its settings and its login, and leaves another login.
    #[track_caller]
    fn run_harness_that_leaves(&self, login: &str, options: &[&str]) -> Output {
        let script = format!(
            "#!/bin/sh\ncat ~/.claude.json ~/.claude/.credentials.json\nprintf %s '{login}' > ~/.claude/.credentials.json\n"
        );
        let program = self.user.program("claude", &script).display().to_string();
        let arguments = [options, &["--network", "none", "--", &program]].concat();
        let output = self.user.output(&arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
        self.user.assert_nothing_left();
        output
    }

    fn login(&self) -> String {
        std::fs::read_to_string(&self.login).expect("it is still there")
    }
}

const REFRESHED: &str = r#"{"claudeAiOauth":{"accessToken":"refreshed","expiresAt":2,"refreshToken":"r2","subscriptionType":"max"},"mcpOAuth":{}}"#;

/// The login of the harness is in the sandbox, and nothing else of the home.
#[test]
fn only_the_login_is_inside_and_only_a_refreshed_login_is_copied_back() {
    let Some(logged_in) = LoggedIn::new() else { return };
    let output = logged_in.run_harness_that_leaves(REFRESHED, &[]);
    let seen = text(&output.stdout);
    assert!(seen.contains("login-of-the-user") && !seen.contains("token-of-another-server"), "{seen}");
    assert!(seen.contains(r#""--server","tools""#), "{seen}");
    assert!(text(&output.stderr).contains("the new tokens were copied back"), "{}", text(&output.stderr));
    let other = r#""mcpOAuth":{"other":"token-of-another-server"}"#;
    assert_eq!(logged_in.login(), REFRESHED.replace(r#""mcpOAuth":{}"#, other));
}

#[test]
fn a_login_that_differs_in_more_than_its_tokens_is_not_copied_back() {
    let Some(logged_in) = LoggedIn::new() else { return };
    let planted = REFRESHED.replace("max", "team");
    let stderr = text(&logged_in.run_harness_that_leaves(&planted, &[]).stderr);
    assert!(
        stderr.contains("was not copied back: its `claudeAiOauth.subscriptionType` differs"),
        "the reason is missing: {stderr}"
    );
    assert!(stderr.contains("log in there again") && !stderr.contains("refreshed"), "{stderr}");
    assert_eq!(logged_in.login(), LOGIN);
}

#[test]
fn a_refreshed_login_is_discarded_if_the_user_wants_that() {
    let Some(logged_in) = LoggedIn::new() else { return };
    logged_in.run_harness_that_leaves(REFRESHED, &["--login", "discard"]);
    assert_eq!(logged_in.login(), LOGIN);
}
