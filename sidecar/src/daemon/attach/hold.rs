//! One `cofferdam attach` for as long as it runs. When it ends, for whatever reason, the pipe ends at once, and the
//! enrolment when the grace of its links is over.

use std::sync::Arc;
use std::time::Duration;

use relay_proto::name::Name;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::daemon::attach_table::{AttachTable, Attached, Holder, MAX_NEWS, News, Sandbox};
use crate::daemon::enrolling::{EnrollError, EnrollRequest, EnrollVia};
use crate::daemon::state::Daemon;

/// What `cofferdam attach` asks for.
#[derive(Clone, Debug)]
pub(crate) struct AttachRequest {
    pub(crate) grant: Name,
    pub(crate) name: String,
    /// None: the grant's `ttl`.
    pub(crate) ttl: Option<Duration>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum NotHeld {
    #[error(
        "another `cofferdam attach` holds the sandbox `{0}`; end that one, or give this one another `--name`"
    )]
    Held(String),
    #[error(transparent)]
    NotMade(#[from] EnrollError),
}

/// Keeps a sandbox attached. Dropping it ends that.
pub(crate) struct Hold {
    daemon: Arc<Daemon>,
    pub(crate) enrolment: Arc<str>,
    sandbox: Sandbox,
    number: u64,
    news: mpsc::Receiver<News>,
    over: CancellationToken,
}

/// A holder that was killed is noticed within this time, before the next one is refused.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
const RELEASE_PAUSE: Duration = Duration::from_millis(20);
/// For sending one of the news.
const NEWS_TIMEOUT: Duration = Duration::from_secs(5);
/// Links end when their grace is over; their enrolment stays a little longer.
const AFTER_GRACE: Duration = Duration::from_secs(1);

impl Daemon {
    /// Holds a sandbox, in its enrolment or in a new one.
    pub(crate) async fn hold(self: &Arc<Self>, asked: AttachRequest) -> Result<Hold, NotHeld> {
        let sandbox = Sandbox { grant: asked.grant.clone(), name: asked.name.clone() };
        let give_up = Instant::now() + RELEASE_TIMEOUT;
        loop {
            match self.attaches.hold(self, &sandbox) {
                Holding::Yes(hold) => match self.enrolments.find(&hold.enrolment, clock::now()) {
                    Ok(_) => return Ok(hold),
                    // It has expired and was not ended yet.
                    Err(_) => self.attaches.end(&hold.enrolment),
                },
                Holding::Another if Instant::now() < give_up => sleep(RELEASE_PAUSE).await,
                Holding::Another => return Err(NotHeld::Held(sandbox.name)),
                Holding::Unknown => {
                    // A task of its own: the client may disconnect meanwhile, and the enrolment must be in the table.
                    let made =
                        self.context.tasks.spawn(Arc::clone(self).make(sandbox.clone(), asked.clone()));
                    made.await.map_err(|_| EnrollError::Failed)??;
                }
            }
        }
    }

    /// Makes an enrolment for this sandbox, unless another request has made one meanwhile.
    async fn make(self: Arc<Self>, sandbox: Sandbox, asked: AttachRequest) -> Result<(), EnrollError> {
        let _turn = self.attaches.making.lock().await;
        if self.attaches.lock().by_sandbox.contains_key(&sandbox) {
            return Ok(());
        }
        let AttachRequest { grant, name, ttl } = asked;
        let asked = EnrollRequest { grant, name: Some(name), ttl, via: EnrollVia::Attached };
        let made = self.enroll(asked).await?;
        self.attaches.insert(sandbox.clone(), made.enrolment.id);
        self.give_up_later(sandbox, 0);
        Ok(())
    }

    /// Sandboxes that were attached before a restart may be attached again within the grace of a lost link.
    pub(crate) fn await_attaches(self: &Arc<Self>) {
        for enrolment in self.enrolments.attached(clock::now()) {
            let sandbox = Sandbox::of(&enrolment);
            self.attaches.insert(sandbox.clone(), enrolment.id);
            self.give_up_later(sandbox, 0);
        }
    }

    /// Holds the sandbox until the client disconnects, and sends it news.
    pub(crate) async fn keep_hold(self: Arc<Self>, mut hold: Hold, mut stream: UnixStream) {
        tracing::info!(enrolment = %hold.enrolment, sandbox = hold.sandbox.name, "sandbox held by attach");
        let mut room = [0; 64];
        loop {
            tokio::select! {
                () = self.stop.cancelled() => break,
                () = hold.over.cancelled() => {
                    let why = "the enrolment is over: it expired, or was ended with `cofferdam kill`";
                    let _ = send_news(&mut stream, &News::Over { why: why.into() }).await;
                    break;
                }
                Some(news) = hold.news.recv() => if send_news(&mut stream, &news).await.is_err() { break },
                // The client sends nothing; only its disconnect matters.
                read = stream.read(&mut room) => if !matches!(read, Ok(1..)) { break },
            }
        }
        tracing::info!(enrolment = %hold.enrolment, sandbox = hold.sandbox.name, "attach ended");
    }

    /// Ends the enrolment unless the sandbox is attached again within the grace.
    fn give_up_later(self: &Arc<Self>, sandbox: Sandbox, number: u64) {
        let daemon = Arc::clone(self);
        let grace = self.context.config.load().relay.resume_grace + AFTER_GRACE;
        self.context.tasks.spawn(async move {
            if daemon.stop.run_until_cancelled(sleep(grace)).await.is_none() {
                return;
            }
            if let Some(enrolment) = daemon.attaches.given_up(&sandbox, number) {
                tracing::info!(%enrolment, sandbox = sandbox.name, "not attached again in time: enrolment ended");
                // Failures are in the log.
                let _ = daemon.kill(&enrolment).await;
            }
        });
    }
}

enum Holding {
    Another,
    Unknown,
    Yes(Hold),
}

impl AttachTable {
    fn insert(&self, sandbox: Sandbox, enrolment: Arc<str>) {
        self.lock().by_sandbox.entry(sandbox).or_insert_with(|| Attached::new(enrolment));
    }

    fn hold(&self, daemon: &Arc<Daemon>, sandbox: &Sandbox) -> Holding {
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
        Holding::Yes(Hold {
            daemon: Arc::clone(daemon),
            enrolment,
            sandbox: sandbox.clone(),
            number,
            news,
            over,
        })
    }

    fn release(&self, sandbox: &Sandbox, number: u64) {
        let mut table = self.lock();
        let Some(attached) = table.by_sandbox.get_mut(sandbox) else { return };
        if attached.holds == number {
            attached.holder = None;
            attached.end_pipe();
        }
    }

    /// The enrolment, if the sandbox was not attached again since.
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
        self.daemon.attaches.release(&self.sandbox, self.number);
        // After the stop the next sidecar starts a grace of its own.
        if !self.daemon.stop.is_cancelled() {
            self.daemon.give_up_later(self.sandbox.clone(), self.number);
        }
    }
}

async fn send_news(stream: &mut UnixStream, news: &News) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(news)?;
    line.push(b'\n');
    timeout(NEWS_TIMEOUT, stream.write_all(&line)).await?
}
