//! The daemon's side of the admin socket.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_base::text::error_chain;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::{Answer, MAX_QUESTION, Question};
use crate::daemon::attach::hold::{Asked, Hold};
use crate::daemon::enrolling::{Enrolled, Enrolling, Killed, Way};
use crate::daemon::reload::Reloaded;
use crate::daemon::state::App;
use crate::session::registry::Ending;

/// Questions answered at the same time.
const MAX_ASKING: usize = 16;
/// Time to ask, and to take the answer.
const TALK_TIME: Duration = Duration::from_secs(10);

/// Answers until the stop.
pub(crate) async fn run(app: Arc<App>, listener: Arc<UnixListener>) {
    let asking = Arc::new(Semaphore::new(MAX_ASKING));
    loop {
        let Some(place) = app.stop.run_until_cancelled(Arc::clone(&asking).acquire_owned()).await else {
            return;
        };
        match app.stop.run_until_cancelled(listener.accept()).await {
            None => return,
            Some(Ok((stream, _))) => {
                let app = Arc::clone(&app);
                app.context.tasks.clone().spawn(async move {
                    // Who does not ask in time is not answered.
                    let talked = app.stop.run_until_cancelled(timeout(TALK_TIME, talk(&app, stream))).await;
                    drop(place);
                    match talked {
                        Some(Ok(Ok(Some((Staying::Hold(hold), stream))))) => {
                            app.keep_hold(hold, stream).await
                        }
                        Some(Ok(Ok(Some((Staying::Pipe(enrolment), stream))))) => {
                            app.carry_pipe(enrolment, stream).await;
                        }
                        _ => {}
                    }
                });
            }
            Some(Err(error)) => {
                tracing::error!(%error, "accept on the admin socket");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// What a connection is kept for after its answer.
enum Staying {
    Hold(Hold),
    Pipe(String),
}

async fn talk(app: &Arc<App>, stream: UnixStream) -> std::io::Result<Option<(Staying, UnixStream)>> {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    (&mut stream).take(MAX_QUESTION as u64).read_until(b'\n', &mut line).await?;
    let (answer, staying) = match serde_json::from_slice(&line) {
        Ok(Question::Attach { grant, name, ttl_ms }) => attach(app, &grant, name, ttl_ms).await,
        Ok(Question::Pipe { enrolment }) => match app.is_held(&enrolment) {
            true => (Answer::Piped, Some(Staying::Pipe(enrolment))),
            false => {
                let why = format!("nobody holds the enrolment `{enrolment}` for an attach");
                (Answer::Refused { why }, None)
            }
        },
        Ok(question) => (answer(app, question).await, None),
        Err(error) => (Answer::Refused { why: format!("the question is not understood: {error}") }, None),
    };
    let mut text = serde_json::to_vec(&answer)?;
    text.push(b'\n');
    stream.write_all(&text).await?;
    // Whoever does not wait for the answer has lost what it said meanwhile.
    let early = !stream.buffer().is_empty();
    Ok(staying.filter(|_| !early).map(|staying| (staying, stream.into_inner())))
}

async fn attach(app: &Arc<App>, grant: &str, name: String, ttl_ms: Option<u64>) -> (Answer, Option<Staying>) {
    let grant = match grant.parse() {
        Ok(grant) => grant,
        Err(error) => return (Answer::Refused { why: format!("read the grant's name: {error}") }, None),
    };
    match app.hold(Asked { grant, name, ttl: ttl_ms.map(Duration::from_millis) }).await {
        Ok(hold) => {
            let enrolment = hold.enrolment.to_string();
            let pin = app.identity.public().to_string();
            (Answer::Attaching { enrolment, pin }, Some(Staying::Hold(hold)))
        }
        Err(error) => (Answer::Refused { why: error_chain(&error) }, None),
    }
}

async fn answer(app: &Arc<App>, question: Question) -> Answer {
    match question {
        Question::Attach { .. } | Question::Pipe { .. } => {
            Answer::Refused { why: "that is no question for one answer".into() }
        }
        Question::Sessions => Answer::Sessions { sessions: app.registry.describe().await },
        Question::Reload => match app.reload() {
            Ok(Reloaded { policy, at_restart }) => {
                Answer::Reloaded { policy, at_restart: at_restart.into_iter().map(str::to_owned).collect() }
            }
            Err(problems) => Answer::Refused { why: problems.to_string() },
        },
        Question::Enroll { grant, name, ttl_ms, ticket_ttl_ms, socket } => {
            let way = match socket {
                Some(directory) => Way::Socket { directory },
                None => Way::Ticket { ttl: Duration::from_millis(ticket_ttl_ms) },
            };
            match grant.parse() {
                Ok(grant) => {
                    enroll(app, Enrolling { grant, name, ttl: ttl_ms.map(Duration::from_millis), way }).await
                }
                Err(error) => Answer::Refused { why: format!("read the grant's name: {error}") },
            }
        }
        Question::Kill { session } => kill(app, &session).await,
    }
}

async fn enroll(app: &Arc<App>, asked: Enrolling) -> Answer {
    match app.enroll(asked).await {
        Ok(Enrolled { enrolment, text }) => {
            let left = enrolment.expires.duration_since(crate::clock::now()).unwrap_or_default();
            let expires_in_seconds = left.as_millis().div_ceil(1000) as u64;
            Answer::Enrolled { enrolment: enrolment.id.to_string(), expires_in_seconds, text }
        }
        Err(error) => Answer::Refused { why: error_chain(&error) },
    }
}

async fn kill(app: &Arc<App>, session: &str) -> Answer {
    let began = Instant::now();
    let Some(Killed { ending: Ending { ended, late }, enrolment, unwritten }) = app.kill(session).await
    else {
        return Answer::Refused { why: format!("there is no session or enrolment `{session}`") };
    };
    if !late.is_empty() {
        let why = format!(
            "session `{session}` was told to end and has not ended within 5 s: link {}",
            late.join(", ")
        );
        return Answer::Refused { why };
    }
    if let (Some(error), Some(enrolment)) = (unwritten, &enrolment) {
        let why = format!(
            "all of it has ended, but that was not written down: {}; after a restart of the sidecar the enrolment \
             {enrolment} would be good again: make room on the disk and kill it again, or remove its file",
            error_chain(&error)
        );
        return Answer::Refused { why };
    }
    let total_ms = began.elapsed().as_millis() as u64;
    Answer::Killed { links: ended, enrolment: enrolment.map(|id| id.to_string()), total_ms }
}
