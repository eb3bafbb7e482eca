//! Which peers are accepted on which listener, and which server they get.
//!
//! What must stay true: recognising a peer changes nothing, so a peer that requests a server it is not granted does not
//! use up its ticket; a ticket is used up, or an epoch advanced, only when a link is opened; if two peers use one
//! credential, an alert is recorded.

use std::sync::{Arc, PoisonError};
use std::time::SystemTime;

use cofferdam_audit::Event;
use cofferdam_base::{PacedLines, clock};
use relay_proto::code::Code;
use relay_proto::control::{Hello, Proof, Purpose, Refusal, Retry};
use relay_proto::key::PublicKey;
use relay_proto::name::Name;
use tokio::time::Instant;

use super::state::Daemon;
use crate::config::{Config, suggest};
use crate::enrolment::{ConfirmOutcome, Denied, Enrolment, Fingerprint, KeyProof, NEXT_STEP};
use crate::session::principal::{Enrolled, EnrolledBy, EpochOffer, OfferOutcome, Principal};

static NOT_SAVED_LINES: PacedLines = PacedLines::new("an enrolment was not saved");

/// How a connection reached the sidecar.
#[derive(Clone, Debug)]
pub(crate) enum ConnectionSource {
    /// Through a pipe from the host into a sandbox: everything on it belongs to that sandbox.
    Attached { enrolment: Arc<str> },
    /// Over TLS: the peer has proved this key.
    Tls { key: PublicKey },
    /// Through a socket that was created for one sandbox.
    OwnSocket { enrolment: Arc<str>, uid: Option<u32> },
    /// Through the shared Unix socket.
    SharedSocket {
        /// The peer's user, as the kernel reports it.
        uid: Option<u32>,
    },
}

/// Why a peer is refused.
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

/// Identifies the peer, or says why it is refused. Changes nothing.
pub(super) fn recognise(
    daemon: &Daemon,
    config: &Config,
    source: &ConnectionSource,
    hello: &Hello,
) -> Result<Principal, Refused> {
    let now = clock::now();
    match source {
        ConnectionSource::Attached { enrolment } => {
            refuse_ticket_or_key(hello)?;
            let enrolment =
                daemon.enrolments.find(enrolment, now).map_err(|_| enrolment_ended(ATTACH_AGAIN))?;
            Ok(enrolled_principal(enrolment, EnrolledBy::Connection, ATTACH_AGAIN, now))
        }
        ConnectionSource::Tls { key } => {
            let proof = KeyProof::of(&hello.proof).ok_or_else(|| {
                let message =
                    "over TLS a sandbox must show a ticket or an epoch of its key: upgrade the shim";
                refuse(Code::TicketRefused, message, Retry::Never)
            })?;
            let known = match (&proof, hello.purpose) {
                // The epoch is checked when a new link is opened; a link is resumed by its token.
                (KeyProof::Epoch(_), Purpose::Link) => daemon.enrolments.recognise(key, now),
                (KeyProof::Epoch(_) | KeyProof::Ticket(_), _) => daemon.enrolments.check(key, &proof, now),
            };
            let enrolment = known.map_err(|denied| Refused::denied(key, denied))?;
            Ok(enrolled_principal(enrolment, EnrolledBy::Key, NEXT_STEP, now))
        }
        ConnectionSource::OwnSocket { enrolment, uid } => {
            check_uid(config, *uid)?;
            refuse_ticket_or_key(hello)?;
            let enrolment =
                daemon.enrolments.find(enrolment, now).map_err(|_| enrolment_ended(SOCKET_AGAIN))?;
            Ok(enrolled_principal(enrolment, EnrolledBy::Connection, SOCKET_AGAIN, now))
        }
        ConnectionSource::SharedSocket { uid } => {
            let Some(relay) = &config.relay.unix else {
                let message = "the relay socket is not configured any more";
                return Err(refuse(Code::SessionEnded, message, Retry::Never).into());
            };
            check_uid(config, *uid)?;
            refuse_ticket_or_key(hello)?;
            Ok(Principal::anonymous(relay.grant.clone(), *uid))
        }
    }
}

/// The server that the peer requests, or the only one it is granted.
pub(super) fn choose_server(config: &Config, principal: &Principal, hello: &Hello) -> Result<Name, Refusal> {
    let granted =
        config.grants.get(&principal.grant).map(|grant| grant.servers.as_slice()).unwrap_or_default();
    let names = || granted.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    match (&hello.server, granted) {
        (Some(server), _) if granted.contains(server) => Ok(server.clone()),
        (Some(server), _) => {
            let near = suggest::nearest(server.as_str(), granted.iter().map(Name::as_str));
            let near = near.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default();
            let message =
                format!("server `{server}` is not granted to this sandbox{near}; granted: {}", names());
            Err(refuse(Code::ServerNotGranted, &message, Retry::Never))
        }
        (None, [only]) => Ok(only.clone()),
        (None, _) => {
            let message = format!("the grant has several servers; choose one with --server: {}", names());
            Err(refuse(Code::ServerNotGranted, &message, Retry::Never))
        }
    }
}

/// For a new link: whether the peer's key would be accepted. Changes nothing.
pub(super) fn check_key(daemon: &Daemon, source: &ConnectionSource, hello: &Hello) -> Result<(), Refused> {
    let ConnectionSource::Tls { key } = source else { return Ok(()) };
    let known = match KeyProof::of(&hello.proof) {
        Some(proof) => daemon.enrolments.check(key, &proof, clock::now()),
        None => Err(Denied::UnknownKey),
    };
    known.map(drop).map_err(|denied| Refused::denied(key, denied))
}

