//! The handshake of a new connection: its Hello resumes a link, opens one, or is refused with the reason.

use std::sync::PoisonError;
use std::time::Duration;

use cofferdam_audit::{BudgetLimit, Event, NoSpace};
use relay_proto::code::Code;
use relay_proto::control::{Hello, Purpose, Refusal, Retry, Status};
use relay_proto::frame::{DecodeError, Frame};
use relay_proto::limits::VERSION;
use relay_proto::name::Name;
use tokio::time::{Instant, timeout, timeout_at};

use super::admission::{self, ConnectionSource, Refused, refuse};
use super::handshake_slots::{HandshakeSlot, SlotLost};
use super::state::Daemon;
use super::status;
use crate::link::command::EndReason;
use crate::link::connection::{Connection, Lost, Transport};
use crate::link::registry::{NotOpened, NotResumed};
use crate::session::principal::Principal;

/// How long sending a refusal or a status may take.
const REPLY_TIMEOUT: Duration = Duration::from_millis(500);

/// When a peer whose audit budget is used up may retry: when it has refilled, within these bounds.
const MIN_AUDIT_PAUSE: Duration = Duration::from_secs(2);
const MAX_AUDIT_PAUSE: Duration = Duration::from_secs(30);

/// Why there is no Hello.
enum NoHello {
    /// The peer disconnected.
    Gone,
    Refused(Refusal),
}

/// A new connection, and how it reached the sidecar.
pub(crate) struct Arrival {
    pub(crate) stream: Box<dyn Transport>,
    pub(crate) source: ConnectionSource,
}

/// Runs the handshake of a new connection.
pub(crate) async fn accept(daemon: &Daemon, arrival: Arrival, slot: HandshakeSlot) {
    let until = Instant::now() + daemon.context.config.load().limits.greeting_timeout;
    accept_until(daemon, arrival, slot, until).await;
}

/// Like [`accept`], with a deadline that the caller has set.
pub(super) async fn accept_until(daemon: &Daemon, arrival: Arrival, slot: HandshakeSlot, until: Instant) {
    let config = daemon.context.config.load_full();
    let Arrival { stream, source } = arrival;
    let mut connection = Connection::new(stream);
    let hello = match slot.secure_after(read_hello(until, &mut connection)).await {
        Ok(Ok(hello)) => hello,
        Ok(Err(NoHello::Refused(refusal))) => {
            return refuse_connection(daemon, connection, refusal.into(), slot).await;
        }
        // The peer disconnected, or its slot went to another connection: nothing is sent.
        Ok(Err(NoHello::Gone)) | Err(SlotLost) => return,
    };
    let recognised = admission::recognise(daemon, &config, &source, &hello);
    if let (Purpose::Status, Ok(principal)) = (hello.purpose, &recognised) {
        return send_status(connection, status::sandbox_status(daemon, &config, principal)).await;
    }
    let admitted = recognised
        .and_then(|principal| Ok((admission::choose_server(&config, &principal, &hello)?, principal)));
    match admitted {
        Err(refused) => refuse_connection(daemon, connection, refused, slot).await,
        Ok((server, principal)) => {
            if let Err((refused, connection)) =
                open_or_resume(daemon, &source, &principal, hello, server, connection).await
            {
                refuse_connection(daemon, connection, refused, slot).await;
            }
        }
    }
}

async fn send_status(mut connection: Connection, status: Status) {
    connection.push(&Frame::Status(status));
    // A failure is ignored: the peer has disconnected or does not read.
    let _ = timeout(REPLY_TIMEOUT, connection.flush()).await;
}

async fn refuse_connection(
    daemon: &Daemon,
    mut connection: Connection,
    refused: Refused,
    slot: HandshakeSlot,
) {
    let Refused { refusal, denied } = refused;
    let needs_alert = denied.as_deref().is_some_and(|(_, denied)| denied.alert_about().is_some());
    let still_connected = match needs_alert {
        true => daemon.disconnect_watch.still_connected(&mut connection, slot).await,
        false => Some(slot.into()),
    };
    let Some(_still_connected) = still_connected else {
        // Most likely a delayed Hello of the sandbox itself, which arrived after a later one.
        return daemon.refusal_log.log(&refusal, &daemon.context.tasks, &daemon.stop);
    };
    if let Some((key, denied)) = denied.as_deref() {
        admission::report_denied(daemon, key, denied);
    }
    daemon.refusal_log.log(&refusal, &daemon.context.tasks, &daemon.stop);
    connection.push(&Frame::Refusal(refusal));
    // A failure is ignored: the peer has disconnected or does not read.
    let _ = timeout(REPLY_TIMEOUT, connection.flush()).await;
}

