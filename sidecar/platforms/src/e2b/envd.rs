//! The client of `envd`, the service in each E2B sandbox: processes over the Connect protocol, files over HTTP.
//!
//! What must stay true: the access token is sent in a header, and the API key is never sent here; the platform logs arguments,
//! paths and `SendInput`, so they contain no secret, and input is sent with `StreamInput` only.

use std::time::Duration;

use base64ct::{Base64, Encoding as _};
use bytes::Bytes;
use cofferdam_net::{BodySender, StreamedResponse};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, request};
use serde::Serialize;
use tokio::time::timeout;

use super::connect::{Frame, FrameDecoder, encode_frame};
use super::control::{Access, Control, ENVD_PORT};
use super::messages::{
    CloseStdinRequest, EndOfStream, ProcessConfig, ProcessEnd, ProcessEvent, RpcError, Selector, Signal,
    SignalRequest, StartRequest,
};
use crate::guest::{Guest, ScriptOutput, TemporaryFiles};
use crate::multipart::FileForm;
use crate::redactor::Redactor;
use crate::rest::{Call, Reply, Service, encode_query_value, request_failed, secret_header};
use crate::{PlatformError, SandboxId};

/// For a request about a running process, such as a signal; its response is short.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// For a short script in the sandbox, and for the response to the start of any process: its head, or the whole refusal.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_SCRIPT_OUTPUT: usize = 64 * 1024;
/// Enough for some megabytes over a slow connection.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(180);
const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) struct Envd {
    service: Service,
    user: Option<&'static str>,
    temporary_files: TemporaryFiles,
}

/// The events of one process. If this is dropped, the process still runs.
pub(super) struct EventStream {
    action: &'static str,
    response: StreamedResponse,
    decoder: FrameDecoder,
    redactor: Redactor,
}

impl Envd {
    pub(super) fn new(control: &Control, id: &SandboxId, access: Access) -> Result<Self, PlatformError> {
        let mut headers = HeaderMap::new();
        let id = HeaderValue::from_str(id.as_str()).expect("an id has only letters, digits, `-` and `_`");
        headers.insert(HeaderName::from_static("e2b-sandbox-id"), id);
        headers.insert(HeaderName::from_static("e2b-sandbox-port"), HeaderValue::from(ENVD_PORT));
        if let Some(token) = access.token {
            headers.extend([secret_header(HeaderName::from_static("x-access-token"), token)]);
        }
        if let Some(user) = access.user {
            let value = format!("Basic {}", Base64::encode_string(format!("{user}:").as_bytes()));
            headers.extend(HeaderValue::try_from(value).ok().map(|value| (AUTHORIZATION, value)));
        }
        let (dialer, redactor) = (control.dialer(), control.redactor());
        let service = Service::new(dialer, &access.address, access.policy, headers, redactor)?;
        Ok(Self { service, user: access.user, temporary_files: TemporaryFiles::default() })
    }

    /// Starts a process and waits for the head of the response, whose body is the events of the process.
    pub(super) async fn start(
        &self,
        action: &'static str,
        start: &StartRequest<'_>,
        keep_alive: Duration,
    ) -> Result<EventStream, PlatformError> {
        let seconds = HeaderValue::from(keep_alive.as_secs().max(1));
        let builder = self.streaming("Start").header("keepalive-ping-interval", seconds);
        self.events(action, builder, start).await
    }

    /// The request with a process's input: its body is the frames that are given to the sender, until the sender is dropped.
    pub(super) fn stream_input(
        &self,
        action: &'static str,
    ) -> (BodySender, impl Future<Output = Result<StreamedResponse, PlatformError>> + Send + use<>) {
        self.service.stream(action, self.streaming("StreamInput"))
    }

