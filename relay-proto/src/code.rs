//! The stable codes of refusals, and the JSON-RPC errors that carry them.
//!
//! Some harnesses show a model the message alone, so the code is in the text too. The numbers −32020 to −32022
//! are never used: clients conclude from them that the server uses the stateless revision of MCP.

use std::str::FromStr;

/// Why something was refused. The text form is part of the contract.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash)]
pub enum Code {
    ApprovalRequired,
    CloneRefused,
    CredentialUnavailable,
    MessageMalformed,
    MessageTooLarge,
    OutcomeUnknown,
    RelayUnavailable,
    ServerNotGranted,
    ServerUnavailable,
    SessionEnded,
    TicketRefused,
    ToolChanged,
    ToolDenied,
    VersionRefused,
}

impl Code {
    pub const ALL: [Self; 14] = [
        Self::ApprovalRequired,
        Self::CloneRefused,
        Self::CredentialUnavailable,
        Self::MessageMalformed,
        Self::MessageTooLarge,
        Self::OutcomeUnknown,
        Self::RelayUnavailable,
        Self::ServerNotGranted,
        Self::ServerUnavailable,
        Self::SessionEnded,
        Self::TicketRefused,
        Self::ToolChanged,
        Self::ToolDenied,
        Self::VersionRefused,
    ];

    /// `tool_denied`, `outcome_unknown`, …
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ApprovalRequired => "approval_required",
            Self::CloneRefused => "clone_refused",
            Self::CredentialUnavailable => "credential_unavailable",
            Self::MessageMalformed => "message_malformed",
            Self::MessageTooLarge => "message_too_large",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::RelayUnavailable => "relay_unavailable",
            Self::ServerNotGranted => "server_not_granted",
            Self::ServerUnavailable => "server_unavailable",
            Self::SessionEnded => "session_ended",
            Self::TicketRefused => "ticket_refused",
            Self::ToolChanged => "tool_changed",
            Self::ToolDenied => "tool_denied",
            Self::VersionRefused => "version_refused",
        }
    }

    /// Whether a request that is answered with this code may have run. A response that is too large is refused after the
    /// call ran.
    pub fn may_have_run(self) -> bool {
        matches!(self, Self::MessageTooLarge | Self::OutcomeUnknown)
    }

    /// The JSON-RPC error number that is sent with this code.
    pub fn number(self) -> i32 {
        match self {
            Self::MessageMalformed | Self::MessageTooLarge => INVALID_REQUEST,
            _ => REFUSED,
        }
    }
}

/// A code that this version does not define: a later sidecar may have more codes.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("`{0}` is not a code of this version")]
pub struct UnknownCode(pub String);

impl FromStr for Code {
    type Err = UnknownCode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|code| code.as_str() == text).ok_or_else(|| UnknownCode(text.into()))
    }
}

/// A whole JSON-RPC error response (one line, no newline) to the request with this id. The id is
/// raw JSON; without one the response has `null`. The message is `code: sentence`; `data.code` is the code alone.
pub fn error_response(id: Option<&[u8]>, code: Code, sentence: &str) -> Vec<u8> {
    let text = json_string(&format!("{}: {sentence}", code.as_str()));
    let data = format!(r#","data":{{"code":"{}"}}"#, code.as_str());
    encode_error(id.unwrap_or(b"null"), code.number(), &text, &data)
}

/// The response to a call of an unknown tool, as a server would write it: JSON-RPC −32602, without a [`Code`].
pub fn unknown_tool_response(id: &[u8], tool: &str) -> Vec<u8> {
    encode_error(id, INVALID_PARAMS, &json_string(&format!("Unknown tool: {tool}")), "")
}

const INVALID_REQUEST: i32 = -32600;
const INVALID_PARAMS: i32 = -32602;
const REFUSED: i32 = -32050;

fn encode_error(id: &[u8], number: i32, message: &str, data: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(80 + id.len() + message.len() + data.len());
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.extend_from_slice(id);
    out.extend_from_slice(format!(r#","error":{{"code":{number},"message":{message}{data}}}}}"#).as_bytes());
    out
}

/// A JSON string that is one line in every language runtime: some also end a line at U+0085, U+2028 or U+2029.
pub(crate) fn json_string(text: &str) -> String {
    let json = serde_json::Value::from(text).to_string();
    match json.contains(['\u{85}', '\u{2028}', '\u{2029}']) {
        true => {
            json.replace('\u{85}', r"\u0085").replace('\u{2028}', r"\u2028").replace('\u{2029}', r"\u2029")
        }
        false => json,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_read_back_from_its_text() {
        for code in Code::ALL {
            assert_eq!(code.as_str().parse(), Ok(code));
            assert!(!(-32022..=-32020).contains(&code.number()));
        }
        assert_eq!("later_code".parse::<Code>(), Err(UnknownCode("later_code".into())));
    }

    #[test]
    fn an_error_response_has_the_id_the_sentence_and_the_code() {
        let line = error_response(Some(br#""a\u0062""#), Code::OutcomeUnknown, "say \"why\"\nhere");
        assert_eq!(
            String::from_utf8(line).unwrap(),
            r#"{"jsonrpc":"2.0","id":"a\u0062","error":{"code":-32050,"message":"outcome_unknown: say \"why\"\nhere","data":{"code":"outcome_unknown"}}}"#
        );
        let line = error_response(None, Code::MessageTooLarge, "why");
        assert_eq!(
            String::from_utf8(line).unwrap(),
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"message_too_large: why","data":{"code":"message_too_large"}}}"#
        );
    }

    #[test]
    fn the_unknown_tool_response_is_that_of_a_server() {
        let line = unknown_tool_response(b"7", "x\u{2028}y\u{85}\u{2029}");
        assert_eq!(
            String::from_utf8(line).unwrap(),
            r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32602,"message":"Unknown tool: x\u2028y\u0085\u2029"}}"#
        );
    }
}
