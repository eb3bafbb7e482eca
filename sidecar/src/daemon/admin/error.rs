//! Refusals of the admin API: a status, a stable code, a message and a hint.

use bytes::Bytes;
use http::header::{ALLOW, HeaderName, HeaderValue, RETRY_AFTER, UPGRADE, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use http_body_util::Full;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use cofferdam_base::text::error_chain;

use crate::daemon::attach::hold::HoldError;
use crate::daemon::attachments::AttachmentError;
use crate::daemon::attachments::status::OverCause;
use crate::daemon::enrolling::EnrollError;
use crate::enrolment::NotCreated;

/// A refused request.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    hint: Option<String>,
    /// Boxed, because it is large and rare.
    header: Option<Box<(HeaderName, HeaderValue)>>,
}

/// The body of an error response.
#[derive(Debug, Deserialize, JsonSchema, Serialize)]
pub(super) struct ErrorBody {
    pub(super) error: ErrorDetail,
}

#[derive(Debug, Deserialize, JsonSchema, Serialize)]
pub(super) struct ErrorDetail {
    /// A stable code.
    pub(super) code: String,
    /// What failed, and why.
    pub(super) message: String,
    /// What to do next.
    pub(super) hint: Option<String>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), hint: None, header: None }
    }

    /// The request is well formed, but its content is not acceptable.
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", message)
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub(super) fn is_not_found(&self) -> bool {
        self.status == StatusCode::NOT_FOUND
    }

    /// The state of the sidecar does not permit the request.
    pub(super) fn refused(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "refused", message)
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    pub(super) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    pub(super) fn unauthorized(message: impl Into<String>) -> Self {
        let mut refused = Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message);
        refused.header = Some(Box::new((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))));
        refused.with_hint("send `Authorization: Bearer TOKEN` with a token of `cofferdam token create`, or use a client certificate")
    }

    pub(super) fn too_many_failures(seconds: u64) -> Self {
        let message = "too many requests with unknown tokens came from this address";
        let mut refused = Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_failures", message);
        refused.header = Some(Box::new((RETRY_AFTER, seconds.into())));
        refused.with_hint(format!("try again after {seconds} seconds, with a valid token"))
    }

    pub(super) fn method_not_allowed(allowed: &str) -> Self {
        let message = format!("this path accepts {allowed} only");
        let mut refused = Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
        refused.header = HeaderValue::from_str(allowed).ok().map(|allowed| Box::new((ALLOW, allowed)));
        refused
    }

    pub(super) fn upgrade_required(protocol: &'static str) -> Self {
        let message = "this request turns its connection into a stream";
        let mut refused = Self::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", message);
        refused.header = Some(Box::new((UPGRADE, HeaderValue::from_static(protocol))));
        refused.with_hint(format!("send `Connection: upgrade` and `Upgrade: {protocol}`"))
    }

    pub(super) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }

    pub(super) fn into_response(self) -> Response<Full<Bytes>> {
        let Self { status, code, message, hint, header } = self;
        let body = ErrorBody { error: ErrorDetail { code: code.into(), message, hint } };
        let bytes = serde_json::to_vec(&body).expect("an error is plain data");
        let mut response = Response::new(Full::new(bytes.into()));
        *response.status_mut() = status;
        response.headers_mut().extend(header.map(|header| *header));
        response
    }
}

impl From<EnrollError> for ApiError {
    fn from(error: EnrollError) -> Self {
        let message = error_chain(&error);
        match error {
            EnrollError::UnknownGrant(..) => Self::new(StatusCode::NOT_FOUND, "grant_unknown", message),
            EnrollError::TtlTooLong { .. }
            | EnrollError::TtlTooShort
            | EnrollError::NotCreated(NotCreated::InvalidName)
            | EnrollError::PathIsolation(_) => Self::invalid(message),
            EnrollError::TlsNotConfigured
            | EnrollError::Socket(_)
            | EnrollError::NotCreated(NotCreated::TooMany(_) | NotCreated::DirectoryInUse(..)) => {
                Self::refused(message)
            }
            EnrollError::Failed | EnrollError::NotCreated(NotCreated::Store(_)) => Self::internal(message),
        }
    }
}

/// The cause becomes the error code, by which the command line chooses its exit code.
impl From<AttachmentError> for ApiError {
    fn from(error: AttachmentError) -> Self {
        if let AttachmentError::NotForToken { .. } = error {
            return Self::forbidden(error.to_string());
        }
        let cause = error.cause();
        let status = match cause {
            OverCause::Configuration | OverCause::Taken => StatusCode::CONFLICT,
            OverCause::NoSandbox => StatusCode::UNPROCESSABLE_ENTITY,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, cause.as_str(), error_chain(&error))
    }
}

impl From<HoldError> for ApiError {
    fn from(error: HoldError) -> Self {
        match error {
            HoldError::HeldByAnother(_) => Self::refused(error_chain(&error)),
            HoldError::NotCreated(error) => error.into(),
        }
    }
}
