//! `cofferdam attach`: connects the sidecar to a sandbox that cannot connect out, until it is interrupted.
//!
//! One connection to the sidecar keeps the sandbox's enrolment alive (the hold). Each attempt opens a further connection,
//! which becomes the pipe into the sandbox. When the command, the hub or the sidecar ends, or the network fails, the next
//! attempt follows after a delay that grows.
//!
//! | module | what it is for |
//! |---|---|
//! | `admin_connections` | the two connections to the sidecar |
//! | `attempt` | one attempt: a command, or a connection to an address |
//! | `platform` | a sandbox on a platform, which the sidecar itself attaches |
//! | `progress` | the steps of an attachment on a terminal or in a pipe |

mod admin_connections;
mod attempt;
mod platform;
mod progress;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use cofferdam_base::Backoff;
use cofferdam_base::text::hex;
use ring::digest::{SHA256, digest};
use tokio::time::sleep;

use super::arguments::{AttachCommand, AttachOptions};
use crate::daemon::admin::AdminRequest;
use crate::daemon::attach_table::AttachEvent;
use crate::terminal::failure::{Failure, Sysexit};
use crate::terminal::interruption::interruption;
use admin_connections::{AdminFailure, HoldConnection};
use attempt::{Attempt, Route};
pub(super) use platform::print_template;

/// The delay after the first failed attempt.
const FIRST_DELAY: Duration = Duration::from_millis(200);
/// The longest delay between attempts. It is short, because a call in the sandbox may be waiting for its link.
const MAX_DELAY: Duration = Duration::from_secs(2);
/// The maximum length of an enrolment's name.
const MAX_NAME_CHARS: usize = 64;

pub(super) fn run(admin: &Path, command: AttachCommand) -> Result<ExitCode, Failure> {
    let (route, options) = match command {
        AttachCommand::Daytona(arguments) => return platform::daytona(admin, arguments),
        AttachCommand::E2b(arguments) => return platform::e2b(admin, arguments),
        AttachCommand::End(_) | AttachCommand::List(_) => {
            return Err(Failure::new(Sysexit::Software, "this command keeps nothing attached"));
        }
        AttachCommand::Dial(arguments) => (Route::dial(&arguments.address)?, arguments.options),
        AttachCommand::Exec(arguments) => (Route::Exec(arguments.command), arguments.options),
    };
    let AttachOptions { grant, name, ttl } = options;
    let ttl_ms = ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    let request = AdminRequest::Attach { grant, name: name.unwrap_or_else(|| default_name(&route)), ttl_ms };
    let failed = |error| Failure::new(Sysexit::OperatingSystem, error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let stop = interruption().map_err(failed)?;
        keep_attached(admin, &request, &route, stop).await
    })
}

/// Keeps the sandbox attached until `stop`, or until the sidecar ends its enrolment.
async fn keep_attached(
    admin: &Path,
    request: &AdminRequest,
    route: &Route,
    stop: impl Future<Output = ()>,
) -> Result<ExitCode, Failure> {
    let mut stop = std::pin::pin!(stop);
    let mut kept_hold =
        Some(HoldConnection::open(admin, request).await.map_err(|error| error.into_failure())?);
    let mut pause = Pause::new();
    loop {
        let mut hold = match kept_hold.take() {
            Some(hold) => hold,
            None => match HoldConnection::open(admin, request).await {
                Ok(hold) => hold,
                Err(error @ AdminFailure::Refused { .. }) => return Err(error.into_failure()),
                // The sidecar is most likely being restarted.
                Err(error) => {
                    report(&format!("{error}; retrying"));
                    if pause.wait(stop.as_mut()).await == PauseEnd::Stopped {
                        return Ok(ExitCode::SUCCESS);
                    }
                    continue;
                }
            },
        };
        let (mut ended, proof) = run_attempt(admin, &mut hold, route, stop.as_mut()).await?;
        if proof == PeerProof::Seen {
            pause = Pause::new();
        }
        if let AttemptEnd::Ended = ended {
            ended = pause.wait_with_events(&mut hold, route, stop.as_mut()).await;
        }
        match ended {
            AttemptEnd::Ended => kept_hold = Some(hold),
            AttemptEnd::SidecarGone => {
                report("lost the connection to the sidecar; reconnecting");
                if pause.wait(stop.as_mut()).await == PauseEnd::Stopped {
                    return Ok(ExitCode::SUCCESS);
                }
            }
            AttemptEnd::Stopped => return Ok(ExitCode::SUCCESS),
            AttemptEnd::Over(why) => {
                return Err(Failure::new(Sysexit::Unavailable, why).hint("run `cofferdam attach` again"));
            }
        }
    }
}

