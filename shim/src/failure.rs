//! Why a command of the shim has no result: a stable code, a sentence, and the exit code that goes with them.

use relay_proto::code::Code;
use serde::Serialize;

/// Code and message, as in an error response; `--json` prints both.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(crate) struct Failure {
    /// A code of the relay protocol, or one of the constants here.
    pub(crate) code: String,
    pub(crate) message: String,
    /// The JSON-RPC error number, if the server itself responded with an error; the number of the signal, if a signal ended
    /// the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) number: Option<i64>,
}

/// The server responded with an error of its own, or with a message that cannot be used.
pub(crate) const SERVER_ERROR: &str = "server_error";
/// A signal ended the command.
const INTERRUPTED: &str = "interrupted";
/// The arguments of the command are invalid.
const ARGUMENTS_INVALID: &str = "arguments_invalid";

impl Failure {
    pub(crate) fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), number: None }
    }

    /// The relay is unavailable: nothing ran.
    pub(crate) fn unavailable(why: &str) -> Self {
        Self::new(Code::RelayUnavailable.as_str(), why)
    }

    /// The server violated MCP; the request may have run.
    pub(crate) fn unusable_response(why: &str) -> Self {
        Self::new(SERVER_ERROR, why)
    }

    pub(crate) fn arguments(why: impl Into<String>) -> Self {
        Self::new(ARGUMENTS_INVALID, why)
    }

    pub(crate) fn interrupted(signal: i32) -> Self {
        let message = format!("signal {signal} ended the command; a call in progress may have run");
        Self { code: INTERRUPTED.into(), message, number: Some(signal.into()) }
    }

    /// Converts the failure of a request that runs no tool, such as the handshake: its outcome is never unknown.
    pub(crate) fn without_effect(self, request: &str) -> Self {
        match self.code.as_str() {
            SERVER_ERROR => {
                let message = format!("the server did not accept {request}: {}", self.message);
                Self { code: Code::ServerUnavailable.as_str().into(), message, number: self.number }
            }
            code if code == Code::OutcomeUnknown.as_str() => {
                let message = format!("the server did not respond to {request}: {}", self.message);
                Self::new(Code::ServerUnavailable.as_str(), message)
            }
            _ => self,
        }
    }

    pub(crate) fn is_interrupt(&self) -> bool {
        self.code == INTERRUPTED
    }

    /// 69 only if nothing ran, so that a script may try again. A call that may have run gives 1, like an error of the tool.
    pub(crate) fn exit_code(&self) -> u8 {
        match (self.code.as_str(), self.code.parse()) {
            (INTERRUPTED, _) => {
                self.number.and_then(|signal| u8::try_from(128 + signal).ok()).unwrap_or(EX_FAILED)
            }
            (ARGUMENTS_INVALID, _) => EX_USAGE,
            (_, Ok(code)) => match code {
                Code::ApprovalRequired
                | Code::CloneRefused
                | Code::ServerNotGranted
                | Code::SessionEnded
                | Code::TicketRefused
                | Code::ToolChanged
                | Code::ToolDenied => EX_NOPERM,
                Code::CredentialUnavailable
                | Code::RelayUnavailable
                | Code::ServerUnavailable
                | Code::VersionRefused => EX_UNAVAILABLE,
                Code::MessageMalformed | Code::MessageTooLarge | Code::OutcomeUnknown => EX_FAILED,
            },
            (_, Err(_)) => EX_FAILED,
        }
    }
}

/// The tool reported an error, or it is not known whether it ran.
pub(crate) const EX_FAILED: u8 = 1;
const EX_USAGE: u8 = 64;
const EX_UNAVAILABLE: u8 = 69;
const EX_NOPERM: u8 = 77;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_69_means_that_nothing_ran() {
        let exit = |code: &str| Failure::new(code, "").exit_code();
        assert_eq!(["relay_unavailable", "server_unavailable", "credential_unavailable"].map(exit), [69; 3]);
        assert_eq!(
            ["tool_denied", "approval_required", "server_not_granted", "session_ended"].map(exit),
            [77; 4]
        );
        assert_eq!(["outcome_unknown", "message_too_large", SERVER_ERROR, "later_code"].map(exit), [1; 4]);
        for code in Code::ALL.into_iter().filter(|code| code.may_have_run()) {
            assert_eq!(exit(code.as_str()), 1, "{code:?}");
        }
        assert_eq!(Failure::arguments("").exit_code(), 64);
        for code in ["outcome_unknown", SERVER_ERROR] {
            assert_eq!(Failure::new(code, "").without_effect("`initialize`").exit_code(), 69);
        }
        assert_eq!(Failure::new("tool_denied", "").without_effect("`initialize`").exit_code(), 77);
        assert_eq!([2, 15].map(|signal| Failure::interrupted(signal).exit_code()), [130, 143]);
    }
}
