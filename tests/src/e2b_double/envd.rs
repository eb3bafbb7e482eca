//! The process service of the double's `envd`, behind the platform's proxy.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use base64ct::{Base64, Encoding as _};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::{HeaderMap, Request, Response};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::body::{Cut, HandlerResult, PieceSender, channel, empty, error, json_body};
use super::faults::CutEvery;
use super::files;
use super::frames::{FrameReader, RpcError, end, message};
use super::launch::launch;
use super::process::Process;
use super::sandbox::{Sandbox, SandboxUser};
use super::server::Shared;

/// The interval of keep-alives if the client does not set one.
const KEEP_ALIVE: Duration = Duration::from_secs(90);

pub(super) async fn handle(shared: &Arc<Shared>, request: Request<Incoming>) -> HandlerResult {
    let headers = request.headers().clone();
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let id = header("e2b-sandbox-id").to_owned();
    let reached = shared.sandbox(&id).filter(|sandbox| sandbox.resume_if_needed());
    let Some(sandbox) = reached.filter(|_| header("e2b-sandbox-port") == "49983") else {
        let body = json!({"sandboxId": id, "message": "The sandbox was not found", "code": 502});
        return Ok(json_body(502, &body));
    };
    let path = request.uri().path().to_owned();
    if path == "/health" {
        return Ok(empty(204));
    }
    if header("x-access-token") != sandbox.token() {
        let message =
            "unauthorized access, please provide a valid access token or method signing if supported";
        return Ok(error(401, message));
    }
    if path == "/files" {
        return files::handle(shared, &sandbox, request).await;
    }
    let Some(method) = path.strip_prefix("/process.Process/") else {
        return Ok(error(404, "404 page not found"));
    };
    let Some(user) = user(&sandbox, header("authorization")) else {
        return Ok(json_body(401, &RpcError::new("unauthenticated", "invalid username").json()));
    };
    let kind = header("content-type").to_owned();
    let exchange = Exchange { shared: Arc::clone(shared), sandbox, user, headers };
    match kind.as_str() {
        "application/json" => exchange.unary(method, request.into_body()).await,
        "application/connect+json" => exchange.stream(method, request.into_body()).await,
        // The SDKs send JSON only.
        _ => Ok(empty(415)),
    }
}

/// The user of a request; the password is ignored.
fn user(sandbox: &Sandbox, authorization: &str) -> Option<SandboxUser> {
    let Some(basic) = authorization.strip_prefix("Basic ") else { return Some(sandbox.user) };
    let text = String::from_utf8(Base64::decode_vec(basic).ok()?).ok()?;
    SandboxUser::named(text.split(':').next()?)
}

struct Exchange {
    shared: Arc<Shared>,
    sandbox: Arc<Sandbox>,
    user: SandboxUser,
    headers: HeaderMap,
}

impl Exchange {
    async fn unary(&self, method: &str, body: Incoming) -> HandlerResult {
        let body = body.collect().await.map_err(|_| Cut)?.to_bytes();
        let request: Value = serde_json::from_slice(&body).unwrap_or_default();
        self.shared.write_log(format!("{method} {request}"));
        Ok(match self.call(method, &request).await {
            Ok(response) => json_body(200, &response),
            Err(error) => json_body(error.status(), &error.json()),
        })
    }

    async fn call(&self, method: &str, request: &Value) -> Result<Value, RpcError> {
        if method == "List" {
            let processes = self.sandbox.processes();
            let described = processes.iter().map(|process| {
                let mut description = json!({"config": process.config, "pid": process.pid});
                if let Some(tag) = &process.tag {
                    description["tag"] = tag.as_str().into();
                }
                description
            });
            return Ok(json!({"processes": described.collect::<Vec<_>>()}));
        }
        let process = self.process(&request["process"])?;
        match method {
            "SendInput" => process.write(&decode_stdin(&request["input"])?).await?,
            "CloseStdin" => process.close_stdin().await,
            "SendSignal" => process.signal(match request["signal"].as_str() {
                Some("SIGNAL_SIGKILL") => Signal::SIGKILL,
                Some("SIGNAL_SIGTERM") => Signal::SIGTERM,
                _ => return Err(RpcError::new("unimplemented", "invalid signal")),
            }),
            _ => return Err(RpcError::new("unimplemented", format!("{method} is not doubled"))),
        }
        Ok(json!({}))
    }

