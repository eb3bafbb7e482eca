//! Decodes one message: a message of the harness (a request, a notification, a response, or malformed bytes) or a request of
//! a server.

use std::borrow::Cow;
use std::ops::Range;

use cofferdam_audit::SentBy;
use cofferdam_servers::ProcessId;
use relay_proto::delivery::Received;
use relay_proto::envelope::{self, Id, IdValue, Kind, Malformed, Outcome, Strictness, ToolCall};
use relay_proto::json;
use relay_proto::mcp::{self, Method, Subject};

use super::admit::{Incoming, InnerRequest, MessageSource, ServerRequest};
use super::tasks;

pub(crate) enum Inbound<'a> {
    /// A request of a server process to the harness.
    FromServer {
        request: Request<'a>,
        id: Id<'a>,
        process: ProcessId,
    },
    /// A request of a server inside the message with this number.
    InsideMessage {
        request: Request<'a>,
        message: u64,
    },
    Malformed(Malformed),
    Notification(Request<'a>),
    Request {
        request: Request<'a>,
        id: Id<'a>,
        value: IdValue,
    },
    /// The response to a request of the server.
    Response {
        id: Option<Id<'a>>,
        outcome: Outcome,
    },
}

/// What a request or notification asks for.
pub(crate) struct Request<'a> {
    pub(super) received: &'a Received,
    pub(super) params: Option<Range<usize>>,
    pub(super) method: Cow<'a, str>,
    /// The method's row in the table of MCP methods, if it has one.
    pub(super) known: Option<&'static Method>,
    /// The tool of a `tools/call`.
    pub(super) tool: Option<Cow<'a, str>>,
    /// The range of the bytes whose MAC is recorded: a tool's arguments, or the parameters of any other method.
    arguments: Option<Range<usize>>,
}

/// Reads a queued message. If the harness sent it, it may be nested at most `depth` deep; requests of servers were checked
/// before.
pub(super) fn decode_incoming(message: &Incoming, depth: usize) -> Inbound<'_> {
    let received = &message.received;
    match &message.source {
        MessageSource::Harness => decode(received, depth),
        MessageSource::InsideMessage(InnerRequest { message, method, params }) => {
            let request = Request::new(received, Cow::Borrowed(&**method), params.clone(), None);
            Inbound::InsideMessage { request, message: *message }
        }
        MessageSource::Server(ServerRequest { process, id, method, params }) => {
            let request = Request::new(received, Cow::Borrowed(&**method), params.clone(), None);
            let id = Id { raw: &received.bytes[id.clone()], span: id.clone() };
            Inbound::FromServer { request, id, process: *process }
        }
    }
}

/// Reads a message of the harness whose JSON is nested at most `depth` deep.
pub(crate) fn decode(received: &Received, depth: usize) -> Inbound<'_> {
    let envelope = match envelope::read_within(&received.bytes, Strictness::Whole, depth) {
        Ok(envelope) => envelope,
        Err(malformed) => return Inbound::Malformed(malformed),
    };
    match envelope.kind {
        Kind::Request { id, method } => {
            let value = id.value();
            let request = Request::new(received, method, envelope.body, envelope.call);
            Inbound::Request { request, id, value }
        }
        Kind::Notification { method } => {
            Inbound::Notification(Request::new(received, method, envelope.body, envelope.call))
        }
        Kind::Response { id, outcome } => Inbound::Response { id, outcome },
    }
}

impl<'a> Inbound<'a> {
    pub(super) fn request(&self) -> Option<&Request<'a>> {
        match self {
            Self::FromServer { request, .. }
            | Self::InsideMessage { request, .. }
            | Self::Request { request, .. }
            | Self::Notification(request) => Some(request),
            Self::Malformed(_) | Self::Response { .. } => None,
        }
    }

    pub(super) fn sent_by(&self) -> SentBy {
        match self {
            Self::FromServer { .. } | Self::InsideMessage { .. } => SentBy::Server,
            _ => SentBy::Harness,
        }
    }
}

impl<'a> Request<'a> {
    fn new(
        received: &'a Received,
        method: Cow<'a, str>,
        params: Option<Range<usize>>,
        call: Option<ToolCall<'a>>,
    ) -> Self {
        let (tool, arguments) = match call {
            Some(ToolCall { tool: tool @ Some(_), arguments }) => (tool, arguments),
            Some(ToolCall { tool: None, .. }) | None => (None, params.clone()),
        };
        let known = mcp::lookup(&method);
        Self { received, params, method, known, tool, arguments }
    }

    pub(super) fn is_tool_call(&self) -> bool {
        self.known.is_some_and(Method::is_tool_call)
    }

    /// The range of a member of the parameters.
    pub(super) fn param(&self, key: &str) -> Option<Range<usize>> {
        json::member(&self.received.bytes, self.params.clone()?, key)
    }

    /// The bytes whose MAC is recorded: a tool's arguments, or the parameters of any other method.
    pub(super) fn arguments(&self) -> Option<&'a [u8]> {
        self.arguments.clone().map(|span| &self.received.bytes[span])
    }

    /// The value that the HTTP transport of the stateless era repeats in its `Mcp-Name` header.
    pub(super) fn mcp_name(&self) -> Option<String> {
        match self.known?.subject {
            Subject::None => None,
            Subject::Param(key) => json::text(&self.received.bytes, self.param(key)?).map(Into::into),
            Subject::Tool => self.tool.as_deref().map(Into::into),
        }
    }

    /// The task that this request is about.
    pub(super) fn task(&self) -> Option<Box<str>> {
        tasks::task_of_request(&self.received.bytes, self.known?, self.params.clone())
    }
}
