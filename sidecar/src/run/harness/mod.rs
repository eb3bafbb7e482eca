//! The harnesses that `run` supports: where their login is, and which settings name the MCP servers.
//!
//! What must stay true: settings are generated, never copied, because a user's settings may contain other servers and their
//! tokens. Of the login only what the harness itself needs enters the sandbox, and only refreshed tokens come back.
//!
//! | module | what it holds |
//! |---|---|
//! | [`login`] | copies the login into the sandbox, and back if it was refreshed |
//! | [`project_entries`] | entries for the shim in a project's own settings |
//! | [`refresh`] | what a refresh may change in a login |
//! | [`settings`] | the settings files in the sandbox's home |
//! | [`token_claims`] | whose a token is |

pub(super) mod login;
pub(super) mod project_entries;
mod refresh;
pub(super) mod settings;
mod token_claims;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

pub(super) use crate::harness::Harness;
use refresh::RefreshRule;

/// Where the login of a harness is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct LoginLocation {
    /// The user's file.
    pub(super) outside: PathBuf,
    /// The path of the copy in the sandbox, relative to its home.
    pub(super) inside: &'static str,
    /// The entries of the file that are the login of the harness itself. Empty means all entries.
    pub(super) entries: &'static [&'static str],
    pub(super) copy_back: CopyBack,
}

/// What happens at the end of a run to a login that the harness in the sandbox has refreshed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum CopyBack {
    /// It is discarded.
    Never,
    /// Its new tokens are written to the user's file, if this rule permits it.
    Refreshed(&'static RefreshRule),
}

/// Every path in the sandbox's home, relative to it, at which a copy of a login may be.
pub(super) const LOGINS_INSIDE: [&str; 4] = [
    Harness::ClaudeCode.login_inside(),
    Harness::Codex.login_inside(),
    Harness::GeminiCli.login_inside(),
    Harness::OpenCode.login_inside(),
];

impl Harness {
    /// The harness of this command, by the name of its program.
    pub(super) fn of(program: &OsStr) -> Option<Self> {
        match Path::new(program).file_name()?.to_str()? {
            "claude" => Some(Self::ClaudeCode),
            "codex" => Some(Self::Codex),
            "gemini" => Some(Self::GeminiCli),
            "opencode" => Some(Self::OpenCode),
            _ => None,
        }
    }

    /// Environment variables of the user with this harness's credentials, or with the address, project or name of its model.
    pub(super) fn variables(self) -> &'static [&'static str] {
        match self {
            Self::ClaudeCode => &[
                "ANTHROPIC_API_KEY",
                "ANTHROPIC_AUTH_TOKEN",
                "ANTHROPIC_BASE_URL",
                "ANTHROPIC_MODEL",
                "CLAUDE_CODE_OAUTH_TOKEN",
            ],
            Self::Codex => &["CODEX_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL"],
            Self::GeminiCli => &[
                "GEMINI_API_KEY",
                "GEMINI_MODEL",
                "GOOGLE_API_KEY",
                "GOOGLE_CLOUD_LOCATION",
                "GOOGLE_CLOUD_PROJECT",
                "GOOGLE_GEMINI_BASE_URL",
            ],
            Self::OpenCode => {
                &["ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY"]
            }
        }
    }

    /// Environment variables that disable automatic updates: the program is mounted read-only, so an update would fail.
    pub(super) fn fixed_variables(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::ClaudeCode => &[("DISABLE_AUTOUPDATER", "1")],
            Self::OpenCode => &[("OPENCODE_DISABLE_AUTOUPDATE", "1")],
            Self::Codex | Self::GeminiCli => &[],
        }
    }

    /// Hosts that the harness must reach, for sandboxes that allow connections to listed hosts only.
    pub(super) fn hosts(self) -> &'static [&'static str] {
        match self {
            Self::ClaudeCode => &["api.anthropic.com", "console.anthropic.com", "claude.ai"],
            Self::Codex => &["api.openai.com", "auth.openai.com", "chatgpt.com"],
            Self::GeminiCli => &["*.googleapis.com", "accounts.google.com"],
            Self::OpenCode => &["api.anthropic.com", "api.openai.com", "models.dev", "opencode.ai"],
        }
    }

    /// Where the login is, derived from the user's home and environment variables.
    pub(super) fn login(self, home: &Path, variable: impl Fn(&str) -> Option<OsString>) -> LoginLocation {
        let directory = |name: &str, default: &str| {
            let named = variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
            named.unwrap_or_else(|| home.join(default))
        };
        let outside = match self {
            Self::ClaudeCode => directory("CLAUDE_CONFIG_DIR", ".claude").join(".credentials.json"),
            Self::Codex => directory("CODEX_HOME", ".codex").join("auth.json"),
            Self::GeminiCli => home.join(self.login_inside()),
            Self::OpenCode => directory("XDG_DATA_HOME", ".local/share").join("opencode/auth.json"),
        };
        // The file of Claude Code also holds tokens of MCP servers that were authorised with `/mcp`.
        let entries: &[&str] = match self {
            Self::ClaudeCode => &["claudeAiOauth", "organizationUuid"],
            Self::Codex | Self::GeminiCli | Self::OpenCode => &[],
        };
        LoginLocation { outside, inside: self.login_inside(), entries, copy_back: self.copy_back() }
    }

    fn copy_back(self) -> CopyBack {
        match self {
            Self::ClaudeCode => CopyBack::Refreshed(&refresh::CLAUDE_CODE),
            Self::Codex => CopyBack::Refreshed(&refresh::CODEX),
            Self::OpenCode => CopyBack::Refreshed(&refresh::OPENCODE),
            // Google's refresh tokens stay valid when they are used, so the user's file needs no new token.
            Self::GeminiCli => CopyBack::Never,
        }
    }

    /// The path of the login's copy in the sandbox, relative to its home.
    const fn login_inside(self) -> &'static str {
        match self {
            Self::ClaudeCode => ".claude/.credentials.json",
            Self::Codex => ".codex/auth.json",
            Self::GeminiCli => ".gemini/oauth_creds.json",
            Self::OpenCode => ".local/share/opencode/auth.json",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_harness_is_recognised_by_the_name_of_its_program() {
        assert_eq!(Harness::of("/home/a b/.local/bin/claude".as_ref()), Some(Harness::ClaudeCode));
        assert_eq!(Harness::of("codex".as_ref()), Some(Harness::Codex));
        assert_eq!(Harness::of("claude-not".as_ref()), None);
        assert_eq!(Harness::of("..".as_ref()), None);
    }

    #[test]
    fn a_variable_moves_the_login_only_if_it_is_an_absolute_path() {
        let login = |value: &'static str| {
            let variable = move |name: &str| (name == "CODEX_HOME").then(|| value.into());
            Harness::Codex.login(Path::new("/home/a"), variable).outside
        };
        assert_eq!(login("/elsewhere"), Path::new("/elsewhere/auth.json"));
        assert_eq!(login("codex"), Path::new("/home/a/.codex/auth.json"));
    }
}
