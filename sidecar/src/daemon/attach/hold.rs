//! One `cofferdam attach`, for as long as it is there: its end, however it comes, ends the pipe at once and the
//! enrolment when its links' grace is over.

use std::sync::Arc;
use std::time::Duration;

use relay_proto::name::Name;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::daemon::attach_table::{Attached, Attaches, Holder, MAX_NEWS, News, Sandbox};
use crate::daemon::enrolling::{EnrollError, Enrolling, Way};
use crate::daemon::state::App;

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) grant: Name,
    pub(crate) name: String,
    /// None: as long as the grant lasts.
    pub(crate) ttl: Option<Duration>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum NotHeld {
    #[error(
        "the sandbox `{0}` is attached by another `cofferdam attach`; end that one, or give this one another `--name`"
    )]
    Held(String),
    #[error(transparent)]
    NotMade(#[from] EnrollError),
}

/// Somebody wants this sandbox attached; however this ends, nobody does any more.
pub(crate) struct Hold {
    app: Arc<App>,
    pub(crate) enrolment: Arc<str>,
    sandbox: Sandbox,
    number: u64,
    news: mpsc::Receiver<News>,
    over: CancellationToken,
}

/// Somebody who was killed is found out before the next one is refused.
const RELEASE_TIME: Duration = Duration::from_secs(2);
const RELEASE_PAUSE: Duration = Duration::from_millis(20);
/// News take no longer to leave.
const NEWS_TIME: Duration = Duration::from_secs(5);
/// Links end by themselves when their grace is over; what held them together stays a little longer.
const AFTER_GRACE: Duration = Duration::from_secs(1);

impl App {
    /// Takes hold of a sandbox, in the enrolment that it has or in a new one.
    pub(crate) async fn hold(self: &Arc<Self>, asked: Asked) -> Result<Hold, NotHeld> {
        let sandbox = Sandbox { grant: asked.grant.clone(), name: asked.name.clone() };
        let give_up = Instant::now() + RELEASE_TIME;
        loop {
            match self.attaches.hold(self, &sandbox) {
                Holding::Yes(hold) => match self.enrolments.find(&hold.enrolment, clock::now()) {
                    Ok(_) => return Ok(hold),
                    // Its time is over, and nobody has looked yet.
                    Err(_) => self.attaches.end(&hold.enrolment),
                },
                Holding::Another if Instant::now() < give_up => sleep(RELEASE_PAUSE).await,
                Holding::Another => return Err(NotHeld::Held(sandbox.name)),
                Holding::Unknown => {
                    // A task of its own: whoever asks may leave in the middle, and what was made must be known then.
                    let made =
                        self.context.tasks.spawn(Arc::clone(self).make(sandbox.clone(), asked.clone()));
                    made.await.map_err(|_| EnrollError::Failed)??;
                }
            }
        }
    }

    /// An enrolment for this sandbox, unless somebody else has made one by now.
    async fn make(self: Arc<Self>, sandbox: Sandbox, asked: Asked) -> Result<(), EnrollError> {
        let _turn = self.attaches.making.lock().await;
        if self.attaches.lock().by_sandbox.contains_key(&sandbox) {
            return Ok(());
        }
        let Asked { grant, name, ttl } = asked;
        let asked = Enrolling { grant, name: Some(name), ttl, way: Way::Attached };
        let made = self.enroll(asked).await?;
        self.attaches.insert(sandbox.clone(), made.enrolment.id);
        self.give_up_later(sandbox, 0);
        Ok(())
    }

    /// Those that were attached before a restart may be again, for as long as a lost link would be kept.
    pub(crate) fn await_attaches(self: &Arc<Self>) {
        for enrolment in self.enrolments.attached(clock::now()) {
            let sandbox = Sandbox::of(&enrolment);
            self.attaches.insert(sandbox.clone(), enrolment.id);
            self.give_up_later(sandbox, 0);
        }
    }

