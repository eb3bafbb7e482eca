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
use relay_carriage::{BoxedStream, dial, entrance, outer, websocket};
use relay_proto::address::{Address, HostPort, WebSocket};
use tokio::io::{copy, split};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::super::failure::{Failure, Sysexit};

/// The way into a sandbox.
#[derive(Clone, Debug)]
pub(super) enum Reach {
    Dial(HostPort),
    DialWebSocket(WebSocket),
    Exec(Vec<OsString>),
}

/// Reaching in, right now.
pub(super) struct Reached {
    /// Shut when it is over, whoever else has it: an `ssh` may leave processes behind.
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
        let usage = |error: &dyn fmt::Display| {
            let next = "give HOST:PORT, or wss://HOST[:PORT]/PATH";
            Failure::new(Sysexit::Usage, format!("read where to dial: {error}")).hint(next)
        };
        if place.starts_with("wss://") {
            return match place.parse() {
                Ok(Address::WebSocket(place)) => Ok(Self::DialWebSocket(place)),
                Ok(other) => Err(usage(&other)),
                Err(error) => Err(usage(&error)),
            };
        }
        place.parse().map(Self::Dial).map_err(|error: relay_proto::address::InvalidAddress| usage(&error))
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dial(place) => write!(f, "{place}"),
            Self::DialWebSocket(place) => write!(f, "{}", Address::WebSocket(place.clone())),
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
            Reach::Dial(_) | Reach::DialWebSocket(_) => {
                theirs.set_nonblocking(true).map_err(failed)?;
                Kind::Dialling(Box::pin(dialled(
                    reach.clone(),
                    UnixStream::from_std(theirs).map_err(failed)?,
                )))
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

async fn dialled(reach: Reach, mut pipe: UnixStream) -> String {
    match timeout(DIAL_TIME, connected(&reach)).await {
        Err(_) => format!("dial {reach}: no answer in {} seconds", DIAL_TIME.as_secs()),
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
                Ok(_) => format!("{reach} closed the connection"),
                Err(error) => format!("the connection to {reach} failed: {error}"),
            }
        }
    }
}

async fn connected(reach: &Reach) -> Result<BoxedStream, String> {
    let place = match reach {
        Reach::Dial(place) => place.clone(),
        Reach::DialWebSocket(WebSocket { host, port, .. }) => HostPort { host: host.clone(), port: *port },
        Reach::Exec(_) => unreachable!("a command is not dialled"),
    };
    let mut stream = dial::tcp(&place, DIAL_TIME).await.map_err(|error| error.to_string())?;
    match reach {
        Reach::DialWebSocket(place) => {
            let stream =
                outer::connect(stream, &place.host).await.map_err(|error| without_tls(reach, &error))?;
            let stream = websocket::client(stream, place, &[]).await.map_err(|error| error.to_string())?;
            Ok(Box::new(stream))
        }
        _ => {
            entrance::knock(&mut stream).await.map_err(|error| error.to_string())?;
            Ok(Box::new(stream))
        }
    }
}

/// Why there is no TLS around a WebSocket. The port of a hub or a shim has none of its own.
fn without_tls(reach: &Reach, error: &TlsError) -> String {
    match (reach, error) {
        (Reach::DialWebSocket(WebSocket { host, port, .. }), TlsError::Closed | TlsError::NotTls) => {
            let place = HostPort { host: host.clone(), port: *port };
            format!(
                "dial {reach}: nobody speaks TLS there; if it is the port of a hub or a shim itself, dial {place} without \
                 wss://, which is for a platform's address in front of it"
            )
        }
        _ => format!("dial {reach}: {error}"),
    }
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

    #[test]
    fn what_cannot_be_dialled_is_said() {
        for place in ["", "box", "box:0", "wss://", "tls://box:7", "listen:127.0.0.1:7"] {
            assert!(Reach::dial(place).is_err(), "{place}");
        }
        assert_eq!(Reach::dial("wss://h/x").unwrap().to_string(), "wss://h/x");
    }
}