/// Whether the hub or shim at the other end proved its key in this attempt. If so, the next delay is the shortest.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum PeerProof {
    NotSeen,
    Seen,
}

/// How an attempt ended.
enum AttemptEnd {
    /// The command or the connection ended; the next attempt follows.
    Ended,
    /// The enrolment ended, for this reason.
    Over(String),
    /// The connection to the sidecar was lost.
    SidecarGone,
    /// The command was interrupted.
    Stopped,
}

/// Makes one attempt, and waits for its end.
async fn run_attempt(
    admin: &Path,
    held: &mut HoldConnection,
    route: &Route,
    mut stop: std::pin::Pin<&mut impl Future<Output = ()>>,
) -> Result<(AttemptEnd, PeerProof), Failure> {
    let pipe = match admin_connections::open_pipe(admin, &held.enrolment, route.via()).await {
        Ok(pipe) => pipe,
        Err(AdminFailure::Refused { why, .. }) => {
            report(&why);
            return Ok((AttemptEnd::Ended, PeerProof::NotSeen));
        }
        Err(_) => return Ok((AttemptEnd::SidecarGone, PeerProof::NotSeen)),
    };
    let mut attempt = Attempt::begin(route, pipe, &held.pin).await?;
    let mut why = None;
    let mut proof = PeerProof::NotSeen;
    let end = loop {
        tokio::select! {
            () = stop.as_mut() => break AttemptEnd::Stopped,
            ended = attempt.wait() => {
                report(&ended);
                break AttemptEnd::Ended;
            }
            event = held.next_event() => match event {
                Some(AttachEvent::Attached { key }) => {
                    report(&format!("attached (the sandbox's key is {key})"));
                    proof = PeerProof::Seen;
                    // A `Lost` so far was a late event of an earlier pipe.
                    why = None;
                }
                Some(AttachEvent::Lost { why: lost }) => {
                    // The command may still print messages; it exits when its pipe is closed.
                    report(&describe_loss(route, &lost));
                    why = Some(lost);
                }
                Some(AttachEvent::Over { why }) => break AttemptEnd::Over(why),
                None => break AttemptEnd::SidecarGone,
            },
            () = sleep(attempt::EXIT_TIMEOUT), if why.is_some() => break AttemptEnd::Ended,
        }
    };
    attempt.end().await;
    Ok((end, proof))
}

/// The default name of a sandbox: its route, shortened and completed with a hash if it is too long.
fn default_name(route: &Route) -> String {
    let text: String = route
        .to_string()
        .chars()
        .map(|character| if character.is_control() { ' ' } else { character })
        .collect();
    if text.chars().count() <= MAX_NAME_CHARS {
        return text;
    }
    let mut name: String = text.chars().take(MAX_NAME_CHARS - 17).collect();
    name.push('…');
    name.push_str(&hex(&digest(&SHA256, route.to_string().as_bytes()).as_ref()[..8]));
    name
}

/// The message about a lost pipe. The route is not repeated for a command, whose own messages are above.
fn describe_loss(route: &Route, why: &str) -> String {
    match route {
        Route::Dial(_) => format!("{route}: {why}"),
        Route::Exec(_) => why.to_owned(),
    }
}

/// Prints a message to stderr, in one write because the command writes there too. A closed stderr is ignored.
fn report(text: &str) {
    let _ = std::io::stderr().write_all(format!("cofferdam attach: {text}\n").as_bytes());
}

struct Pause(Backoff);

#[derive(Eq, PartialEq)]
enum PauseEnd {
    Elapsed,
    Stopped,
}

impl Pause {
    fn new() -> Self {
        Self(Backoff::new(FIRST_DELAY, MAX_DELAY))
    }

    /// Waits like [`Self::wait`], and handles events from the sidecar meanwhile.
    async fn wait_with_events(
        &mut self,
        held: &mut HoldConnection,
        route: &Route,
        stop: std::pin::Pin<&mut impl Future<Output = ()>>,
    ) -> AttemptEnd {
        let mut proof = PeerProof::NotSeen;
        let events = async {
            loop {
                match held.next_event().await {
                    // The attempt ended before this event arrived.
                    Some(AttachEvent::Attached { .. }) => proof = PeerProof::Seen,
                    Some(AttachEvent::Lost { why }) => report(&describe_loss(route, &why)),
                    Some(AttachEvent::Over { why }) => return AttemptEnd::Over(why),
                    None => return AttemptEnd::SidecarGone,
                }
            }
        };
        let end = tokio::select! {
            end = events => end,
            waited = self.wait(stop) => match waited {
                PauseEnd::Elapsed => AttemptEnd::Ended,
                PauseEnd::Stopped => AttemptEnd::Stopped,
            },
        };
        if proof == PeerProof::Seen {
            *self = Self::new();
        }
        end
    }