    /// Stays for as long as whoever asked does, and passes news on.
    pub(crate) async fn keep_hold(self: Arc<Self>, mut hold: Hold, mut stream: UnixStream) {
        tracing::info!(enrolment = %hold.enrolment, sandbox = hold.sandbox.name, "attach is wanted");
        let mut room = [0; 64];
        loop {
            tokio::select! {
                () = self.stop.cancelled() => break,
                () = hold.over.cancelled() => {
                    let why = "the enrolment is over: its time has come, or it was ended with `cofferdam kill`";
                    let _ = say(&mut stream, &News::Over { why: why.into() }).await;
                    break;
                }
                Some(news) = hold.news.recv() => if say(&mut stream, &news).await.is_err() { break },
                // It has nothing to say; its end is what counts.
                read = stream.read(&mut room) => if !matches!(read, Ok(1..)) { break },
            }
        }
        tracing::info!(enrolment = %hold.enrolment, sandbox = hold.sandbox.name, "attach is not wanted any more");
    }

    /// Ends the enrolment unless somebody takes hold of it in time.
    fn give_up_later(self: &Arc<Self>, sandbox: Sandbox, number: u64) {
        let app = Arc::clone(self);
        let grace = self.context.config.load().relay.resume_grace + AFTER_GRACE;
        self.context.tasks.spawn(async move {
            if app.stop.run_until_cancelled(sleep(grace)).await.is_none() {
                return;
            }
            if let Some(enrolment) = app.attaches.given_up(&sandbox, number) {
                tracing::info!(%enrolment, sandbox = sandbox.name, "nobody attached it again: over");
                // What went wrong is in the log.
                let _ = app.kill(&enrolment).await;
            }
        });
    }
}

enum Holding {
    Another,
    Unknown,
    Yes(Hold),
}

impl Attaches {
    fn insert(&self, sandbox: Sandbox, enrolment: Arc<str>) {
        self.lock().by_sandbox.entry(sandbox).or_insert_with(|| Attached::new(enrolment));
    }

    fn hold(&self, app: &Arc<App>, sandbox: &Sandbox) -> Holding {
        let mut table = self.lock();
        table.holds += 1;
        let number = table.holds;
        let Some(attached) = table.by_sandbox.get_mut(sandbox) else { return Holding::Unknown };
        if attached.holder.is_some() {
            return Holding::Another;
        }
        let (sender, news) = mpsc::channel(MAX_NEWS);
        let over = CancellationToken::new();
        attached.holder = Some(Holder { news: sender, over: over.clone() });
        attached.holds = number;
        let enrolment = Arc::clone(&attached.enrolment);
        Holding::Yes(Hold { app: Arc::clone(app), enrolment, sandbox: sandbox.clone(), number, news, over })
    }

    fn release(&self, sandbox: &Sandbox, number: u64) {
        let mut table = self.lock();
        let Some(attached) = table.by_sandbox.get_mut(sandbox) else { return };
        if attached.holds == number {
            attached.holder = None;
            attached.end_pipe();
        }
    }

    /// The enrolment, if nobody has taken hold of it since.
    fn given_up(&self, sandbox: &Sandbox, number: u64) -> Option<Arc<str>> {
        let mut table = self.lock();
        let attached = table.by_sandbox.get(sandbox)?;
        if attached.holder.is_some() || attached.holds != number {
            return None;
        }
        table.by_sandbox.remove(sandbox).map(|attached| attached.enrolment)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.app.attaches.release(&self.sandbox, self.number);
        // After the stop nobody waits for anything, and the next sidecar gives them a time of its own.
        if !self.app.stop.is_cancelled() {
            self.app.give_up_later(self.sandbox.clone(), self.number);
        }
    }
}

async fn say(stream: &mut UnixStream, news: &News) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(news)?;
    line.push(b'\n');
    timeout(NEWS_TIME, stream.write_all(&line)).await?
}
