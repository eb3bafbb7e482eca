//! One message to the server, and everything that the server sends back on the same HTTP exchange.
//!
//! What must stay true: a request ends in exactly one response or one failure. A stream that breaks before the response
//! is resumed only where the server gave an event id to resume from. The exchange sends the request again in one case
//! only: the server refused it with HTTP 401, so it did not run, and there is a newer credential. If the server has
//! lost the session, the request is returned, to be sent in the next session.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cofferdam_base::Backoff;
use cofferdam_net::PooledResponse;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use relay_proto::envelope::IdValue;
use relay_proto::mcp;

use super::era::Session;
use super::headers::{self, LAST_EVENT_ID};
use super::headers::{Credentials, RequestCredentials};
use super::message::{self, AwaitedId, Classified, Outline};
use super::sse::SseReader;
use super::stream::{self, ContentType, MessageStream, Next};
use super::tasks::{Shared, lock};
use super::tool_headers::Page;
use super::{Event, Failure, Outbound, OutboundKind};

/// A request up to this size is retained until the server begins to respond, so that it can be sent again after HTTP
/// 401 with a newer credential, or in a new session. A larger request is not worth its memory.
const MAX_RETAINED_REQUEST: usize = 64 * 1024;
/// How long a stream may take to end after its response, for its connection to be used again.
const TAIL_TIMEOUT: Duration = Duration::from_secs(1);
/// Consecutive attempts to resume a broken stream.
const MAX_RESUMPTIONS: u32 = 5;
/// The pause before the first attempt, unless the server sends `retry:`. It doubles with each further attempt.
const RESUME_DELAY: Duration = Duration::from_secs(1);
/// The limits of the delay that a server may request.
pub(super) const MIN_RESUME_DELAY: Duration = Duration::from_millis(100);
pub(super) const MAX_RESUME_DELAY: Duration = Duration::from_secs(30);

pub(super) struct Exchange {
    pub(super) shared: Arc<Shared>,
    pub(super) message: Outbound,
    pub(super) credentials: Arc<dyn Credentials>,
    /// The credentials that the message was sent with; held for as long as the server may use them.
    pub(super) sent: Option<Arc<dyn RequestCredentials>>,
    pub(super) dispatch: Dispatch,
}

/// How a message is sent: `Stateless` in the stateless era of MCP, the others in the legacy era.
pub(super) enum Dispatch {
    /// Opens a session, so it is sent without one.
    Initialize,
    /// Ends the handshake: from now on the server may send messages of its own.
    Initialized,
    Legacy,
    Stateless {
        /// The headers that repeat parts of the message.
        headers: HeaderMap,
        page: Page,
    },
}

/// Why a request has no response.
pub(super) enum RequestError {
    Failed(Failure),
    /// The request did not run: the server has lost this session.
    SessionLost(Session),
}

/// The rest of an exchange whose response has been delivered.
pub(super) enum Tail {
    /// Read to its end.
    Spent(Box<PooledResponse>),
    Stream(Box<MessageStream>),
}

impl Exchange {
    pub(super) fn is_initialized(&self) -> bool {
        matches!(self.dispatch, Dispatch::Initialized)
    }

    /// Sends a request and relays messages up to its response.
    pub(super) async fn request(&mut self, awaited: &AwaitedId) -> Result<Tail, RequestError> {
        // Another request may have found that the session is lost: this request is returned, to wait for the next
        // session.
        if matches!(self.dispatch, Dispatch::Legacy) && lock(&self.shared.era).is_lost() {
            return Err(RequestError::SessionLost(Session::default()));
        }
        let (reply, session) = self.send().await?;
        let session = match self.dispatch {
            Dispatch::Initialize => Session::from_head(reply.response.headers()),
            _ => session,
        };
        let status = reply.response.status();
        let had_session = session.id.is_some() || lock(&self.shared.era).is_lost();
        if status == StatusCode::NOT_FOUND && had_session {
            return Err(RequestError::SessionLost(session));
        }
        self.message.bytes = Bytes::new();
        let content = stream::content_type(&reply);
        if !status.is_success() {
            return Ok(self.on_error_status(reply, content, awaited).await?);
        }
        Ok(match content? {
            ContentType::Json => self.read_json(reply, awaited, &session).await?,
            ContentType::Events => self.relay_events(reply, awaited, session).await?,
            ContentType::Other => {
                let status = status.as_u16();
                let why = format!("the server accepted the request (HTTP {status}) but sent no MCP response");
                return Err(Failure::MaybeRan { why }.into());
            }
        })
    }

