//! One attempt of `attach`: runs a command whose stdin and stdout are the pipe, or connects to an address and copies bytes
//! between it and the pipe.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::pin::Pin;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use relay_carriage::tls::TlsError;
use relay_carriage::{BoxedStream, Stream, dial, hybrid_vsock, inbound, outer, vsock, websocket};
use relay_proto::address::{DialTarget, HostPort, InvalidAddress};
use tokio::io::{copy, split};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::daemon::admin::PipeVia;
use crate::terminal::failure::{Failure, Sysexit};

/// How to reach a sandbox. Its `Display` is shown and stored, so it omits the query of a URL, which may contain a token.
#[derive(Clone, Debug)]
pub(super) enum Route {
    Dial(DialTarget),
    Exec(Vec<OsString>),
}

/// The address without its query, which may contain a token.
fn without_query(endpoint: &DialTarget) -> String {
    let text = endpoint.to_string();
    match endpoint {
        DialTarget::WebSocket(_) => text.split('?').next().unwrap_or_default().to_owned(),
        DialTarget::HybridVsock { .. } | DialTarget::Tcp(_) | DialTarget::Vsock { .. } => text,
    }
}

/// A running attempt.
pub(super) struct Attempt {
    /// Shut down at the end, which also affects duplicates of the descriptor: `ssh` may leave processes behind that have a
    /// duplicate.
    pipe: StdUnixStream,
    kind: AttemptKind,
}

enum AttemptKind {
    Command(Box<Child>),
    Dial(Pin<Box<dyn Future<Output = String>>>),
}

/// How long a command may take to exit after its pipe is closed, before it gets SIGTERM; and again before it gets SIGKILL.
pub(super) const EXIT_TIMEOUT: Duration = Duration::from_secs(3);
const DIAL_TIMEOUT: Duration = Duration::from_secs(15);
/// The placeholder in a command for the sidecar's public key.
const PIN_PLACEHOLDER: &str = "{pin}";

impl Route {
    pub(super) fn dial(endpoint: &str) -> Result<Self, Failure> {
        endpoint.parse().map(Self::Dial).map_err(|error: InvalidAddress| {
            let next = "give HOST:PORT, wss://HOST[:PORT]/PATH, vsock:CID:PORT, or vsock:PATH:PORT";
            Failure::new(Sysexit::Usage, format!("the address is invalid: {error}")).hint(next)
        })
    }

    pub(super) fn via(&self) -> PipeVia {
        match self {
            Self::Dial(_) => PipeVia::Dial,
            Self::Exec(_) => PipeVia::Command,
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dial(endpoint) => f.write_str(&without_query(endpoint)),
            Self::Exec(command) => {
                let arguments: Vec<_> = command.iter().map(|argument| argument.to_string_lossy()).collect();
                f.write_str(&arguments.join(" "))
            }
        }
    }
}

impl Attempt {
    pub(super) async fn begin(route: &Route, pipe: StdUnixStream, pin: &str) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::new(Sysexit::Software, error);
        let pipe_end = pipe.try_clone().map_err(failed)?;
        let kind = match route {
            Route::Exec(command) => AttemptKind::Command(Box::new(spawn(command, pipe_end, pin)?)),
            Route::Dial(endpoint) => {
                pipe_end.set_nonblocking(true).map_err(failed)?;
                let pipe = UnixStream::from_std(pipe_end).map_err(failed)?;
                AttemptKind::Dial(Box::pin(dial_and_copy(endpoint.clone(), pipe)))
            }
        };
        Ok(Self { pipe, kind })
    }

    /// Waits for the end of the attempt and describes it. Cancel-safe.
    pub(super) async fn wait(&mut self) -> String {
        match &mut self.kind {
            AttemptKind::Command(child) => match child.wait().await {
                Ok(status) => format!("the command ended ({status})"),
                Err(error) => format!("cannot wait for the command: {error}"),
            },
            AttemptKind::Dial(dialling) => dialling.as_mut().await,
        }
    }

    /// Ends the pipe and the command.
    pub(super) async fn end(self) {
        // Fails if the peer has closed the pipe already.
        let _ = self.pipe.shutdown(Shutdown::Both);
        let AttemptKind::Command(mut child) = self.kind else { return };
        // Without an id, the process has exited and was reaped.
        let Some(id) = child.id().and_then(|id| i32::try_from(id).ok()) else { return };
        let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
        if timeout(EXIT_TIMEOUT, child.wait()).await.is_err() {
            let _ = child.kill().await;
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the user's own command, not an MCP server; it gets no credential"
)]
fn spawn(command: &[OsString], pipe: StdUnixStream, pin: &str) -> Result<Child, Failure> {
    let mut arguments = command.iter().map(|argument| fill_in_pin(argument, pin));
    let program = arguments.next().unwrap_or_default();
    let failed = |error: io::Error| {
        Failure::new(Sysexit::NoInput, format!("cannot start `{}`: {error}", program.to_string_lossy()))
            .hint("is it installed, and in the PATH?")
    };
    let stdout = pipe.try_clone().map_err(failed)?;
    let mut process = Command::new(&program);
    process
        .args(arguments)
        .stdin(Stdio::from(OwnedFd::from(pipe)))
        .stdout(Stdio::from(OwnedFd::from(stdout)));
    process.kill_on_drop(true).spawn().map_err(failed)
}