/// For a new link: uses up the ticket of a peer with a key, or checks its epoch, and returns the next epoch to offer.
/// `None` for a peer without a key.
pub(super) async fn next_epoch_offer(
    daemon: &Daemon,
    source: &ConnectionSource,
    hello: &Hello,
) -> Result<Option<EpochOffer>, Refused> {
    let ConnectionSource::Tls { key } = source else { return Ok(None) };
    let (store, proof, shown) = (Arc::clone(&daemon.enrolments), hello.proof.clone(), *key);
    let admitted = daemon.context.tasks.spawn_blocking(move || match KeyProof::of(&proof) {
        Some(proof) => store.admit(&shown, &proof, clock::now()),
        None => Err(Denied::UnknownKey),
    });
    let (enrolment, epoch) = admitted
        .await
        .map_err(|_| refuse(Code::RelayUnavailable, "the sidecar failed; see its log", Retry::AfterMs(2000)))?
        .map_err(|denied| Refused::denied(key, denied))?;
    let (store, tasks, id) = (Arc::clone(&daemon.enrolments), daemon.context.tasks.clone(), enrolment.id);
    let fingerprint = Fingerprint::of_epoch(&epoch);
    let confirm = move || match store.confirm(&id, &fingerprint) {
        ConfirmOutcome::AlreadyCurrent => OfferOutcome::Accepted,
        ConfirmOutcome::Outdated => OfferOutcome::Superseded,
        ConfirmOutcome::NowCurrent => {
            // Until the new epoch is on disk, both epochs are accepted after a restart, so no sandbox is locked out.
            tasks.spawn_blocking(move || {
                if let Err(error) = store.save(&id) {
                    tracing::error!(%error, enrolment = %id, "an epoch was not saved");
                }
            });
            OfferOutcome::Accepted
        }
    };
    Ok(Some(EpochOffer { epoch, confirm: Box::new(confirm) }))
}

pub(super) fn refuse(code: Code, message: &str, retry: Retry) -> Refusal {
    Refusal { code: code.as_str().into(), message: message.into(), retry }
}

const ATTACH_AGAIN: &str = "run `cofferdam attach` on the host again";
const SOCKET_AGAIN: &str = "run `cofferdam enroll --socket` on the host again, then restart the harness";

fn enrolled_principal(
    enrolment: Enrolment,
    kind: EnrolledBy,
    next_step: &'static str,
    now: SystemTime,
) -> Principal {
    let time_left = enrolment.expires.duration_since(now).unwrap_or_default();
    let name = enrolment.name.map_or_else(|| Arc::clone(&enrolment.id), Arc::from);
    let enrolled = Enrolled { id: enrolment.id, name, expires: Instant::now() + time_left, kind, next_step };
    Principal { grant: enrolment.grant, enrolment: Some(enrolled), uid: None }
}

/// Records an alert if two peers used one credential, and logs an enrolment that could not be saved.
pub(super) fn report_denied(daemon: &Daemon, key: &PublicKey, denied: &Denied) {
    if let Some(enrolment) = denied.alert_about()
        && daemon.enrolments.may_alert(&enrolment.id)
    {
        let name = enrolment.name.as_deref().map(|name| format!(" ({name})")).unwrap_or_default();
        let why = denied.alert_text();
        tracing::warn!(enrolment = %enrolment.id, %key, why, "ticket or key used twice");
        daemon.record(Event::Alert, Some(&format!("enrolment {}{name}: {why}; key {key}", enrolment.id)));
    }
    // Rate limited: a disk may stay full for long, and a peer can retry without end.
    if let Denied::NotSaved(error) = denied {
        let mut pace = daemon.report_limits.save_errors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left_out) = NOT_SAVED_LINES.admit_within(&mut pace) {
            tracing::error!(error = error as &dyn std::error::Error, left_out, "an enrolment was not saved");
        }
    }
}

fn enrolment_ended(next_step: &str) -> Refusal {
    refuse(Code::SessionEnded, &format!("the enrolment of this sandbox has ended; {next_step}"), Retry::Never)
}

fn refuse_ticket_or_key(hello: &Hello) -> Result<(), Refusal> {
    match hello.proof {
        Proof::Socket => Ok(()),
        Proof::Key { .. } | Proof::Ticket { .. } => {
            let message = "this socket accepts no ticket or key: connect without one";
            Err(refuse(Code::TicketRefused, message, Retry::Never))
        }
    }
}

fn check_uid(config: &Config, uid: Option<u32>) -> Result<(), Refusal> {
    // Without `unix-uids`, only the sidecar's own user and root may connect. The mode of the socket's file alone does
    // not ensure that, because it does not change when a reload removes the list.
    let own = [nix::unistd::geteuid().as_raw(), 0];
    let allowed = config.relay.uids.as_deref().unwrap_or(&own);
    if uid.is_some_and(|uid| allowed.contains(&uid)) {
        return Ok(());
    }
    Err(refuse(Code::ServerNotGranted, &explain_refused_uid(config, uid), Retry::Never))
}

/// Why a user may not connect, and how the operator can admit it. A list that is added takes effect at a restart only, because
/// it changes the mode of the socket's file, and it replaces the default.
fn explain_refused_uid(config: &Config, uid: Option<u32>) -> String {
    let Some(uid) = uid else {
        return "an unknown user may not use this socket: the kernel does not say which user has connected"
            .into();
    };
    match config.relay.uids {
        Some(_) => format!(
            "user {uid} may not use this socket; on the host add {uid} to `unix-uids` under [relay], run `cofferdam reload` and \
             restart the shim"
        ),
        None => format!(
            "user {uid} may not use this socket, only the sidecar's own user and root; on the host set `unix-uids` under [relay] to \
             {uid} and every other user that connects, and restart the sidecar"
        ),
    }
}
