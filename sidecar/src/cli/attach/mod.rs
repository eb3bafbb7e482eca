//! `cofferdam attach`: reaches into a sandbox and stays there until it is interrupted.
//!
//! It holds the sandbox with one connection to the sidecar, and makes a pipe of another for each time that it reaches in.
//! Whatever ends (the command, the hub, the network, the sidecar) is begun again, after pauses that grow.
//!
//! | module | what it holds |
//! |---|---|
//! | `asking` | the two connections to the sidecar |
//! | `reach` | one time that it reaches in: a command, or a port |

mod asking;
mod reach;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use cofferdam_base::Backoff;
use cofferdam_base::text::hex;
use ring::digest::{SHA256, digest};
use tokio::time::sleep;

use super::arguments::{AttachCommand, AttachTerms};
use super::interruption::interruption;
use crate::daemon::admin::Question;
use crate::daemon::attach_table::News;
use crate::terminal::failure::{Failure, Sysexit};
use asking::{Held, Unanswered};
use reach::{Reach, Reached};

/// The first and the longest delay between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Short, since a call in the sandbox may be waiting for its link.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// As long as an enrolment's name may be.
const MAX_NAME: usize = 64;

pub(super) fn run(admin: &Path, command: AttachCommand) -> Result<ExitCode, Failure> {
    let (reach, terms) = match command {
        AttachCommand::Dial(arguments) => (Reach::dial(&arguments.place)?, arguments.terms),
        AttachCommand::Exec(arguments) => (Reach::Exec(arguments.command), arguments.terms),
    };
    let AttachTerms { grant, name, ttl } = terms;
    let ttl_ms = ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    let question = Question::Attach { grant, name: name.unwrap_or_else(|| known_by(&reach)), ttl_ms };
    let failed = |error| Failure::new(Sysexit::Software, error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let stop = interruption().map_err(failed)?;
        stay(admin, &question, &reach, stop).await
    })
}

/// Stays attached until `stop`, or until the sidecar says that it is over.
async fn stay(
    admin: &Path,
    question: &Question,
    reach: &Reach,
    stop: impl Future<Output = ()>,
) -> Result<ExitCode, Failure> {
    let mut stop = std::pin::pin!(stop);
    let mut held = Some(Held::take(admin, question).await.map_err(|error| error.failure())?);
    let mut pause = Pause::new();
    loop {
        let mut holding = match held.take() {
            Some(held) => held,
            None => match Held::take(admin, question).await {
                Ok(held) => held,
                Err(error @ Unanswered::Refused(_)) => return Err(error.failure()),
                // It is most likely being restarted.
                Err(error) => {
                    say(&format!("{error}; trying again"));
                    if pause.wait(stop.as_mut()).await == Waited::Stopped {
                        return Ok(ExitCode::SUCCESS);
                    }
                    continue;
                }
            },
        };
        let (mut ended, proof) = once(admin, &mut holding, reach, stop.as_mut()).await?;
        if proof == Proof::Seen {
            pause = Pause::new();
        }
        if let Once::Ended = ended {
            ended = pause.wait_holding(&mut holding, stop.as_mut()).await;
        }
        match ended {
            Once::Ended => held = Some(holding),
            Once::SidecarGone => {
                say("the sidecar is gone; waiting for the next one");
                if pause.wait(stop.as_mut()).await == Waited::Stopped {
                    return Ok(ExitCode::SUCCESS);
                }
            }
            Once::Stopped => return Ok(ExitCode::SUCCESS),
            Once::Over(why) => return Err(Failure::new(Sysexit::Unavailable, why).hint("attach it again")),
        }
    }
}

/// Whether the other end proved its key this time: then the way is good, and the next pause is a short one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Proof {
    None,
    Seen,
}

/// How one time ended.
enum Once {
    Ended,
    Over(String),
    SidecarGone,
    Stopped,
}

/// Reaches in once.
async fn once(
    admin: &Path,
    held: &mut Held,
    reach: &Reach,
    mut stop: std::pin::Pin<&mut impl Future<Output = ()>>,
) -> Result<(Once, Proof), Failure> {
    let pipe = match asking::pipe(admin, &held.enrolment).await {
        Ok(pipe) => pipe,
        Err(Unanswered::Refused(why)) => {
            say(&why);
            return Ok((Once::Ended, Proof::None));
        }
        Err(_) => return Ok((Once::SidecarGone, Proof::None)),
    };
    let mut reached = Reached::begin(reach, pipe, &held.pin).await?;
    let mut why = None;
    let mut proof = Proof::None;
    let once = loop {
        tokio::select! {
            () = stop.as_mut() => break Once::Stopped,
            ended = reached.ended() => {
                say(&ended);
                break Once::Ended;
            }
            news = held.news() => match news {
                Some(News::Attached { key }) => {
                    say(&format!("attached (the sandbox's key is {key})"));
                    proof = Proof::Seen;
                    // Whatever was lost before it was another pipe, and its news came late.
                    why = None;
                }
                Some(News::Lost { why: lost }) => {
                    // The command may have more to say, and ends when its pipe has.
                    say(&lost);
                    why = Some(lost);
                }
                Some(News::Over { why }) => break Once::Over(why),
                None => break Once::SidecarGone,
            },
            () = sleep(reach::ENDS_WITHIN), if why.is_some() => break Once::Ended,
        }
    };
    reached.end().await;
    Ok((once, proof))
}