    /// The event for a request that the server did not process: the request itself, if it was retained.
    pub(super) fn into_returned_event(self, id: IdValue) -> Event {
        match self.message.bytes.is_empty() {
            true => Event::Failed { id, failure: Failure::SessionLost },
            false => Event::Returned(self.message),
        }
    }

    /// Sends a notification or a response. Returns the session that accepted it; `None` where it was not accepted.
    pub(super) async fn post(mut self) -> Option<Session> {
        let head = tokio::time::timeout(self.shared.limits.connect_timeout, self.send()).await;
        let (reply, session) = match head {
            Ok(Ok(sent)) => sent,
            Ok(Err(failure)) => {
                tracing::debug!(?failure, "a notification or response did not reach the server");
                return None;
            }
            Err(_) => {
                tracing::debug!("the server did not accept a notification or response in time");
                return None;
            }
        };
        let status = reply.response.status();
        if status == StatusCode::NOT_FOUND && session.id.is_some() {
            self.shared.session_lost(&session, None).await;
        }
        if !status.is_success() {
            tracing::debug!(status = status.as_u16(), "the server refused a notification or response");
            return None;
        }
        // There should be no body. If there is one, it is not read and its connection is not used again.
        if hyper::body::Body::is_end_stream(reply.response.body()) {
            reply.give_back().await;
        }
        Some(session)
    }

    /// Sends the message with the newest credential. If the server refuses the credential and a newer one can be read,
    /// sends the message once more.
    async fn send(&mut self) -> Result<(PooledResponse, Session), Failure> {
        let unavailable = |why| Failure::NoCredential { why };
        let credentials = self.credentials.current().await.map_err(unavailable)?;
        let sent = self.send_with(&credentials).await?;
        if sent.0.response.status() != StatusCode::UNAUTHORIZED {
            return Ok(sent);
        }
        // This closes the connection: the body of the refusal may be of any length.
        drop(sent);
        let newer = credentials.newer().await.map_err(unavailable)?;
        if self.message.bytes.is_empty() {
            return Err(unavailable(
                "the server refused the credential; a newer one is available now, so repeat the request"
                    .into(),
            ));
        }
        let sent = self.send_with(&newer).await?;
        match sent.0.response.status() {
            StatusCode::UNAUTHORIZED => Err(unavailable(format!(
                "the server accepted neither the credential that was held nor the one that was read again, {} (HTTP 401); ask the user to renew it",
                newer.secret_names()
            ))),
            _ => Ok(sent),
        }
    }

