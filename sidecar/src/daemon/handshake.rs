//! A new connection's first frame, and where it leads: to its old link, to a new one, or to a refusal that says why.

use std::sync::PoisonError;

use relay_proto::code::Code;
use relay_proto::control::{Hello, Purpose, Refusal, Retry, Status};
use relay_proto::frame::{DecodeError, Frame};
use relay_proto::limits::VERSION;
use relay_proto::name::Name;
use tokio::time::{Instant, timeout, timeout_at};

use super::admission::{self, Door, Refused, refuse};
use super::handshake_slots::{Dropped, Place};
use super::state::App;
use super::status;
use crate::audit::Event;
use crate::session::command::EndReason;
use crate::session::connection::{Connection, Lost, Transport};
use crate::session::registry::{NotOpened, NotResumed};
use crate::session::visitor::Visitor;

/// A refusal takes no longer to leave than this.
const REFUSAL_TIME: std::time::Duration = std::time::Duration::from_millis(500);

/// Why there is nobody to lead anywhere.
enum Unheard {
    /// A probe, or somebody who changed his mind.
    Gone,
    Refused(Refusal),
}

/// A new connection, and the door by which it came.
pub(crate) struct Arrival {
    pub(crate) stream: Box<dyn Transport>,
    pub(crate) door: Door,
}

/// Hears a new connection out and leads it somewhere.
pub(crate) async fn greet(app: &App, arrival: Arrival, place: Place) {
    let until = Instant::now() + app.context.config.load().limits.greeting_timeout;
    greet_until(app, arrival, place, until).await;
}

/// The same for one of whose time some is gone already.
pub(super) async fn greet_until(app: &App, arrival: Arrival, place: Place, until: Instant) {
    let config = app.context.config.load_full();
    let Arrival { stream, door } = arrival;
    let mut connection = Connection::new(stream);
    let hello = match place.hear(hello(until, &mut connection)).await {
        Ok(Ok(hello)) => hello,
        Ok(Err(Unheard::Refused(refusal))) => return turn_away(app, connection, refusal.into(), place).await,
        // Somebody who had longer than others to speak is told nothing.
        Ok(Err(Unheard::Gone)) | Err(Dropped) => return,
    };
    let recognised = admission::recognise(app, &config, &door, &hello);
    if let (Purpose::Status, Ok(visitor)) = (hello.purpose, &recognised) {
        return tell(connection, status::status(app, &config, visitor)).await;
    }
    let admitted =
        recognised.and_then(|visitor| Ok((admission::server(&config, &visitor, &hello)?, visitor)));
    match admitted {
        Err(refused) => turn_away(app, connection, refused, place).await,
        Ok((server, visitor)) => {
            if let Err((refused, connection)) = lead(app, &door, &visitor, hello, server, connection).await {
                turn_away(app, connection, refused, place).await;
            }
        }
    }
}

/// How things stand, and nothing more.
async fn tell(mut connection: Connection, status: Status) {
    connection.push(&Frame::Status(status));
    // Whoever does not read it does not want to know.
    let _ = timeout(REFUSAL_TIME, connection.flush()).await;
}

async fn turn_away(app: &App, mut connection: Connection, refused: Refused, place: Place) {
    let Refused { refusal, denied } = refused;
    let alarming = denied.as_deref().is_some_and(|(_, denied)| denied.alarming().is_some());
    let staying = match alarming {
        true => app.leaving.look(&mut connection, place).await,
        false => Some(place.into()),
    };
    let Some(_staying) = staying else {
        // A Hello of the sandbox's own, most likely, that was under way for longer than its successor.
        return app.refusals.log(&refusal, &app.context.tasks, &app.stop);
    };
    if let Some((key, denied)) = denied.as_deref() {
        admission::sound(app, key, denied);
    }
    app.refusals.log(&refusal, &app.context.tasks, &app.stop);
    connection.push(&Frame::Refusal(refusal));
    // Whoever does not read its refusal does not get it.
    let _ = timeout(REFUSAL_TIME, connection.flush()).await;
}