    async fn stream(&self, method: &str, body: Incoming) -> HandlerResult {
        let mut frames = FrameReader::new(body);
        if method == "StreamInput" {
            return self.stream_input(frames).await;
        }
        let streams = self.sandbox.streams();
        let deadline = self.limit().map(|limit| Instant::now() + limit);
        let request = frames.next().await.map_err(|_| Cut)?.unwrap_or_default();
        // The body is read to its end, because otherwise the connection could not be reused.
        while frames.next().await.map_err(|_| Cut)?.is_some() {}
        self.shared.write_log(format!("{method} {request}"));
        let opened = match method {
            "Start" => self.start(&request).await,
            "Connect" => self.connect(&request),
            _ => Err(RpcError::new("unimplemented", format!("{method} is not doubled"))),
        };
        let (sender, body) = channel();
        match opened {
            Ok((pid, output)) => {
                let events = Events {
                    output,
                    keep_alive: self.keep_alive(),
                    cuts: self.shared.faults.cuts(),
                    streams,
                    stalled: self.sandbox.stalled(),
                    deadline,
                };
                self.shared.tasks.spawn(events.forward(pid, sender));
            }
            Err(error) => _ = sender.try_send(Ok(end(Some(&error)))),
        }
        let response = Response::builder().header("content-type", "application/connect+json");
        Ok(response.body(body).expect("the parts are valid"))
    }

    async fn start(&self, request: &Value) -> Result<(u32, mpsc::Receiver<Bytes>), RpcError> {
        let (process, output) = launch(&self.shared, &self.sandbox, self.user, request, self.limit()).await?;
        Ok((process.pid, output))
    }

