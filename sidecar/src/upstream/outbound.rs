//! One message of the harness on its way to a server.

use std::sync::Arc;

use bytes::Bytes;
use relay_proto::envelope::IdValue;
use relay_proto::limits::{MAX_MESSAGE, MAX_WINDOW};

use crate::inject::Reads;
use crate::servers::spec::Scope;

/// Bytes queued for one server above which its link stops reading: a stuck server stalls its own link only.
pub(crate) const QUEUE_BYTES: usize = 1024 * 1024;
/// Bytes above which a message is refused. One turn of a link adds at most a window and the rest of one message to a queue
/// that was not full yet, so a link that stops reading in time never gets here.
pub(crate) const REFUSED_BYTES: usize = QUEUE_BYTES + MAX_MESSAGE + MAX_WINDOW as usize;

/// One message of the harness, already checked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Outbound {
    pub bytes: Bytes,
    pub kind: OutboundKind,
    /// The scope whose credentials it is sent with; without one, the server's own are.
    pub scope: Option<Arc<Scope>>,
    /// The reads that its decision names. Where it is sent with others, that is reported.
    pub decided: Option<Arc<Reads>>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub enum OutboundKind {
    Notification {
        method: String,
    },
    Request {
        id: IdValue,
        method: String,
        /// The tool's or prompt's name, or the resource's URI.
        name: Option<String>,
    },
    /// The harness's response to a request of the server.
    Response,
}

impl Outbound {
    pub(crate) fn request(bytes: impl Into<Bytes>, id: IdValue, method: &str, name: Option<String>) -> Self {
        Self {
            bytes: bytes.into(),
            kind: OutboundKind::Request { id, method: method.into(), name },
            scope: None,
            decided: None,
        }
    }

    pub(crate) fn notification(bytes: impl Into<Bytes>, method: &str) -> Self {
        let kind = OutboundKind::Notification { method: method.into() };
        Self { bytes: bytes.into(), kind, scope: None, decided: None }
    }

    pub(crate) fn response(bytes: impl Into<Bytes>) -> Self {
        Self { bytes: bytes.into(), kind: OutboundKind::Response, scope: None, decided: None }
    }

    /// The same, with the credentials of a scope.
    pub(crate) fn in_scope(self, scope: Option<Arc<Scope>>) -> Self {
        Self { scope, ..self }
    }

    /// The same, decided with these reads.
    pub(crate) fn decided(self, decided: Option<Arc<Reads>>) -> Self {
        Self { decided, ..self }
    }

    /// The id that an answer to this message will have.
    pub(crate) fn request_id(&self) -> Option<&IdValue> {
        match &self.kind {
            OutboundKind::Request { id, .. } => Some(id),
            OutboundKind::Notification { .. } | OutboundKind::Response => None,
        }
    }

    /// The method of a request.
    pub(crate) fn request_method(&self) -> Option<&str> {
        match &self.kind {
            OutboundKind::Request { method, .. } => Some(method),
            OutboundKind::Notification { .. } | OutboundKind::Response => None,
        }
    }
}