/// The first frame, which must be a `Hello` in a version we speak, and must come soon.
async fn hello(until: Instant, connection: &mut Connection) -> Result<Hello, Unheard> {
    let malformed = |why: &str| Unheard::Refused(refuse(Code::MessageMalformed, why, Retry::AfterMs(1000)));
    match timeout_at(until, connection.next()).await {
        Err(_) => Err(malformed("no Hello came in time")),
        Ok(Err(Lost::Closed | Lost::Io(_))) => Err(Unheard::Gone),
        Ok(Err(Lost::Protocol(DecodeError::OtherVersion { ours, theirs }))) => {
            Err(Unheard::Refused(version(ours, &[theirs])))
        }
        Ok(Err(lost @ Lost::Protocol(_))) => Err(malformed(&lost.to_string())),
        Ok(Ok(Frame::Hello(hello))) if hello.versions.contains(&VERSION) => Ok(hello),
        Ok(Ok(Frame::Hello(hello))) => Err(Unheard::Refused(version(VERSION, &hello.versions))),
        Ok(Ok(_)) => Err(malformed("the first frame must be Hello")),
    }
}

async fn lead(
    app: &App,
    door: &Door,
    visitor: &Visitor,
    mut hello: Hello,
    server: Name,
    connection: Connection,
) -> Result<(), (Refused, Connection)> {
    let connection = match hello.resume.take() {
        Some(resume) => match app.registry.resume(visitor, connection, resume).await {
            Ok(()) => return Ok(()),
            // That link is over: the shim gets a new one and sees that it was not resumed.
            Err(NotResumed::Over(connection)) => connection,
            Err(NotResumed::Foreign(connection)) => {
                app.alert_of_a_foreign_link(visitor);
                let message =
                    "that link is another sandbox's; a new one is given to a shim that asks for none";
                return Err((refuse(Code::CloneRefused, message, Retry::AfterMs(1000)).into(), connection));
            }
            Err(NotResumed::Busy(connection)) => {
                let message = "the link is there, but too busy to be resumed now";
                return Err((
                    refuse(Code::RelayUnavailable, message, Retry::AfterMs(1000)).into(),
                    connection,
                ));
            }
        },
        None => connection,
    };
    // What a place costs comes first, and what is synced to disk last: a sandbox without a place costs no disk anything,
    // and one that was left behind takes no place.
    if let Err(refused) = admission::look(app, door, &hello) {
        return Err((refused, connection));
    }
    let reserved = match app.registry.reserve(&app.context, visitor) {
        Ok(reserved) => reserved,
        Err(not_opened) => return Err((no_place(not_opened).into(), connection)),
    };
    let offer = match admission::offer(app, door, &hello).await {
        Ok(offer) => offer,
        Err(refused) => return Err((refused, connection)),
    };
    reserved.open(server, connection, offer);
    if let Some(enrolled) = &visitor.enrolment
        && app.enrolments.find(&enrolled.id, crate::clock::now()).is_err()
    {
        // It ended between the question and the answer, and whoever ended it did not see this link yet.
        drop(app.registry.end_enrolment(&enrolled.id, EndReason::Killed).await);
    }
    Ok(())
}

fn no_place(why: NotOpened) -> Refusal {
    let (code, retry) = match why {
        NotOpened::Grant(_) | NotOpened::Socket(_) => (Code::RelayUnavailable, Retry::AfterMs(2000)),
        // The next sidecar is most likely on its way.
        NotOpened::Stopping => (Code::SessionEnded, Retry::AfterMs(500)),
    };
    refuse(code, &why.to_string(), retry)
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

impl App {
    /// Whoever asks for others' links can ask as often as it likes.
    fn alert_of_a_foreign_link(&self, visitor: &Visitor) {
        let (who, may) = match &visitor.enrolment {
            Some(enrolled) => (
                format!("enrolment {} ({})", enrolled.id, enrolled.name),
                self.enrolments.may_alert(&enrolled.id),
            ),
            None => {
                let mut alerts = self.shared_alerts.lock().unwrap_or_else(PoisonError::into_inner);
                ("somebody on the shared socket".into(), alerts.allows(Instant::now()))
            }
        };
        if may {
            self.record(Event::Alert, Some(&format!("{who} asked for a link of another's")));
        }
    }
}