/// What a sandbox without a name is known by: the way to it.
fn known_by(reach: &Reach) -> String {
    let text: String = reach
        .to_string()
        .chars()
        .map(|character| if character.is_control() { ' ' } else { character })
        .collect();
    if text.chars().count() <= MAX_NAME {
        return text;
    }
    let mut name: String = text.chars().take(MAX_NAME - 17).collect();
    name.push('…');
    name.push_str(&hex(&digest(&SHA256, reach.to_string().as_bytes()).as_ref()[..8]));
    name
}

/// Messages go to stderr, each line in one write since the command writes there too. A closed stderr is ignored.
fn say(text: &str) {
    let _ = std::io::stderr().write_all(format!("cofferdam attach: {text}\n").as_bytes());
}

struct Pause(Backoff);

#[derive(Eq, PartialEq)]
enum Waited {
    Out,
    Stopped,
}

impl Pause {
    fn new() -> Self {
        Self(Backoff::new(FIRST_PAUSE, LONGEST_PAUSE))
    }

    /// The same, with an ear for the sidecar.
    async fn wait_holding(
        &mut self,
        held: &mut Held,
        stop: std::pin::Pin<&mut impl Future<Output = ()>>,
    ) -> Once {
        let mut proof = Proof::None;
        let said = async {
            loop {
                match held.news().await {
                    // It was over before we heard that it was good.
                    Some(News::Attached { .. }) => proof = Proof::Seen,
                    Some(News::Lost { why }) => say(&why),
                    Some(News::Over { why }) => return Once::Over(why),
                    None => return Once::SidecarGone,
                }
            }
        };
        let once = tokio::select! {
            once = said => once,
            waited = self.wait(stop) => match waited {
                Waited::Out => Once::Ended,
                Waited::Stopped => Once::Stopped,
            },
        };
        if proof == Proof::Seen {
            *self = Self::new();
        }
        once
    }

    /// The next one is longer.
    async fn wait(&mut self, stop: std::pin::Pin<&mut impl Future<Output = ()>>) -> Waited {
        tokio::select! {
            () = stop => Waited::Stopped,
            () = sleep(self.0.next_delay()) => Waited::Out,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, UnixListener};
    use tokio::task::JoinSet;
    use tokio::time::timeout;

    use super::*;
    use crate::daemon::admin::Answer;
    use crate::random::id;

    /// Where the sidecar is asked; gone, with it, when it is not needed.
    struct Socket(std::path::PathBuf, JoinSet<()>);

    impl Drop for Socket {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    /// What a sidecar would do: it holds, has news of these, and gives as many pipes as it is asked for.
    async fn sidecar(listener: UnixListener, news: Vec<News>) {
        let mut connections = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut lines = vec![match connections.is_empty() {
                true => serde_json::to_string(&Answer::Attaching { enrolment: "e".into(), pin: "k".into() }),
                false => serde_json::to_string(&Answer::Piped),
            }];
            if connections.is_empty() {
                lines.extend(news.iter().map(serde_json::to_string));
            }
            for line in lines {
                stream.write_all((line.unwrap() + "\n").as_bytes()).await.unwrap();
            }
            connections.push(stream);
        }
    }

    async fn held(news: Vec<News>) -> (Socket, Held) {
        let mut admin = Socket(std::env::temp_dir().join(id("cofferdam-attach-")), JoinSet::new());
        let listener = UnixListener::bind(&admin.0).unwrap();
        admin.1.spawn(sidecar(listener, news));
        let grant = "dev".parse().unwrap();
        let question = Question::Attach { grant, name: "box".into(), ttl_ms: None };
        let held = Held::take(&admin.0, &question).await.map_err(|error| error.to_string()).unwrap();
        (admin, held)
    }

    fn lost() -> News {
        News::Lost { why: "the pipe before".into() }
    }

    fn attached() -> News {
        News::Attached { key: "k".into() }
    }

    #[tokio::test(start_paused = true)]
    async fn late_news_of_the_pipe_before_end_none_that_is_good() {
        for (news, ends) in [(vec![lost(), attached()], false), (vec![attached(), lost()], true)] {
            let (admin, mut held) = held(news).await;
            let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let reach = Reach::dial(&port.local_addr().unwrap().to_string()).unwrap();
            let mut stop = std::pin::pin!(std::future::pending());
            let once = once(&admin.0, &mut held, &reach, stop.as_mut());
            assert_eq!(timeout(10 * reach::ENDS_WITHIN, once).await.is_ok(), ends);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pipe_that_was_good_makes_the_next_pause_short_however_late_we_hear_of_it() {
        for (news, next) in [(vec![attached(), lost()], FIRST_PAUSE), (vec![lost()], 4 * FIRST_PAUSE)] {
            let (_admin, mut held) = held(news).await;
            let mut pause = Pause::new();
            pause.0.next_delay();
            let mut stop = std::pin::pin!(std::future::pending());
            assert!(matches!(pause.wait_holding(&mut held, stop.as_mut()).await, Once::Ended));
            assert_eq!(pause.0.next_delay(), next);
        }
    }

    #[test]
    fn a_sandbox_is_known_by_the_whole_way_to_it() {
        let way = |last: &str| {
            let words = [
                "docker",
                "exec",
                "-i",
                "a-container-with-a-long-name-in-a-long-registry",
                "cofferdam-shim",
                last,
            ];
            known_by(&Reach::Exec(words.iter().map(Into::into).collect()))
        };
        assert_ne!(way("hub"), way("hab"));
        assert_eq!(way("hub"), way("hub"));
        assert_eq!(way("hub").chars().count(), MAX_NAME);
        assert_eq!(known_by(&Reach::Exec(vec!["ssh".into(), "box\n".into()])), "ssh box ");
        assert_eq!(known_by(&Reach::dial("127.0.0.1:7").unwrap()), "127.0.0.1:7");
    }
}
