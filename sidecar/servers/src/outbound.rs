//! One message on its way to a server.

use std::sync::Arc;

use bytes::Bytes;
use cofferdam_secrets::SecretReads;
use relay_proto::envelope::IdValue;
use relay_proto::limits::{MAX_MESSAGE, MAX_WINDOW};

use crate::spec::Scope;

/// Bytes queued for one server above which its link stops reading: a stuck server stalls its own link only.
pub const QUEUE_BYTES: usize = 1024 * 1024;
/// Queued bytes above which a message is refused. In one pass of its loop, a link adds at most one window and the rest
/// of one message to a queue that was not full, so a link that stops reading at [`QUEUE_BYTES`] never reaches this.
pub const REFUSED_BYTES: usize = QUEUE_BYTES + MAX_MESSAGE + MAX_WINDOW as usize;

/// One checked message. It is owned, so that it can be parked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Outbound {
    pub bytes: Bytes,
    pub kind: OutboundKind,
    /// The scope whose credentials it is sent with; without one, the server's own are.
    pub scope: Option<Arc<Scope>>,
    /// The Vault reads that the recorded decision on the message names. If it is sent with secrets of other reads,
    /// those reads are reported.
    pub decision_reads: Option<Arc<SecretReads>>,
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

/// One message to be sent, borrowed or owned. A request of the harness is borrowed: usually it is written at once, and
/// an owned copy is made only if it has to wait.
pub enum Outgoing<'a> {
    Request {
        bytes: &'a [u8],
        /// Makes the owned copy.
        make_owned: &'a dyn Fn() -> Outbound,
    },
    Owned(Outbound),
}

impl Outbound {
    pub fn request(bytes: impl Into<Bytes>, id: IdValue, method: &str, name: Option<String>) -> Self {
        Self {
            bytes: bytes.into(),
            kind: OutboundKind::Request { id, method: method.into(), name },
            scope: None,
            decision_reads: None,
        }
    }

    pub fn notification(bytes: impl Into<Bytes>, method: &str) -> Self {
        let kind = OutboundKind::Notification { method: method.into() };
        Self { bytes: bytes.into(), kind, scope: None, decision_reads: None }
    }

    pub fn response(bytes: impl Into<Bytes>) -> Self {
        Self { bytes: bytes.into(), kind: OutboundKind::Response, scope: None, decision_reads: None }
    }

    /// The same, with the credentials of a scope.
    pub fn in_scope(self, scope: Option<Arc<Scope>>) -> Self {
        Self { scope, ..self }
    }

    /// The same, with the Vault reads that the recorded decision on it names.
    pub fn with_decision_reads(self, decision_reads: Option<Arc<SecretReads>>) -> Self {
        Self { decision_reads, ..self }
    }

    /// The id that the response to this message will have.
    pub fn request_id(&self) -> Option<&IdValue> {
        match &self.kind {
            OutboundKind::Request { id, .. } => Some(id),
            OutboundKind::Notification { .. } | OutboundKind::Response => None,
        }
    }

    /// The method of a request.
    pub fn request_method(&self) -> Option<&str> {
        match &self.kind {
            OutboundKind::Request { method, .. } => Some(method),
            OutboundKind::Notification { .. } | OutboundKind::Response => None,
        }
    }
}

impl Outgoing<'_> {
    pub(crate) fn is_request(&self) -> bool {
        match self {
            Self::Request { .. } => true,
            Self::Owned(message) => message.request_id().is_some(),
        }
    }

    pub(crate) fn into_owned(self) -> Outbound {
        match self {
            Self::Request { make_owned, .. } => make_owned(),
            Self::Owned(message) => message,
        }
    }
}
