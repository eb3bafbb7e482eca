//! The hold of a sandbox, by one `cofferdam attach` or by an attachment of the sidecar. When the hold ends, for whatever
//! reason, the pipe ends at once, and the enrolment after the resume grace of its links.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_base::clock;
use relay_proto::name::Name;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::daemon::admin::PipeVia;
use crate::daemon::attach_table::{
    AttachEvent, AttachTable, AttachedSandbox, Holder, MAX_EVENTS, SandboxKey,
};
use crate::daemon::enrolling::{EnrollError, EnrollRequest, EnrollVia};
use crate::daemon::state::Daemon;

/// A request to hold a sandbox.
#[derive(Clone, Debug)]
pub(crate) struct HoldRequest {
    pub(crate) grant: Name,
    pub(crate) name: String,
    /// None: the grant's `ttl`.
    pub(crate) ttl: Option<Duration>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum HoldError {
    #[error(
        "another `cofferdam attach` holds the sandbox `{0}`; end that one, or give this one another `--name`"
    )]
    HeldByAnother(String),
    #[error(transparent)]
    NotCreated(#[from] EnrollError),
}

/// Keeps a sandbox attached until it is dropped.
pub(crate) struct Hold {
    daemon: Arc<Daemon>,
    pub(crate) enrolment: Arc<str>,
    sandbox: SandboxKey,
    number: u64,
    events: mpsc::Receiver<AttachEvent>,
    ended: CancellationToken,
}

/// An event for the holder of a sandbox.
#[derive(Debug)]
pub(crate) enum HoldEvent {
    /// The enrolment has ended.
    Ended,
    /// An event of the current pipe, or of an earlier one.
    Pipe(AttachEvent),
}

/// How long a new `cofferdam attach` waits for the previous holder to disconnect: it may have been killed just before.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
const RELEASE_PAUSE: Duration = Duration::from_millis(20);
/// How long sending one event may take.
const EVENT_TIMEOUT: Duration = Duration::from_secs(5);
/// How much longer than the resume grace of its links an enrolment lasts, so that the links end first.
const AFTER_GRACE: Duration = Duration::from_secs(1);

impl Daemon {
    /// Holds a sandbox; enrols it if it is not enrolled.
    pub(crate) async fn hold(self: &Arc<Self>, request: HoldRequest) -> Result<Hold, HoldError> {
        let sandbox = SandboxKey { grant: request.grant.clone(), name: request.name.clone() };
        let deadline = Instant::now() + RELEASE_TIMEOUT;
        loop {
            match self.attaches.hold(self, &sandbox) {
                HoldResult::Held(hold) => match self.enrolments.find(&hold.enrolment, clock::now()) {
                    Ok(_) => return Ok(hold),
                    // The enrolment has expired and was not ended yet.
                    Err(_) => self.attaches.end(&hold.enrolment),
                },
                HoldResult::HeldByAnother if Instant::now() < deadline => sleep(RELEASE_PAUSE).await,
                HoldResult::HeldByAnother => return Err(HoldError::HeldByAnother(sandbox.name)),
                HoldResult::NotEnrolled => {
                    // In its own task, so that the new enrolment gets into the table even if the client disconnects.
                    let made = self
                        .context
                        .tasks
                        .spawn(Arc::clone(self).enrol_sandbox(sandbox.clone(), request.clone()));
                    made.await.map_err(|_| EnrollError::Failed)??;
                }
            }
        }
    }

    /// Creates an enrolment for this sandbox, unless another request has created one meanwhile.
    async fn enrol_sandbox(
        self: Arc<Self>,
        sandbox: SandboxKey,
        request: HoldRequest,
    ) -> Result<(), EnrollError> {
        let _turn = self.attaches.creating.lock().await;
        if self.attaches.lock().by_sandbox.contains_key(&sandbox) {
            return Ok(());
        }
        let HoldRequest { grant, name, ttl } = request;
        let request = EnrollRequest { grant, name: Some(name), ttl, via: EnrollVia::Attached };
        let made = self.enroll(request).await?;
        self.attaches.insert(sandbox.clone(), made.enrolment.id);
        self.end_after_grace(sandbox, 0);
        Ok(())
    }

    /// Enters the sandboxes that were attached before a restart: they may be attached again within the resume grace.
    pub(crate) fn restore_attached_sandboxes(self: &Arc<Self>) {
        for enrolment in self.enrolments.attached(clock::now()) {
            let sandbox = SandboxKey::of(&enrolment);
            self.attaches.insert(sandbox.clone(), enrolment.id);
            self.end_after_grace(sandbox, 0);
        }
    }