    /// Why an input stream ended, from its response.
    pub(super) async fn input_end(&self, action: &'static str, response: StreamedResponse) -> PlatformError {
        if !response.head.status.is_success() {
            return match self.service.read_reply(action, response).await {
                Ok(reply) => self.refusal(action, &reply),
                Err(error) => error,
            };
        }
        let mut events = self.event_stream(action, response);
        loop {
            match events.next().await {
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    }

    /// Sends a signal. Succeeds if the process has exited already.
    pub(super) async fn signal(
        &self,
        action: &'static str,
        process: Selector<'_>,
        signal: Signal,
    ) -> Result<(), PlatformError> {
        self.send_process_request(action, "/process.Process/SendSignal", &SignalRequest { process, signal })
            .await
    }

    /// Closes a process's stdin. Succeeds if the process has exited already.
    pub(super) async fn close_stdin(
        &self,
        action: &'static str,
        process: Selector<'_>,
    ) -> Result<(), PlatformError> {
        self.send_process_request(action, "/process.Process/CloseStdin", &CloseStdinRequest { process }).await
    }

    /// Sends a unary request about a process, whose response is empty.
    async fn send_process_request(
        &self,
        action: &'static str,
        path: &str,
        request: &impl Serialize,
    ) -> Result<(), PlatformError> {
        let body = serde_json::to_vec(request).map_err(|_| not_serializable(action))?;
        let call =
            Call { action, method: Method::POST, path, body: Some(body.into()), timeout: REQUEST_TIMEOUT };
        let reply = self.service.send(call).await?;
        match reply.status.as_u16() {
            200..=299 => Ok(()),
            404 if rpc_error(&reply).is_some_and(|error| error.code == "not_found") => Ok(()),
            _ => Err(self.refusal(action, &reply)),
        }
    }

    fn event_stream(&self, action: &'static str, response: StreamedResponse) -> EventStream {
        let redactor = self.service.redactor().clone();
        EventStream { action, response, decoder: FrameDecoder::default(), redactor }
    }

    async fn events(
        &self,
        action: &'static str,
        builder: request::Builder,
        start: &impl Serialize,
    ) -> Result<EventStream, PlatformError> {
        let message = serde_json::to_vec(start).map_err(|_| not_serializable(action))?;
        let opened =
            timeout(SCRIPT_TIMEOUT, self.service.open(action, builder, encode_frame(&message))).await;
        let response = opened.unwrap_or_else(|_| Err(timed_out(action, SCRIPT_TIMEOUT)))?;
        if response.head.status.is_success() {
            return Ok(self.event_stream(action, response));
        }
        let reply = timeout(SCRIPT_TIMEOUT, self.service.read_reply(action, response)).await;
        let reply = reply.unwrap_or_else(|_| Err(timed_out(action, SCRIPT_TIMEOUT)))?;
        Err(self.refusal(action, &reply))
    }

    /// The path and the query of a request about a file of the sandbox.
    fn file_path(&self, path: &str) -> String {
        let user = self.user.map_or_else(String::new, |user| format!("&username={user}"));
        format!("/files?path={}{user}", encode_query_value(path))
    }

    /// A request whose body is frames.
    fn streaming(&self, method: &str) -> request::Builder {
        self.service
            .request(Method::POST, &format!("/process.Process/{method}"))
            .header(CONTENT_TYPE, HeaderValue::from_static("application/connect+json"))
            .header("connect-protocol-version", HeaderValue::from_static("1"))
    }

    /// The error for a response of `envd`, or of the platform's proxy in front of it, that is no success.
    fn refusal(&self, action: &'static str, reply: &Reply) -> PlatformError {
        let status = reply.status.as_u16();
        let unavailable = |why| PlatformError::Unavailable { action, why, retry_after: reply.retry_after() };
        match status {
            300..=399 => self.service.redirected(action, reply),
            // Temporary: the next attempt gets the new token from the control API.
            401 | 403 => unavailable(format!(
                "the sandbox refused its access token, which changes when a sandbox resumes ({})",
                self.service.message(reply)
            )),
            429 | 502..=504 => unavailable(self.service.message(reply)),
            _ => match rpc_error(reply) {
                Some(error) => rpc_failure(action, &error, self.service.redactor()),
                None if status >= 500 => unavailable(self.service.message(reply)),
                None => PlatformError::Protocol { action, why: self.service.message(reply) },
            },
        }
    }
}

impl Guest for Envd {
    async fn run(
        &self,
        action: &'static str,
        script: &str,
        parameters: &[&str],
    ) -> Result<ScriptOutput, PlatformError> {
        let mut args = vec!["-c", script, "cofferdam"];
        args.extend_from_slice(parameters);
        let start = StartRequest { process: ProcessConfig { cmd: "/bin/sh", args }, tag: None, stdin: false };
        // `envd` kills the process after this time, even if this client has disconnected.
        let limit = HeaderValue::from(u64::try_from(SCRIPT_TIMEOUT.as_millis()).unwrap_or(u64::MAX));
        let builder = self.streaming("Start").header("connect-timeout-ms", limit);
        let output = async { self.events(action, builder, &start).await?.output().await };
        timeout(SCRIPT_TIMEOUT, output).await.unwrap_or_else(|_| Err(timed_out(action, SCRIPT_TIMEOUT)))
    }

    async fn upload(
        &self,
        action: &'static str,
        path: &str,
        content: Bytes,
        sent: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(), PlatformError> {
        let form = FileForm { fields: &[], file_field: "file" };
        let path_of_file = self.file_path(path);
        let exchange = self.service.upload(action, &path_of_file, form, content, sent);
        let reply = timeout(UPLOAD_TIMEOUT, exchange)
            .await
            .unwrap_or_else(|_| Err(timed_out(action, UPLOAD_TIMEOUT)))?;
        match reply.status.as_u16() {
            200..=299 => Ok(()),
            // `envd` responds with 500 if the file cannot be written, and with 507 if the disk is full.
            400 | 500 | 507 => {
                let message = self.service.message(&reply);
                let why = format!("the sandbox cannot store `{}`: {message}", self.service.printable(path));
                Err(PlatformError::Sandbox { action, why })
            }
            _ => Err(self.refusal(action, &reply)),
        }
    }

    async fn download(&self, action: &'static str, path: &str) -> Result<Bytes, PlatformError> {
        let path = self.file_path(path);
        let call = Call { action, method: Method::GET, path: &path, body: None, timeout: DOWNLOAD_TIMEOUT };
        let reply = self.service.send(call).await?;
        match reply.status.as_u16() {
            200..=299 => Ok(Bytes::from_owner(reply.body)),
            _ => Err(self.refusal(action, &reply)),
        }
    }

    fn redactor(&self) -> &Redactor {
        self.service.redactor()
    }

    fn temporary_files(&self) -> &TemporaryFiles {
        &self.temporary_files
    }
}

impl EventStream {
    /// The next event. The end of the stream is an error, because the last event of a process is its exit. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<ProcessEvent, PlatformError> {
        let action = self.action;
        let protocol = |why: String| PlatformError::Protocol { action, why };
        loop {
            match self.decoder.next_frame().map_err(|error| protocol(error.to_string()))? {
                Some(Frame::Message(json)) => {
                    return ProcessEvent::read(&json).map_err(|error| protocol(error.to_string()));
                }
                Some(Frame::End(json)) => {
                    let end: EndOfStream = serde_json::from_slice(&json).unwrap_or_default();
                    return Err(match end.error {
                        Some(error) => rpc_failure(action, &error, &self.redactor),
                        None => stream_closed(action),
                    });
                }
                None => {}
            }
            match self
                .response
                .next_piece()
                .await
                .map_err(|error| request_failed(action, &error, &self.redactor))?
            {
                Some(piece) => self.decoder.push(&piece),
                None => return Err(stream_closed(action)),
            }
        }
    }

    /// Waits for the exit of the process and returns its output.
    async fn output(mut self) -> Result<ScriptOutput, PlatformError> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            match self.next().await? {
                ProcessEvent::Ended(end) => {
                    let result = match end.exited && end.exit_code == 0 {
                        true => Ok(()),
                        false => Err(describe_end(&end, &stderr, &self.redactor)),
                    };
                    return Ok(ScriptOutput { text: String::from_utf8_lossy(&stdout).into_owned(), result });
                }
                ProcessEvent::KeepAlive | ProcessEvent::Started(_) => {}
                ProcessEvent::Stderr(bytes) => stderr.extend_from_slice(&bytes),
                ProcessEvent::Stdout(bytes) => stdout.extend_from_slice(&bytes),
            }
            if stdout.len() + stderr.len() > MAX_SCRIPT_OUTPUT {
                let why = format!("a script of a few lines wrote more than {MAX_SCRIPT_OUTPUT} bytes");
                return Err(PlatformError::Sandbox { action: self.action, why });
            }
        }
    }
}

