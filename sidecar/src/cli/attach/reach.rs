//! One time that `attach` reaches in: a command whose stdin and stdout are the pipe, or a port that it dials.

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
use relay_carriage::{BoxedStream, Stream, dial, entrance, hybrid_vsock, outer, vsock, websocket};
use relay_proto::address::{DialPlace, HostPort, InvalidAddress};
use tokio::io::{copy, split};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::terminal::failure::{Failure, Sysexit};

/// The way into a sandbox.
#[derive(Clone, Debug)]
pub(super) enum Reach {
    Dial(DialPlace),
    Exec(Vec<OsString>),
}

/// Reaching in, right now.
pub(super) struct Reached {
    /// Shut down at the end, also for other holders of the descriptor: `ssh` may leave processes behind.
    pipe: StdUnixStream,
    kind: Kind,
}

enum Kind {
    Command(Box<Child>),
    Dialling(Pin<Box<dyn Future<Output = String>>>),
}

/// A command ends in this time when its pipe is over, or is ended.
pub(super) const ENDS_WITHIN: Duration = Duration::from_secs(3);
/// A port is reached in this time.
const DIAL_TIME: Duration = Duration::from_secs(15);
/// In a command: the sidecar's public key.
const PIN: &str = "{pin}";

impl Reach {
    pub(super) fn dial(place: &str) -> Result<Self, Failure> {
        place.parse().map(Self::Dial).map_err(|error: InvalidAddress| {
            let next = "give HOST:PORT, wss://HOST[:PORT]/PATH, vsock:CID:PORT, or vsock:PATH:PORT";
            Failure::new(Sysexit::Usage, format!("read where to dial: {error}")).hint(next)
        })
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dial(place) => write!(f, "{place}"),
            Self::Exec(command) => {
                let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
                f.write_str(&words.join(" "))
            }
        }
    }
}

impl Reached {
    pub(super) async fn begin(reach: &Reach, pipe: StdUnixStream, pin: &str) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::new(Sysexit::Software, error);
        let theirs = pipe.try_clone().map_err(failed)?;
        let kind = match reach {
            Reach::Exec(command) => Kind::Command(Box::new(started(command, theirs, pin)?)),
            Reach::Dial(place) => {
                theirs.set_nonblocking(true).map_err(failed)?;
                let pipe = UnixStream::from_std(theirs).map_err(failed)?;
                Kind::Dialling(Box::pin(dialled(place.clone(), pipe)))
            }
        };
        Ok(Self { pipe, kind })
    }

    /// Waits for its end, and says how it was. Can be dropped at any time.
    pub(super) async fn ended(&mut self) -> String {
        match &mut self.kind {
            Kind::Command(child) => match child.wait().await {
                Ok(status) => format!("the command ended ({status})"),
                Err(error) => format!("wait for the command: {error}"),
            },
            Kind::Dialling(dialling) => dialling.as_mut().await,
        }
    }

    /// Ends what there is of it.
    pub(super) async fn end(self) {
        // One that is shut already is what was wanted.
        let _ = self.pipe.shutdown(Shutdown::Both);
        let Kind::Command(mut child) = self.kind else { return };
        // Without an id it has been waited for already.
        let Some(id) = child.id().and_then(|id| i32::try_from(id).ok()) else { return };
        let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
        if timeout(ENDS_WITHIN, child.wait()).await.is_err() {
            let _ = child.kill().await;
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the user's own command, at the user's terminal: no server, and no credential near it"
)]
fn started(command: &[OsString], pipe: StdUnixStream, pin: &str) -> Result<Child, Failure> {
    let mut words = command.iter().map(|word| with_pin(word, pin));
    let program = words.next().unwrap_or_default();
    let failed = |error: io::Error| {
        Failure::new(Sysexit::NoInput, format!("start `{}`: {error}", program.to_string_lossy()))
            .hint("is it installed, and in the PATH?")
    };
    let again = pipe.try_clone().map_err(failed)?;
    let mut started = Command::new(&program);
    started.args(words).stdin(Stdio::from(OwnedFd::from(pipe))).stdout(Stdio::from(OwnedFd::from(again)));
    started.kill_on_drop(true).spawn().map_err(failed)
}

