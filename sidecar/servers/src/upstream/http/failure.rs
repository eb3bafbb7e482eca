//! Why a request failed, distinguished by what matters to the caller: may it have run?

use cofferdam_base::text::error_chain;
use cofferdam_net::SendError;
use http::header::LOCATION;
use http::{Response, StatusCode, Uri};

/// Why a request has no response. The reasons are not shortened here: they may hold a credential, which can only be
/// recognised whole, so they are scrubbed first.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Failure {
    /// The request, or part of it, reached the server.
    MaybeRan { why: String },
    /// The request did not run: there is no credential for it, or the server refused even the newest with HTTP 401.
    NoCredential { why: String },
    /// The request did not run: it was not sent, or the server rejected it.
    DidNotRun { why: String },
    /// The server has lost the session: the request did not run, and can be sent again after a new handshake.
    SessionLost,
    /// The request ran, and there is no memory for its response.
    NoMemory,
    /// The request ran, and its response is larger than may be relayed.
    TooLarge,
    /// HTTP 403: the request did not run, because its credential does not permit it.
    Forbidden,
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        let why = error_chain(&error);
        match error {
            SendError::MaybeSent(_) => Self::MaybeRan { why },
            SendError::NotSent(_) | SendError::Unreachable(_) => Self::DidNotRun { why },
        }
    }
}

impl Failure {
    /// The body of a response could not be read to its end.
    pub(super) fn cut_off(error: &hyper::Error) -> Self {
        Self::MaybeRan { why: format!("the response was cut off: {}", error_chain(error)) }
    }

    /// The failure that an HTTP status means. The body is never quoted in the reason: it may contain anything.
    pub(super) fn from_status<B>(response: &Response<B>) -> Self {
        let status = response.status();
        let answered = match status.canonical_reason() {
            Some(reason) => format!("the server answered HTTP {} ({reason})", status.as_u16()),
            None => format!("the server answered HTTP {}", status.as_u16()),
        };
        match status {
            // HTTP 401 does not arrive here: `Exchange::send` handles it.
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Self::Forbidden,
            // 303 points at the outcome of a request that ran.
            StatusCode::SEE_OTHER => {
                Self::MaybeRan { why: format!("{answered}; redirects are not followed") }
            }
            status if status.is_redirection() => {
                let host = response.headers().get(LOCATION).and_then(|location| location.to_str().ok());
                let host = host.and_then(|location| location.parse::<Uri>().ok()?.host().map(str::to_owned));
                let target = host.map(|host| format!(" at host `{host}`")).unwrap_or_default();
                Self::DidNotRun {
                    why: format!(
                        "{answered}; redirects are not followed with credentials: set the server's `url` to its new address{target}"
                    ),
                }
            }
            // An intermediary may send 408 when it stops waiting. After 408 and 409 the server may have begun.
            StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT => Self::MaybeRan { why: answered },
            status if status.is_client_error() && status.as_u16() != 499 => Self::DidNotRun { why: answered },
            _ => Self::MaybeRan { why: answered },
        }
    }
}
