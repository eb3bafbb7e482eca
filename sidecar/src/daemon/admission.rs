//! Who may come in by which door, and which server they get.
//!
//! Must stay true: to be recognised changes nothing, so that whoever asks for what it may not have keeps its ticket; what
//! was shown takes effect when a link is opened for it; and where two used what one was given, somebody is told.

use std::sync::{Arc, PoisonError};
use std::time::SystemTime;

use relay_proto::code::Code;
use relay_proto::control::{Hello, Proof, Purpose, Refusal, Retry};
use relay_proto::key::PublicKey;
use relay_proto::name::Name;
use tokio::time::Instant;

use super::state::App;
use crate::audit::Event;
use crate::clock;
use crate::config::Config;
use crate::enrolment::{Confirmed, Denied, Enrolment, Fingerprint, KeyProof, NEXT_STEP};
use crate::session::visitor::{Enrolled, EnrolledBy, Offer, Offered, Visitor};

/// The way by which a connection came.
#[derive(Clone, Debug)]
pub(crate) enum Door {
    /// A pipe that the host holds into a sandbox: whatever comes out of it is that sandbox.
    Attached { enrolment: Arc<str> },
    /// TLS: the peer has proved this key.
    Key { key: PublicKey },
    /// A socket that was made for one sandbox.
    Own { enrolment: Arc<str>, uid: Option<u32> },
    /// The shared Unix socket.
    Shared {
        /// Who is at the other end, as the kernel says.
        uid: Option<u32>,
    },
}

/// Why somebody does not come in.
pub(super) struct Refused {
    pub(super) refusal: Refusal,
    /// The key that was shown, and what was wrong with it.
    pub(super) denied: Option<Box<(PublicKey, Denied)>>,
}

impl Refused {
    fn denied(key: &PublicKey, denied: Denied) -> Self {
        Self { refusal: denied.refusal(), denied: Some(Box::new((*key, denied))) }
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, denied: None }
    }
}