    /// Holds the sandbox until the client disconnects, and sends events to the client.
    pub(crate) async fn hold_until_disconnect(self: Arc<Self>, mut hold: Hold, mut stream: UnixStream) {
        tracing::info!(enrolment = %hold.enrolment, sandbox = hold.sandbox.name, "attach started");
        let mut buffer = [0; 64];
        loop {
            tokio::select! {
                () = self.stop.cancelled() => break,
                event = hold.next_event() => match event {
                    HoldEvent::Ended => {
                        let why = "the enrolment has ended: it expired, or was ended with `cofferdam kill`";
                        let _ = send_event(&mut stream, &AttachEvent::Over { why: why.into() }).await;
                        break;
                    }
                    HoldEvent::Pipe(event) => if send_event(&mut stream, &event).await.is_err() { break },
                },
                // The client sends nothing; only its disconnect matters.
                read = stream.read(&mut buffer) => if !matches!(read, Ok(1..)) { break },
            }
        }
        tracing::info!(enrolment = %hold.enrolment, sandbox = hold.sandbox.name, "attach ended");
    }

    /// Ends the enrolment after the grace, unless the sandbox was held again after hold `number`.
    fn end_after_grace(self: &Arc<Self>, sandbox: SandboxKey, number: u64) {
        let daemon = Arc::clone(self);
        let grace = self.context.config.load().relay.resume_grace + AFTER_GRACE;
        self.context.tasks.spawn(async move {
            if daemon.stop.run_until_cancelled(sleep(grace)).await.is_none() {
                return;
            }
            if let Some(enrolment) = daemon.attaches.remove_unheld(&sandbox, number) {
                tracing::info!(%enrolment, sandbox = sandbox.name, "not attached again in time: enrolment ended");
                // Failures are logged where they occur.
                let _ = daemon.kill(&enrolment).await;
            }
        });
    }
}

impl Hold {
    pub(crate) fn daemon(&self) -> &Arc<Daemon> {
        &self.daemon
    }

    /// Serves a pipe that the sidecar's own client of a platform provides, in a task of its own.
    pub(crate) fn serve(&self, stream: UnixStream) {
        let daemon = Arc::clone(&self.daemon);
        let enrolment = self.enrolment.to_string();
        // This pipe was not opened with a token, whose end would end the pipe.
        let right_ended = std::future::pending();
        let serving = daemon.serve_pipe(enrolment, PipeVia::Platform, stream, right_ended);
        self.daemon.context.tasks.spawn(serving);
    }

    /// The next event. Cancel-safe.
    pub(crate) async fn next_event(&mut self) -> HoldEvent {
        tokio::select! {
            () = self.ended.cancelled() => HoldEvent::Ended,
            Some(event) = self.events.recv() => HoldEvent::Pipe(event),
        }
    }
}

enum HoldResult {
    Held(Hold),
    HeldByAnother,
    NotEnrolled,
}

impl AttachTable {
    fn insert(&self, sandbox: SandboxKey, enrolment: Arc<str>) {
        self.lock().by_sandbox.entry(sandbox).or_insert_with(|| AttachedSandbox::new(enrolment));
    }

    fn hold(&self, daemon: &Arc<Daemon>, sandbox: &SandboxKey) -> HoldResult {
        let mut table = self.lock();
        table.last_hold += 1;
        let number = table.last_hold;
        let Some(attached) = table.by_sandbox.get_mut(sandbox) else { return HoldResult::NotEnrolled };
        if attached.holder.is_some() {
            return HoldResult::HeldByAnother;
        }
        let (sender, events) = mpsc::channel(MAX_EVENTS);
        let ended = CancellationToken::new();
        attached.holder = Some(Holder { events: sender, ended: ended.clone() });
        attached.hold_number = number;
        let enrolment = Arc::clone(&attached.enrolment);
        HoldResult::Held(Hold {
            daemon: Arc::clone(daemon),
            enrolment,
            sandbox: sandbox.clone(),
            number,
            events,
            ended,
        })
    }

    fn release(&self, sandbox: &SandboxKey, number: u64) {
        let mut table = self.lock();
        let Some(attached) = table.by_sandbox.get_mut(sandbox) else { return };
        if attached.hold_number == number {
            attached.holder = None;
            attached.end_pipe();
        }
    }

    /// Removes the sandbox, and returns its enrolment, unless the sandbox was held again after hold `number`.
    fn remove_unheld(&self, sandbox: &SandboxKey, number: u64) -> Option<Arc<str>> {
        let mut table = self.lock();
        let attached = table.by_sandbox.get(sandbox)?;
        if attached.holder.is_some() || attached.hold_number != number {
            return None;
        }
        table.by_sandbox.remove(sandbox).map(|attached| attached.enrolment)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.daemon.attaches.release(&self.sandbox, self.number);
        // If the sidecar stops, it starts a new grace when it is started again.
        if !self.daemon.stop.is_cancelled() {
            self.daemon.end_after_grace(self.sandbox.clone(), self.number);
        }
    }
}

async fn send_event(stream: &mut UnixStream, event: &AttachEvent) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    timeout(EVENT_TIMEOUT, stream.write_all(&line)).await?
}
