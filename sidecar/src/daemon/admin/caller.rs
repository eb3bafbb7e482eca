//! Authenticates the sender of a request, and decides which grants it may use.
//!
//! What must stay true: a request with a token has only the rights of that token, even on the admin socket or with a
//! client certificate; a request without a token has rights only on the admin socket or with a client certificate.

use std::net::IpAddr;

use cofferdam_base::clock;
use cofferdam_base::text::hex;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use tokio::time::Instant;

use super::AdminState;
use super::error::ApiError;
use super::tokens::{TokenRefused, TokenScope};
use crate::daemon::attachments::request::RequestedBy;

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Peer {
    /// A client of the admin socket, to which only the sidecar's user and root can connect. `uid` is `None` if the kernel
    /// does not report it.
    Socket {
        uid: Option<u32>,
    },
    Tls {
        address: IpAddr,
        certificate: ClientCertificate,
    },
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ClientCertificate {
    Absent,
    /// The certificate is signed by an authority of `admin.client-ca-file`.
    Verified {
        sha256: [u8; 32],
    },
}

/// The sender of a request.
#[derive(Clone, Debug)]
pub(super) enum Caller {
    /// It may do everything.
    Administrator(Administrator),
    Token(TokenScope),
}

/// How an administrator was authenticated.
#[derive(Clone, Copy, Debug)]
pub(super) enum Administrator {
    Certificate { sha256: [u8; 32] },
    Socket { uid: Option<u32> },
}

impl Caller {
    pub(super) fn authenticate(
        admin: &AdminState,
        peer: Peer,
        headers: &HeaderMap,
    ) -> Result<Self, ApiError> {
        match (bearer_token(headers)?, peer) {
            (Some(token), peer) => Self::authenticate_token(admin, peer, token),
            (None, Peer::Socket { uid }) => Ok(Self::Administrator(Administrator::Socket { uid })),
            (None, Peer::Tls { certificate: ClientCertificate::Verified { sha256 }, .. }) => {
                Ok(Self::Administrator(Administrator::Certificate { sha256 }))
            }
            (None, Peer::Tls { certificate: ClientCertificate::Absent, .. }) => {
                Err(ApiError::unauthorized("the request has neither a token nor a client certificate"))
            }
        }
    }

    fn authenticate_token(admin: &AdminState, peer: Peer, token: &str) -> Result<Self, ApiError> {
        let address = match peer {
            Peer::Socket { .. } => None,
            Peer::Tls { address, .. } => Some(address),
        };
        match admin.tokens.check(token, clock::now()) {
            Ok(scope) => Ok(Self::Token(scope)),
            Err(TokenRefused::Expired) => Err(ApiError::unauthorized("the token has expired")),
            // Checked only for unknown tokens: a valid token may share its address with a client that sends unknown ones.
            Err(TokenRefused::Unknown) => {
                let now = Instant::now();
                if let Some(wait) = address.and_then(|address| admin.failures.blocked_for(address, now)) {
                    return Err(ApiError::too_many_failures(wait.as_secs() + 1));
                }
                if let Some(address) = address {
                    admin.failures.count(address, now);
                }
                Err(ApiError::unauthorized("the token is unknown here, or was revoked"))
            }
        }
    }

    pub(super) fn may_use(&self, grant: &str) -> bool {
        match self {
            Self::Administrator(_) => true,
            Self::Token(scope) => scope.grants.iter().any(|allowed| allowed.as_str() == grant),
        }
    }

    /// Refuses a grant that the caller may not use. A token gets the same refusal for a grant that does not exist.
    pub(super) fn require_grant(&self, grant: &str) -> Result<(), ApiError> {
        match self.may_use(grant) {
            true => Ok(()),
            false => Err(ApiError::forbidden(format!("the token is not for the grant `{grant}`"))
                .with_hint("use a token of `cofferdam token create` for this grant")),
        }
    }

    pub(super) fn require_administrator(&self, what: &str) -> Result<(), ApiError> {
        match self {
            Self::Administrator(_) => Ok(()),
            Self::Token(_) => Err(ApiError::forbidden(format!("a token does not permit {what}"))
                .with_hint("use the admin socket, or a client certificate")),
        }
    }

    /// The caller's name in audit records. It contains no secret: a token is named by its id.
    pub(super) fn audit_id(&self) -> String {
        match self {
            Self::Administrator(Administrator::Socket { uid: Some(uid) }) => format!("uid:{uid}"),
            Self::Administrator(Administrator::Socket { uid: None }) => "uid:unknown".to_owned(),
            Self::Administrator(Administrator::Certificate { sha256 }) => {
                format!("certificate:{}", hex(sha256))
            }
            Self::Token(scope) => format!("token:{}", scope.id),
        }
    }

    /// The name of the caller's token.
    pub(super) fn token_name(&self) -> Option<&str> {
        match self {
            Self::Administrator(_) => None,
            Self::Token(scope) => scope.name.as_deref(),
        }
    }

    /// Waits until the caller's right ends: never, for an administrator.
    pub(super) async fn await_end(&self) {
        match self {
            Self::Administrator(_) => std::future::pending().await,
            Self::Token(scope) => scope.await_end().await,
        }
    }
}

impl From<&Caller> for RequestedBy {
    fn from(caller: &Caller) -> Self {
        match caller {
            Caller::Administrator(_) => Self::Operator,
            Caller::Token(_) => Self::Token,
        }
    }
}

/// The token in the header `Authorization`; `None` if there is no such header.
fn bearer_token(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = all.next() else { return Ok(None) };
    let token = value.to_str().ok().and_then(|text| text.split_once(' ')).and_then(|(scheme, token)| {
        (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
    });
    match (token, all.next()) {
        (Some(token), None) => Ok(Some(token)),
        _ => Err(ApiError::unauthorized("the header `Authorization` is not `Bearer TOKEN`")),
    }
}
