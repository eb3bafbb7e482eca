//! A new connection's first frame, and where it leads: to its old link, to a new one, or to a refusal that says why.

use relay_proto::code::Code;
use relay_proto::control::{Hello, Proof, Refusal, Retry};
use relay_proto::frame::{DecodeError, Frame};
use relay_proto::limits::VERSION;
use relay_proto::name::Name;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::App;
use super::places::{Dropped, Place};
use crate::config::{Config, UnixRelay};
use crate::session::connection::{Connection, Lost};
use crate::session::registry::{NotOpened, NotResumed};

/// A refusal takes no longer to leave than this.
const REFUSAL_TIME: std::time::Duration = std::time::Duration::from_millis(500);

/// Why there is nobody to lead anywhere.
enum Unheard {
    /// A probe, or somebody who changed his mind.
    Gone,
    Refused(Refusal),
}

pub(super) async fn greet(app: &App, stream: UnixStream, place: Place) {
    let config = app.context.config.load_full();
    let uid = stream.peer_cred().ok().map(|peer| peer.uid());
    let mut connection = Connection::new(Box::new(stream));
    let hello = match place.hear(hello(&config, &mut connection)).await {
        Ok(Ok(hello)) => hello,
        Ok(Err(Unheard::Refused(refusal))) => return turn_away(app, connection, refusal).await,
        // Somebody who had longer than others to speak is told nothing.
        Ok(Err(Unheard::Gone)) | Err(Dropped) => return,
    };
    let Some(relay) = &config.relay.unix else {
        let refusal = refuse(Code::SessionEnded, "the relay socket is not configured any more", Retry::Never);
        return turn_away(app, connection, refusal).await;
    };
    match admit(&config, relay, &hello, uid) {
        Err(refusal) => turn_away(app, connection, refusal).await,
        Ok(server) => {
            if let Err((refusal, connection)) = lead(app, relay, hello, server, connection).await {
                turn_away(app, connection, refusal).await;
            }
        }
    }
}

async fn turn_away(app: &App, mut connection: Connection, refusal: Refusal) {
    app.refusals.log(&refusal, &app.context.tasks, &app.stop);
    connection.push(&Frame::Refusal(refusal));
    // Whoever does not read its refusal does not get it.
    let _ = timeout(REFUSAL_TIME, connection.flush()).await;
}

/// The first frame, which must be a `Hello` in a version we speak, and must come soon.
async fn hello(config: &Config, connection: &mut Connection) -> Result<Hello, Unheard> {
    let malformed = |why: &str| Unheard::Refused(refuse(Code::MessageMalformed, why, Retry::AfterMs(1000)));
    match timeout(config.limits.greeting_timeout, connection.next()).await {
        Err(_) => Err(malformed("no Hello came in time")),
        Ok(Err(Lost::Closed | Lost::Io(_) | Lost::Silent)) => Err(Unheard::Gone),
        Ok(Err(Lost::Protocol(DecodeError::OtherVersion { ours, theirs }))) => {
            Err(Unheard::Refused(version(ours, &[theirs])))
        }
        Ok(Err(lost @ Lost::Protocol(_))) => Err(malformed(&lost.to_string())),
        Ok(Ok(Frame::Hello(hello))) if hello.versions.contains(&VERSION) => Ok(hello),
        Ok(Ok(Frame::Hello(hello))) => Err(Unheard::Refused(version(VERSION, &hello.versions))),
        Ok(Ok(_)) => Err(malformed("the first frame must be Hello")),
    }
}

/// Whether this peer may come, and which server it gets.
fn admit(config: &Config, relay: &UnixRelay, hello: &Hello, uid: Option<u32>) -> Result<Name, Refusal> {
    // Without a list it is the sidecar's own user and root, as the socket's mode says: the mode may be another still,
    // where the list was taken out of the configuration of a running sidecar.
    let own = [nix::unistd::geteuid().as_raw(), 0];
    let allowed = relay.uids.as_deref().unwrap_or(&own);
    if !uid.is_some_and(|uid| allowed.contains(&uid)) {
        let who = uid.map_or("an unknown user".into(), |uid| format!("user {uid}"));
        let message = format!("{who} may not use this socket: `relay.unix-uids` does not name it");
        return Err(refuse(Code::ServerNotGranted, &message, Retry::Never));
    }
    if hello.proof != Proof::Socket {
        let message = "this socket takes no ticket or key: connect without one";
        return Err(refuse(Code::TicketRefused, message, Retry::Never));
    }
    let granted = config.grants.get(&relay.grant).map(|grant| grant.servers.as_slice()).unwrap_or_default();
    let names = || granted.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    match (&hello.server, granted) {
        (Some(server), _) if granted.contains(server) => Ok(server.clone()),
        (Some(server), _) => {
            let message = format!("server `{server}` is not granted to this sandbox; granted: {}", names());
            Err(refuse(Code::ServerNotGranted, &message, Retry::Never))
        }
        (None, [only]) => Ok(only.clone()),
        (None, _) => {
            let message = format!("the grant has several servers; say which with --server: {}", names());
            Err(refuse(Code::ServerNotGranted, &message, Retry::Never))
        }
    }
}

async fn lead(
    app: &App,
    relay: &UnixRelay,
    hello: Hello,
    server: Name,
    connection: Connection,
) -> Result<(), (Refusal, Connection)> {
    let connection = match hello.resume {
        Some(resume) => match app.registry.resume(connection, resume).await {
            Ok(()) => return Ok(()),
            // That link is over: the shim gets a new one and sees that it was not resumed.
            Err(NotResumed::Over(connection)) => connection,
            Err(NotResumed::Busy(connection)) => {
                let message = "the link is there, but too busy to be resumed now";
                return Err((refuse(Code::RelayUnavailable, message, Retry::AfterMs(1000)), connection));
            }
        },
        None => connection,
    };
    app.registry.open(&app.context, &relay.grant, server, connection).map_err(|(not_opened, connection)| {
        let (code, retry) = match not_opened {
            NotOpened::Grant(_) | NotOpened::Socket(_) => (Code::RelayUnavailable, Retry::AfterMs(2000)),
            // The next sidecar is most likely on its way.
            NotOpened::Stopping => (Code::SessionEnded, Retry::AfterMs(500)),
        };
        (refuse(code, &not_opened.to_string(), retry), *connection)
    })
}

fn version(ours: u16, theirs: &[u16]) -> Refusal {
    let who = match theirs.iter().max().is_some_and(|newest| *newest > ours) {
        true => "the sidecar on the host is older: upgrade it",
        false => "the shim in the sandbox is older: upgrade it",
    };
    let message =
        format!("the sidecar speaks version {ours} of the relay protocol, the shim {theirs:?}; {who}");
    refuse(Code::VersionRefused, &message, Retry::Never)
}

fn refuse(code: Code, message: &str, retry: Retry) -> Refusal {
    Refusal { code: code.as_str().into(), message: message.into(), retry }
}