    async fn send_with(
        &mut self,
        credentials: &Arc<dyn RequestCredentials>,
    ) -> Result<(PooledResponse, Session), Failure> {
        self.sent = Some(Arc::clone(credentials));
        if let OutboundKind::Request { id, .. } = &self.message.kind
            && let Some(reads) = self
                .message
                .decision_reads
                .as_ref()
                .and_then(|decided| credentials.reads_after_decision(decided))
        {
            self.shared.emit(Event::SentWith { id: id.clone(), reads }).await;
        }
        let (mcp_headers, session) = match &self.dispatch {
            Dispatch::Initialize => (HeaderMap::new(), Session::default()),
            Dispatch::Initialized | Dispatch::Legacy => {
                let session = lock(&self.shared.era).session();
                (session.headers(), session)
            }
            Dispatch::Stateless { headers, .. } => (headers.clone(), Session::default()),
        };
        let pool = &self.shared.pool;
        if pool.endpoint().is_plain_text_to_another_host() && !credentials.headers().is_empty() {
            let why = "credentials are sent over `http://` to this machine only; use `https://`";
            return Err(Failure::DidNotRun { why: why.into() });
        }
        let bytes = match self.message.bytes.len() <= MAX_RETAINED_REQUEST {
            true => self.message.bytes.clone(),
            false => std::mem::take(&mut self.message.bytes),
        };
        let request =
            headers::request(&self.shared.target, Method::POST, credentials.headers(), mcp_headers, bytes);
        Ok((pool.send(request).await?, session))
    }

    /// Handles an HTTP error status. A JSON-RPC error in the body is delivered as the response; any other body is ignored.
    async fn on_error_status(
        &self,
        mut reply: PooledResponse,
        content: Result<ContentType, Failure>,
        awaited: &AwaitedId,
    ) -> Result<Tail, Failure> {
        let failure = Failure::from_status(&reply.response);
        if failure == Failure::Forbidden || !matches!(content, Ok(ContentType::Json)) {
            return Err(failure);
        }
        let limit = self.shared.limits.message_bytes;
        match stream::collect(&mut reply, limit, &self.shared.large).await {
            Ok((body, _permit)) => match message::classify(body, awaited) {
                Classified::Response(response) => {
                    self.shared.emit(Event::Message(response)).await;
                    Ok(Tail::Spent(Box::new(reply)))
                }
                Classified::Other(_) | Classified::Unreadable => Err(failure),
            },
            Err(_) => Err(failure),
        }
    }

    async fn read_json(
        &self,
        mut reply: PooledResponse,
        awaited: &AwaitedId,
        session: &Session,
    ) -> Result<Tail, Failure> {
        let limit = self.shared.limits.message_bytes;
        let (body, _permit) = stream::collect(&mut reply, limit, &self.shared.large).await?;
        match message::classify(body, awaited) {
            Classified::Response(response) => {
                self.deliver(response, session).await;
                Ok(Tail::Spent(Box::new(reply)))
            }
            Classified::Other(_) => {
                Err(Failure::MaybeRan { why: "the server sent the response to another request".into() })
            }
            Classified::Unreadable => {
                Err(Failure::MaybeRan { why: "the server's response is not one JSON-RPC message".into() })
            }
        }
    }

    /// Relays an event stream up to the response, resuming it where the server allows that.
    async fn relay_events(
        &self,
        reply: PooledResponse,
        awaited: &AwaitedId,
        session: Session,
    ) -> Result<Tail, Failure> {
        let limit = self.shared.limits.message_bytes;
        let mut stream = MessageStream::new(reply, SseReader::new(limit), self.shared.large.clone());
        loop {
            match stream.next().await {
                Next::Message(bytes) => match message::classify(bytes, awaited) {
                    Classified::Response(response) => {
                        self.deliver(response, &session).await;
                        return Ok(Tail::Stream(Box::new(stream)));
                    }
                    Classified::Other(bytes) => self.shared.emit(Event::Message(bytes)).await,
                    Classified::Unreadable => {
                        tracing::debug!("dropped an event that is not a JSON-RPC message")
                    }
                },
                Next::Oversize => return Err(Failure::TooLarge),
                Next::End | Next::Broken => stream = self.resume(stream, &session).await?,
            }
        }
    }