fn with_pin(word: &OsStr, pin: &str) -> OsString {
    let mut filled = Vec::new();
    let mut rest = word.as_bytes();
    while let Some(place) = memchr::memmem::find(rest, PIN.as_bytes()) {
        filled.extend_from_slice(&rest[..place]);
        filled.extend_from_slice(pin.as_bytes());
        rest = &rest[place + PIN.len()..];
    }
    filled.extend_from_slice(rest);
    OsString::from_vec(filled)
}

async fn dialled(place: DialPlace, mut pipe: UnixStream) -> String {
    match timeout(DIAL_TIME, connected(&place)).await {
        Err(_) => {
            let seconds = DIAL_TIME.as_secs();
            format!("dial {place}: no answer in {seconds} seconds; is the sandbox running, and not paused?")
        }
        Ok(Err(why)) => why,
        Ok(Ok(stream)) => {
            let (mut from_sandbox, mut to_sandbox) = split(stream);
            let (mut from_sidecar, mut to_sidecar) = pipe.split();
            // One direction without the other carries nothing: with the end of either, all of it is over.
            let over = tokio::select! {
                over = copy(&mut from_sandbox, &mut to_sidecar) => over,
                over = copy(&mut from_sidecar, &mut to_sandbox) => over,
            };
            match over {
                Ok(_) => format!("{place} closed the connection"),
                Err(error) => format!("the connection to {place} failed: {error}"),
            }
        }
    }
}

async fn connected(place: &DialPlace) -> Result<BoxedStream, String> {
    match place {
        DialPlace::HybridVsock { path, port } => {
            knocked(hybrid_vsock::connect(path, *port).await.map_err(text)?).await
        }
        DialPlace::Tcp(place) => knocked(dial::tcp(place, DIAL_TIME).await.map_err(text)?).await,
        DialPlace::Vsock { cid, port } => {
            let advised = |error| format!("dial {place}: {error}; {}", vsock::dial_advice(&error));
            knocked(vsock::connect(*cid, *port).await.map_err(advised)?).await
        }
        DialPlace::WebSocket(place) => {
            let port = HostPort { host: place.host.clone(), port: place.port };
            let stream = dial::tcp(&port, DIAL_TIME).await.map_err(text)?;
            let stream =
                outer::connect(stream, &place.host).await.map_err(|error| without_tls(&port, &error))?;
            Ok(Box::new(websocket::client(stream, place, &[]).await.map_err(text)?))
        }
    }
}

async fn knocked(mut stream: impl Stream + 'static) -> Result<BoxedStream, String> {
    entrance::knock(&mut stream).await.map_err(text)?;
    Ok(Box::new(stream))
}

/// Why there is no TLS around a WebSocket. The port of a hub or a shim has none of its own.
fn without_tls(place: &HostPort, error: &TlsError) -> String {
    match error {
        TlsError::Closed | TlsError::NotTls => format!(
            "dial {place}: no TLS at this address; if it is the port of a hub or a shim itself, dial {place} without \
             wss://, which is for a platform's address in front of it"
        ),
        _ => format!("dial {place}: {error}"),
    }
}

fn text(error: impl fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pin_is_filled_in_wherever_it_stands() {
        for (word, filled) in
            [("{pin}", "KEY"), ("--pin={pin}", "--pin=KEY"), ("{pin}{pin}x", "KEYKEYx"), ("{pi}", "{pi}")]
        {
            assert_eq!(with_pin(OsStr::new(word), "KEY"), filled);
        }
    }

    /// A machine that stands still has a monitor that takes connections and never answers.
    #[tokio::test(start_paused = true)]
    async fn whoever_never_answers_is_given_up() {
        let path = std::env::temp_dir().join(crate::random::id("cofferdam-monitor-"));
        let _silent = tokio::net::UnixListener::bind(&path).unwrap();
        let (pipe, _other) = UnixStream::pair().unwrap();
        let said = dialled(DialPlace::HybridVsock { path: path.clone(), port: 7443 }, pipe).await;
        std::fs::remove_file(path).unwrap();
        assert!(said.contains("no answer in 15 seconds") && said.contains("not paused?"), "{said}");
    }

    #[test]
    fn what_cannot_be_dialled_is_said() {
        for place in ["", "box", "box:0", "wss://", "tls://box:7", "listen:127.0.0.1:7", "vsock:7443"] {
            assert!(Reach::dial(place).is_err(), "{place}");
        }
        for place in ["wss://h/x", "vsock:4:7443", "vsock:/run/vm1/vsock:7443"] {
            assert_eq!(Reach::dial(place).unwrap().to_string(), place);
        }
    }
}