/// Who this is, if it may come at all. Changes nothing.
pub(super) fn recognise(app: &App, config: &Config, door: &Door, hello: &Hello) -> Result<Visitor, Refused> {
    let now = clock::now();
    match door {
        Door::Attached { enrolment } => {
            without_a_ticket(hello)?;
            let enrolment = app.enrolments.find(enrolment, now).map_err(|_| over(ATTACH_AGAIN))?;
            Ok(visitor(enrolment, EnrolledBy::Place, ATTACH_AGAIN, now))
        }
        Door::Key { key } => {
            let proof = KeyProof::of(&hello.proof).ok_or_else(|| {
                let message = "over TLS a sandbox comes with a ticket or a key's epoch: upgrade the shim";
                refuse(Code::TicketRefused, message, Retry::Never)
            })?;
            let known = match (&proof, hello.purpose) {
                // Its epoch is looked at when it needs a new link; one that it resumes has a token.
                (KeyProof::Epoch(_), Purpose::Link) => app.enrolments.recognise(key, now),
                (KeyProof::Epoch(_) | KeyProof::Ticket(_), _) => app.enrolments.look(key, &proof, now),
            };
            let enrolment = known.map_err(|denied| Refused::denied(key, denied))?;
            Ok(visitor(enrolment, EnrolledBy::Key, NEXT_STEP, now))
        }
        Door::Own { enrolment, uid } => {
            peer(config, *uid)?;
            without_a_ticket(hello)?;
            let enrolment = app.enrolments.find(enrolment, now).map_err(|_| over(SOCKET_AGAIN))?;
            Ok(visitor(enrolment, EnrolledBy::Place, SOCKET_AGAIN, now))
        }
        Door::Shared { uid } => {
            let Some(relay) = &config.relay.unix else {
                let message = "the relay socket is not configured any more";
                return Err(refuse(Code::SessionEnded, message, Retry::Never).into());
            };
            peer(config, *uid)?;
            without_a_ticket(hello)?;
            Ok(Visitor::anonymous(relay.grant.clone()))
        }
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

/// For a new link: whether whoever comes with a key would get one. Changes nothing.
pub(super) fn look(app: &App, door: &Door, hello: &Hello) -> Result<(), Refused> {
    let Door::Key { key } = door else { return Ok(()) };
    let known = match KeyProof::of(&hello.proof) {
        Some(proof) => app.enrolments.look(key, &proof, clock::now()),
        None => Err(Denied::UnknownKey),
    };
    known.map(drop).map_err(|denied| Refused::denied(key, denied))
}

/// For a new link: burns the ticket, or turns the epoch, of whoever comes with a key.
pub(super) async fn offer(app: &App, door: &Door, hello: &Hello) -> Result<Option<Offer>, Refused> {
    let Door::Key { key } = door else { return Ok(None) };
    let (store, proof, shown) = (Arc::clone(&app.enrolments), hello.proof.clone(), *key);
    let admitted = app.context.tasks.spawn_blocking(move || match KeyProof::of(&proof) {
        Some(proof) => store.admit(&shown, &proof, clock::now()),
        None => Err(Denied::UnknownKey),
    });
    let (enrolment, epoch) = admitted
        .await
        .map_err(|_| {
            refuse(Code::RelayUnavailable, "the sidecar failed; look at its log", Retry::AfterMs(2000))
        })?
        .map_err(|denied| Refused::denied(key, denied))?;
    let (store, tasks, id) = (Arc::clone(&app.enrolments), app.context.tasks.clone(), enrolment.id);
    let fingerprint = Fingerprint::of_epoch(&epoch);
    let confirm = move || match store.confirm(&id, &fingerprint) {
        Confirmed::Known => Offered::Good,
        Confirmed::LeftBehind => Offered::LeftBehind,
        Confirmed::Turned => {
            // Until it is on disk both epochs are good after a restart, which strands nobody.
            tasks.spawn_blocking(move || {
                if let Err(error) = store.save(&id) {
                    tracing::error!(%error, enrolment = %id, "an epoch was not written down");
                }
            });
            Offered::Good
        }
    };
    Ok(Some(Offer { epoch, confirm: Box::new(confirm) }))
}

pub(super) fn refuse(code: Code, message: &str, retry: Retry) -> Refusal {
    Refusal { code: code.as_str().into(), message: message.into(), retry }
}

const ATTACH_AGAIN: &str = "run `cofferdam attach` on the host again";
const SOCKET_AGAIN: &str = "run `cofferdam enroll --socket` on the host again, then start the harness anew";

fn visitor(enrolment: Enrolment, kind: EnrolledBy, next_step: &'static str, now: SystemTime) -> Visitor {
    let left = enrolment.expires.duration_since(now).unwrap_or_default();
    let name = enrolment.name.map_or_else(|| Arc::clone(&enrolment.id), Arc::from);
    let enrolled = Enrolled { id: enrolment.id, name, expires: Instant::now() + left, kind, next_step };
    Visitor { grant: enrolment.grant, enrolment: Some(enrolled) }
}

/// What is told to whoever looks after the host: where two used what one was given, or a disk is full.
pub(super) fn sound(app: &App, key: &PublicKey, denied: &Denied) {
    if let Some(enrolment) = denied.alarming()
        && app.enrolments.may_alert(&enrolment.id)
    {
        let name = enrolment.name.as_deref().map(|name| format!(" ({name})")).unwrap_or_default();
        let why = denied.alarm();
        tracing::warn!(enrolment = %enrolment.id, %key, why, "ticket or key used twice");
        app.record(Event::Alert, Some(&format!("enrolment {}{name}: {why}; key {key}", enrolment.id)));
    }
    // A full disk stays full for long, and whoever has a key can come again and again.
    if let Denied::NotWritten(error) = denied
        && app.unwritten.lock().unwrap_or_else(PoisonError::into_inner).allows(Instant::now())
    {
        tracing::error!(error = error as &dyn std::error::Error, "an enrolment was not written down");
    }
}

fn over(next_step: &str) -> Refusal {
    refuse(Code::SessionEnded, &format!("the enrolment of this sandbox is over; {next_step}"), Retry::Never)
}

fn without_a_ticket(hello: &Hello) -> Result<(), Refusal> {
    match hello.proof {
        Proof::Socket => Ok(()),
        Proof::Key { .. } | Proof::Ticket { .. } => {
            let message = "this socket takes no ticket or key: connect without one";
            Err(refuse(Code::TicketRefused, message, Retry::Never))
        }
    }
}

fn peer(config: &Config, uid: Option<u32>) -> Result<(), Refusal> {
    // Without a list it is the sidecar's own user and root, as the socket's mode says: the mode may be another still,
    // where the list was taken out of the configuration of a running sidecar.
    let own = [nix::unistd::geteuid().as_raw(), 0];
    let allowed = config.relay.uids.as_deref().unwrap_or(&own);
    if uid.is_some_and(|uid| allowed.contains(&uid)) {
        return Ok(());
    }
    let who = uid.map_or("an unknown user".into(), |uid| format!("user {uid}"));
    let message = format!("{who} may not use this socket: `relay.unix-uids` does not name it");
    Err(refuse(Code::ServerNotGranted, &message, Retry::Never))
}