/// Describes how a process has exited, with the last line that it wrote to stderr.
pub(super) fn describe_end(end: &ProcessEnd, stderr: &[u8], redactor: &Redactor) -> String {
    let stderr = String::from_utf8_lossy(stderr);
    let last = stderr.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("no error message");
    let (status, last) = (redactor.printable(&end.status), redactor.printable(last));
    format!("the process in the sandbox ended ({status}): {last}")
}

pub(super) fn timed_out(action: &'static str, limit: Duration) -> PlatformError {
    let why = format!("no response within {} s", limit.as_secs());
    PlatformError::Unavailable { action, why, retry_after: None }
}

fn stream_closed(action: &'static str) -> PlatformError {
    let why = "the platform closed the stream before the process exited".to_owned();
    PlatformError::Unavailable { action, why, retry_after: None }
}

fn not_serializable(action: &'static str) -> PlatformError {
    PlatformError::Protocol { action, why: "the request cannot be written as JSON".to_owned() }
}

fn rpc_error(reply: &Reply) -> Option<RpcError> {
    serde_json::from_slice(&reply.body).ok().filter(|error: &RpcError| !error.code.is_empty())
}

/// The error for an error code of the Connect protocol.
fn rpc_failure(action: &'static str, error: &RpcError, redactor: &Redactor) -> PlatformError {
    let why = format!("{}: {}", redactor.printable(&error.code), redactor.printable(&error.message));
    match error.code.as_str() {
        "failed_precondition" | "invalid_argument" | "not_found" | "out_of_range" | "permission_denied" => {
            PlatformError::Sandbox { action, why }
        }
        "unimplemented" => PlatformError::Protocol { action, why },
        _ => PlatformError::Unavailable { action, why, retry_after: None },
    }
}