fn fill_in_pin(argument: &OsStr, pin: &str) -> OsString {
    let mut filled = Vec::new();
    let mut rest = argument.as_bytes();
    while let Some(offset) = memchr::memmem::find(rest, PIN_PLACEHOLDER.as_bytes()) {
        filled.extend_from_slice(&rest[..offset]);
        filled.extend_from_slice(pin.as_bytes());
        rest = &rest[offset + PIN_PLACEHOLDER.len()..];
    }
    filled.extend_from_slice(rest);
    OsString::from_vec(filled)
}

async fn dial_and_copy(endpoint: DialTarget, mut pipe: UnixStream) -> String {
    let shown = without_query(&endpoint);
    match timeout(DIAL_TIMEOUT, connect(&endpoint)).await {
        Err(_) => {
            let seconds = DIAL_TIMEOUT.as_secs();
            format!(
                "dial {shown}: no response within {seconds} seconds; is the sandbox running, and not paused?"
            )
        }
        Ok(Err(why)) => why,
        Ok(Ok(stream)) => {
            let (mut from_sandbox, mut to_sandbox) = split(stream);
            let (mut from_sidecar, mut to_sidecar) = pipe.split();
            // The protocol needs both directions: the end of one ends the other.
            let copied = tokio::select! {
                copied = copy(&mut from_sandbox, &mut to_sidecar) => copied,
                copied = copy(&mut from_sidecar, &mut to_sandbox) => copied,
            };
            match copied {
                Ok(_) => format!("{shown} closed the connection"),
                Err(error) => format!("the connection to {shown} failed: {error}"),
            }
        }
    }
}

async fn connect(endpoint: &DialTarget) -> Result<BoxedStream, String> {
    match endpoint {
        DialTarget::HybridVsock { path, port } => {
            send_preamble(hybrid_vsock::connect(path, *port).await.map_err(text)?).await
        }
        DialTarget::Tcp(endpoint) => {
            send_preamble(dial::connect_tcp(endpoint, DIAL_TIMEOUT).await.map_err(text)?).await
        }
        DialTarget::Vsock { cid, port } => {
            let advised = |error| format!("dial {endpoint}: {error}; {}", vsock::dial_advice(&error));
            send_preamble(vsock::connect(*cid, *port).await.map_err(advised)?).await
        }
        DialTarget::WebSocket(endpoint) => {
            let port = HostPort { host: endpoint.host.clone(), port: endpoint.port };
            let stream = dial::connect_tcp(&port, DIAL_TIMEOUT).await.map_err(text)?;
            let stream = outer::connect(stream, &endpoint.host)
                .await
                .map_err(|error| explain_tls_error(&port, &error))?;
            Ok(Box::new(websocket::connect(stream, endpoint, &[]).await.map_err(text)?))
        }
    }
}

async fn send_preamble(mut stream: impl Stream + 'static) -> Result<BoxedStream, String> {
    inbound::send_preamble(&mut stream).await.map_err(text)?;
    Ok(Box::new(stream))
}

/// Explains a failed TLS handshake of a `wss://` address. Hubs and shims themselves serve no TLS around the WebSocket.
fn explain_tls_error(endpoint: &HostPort, error: &TlsError) -> String {
    match error {
        TlsError::Closed | TlsError::NotTls => format!(
            "dial {endpoint}: no TLS at this address; if this is the port of a hub or a shim itself, use {endpoint} without \
             wss://, which is for the address of a platform in front of it"
        ),
        _ => format!("dial {endpoint}: {error}"),
    }
}

fn text(error: impl fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pin_placeholder_is_replaced() {
        for (word, filled) in
            [("{pin}", "KEY"), ("--pin={pin}", "--pin=KEY"), ("{pin}{pin}x", "KEYKEYx"), ("{pi}", "{pi}")]
        {
            assert_eq!(fill_in_pin(OsStr::new(word), "KEY"), filled);
        }
    }

    /// The monitor of a paused machine accepts connections and never responds.
    #[tokio::test(start_paused = true)]
    async fn a_dial_without_response_times_out() {
        let path = std::env::temp_dir().join(cofferdam_base::random::id("cofferdam-monitor-"));
        let _silent = tokio::net::UnixListener::bind(&path).unwrap();
        let (pipe, _other) = UnixStream::pair().unwrap();
        let end = dial_and_copy(DialTarget::HybridVsock { path: path.clone(), port: 7443 }, pipe).await;
        std::fs::remove_file(path).unwrap();
        assert!(end.contains("no response within 15 seconds") && end.contains("not paused?"), "{end}");
    }

    #[test]
    fn invalid_addresses_are_refused() {
        for endpoint in ["", "box", "box:0", "wss://", "tls://box:7", "listen:127.0.0.1:7", "vsock:7443"] {
            assert!(Route::dial(endpoint).is_err(), "{endpoint}");
        }
        for endpoint in ["wss://h/x", "vsock:4:7443", "vsock:/run/vm1/vsock:7443"] {
            assert_eq!(Route::dial(endpoint).unwrap().to_string(), endpoint);
        }
        let secret = "wss://h:7/x?token=secret?&more";
        assert_eq!(
            Route::dial(secret).unwrap().to_string(),
            "wss://h:7/x",
            "the query, which may contain a token, was shown"
        );
    }
}
