//! The requests of clients, which tests search for secrets.

use std::collections::BTreeMap;
use std::fmt;

use super::Platform;
use super::wire::Request;

/// Which of Daytona's services a request went to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ServiceName {
    Control,
    Preview,
    Toolbox,
}

/// One request.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    pub service: ServiceName,
    /// Method, path and query: what every proxy logs.
    pub line: String,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body as text; Daytona stores the commands in it.
    pub body: String,
}

impl ServiceName {
    pub(super) fn of(request: &Request) -> Self {
        match request.path.as_str() {
            path if path.starts_with("/api/") => Self::Control,
            path if path.starts_with("/toolbox/") => Self::Toolbox,
            _ => Self::Preview,
        }
    }
}

impl fmt::Display for RecordedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body: String = self.body.chars().take(300).collect();
        write!(f, "{:?} {} {}", self.service, self.line, body.escape_debug())
    }
}

impl Platform {
    pub(super) fn record(&self, service: ServiceName, request: &Request) {
        let requested = RecordedRequest {
            service,
            line: request.line.clone(),
            headers: request.headers.clone(),
            body: String::from_utf8_lossy(&request.body).into_owned(),
        };
        self.requests.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(requested);
    }
}