/// Reads the first frame, which must be a `Hello` in a version that we speak.
async fn read_hello(until: Instant, connection: &mut Connection) -> Result<Hello, NoHello> {
    let malformed = |why: &str| NoHello::Refused(refuse(Code::MessageMalformed, why, Retry::AfterMs(1000)));
    match timeout_at(until, connection.next()).await {
        Err(_) => Err(malformed("no Hello arrived in time")),
        Ok(Err(Lost::Closed | Lost::Io(_))) => Err(NoHello::Gone),
        Ok(Err(Lost::Protocol(DecodeError::OtherVersion { ours, theirs }))) => {
            Err(NoHello::Refused(refuse_version(ours, &[theirs])))
        }
        Ok(Err(lost @ Lost::Protocol(_))) => Err(malformed(&lost.to_string())),
        Ok(Ok(Frame::Hello(hello))) if hello.versions.contains(&VERSION) => Ok(hello),
        Ok(Ok(Frame::Hello(hello))) => Err(NoHello::Refused(refuse_version(VERSION, &hello.versions))),
        Ok(Ok(_)) => Err(malformed("the first frame must be Hello")),
    }
}

async fn open_or_resume(
    daemon: &Daemon,
    source: &ConnectionSource,
    principal: &Principal,
    mut hello: Hello,
    server: Name,
    connection: Connection,
) -> Result<(), (Refused, Connection)> {
    let connection = match hello.resume.take() {
        Some(resume) => match daemon.registry.resume(principal, connection, resume).await {
            Ok(()) => return Ok(()),
            // The link has ended: the shim gets a new link, and sees from the reply that its link was not resumed.
            Err(NotResumed::Ended(connection)) => connection,
            Err(NotResumed::Foreign(connection)) => {
                daemon.alert_foreign_link(principal);
                let message = "the link belongs to another sandbox; connect without it to get a new link";
                return Err((refuse(Code::CloneRefused, message, Retry::AfterMs(1000)).into(), connection));
            }
            Err(NotResumed::Busy(connection)) => {
                let message = "the link is too busy to be resumed now";
                return Err((
                    refuse(Code::RelayUnavailable, message, Retry::AfterMs(1000)).into(),
                    connection,
                ));
            }
        },
        None => connection,
    };
    // Limits are checked before anything is written to disk, so a sandbox over its limit causes no disk writes. The key
    // is checked before the limits, so a peer with an outdated key does not count towards them.
    if let Err(refused) = admission::check_key(daemon, source, &hello) {
        return Err((refused, connection));
    }
    let reserved = match daemon.registry.reserve(&daemon.context, principal) {
        Ok(reserved) => reserved,
        Err(error) => return Err((refuse_link(&error).into(), connection)),
    };
    let offer = match admission::next_epoch_offer(daemon, source, &hello).await {
        Ok(offer) => offer,
        Err(refused) => return Err((refused, connection)),
    };
    reserved.open(server, connection, offer);
    if let Some(enrolled) = &principal.enrolment
        && daemon.enrolments.find(&enrolled.id, cofferdam_base::clock::now()).is_err()
    {
        // The enrolment ended during this handshake, before the link was in the registry.
        drop(daemon.registry.end_enrolment(&enrolled.id, EndReason::Killed).await);
    }
    Ok(())
}

fn refuse_link(why: &NotOpened) -> Refusal {
    let (code, retry) = match why {
        NotOpened::Audit(NoSpace { limit: BudgetLimit::Bytes, refilled_in }) => {
            let pause = (*refilled_in).clamp(MIN_AUDIT_PAUSE, MAX_AUDIT_PAUSE);
            (Code::RelayUnavailable, Retry::AfterMs(pause.as_millis() as u64))
        }
        // Until the host's administrator makes room, or other sandboxes end.
        NotOpened::Audit(_) => (Code::RelayUnavailable, Retry::AfterMs(MAX_AUDIT_PAUSE.as_millis() as u64)),
        NotOpened::Grant(_) | NotOpened::LinkLimit(_) | NotOpened::Memory => {
            (Code::RelayUnavailable, Retry::AfterMs(2000))
        }
        // The sidecar is most likely being restarted.
        NotOpened::Stopping => (Code::SessionEnded, Retry::AfterMs(500)),
    };
    refuse(code, &why.to_string(), retry)
}

fn refuse_version(ours: u16, theirs: &[u16]) -> Refusal {
    let advice = match theirs.iter().max().is_some_and(|newest| *newest > ours) {
        true => "the sidecar on the host is older: upgrade it",
        false => "the shim in the sandbox is older: upgrade it",
    };
    let message =
        format!("the sidecar speaks version {ours} of the relay protocol, the shim {theirs:?}; {advice}");
    refuse(Code::VersionRefused, &message, Retry::Never)
}

impl Daemon {
    /// Records an alert: a peer tried to resume a link of another sandbox. Rate limited, because nothing else limits
    /// how often a peer can do that.
    fn alert_foreign_link(&self, principal: &Principal) {
        let (peer, is_allowed) = match &principal.enrolment {
            Some(enrolled) => (
                format!("enrolment {} ({})", enrolled.id, enrolled.name),
                self.enrolments.may_alert(&enrolled.id),
            ),
            None => {
                let mut alerts =
                    self.report_limits.shared_socket_alerts.lock().unwrap_or_else(PoisonError::into_inner);
                ("a peer on the shared socket".into(), alerts.allows(Instant::now()))
            }
        };
        if is_allowed {
            self.record(Event::Alert, Some(&format!("{peer} asked for a link of another sandbox")));
        }
    }
}