    fn connect(&self, request: &Value) -> Result<(u32, mpsc::Receiver<Bytes>), RpcError> {
        match self.process(&request["process"]) {
            Ok(process) => Ok((process.pid, process.listen())),
            Err(error) => {
                let pid = request["process"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
                let pid = pid.ok_or_else(|| error.clone())?;
                let event = self.sandbox.last_event(pid).ok_or(error)?;
                let (sender, output) = mpsc::channel(1);
                // There is room: it is new.
                let _ = sender.try_send(message(&event));
                Ok((pid, output))
            }
        }
    }

    /// Handles `StreamInput`. The input is not logged, as on the platform.
    async fn stream_input(&self, mut frames: FrameReader) -> HandlerResult {
        let streams = self.sandbox.streams();
        let cuts = self.shared.faults.cuts();
        self.shared.write_log("StreamInput (client stream start)");
        let result = tokio::select! {
            biased;
            () = streams.cancelled() => return Err(Cut),
            () = expired(cuts) => return Err(Cut),
            result = self.write_input(&mut frames, cuts) => result,
        };
        let (sender, body) = channel();
        let pieces = match result? {
            Ok(()) => vec![message(&json!({})), end(None)],
            Err(error) => vec![end(Some(&error))],
        };
        for piece in pieces {
            // There is room: it is new.
            let _ = sender.try_send(Ok(piece));
        }
        let response = Response::builder().header("content-type", "application/connect+json");
        Ok(response.body(body).expect("the parts are valid"))
    }

    async fn write_input(
        &self,
        frames: &mut FrameReader,
        cuts: Option<CutEvery>,
    ) -> Result<Result<(), RpcError>, Cut> {
        let mut process: Option<Arc<Process>> = None;
        while let Some(request) = frames.next().await.map_err(|_| Cut)? {
            if let Some(CutEvery::Bytes(limit)) = cuts
                && frames.bytes > limit
            {
                return Err(Cut);
            }
            let result = if let Some(start) = request.get("start") {
                self.process(&start["process"]).map(|found| process = Some(found))
            } else if let (Some(data), Some(process)) = (request.get("data"), &process) {
                match decode_stdin(&data["input"]) {
                    Ok(bytes) => process.write(&bytes).await,
                    Err(error) => Err(error),
                }
            } else if request.get("keepalive").is_some() {
                Ok(())
            } else {
                Err(RpcError::new("unimplemented", "invalid event type"))
            };
            if result.is_err() {
                return Ok(result);
            }
        }
        Ok(Ok(()))
    }

    fn process(&self, selector: &Value) -> Result<Arc<Process>, RpcError> {
        let processes = self.sandbox.processes();
        let is_selected = |process: &&Arc<Process>| match selector.get("tag") {
            Some(tag) => process.tag.as_deref() == tag.as_str(),
            None => selector["pid"].as_u64() == Some(u64::from(process.pid)),
        };
        let missing = || RpcError::new("not_found", format!("process with {selector} not found"));
        processes.iter().find(is_selected).cloned().ok_or_else(missing)
    }

    /// The time limit of the request: for its stream, and for the process that it starts.
    fn limit(&self) -> Option<Duration> {
        let limit = self.number("connect-timeout-ms").filter(|limit| *limit > 0)?;
        Some(Duration::from_millis(limit) / self.shared.speed)
    }

    fn keep_alive(&self) -> Duration {
        self.number("keepalive-ping-interval").map_or(KEEP_ALIVE, Duration::from_secs) / self.shared.speed
    }

    fn number(&self, header: &str) -> Option<u64> {
        self.headers.get(header)?.to_str().ok()?.parse().ok()
    }
}

/// One stream of a process's events to one client.
struct Events {
    output: mpsc::Receiver<Bytes>,
    keep_alive: Duration,
    cuts: Option<CutEvery>,
    streams: CancellationToken,
    stalled: CancellationToken,
    deadline: Option<Instant>,
}

impl Events {
    async fn forward(mut self, pid: u32, client: PieceSender) {
        let mut next = message(&json!({"event": {"start": {"pid": pid}}}));
        let mut sent = 0;
        let mut expiry = std::pin::pin!(expired(self.cuts));
        loop {
            sent += next.len();
            let is_over = matches!(self.cuts, Some(CutEvery::Bytes(limit)) if sent > limit);
            if is_over || client.send(Ok(next)).await.is_err() {
                break;
            }
            next = tokio::select! {
                biased;
                () = self.streams.cancelled() => break,
                () = expiry.as_mut() => break,
                () = self.stalled.cancelled() => return client.closed().await,
                () = reached(self.deadline) => {
                    let error = RpcError::new("deadline_exceeded", "context deadline exceeded");
                    let _ = client.send(Ok(end(Some(&error)))).await;
                    return;
                }
                // The client has disconnected: further output is lost.
                () = client.closed() => return,
                output = self.output.recv() => match output {
                    Some(frame) => frame,
                    None => {
                        let _ = client.send(Ok(end(None))).await;
                        return;
                    }
                },
                () = sleep(self.keep_alive) => message(&json!({"event": {"keepalive": {}}})),
            };
        }
        let _ = client.send(Err(io::ErrorKind::ConnectionAborted.into())).await;
    }
}

async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

async fn expired(cuts: Option<CutEvery>) {
    match cuts {
        Some(CutEvery::Time(time)) => sleep(time).await,
        _ => std::future::pending().await,
    }
}

fn decode_stdin(input: &Value) -> Result<Vec<u8>, RpcError> {
    let bytes = input["stdin"].as_str().and_then(|text| Base64::decode_vec(text).ok());
    bytes.ok_or_else(|| RpcError::new("unimplemented", "invalid input type"))
}