    /// Reopens a broken stream after the last event that was received.
    async fn resume(&self, broken: MessageStream, session: &Session) -> Result<MessageStream, Failure> {
        let cut = || Failure::MaybeRan { why: "the server's stream ended before the response".into() };
        let reader = broken.into_reader();
        let last_event = reader.last_event_id().and_then(|id| HeaderValue::from_str(id).ok());
        let (Some(last_event), false) = (last_event, matches!(self.dispatch, Dispatch::Stateless { .. }))
        else {
            return Err(cut());
        };
        let first = reader.retry().unwrap_or(RESUME_DELAY).clamp(MIN_RESUME_DELAY, MAX_RESUME_DELAY);
        let mut backoff = Backoff::new(first, MAX_RESUME_DELAY);
        for _ in 0..MAX_RESUMPTIONS {
            tokio::time::sleep(backoff.next_delay()).await;
            let Ok(credentials) = self.credentials.current().await else { continue };
            let Ok(reply) = open_stream(&self.shared, session, &*credentials, Some(&last_event)).await else {
                continue;
            };
            match reply.response.status() {
                StatusCode::OK if matches!(stream::content_type(&reply), Ok(ContentType::Events)) => {
                    return Ok(MessageStream::new(reply, reader.resumed(), self.shared.large.clone()));
                }
                StatusCode::NOT_FOUND if session.id.is_some() => {
                    self.shared.session_lost(session, None).await;
                    return Err(cut());
                }
                status if status.is_server_error() => {}
                _ => return Err(cut()),
            }
        }
        Err(cut())
    }

    /// Delivers the response, after this transport has read the version or the tool headers from it.
    async fn deliver(&self, response: Vec<u8>, session: &Session) {
        match &self.dispatch {
            Dispatch::Initialize => {
                if let Some(version) =
                    Outline::read(&response).and_then(|outline| outline.negotiated_version())
                {
                    let version = HeaderValue::from_str(&version).ok();
                    lock(&self.shared.era).adopt(Session { version, ..session.clone() });
                }
            }
            Dispatch::Stateless { page, .. } if self.message.request_method() == Some(mcp::TOOLS_LIST) => {
                lock(&self.shared.tool_headers).record(&response, *page);
            }
            Dispatch::Initialized | Dispatch::Legacy | Dispatch::Stateless { .. } => {}
        }
        self.shared.emit(Event::Message(response)).await;
    }
}

impl From<Failure> for RequestError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Dispatch {
    pub(super) fn legacy(kind: &OutboundKind) -> Self {
        match kind {
            OutboundKind::Request { method, .. } if method == mcp::INITIALIZE => Self::Initialize,
            OutboundKind::Notification { method } if method == mcp::INITIALIZED => Self::Initialized,
            _ => Self::Legacy,
        }
    }
}

impl Tail {
    /// Reads a stream to its end within a bound, so that its connection can be used again.
    pub(super) async fn finish(self) {
        let mut stream = match self {
            Self::Spent(reply) => return reply.give_back().await,
            Self::Stream(stream) => stream,
        };
        let end = async {
            loop {
                match stream.next().await {
                    Next::End => return true,
                    Next::Broken => return false,
                    Next::Message(_) | Next::Oversize => {}
                }
            }
        };
        if matches!(tokio::time::timeout(TAIL_TIMEOUT, end).await, Ok(true)) {
            stream.give_back().await;
        }
    }
}

/// Opens a stream of server messages. If `last_event` is given, the server continues after that event.
pub(super) async fn open_stream(
    shared: &Shared,
    session: &Session,
    credentials: &dyn RequestCredentials,
    last_event: Option<&HeaderValue>,
) -> Result<PooledResponse, Failure> {
    let mut mcp_headers = session.headers();
    mcp_headers.extend(last_event.map(|id| (LAST_EVENT_ID, id.clone())));
    let request =
        headers::request(&shared.target, Method::GET, credentials.headers(), mcp_headers, Bytes::new());
    tokio::time::timeout(shared.limits.connect_timeout, shared.pool.send(request))
        .await
        .map_err(|_| Failure::DidNotRun { why: "the server did not open its stream in time".into() })?
        .map_err(Failure::from)
}
