//! Who may come in by which door, and which server they get.

use relay_proto::code::Code;
use relay_proto::control::{Hello, Proof, Refusal, Retry};
use relay_proto::name::Name;

use crate::config::{Config, UnixRelay};
use crate::session::visitor::Visitor;

/// The way by which a connection came.
#[derive(Clone, Debug)]
pub(crate) enum Door {
    /// The shared Unix socket.
    Shared {
        /// Who is at the other end, as the kernel says.
        uid: Option<u32>,
    },
}

/// Whether this peer may come.
pub(super) fn admit(config: &Config, door: &Door, hello: &Hello) -> Result<Visitor, Refusal> {
    match door {
        Door::Shared { uid } => shared(config, *uid, hello),
    }
}

/// The server that it asks for, or the only one it is granted.
pub(super) fn server(config: &Config, visitor: &Visitor, hello: &Hello) -> Result<Name, Refusal> {
    let granted = config.grants.get(&visitor.grant).map(|grant| grant.servers.as_slice()).unwrap_or_default();
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

pub(super) fn refuse(code: Code, message: &str, retry: Retry) -> Refusal {
    Refusal { code: code.as_str().into(), message: message.into(), retry }
}

fn shared(config: &Config, uid: Option<u32>, hello: &Hello) -> Result<Visitor, Refusal> {
    let Some(relay) = &config.relay.unix else {
        let message = "the relay socket is not configured any more";
        return Err(refuse(Code::SessionEnded, message, Retry::Never));
    };
    peer(relay, uid)?;
    if hello.proof != Proof::Socket {
        let message = "this socket takes no ticket or key: connect without one";
        return Err(refuse(Code::TicketRefused, message, Retry::Never));
    }
    Ok(Visitor::anonymous(relay.grant.clone()))
}

fn peer(relay: &UnixRelay, uid: Option<u32>) -> Result<(), Refusal> {
    // Without a list it is the sidecar's own user and root, as the socket's mode says: the mode may be another still,
    // where the list was taken out of the configuration of a running sidecar.
    let own = [nix::unistd::geteuid().as_raw(), 0];
    let allowed = relay.uids.as_deref().unwrap_or(&own);
    if uid.is_some_and(|uid| allowed.contains(&uid)) {
        return Ok(());
    }
    let who = uid.map_or("an unknown user".into(), |uid| format!("user {uid}"));
    let message = format!("{who} may not use this socket: `relay.unix-uids` does not name it");
    Err(refuse(Code::ServerNotGranted, &message, Retry::Never))
}