    /// Waits for the current delay, and increases it.
    async fn wait(&mut self, stop: std::pin::Pin<&mut impl Future<Output = ()>>) -> PauseEnd {
        tokio::select! {
            () = stop => PauseEnd::Stopped,
            () = sleep(self.0.next_delay()) => PauseEnd::Elapsed,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, UnixListener};
    use tokio::task::JoinSet;
    use tokio::time::timeout;

    use super::*;
    use crate::daemon::admin::AdminResponse;
    use cofferdam_base::random::id;

    /// The admin socket of a scripted sidecar, with its task; both are removed on drop.
    struct ScriptedSidecar(std::path::PathBuf, JoinSet<()>);

    impl Drop for ScriptedSidecar {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    /// Accepts the hold and sends these events on it; accepts every further connection as a pipe.
    async fn run_sidecar(listener: UnixListener, events: Vec<AttachEvent>) {
        let mut connections = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            // The request is short and arrives in one read.
            assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
            let head =
                "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: cofferdam\r\n\r\n";
            let mut text = head.to_owned();
            if connections.is_empty() {
                let attaching = AdminResponse::Attaching { enrolment: "e".into(), pin: "k".into() };
                text += &(serde_json::to_string(&attaching).unwrap() + "\n");
                for event in &events {
                    text += &(serde_json::to_string(event).unwrap() + "\n");
                }
            }
            stream.write_all(text.as_bytes()).await.unwrap();
            connections.push(stream);
        }
    }

    async fn open_hold(events: Vec<AttachEvent>) -> (ScriptedSidecar, HoldConnection) {
        let mut admin = ScriptedSidecar(std::env::temp_dir().join(id("cofferdam-attach-")), JoinSet::new());
        let listener = UnixListener::bind(&admin.0).unwrap();
        admin.1.spawn(run_sidecar(listener, events));
        let grant = "dev".parse().unwrap();
        let request = AdminRequest::Attach { grant, name: "box".into(), ttl_ms: None };
        let held = HoldConnection::open(&admin.0, &request).await.map_err(|error| error.to_string()).unwrap();
        (admin, held)
    }

    fn lost() -> AttachEvent {
        AttachEvent::Lost { why: "the pipe before".into() }
    }

    fn attached() -> AttachEvent {
        AttachEvent::Attached { key: "k".into() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_event_of_the_previous_pipe_does_not_end_the_current_attempt() {
        for (events, ends) in [(vec![lost(), attached()], false), (vec![attached(), lost()], true)] {
            let (admin, mut held) = open_hold(events).await;
            let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let route = Route::dial(&port.local_addr().unwrap().to_string()).unwrap();
            let mut stop = std::pin::pin!(std::future::pending());
            let attempt = run_attempt(&admin.0, &mut held, &route, stop.as_mut());
            assert_eq!(timeout(10 * attempt::EXIT_TIMEOUT, attempt).await.is_ok(), ends);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_proven_key_resets_the_delay_even_if_the_event_arrives_late() {
        for (events, next) in [(vec![attached(), lost()], FIRST_DELAY), (vec![lost()], 4 * FIRST_DELAY)] {
            let (_admin, mut held) = open_hold(events).await;
            let mut pause = Pause::new();
            pause.0.next_delay();
            let mut stop = std::pin::pin!(std::future::pending());
            let route = Route::Exec(Vec::new());
            assert!(matches!(
                pause.wait_with_events(&mut held, &route, stop.as_mut()).await,
                AttemptEnd::Ended
            ));
            assert_eq!(pause.0.next_delay(), next);
        }
    }

    #[test]
    fn default_names_of_different_routes_differ() {
        let name = |last: &str| {
            let command = [
                "docker",
                "exec",
                "-i",
                "a-container-with-a-long-name-in-a-long-registry",
                "cofferdam-shim",
                last,
            ];
            default_name(&Route::Exec(command.iter().map(Into::into).collect()))
        };
        assert_ne!(name("hub"), name("hab"));
        assert_eq!(name("hub"), name("hub"));
        assert_eq!(name("hub").chars().count(), MAX_NAME_CHARS);
        assert_eq!(default_name(&Route::Exec(vec!["ssh".into(), "box\n".into()])), "ssh box ");
        assert_eq!(default_name(&Route::dial("127.0.0.1:7").unwrap()), "127.0.0.1:7");
        assert_eq!(default_name(&Route::dial("wss://h/x?token=s").unwrap()), "wss://h/x");
    }
}
