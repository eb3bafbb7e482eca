//! The content of error responses that the shim itself makes. Each sentence says what was not done, why, and what to do.

use relay_proto::code::{Code, error_response};

/// The error with which the shim answers a request: a code and the sentence that goes with it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ShimError {
    pub(crate) code: Code,
    pub(crate) sentence: String,
}

impl ShimError {
    /// The error response to a request. `id` is the request's id as the harness wrote it; `None` if it is not known.
    pub(crate) fn to_response(&self, id: Option<&[u8]>) -> Vec<u8> {
        error_response(id, self.code, &self.sentence)
    }

    /// The error for a Refusal or Goodbye of the sidecar. A code that this version does not know is put into the sentence.
    pub(crate) fn from_sidecar(code: &str, message: &str) -> Self {
        match code.parse() {
            Ok(code) => Self { code, sentence: message_or_code(message, code) },
            Err(_) => Self {
                code: Code::RelayUnavailable,
                sentence: format!("the request did not run: the sidecar refused with `{code}`: {message}"),
            },
        }
    }

    pub(crate) fn id_in_flight() -> Self {
        malformed("the id is in use by a request that has no response yet; use a new id")
    }

    pub(crate) fn malformed(why: &impl std::fmt::Display) -> Self {
        malformed(&format!("the line was not relayed: {why}"))
    }

    pub(crate) fn outcome_unknown(why: &str) -> Self {
        Self {
            code: Code::OutcomeUnknown,
            sentence: format!(
                "the request may or may not have run: {why}; check its effect before trying again"
            ),
        }
    }

    pub(crate) fn relay_unavailable(why: &str) -> Self {
        Self {
            code: Code::RelayUnavailable,
            sentence: format!("the request did not run: {why}; try again later"),
        }
    }

    pub(crate) fn message_too_large(max: usize) -> Self {
        Self {
            code: Code::MessageTooLarge,
            sentence: format!(
                "the request did not run: a message has at most {max} bytes; send less at a time"
            ),
        }
    }

    pub(crate) fn too_many_requests(max: usize) -> Self {
        Self::relay_unavailable(&format!("{max} requests are waiting already"))
    }

    pub(crate) fn version_refused(why: &str) -> Self {
        Self { code: Code::VersionRefused, sentence: format!("the request did not run: {why}") }
    }
}

/// Says that the two sides have different versions of the relay protocol, and which side to upgrade.
pub(crate) fn describe_version_difference(ours: u16, theirs: u16) -> String {
    let upgrade = match theirs > ours {
        true => "the shim in the sandbox is older: upgrade it",
        false => "the sidecar on the host is older: upgrade it",
    };
    format!(
        "the sidecar speaks version {theirs} of the relay protocol, and this shim version {ours}; {upgrade}"
    )
}

fn malformed(sentence: &str) -> ShimError {
    ShimError { code: Code::MessageMalformed, sentence: sentence.into() }
}

fn message_or_code(message: &str, code: Code) -> String {
    match message.is_empty() {
        true => format!("the sidecar refused with {}", code.as_str()),
        false => message.into(),
    }
}
