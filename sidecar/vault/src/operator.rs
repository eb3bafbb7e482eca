//! Requests of an operator's commands, such as `cofferdam vault setup`. Other crates compose them; they are sent like every
//! other request: bounded, without redirects, and with the response in memory that is wiped when dropped.

use std::time::Duration;

use ::http::Method;
use zeroize::Zeroizing;

use crate::api::{Vault, post};
use crate::body::Body;
use crate::client::Request;
use crate::envelope::Envelope;
use crate::error::{Problem, RequestLine, VaultError};
use crate::token::Token;

/// A request whose path and body have no secret in them.
#[derive(Clone, Debug)]
pub struct OperatorRequest {
    pub method: Method,
    /// Below `/v1/`, without a slash at either end.
    pub path: String,
    /// A JSON object.
    pub body: Option<Vec<u8>>,
    /// Asks Vault to wrap the response for this long.
    pub wrap_ttl: Option<Duration>,
}

impl Vault {
    /// Sends a request with the operator's token.
    pub async fn operate(&self, token: &Token, request: &OperatorRequest) -> Result<Envelope, VaultError> {
        let OperatorRequest { method, path, body, wrap_ttl } = request;
        let body = body.as_deref().map(|json| {
            Body::of_json(json).ok_or_else(|| VaultError {
                request: RequestLine { method: method.clone(), path: path.clone() },
                problem: Problem::Malformed { why: "the request's own body is not a JSON object" },
            })
        });
        let request = Request {
            method: method.clone(),
            path: path.clone(),
            token: Some(token),
            body: body.transpose()?,
            wrap_ttl: *wrap_ttl,
        };
        self.call(&request).await
    }

    /// Whether the AppRole at `role_path` (`auth/MOUNT/role/NAME`) accepts this secret-id.
    pub async fn is_secret_id_of(
        &self,
        token: &Token,
        role_path: &str,
        secret_id: Zeroizing<String>,
    ) -> Result<bool, VaultError> {
        let body = Body::new().with_secret("secret_id", secret_id);
        let path = format!("{role_path}/secret-id/lookup");
        // For an unknown secret-id, Vault answers without data.
        Ok(self.call(&post(Some(token), &path, body)).await?.data.is_some())
    }
}
