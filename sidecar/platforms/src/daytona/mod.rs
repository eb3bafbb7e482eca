//! Daytona: finds a sandbox, installs the shim, starts the hub and opens the pipe to it.
//!
//! What must stay true: the API key is sent to the control API only; the services of a sandbox get that sandbox's token, which is
//! requested at every attempt, because it changes when the sandbox restarts; while a sandbox is suspended, requests
//! go to the control API only, never to the sandbox's own services.
//!
//! | module | what it holds |
//! |---|---|
//! | `control` | the control API: state, start, preview links, SSH access |
//! | `toolbox` | commands, files and sessions in the sandbox |
//! | `hub_session` | the hub as a background command |
//! | `preview` | the pipe as a WebSocket through the preview proxy |
//! | `ssh` | the pipe as a command of the system's `ssh` |
//! | `token` | a token of one sandbox |

mod control;
mod hub_session;
mod preview;
mod ssh;
mod token;
mod toolbox;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cofferdam_net::Dialer;
use cofferdam_scrub::shared::SharedValues;
use http::HeaderName;
use tokio::time::{Instant, sleep};

use self::control::{Control, Phase, Preview, SandboxRecord};
use self::hub_session::{HubSession, HubStatus, PORT_ATTEMPTS, hub_port};
use self::preview::{CONNECTING, DialResult, PING_INTERVAL, PreviewOptions, dial};
use self::toolbox::Toolbox;
use crate::harness_settings::install_with_settings;
use crate::prepared::PreparedSandbox;
use crate::redactor::Redactor;
use crate::temporary_files::LastSandbox;
use crate::{
    ApiKey, HubSetup, KeepAwake, Pipe, PlatformError, PlatformSettings, Progress, SandboxId, SandboxState,
    WhenSuspended,
};

/// A client of Daytona's API, for one account.
pub struct Daytona {
    settings: PlatformSettings,
    key: ApiKey,
    dialer: Dialer,
    ping_interval: Duration,
    known_hosts: Option<PathBuf>,
    last_sandbox: LastSandbox<Toolbox>,
    /// Holds the secrets of all requests, as long as the client exists.
    redactor: Redactor,
}

/// How the pipe into a sandbox is transported.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Via {
    /// A WebSocket to the hub's port, through Daytona's preview proxy.
    Preview,
    /// The hub as a command of the system's `ssh`, through Daytona's SSH gateway.
    Ssh,
}

/// Tells the proxy not to count a request as activity of the sandbox.
const SKIP_ACTIVITY: HeaderName = HeaderName::from_static("x-daytona-skip-last-activity-update");

/// A stopped sandbox starts in seconds; an archived one is restored from object storage first.
const RESUME_TIMEOUT: Duration = Duration::from_secs(300);
const RESUME_POLL: Duration = Duration::from_secs(1);
/// For the hub to listen after its start; usually milliseconds.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(20);
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

const FINDING: &str = "find the sandbox at Daytona";
const RESUMING: &str = "start the sandbox at Daytona";

type ShowProgress<'a> = &'a (dyn Fn(Progress) + Send + Sync);

/// One sandbox with its toolbox, used for one attempt to open the pipe.
struct OpenSandbox<'a> {
    control: &'a Control,
    id: &'a SandboxId,
    toolbox: Arc<Toolbox>,
    options: PreviewOptions,
}

impl Daytona {
    /// `values` are those that every link and the log search for; the API key and the tokens of sandboxes are among them as
    /// long as this client exists.
    pub fn new(settings: PlatformSettings, key: ApiKey, dialer: Dialer, values: &Arc<SharedValues>) -> Self {
        Self {
            settings,
            key,
            dialer,
            ping_interval: PING_INTERVAL,
            known_hosts: None,
            last_sandbox: LastSandbox::default(),
            redactor: Redactor::holding_in(values),
        }
    }

    /// For a proxy that closes idle connections earlier than Daytona's own.
    pub fn with_ping_interval(self, ping_interval: Duration) -> Self {
        Self { ping_interval, ..self }
    }

    /// The file in which `ssh` stores the key of Daytona's gateway, instead of the user's `known_hosts`.
    pub fn with_known_hosts(self, file: PathBuf) -> Self {
        Self { known_hosts: Some(file), ..self }
    }

    /// The state of the sandbox. Sends a request to the control API only.
    pub async fn state(&self, id: &SandboxId) -> Result<SandboxState, PlatformError> {
        match self.control()?.sandbox(id).await?.phase {
            Phase::Started | Phase::Starting => Ok(SandboxState::Running),
            Phase::Stopping(suspension) | Phase::Suspended(suspension) => {
                Ok(SandboxState::Suspended(suspension))
            }
            Phase::Failed(why) => Err(PlatformError::Sandbox { action: FINDING, why }),
            Phase::Gone => Err(no_sandbox(id)),
        }
    }

    /// Installs the shim and starts the hub if necessary, and opens the pipe to the hub.
    pub async fn open(
        &self,
        id: &SandboxId,
        suspended: WhenSuspended,
        awake: KeepAwake,
        via: Via,
        setup: &HubSetup,
        progress: ShowProgress<'_>,
    ) -> Result<Pipe, PlatformError> {
        let control = self.control()?;
        let hub = HubSession::of(setup)?;
        progress(Progress::Finding);
        let record = ensure_started(&control, id, suspended, progress).await?;
        let preview = control.preview(id, hub_port(&setup.pin, id, 0)).await?;
        let toolbox =
            self.last_sandbox.remember(id, Toolbox::new(&control, &record, id, &preview.token, awake)?);
        let options = PreviewOptions { awake, ping_interval: self.ping_interval };
        let sandbox = OpenSandbox { control: &control, id, toolbox, options };
        match via {
            Via::Preview => sandbox.open_preview(&hub, preview, setup, progress).await,
            Via::Ssh => sandbox.open_ssh(&hub, setup, self.known_hosts.as_deref(), progress).await,
        }
    }

    /// Installs the shim and the harness's settings and starts nothing, for a sandbox that connects to the sidecar by itself.
    pub async fn prepare(
        &self,
        id: &SandboxId,
        suspended: WhenSuspended,
        awake: KeepAwake,
        setup: &HubSetup,
        progress: ShowProgress<'_>,
    ) -> Result<PreparedSandbox, PlatformError> {
        let control = self.control()?;
        progress(Progress::Finding);
        let record = ensure_started(&control, id, suspended, progress).await?;
        let preview = control.preview(id, hub_port(&setup.pin, id, 0)).await?;
        let toolbox =
            self.last_sandbox.remember(id, Toolbox::new(&control, &record, id, &preview.token, awake)?);
        let shim = install_with_settings(&*toolbox, setup, progress).await?;
        Ok(PreparedSandbox::new(toolbox, shim))
    }

    /// Ends the hub in a running sandbox. When a pipe is dropped, its hub stays for the next pipe.
    pub async fn end_hub(&self, id: &SandboxId, setup: &HubSetup) -> Result<(), PlatformError> {
        let control = self.control()?;
        let hub = HubSession::of(setup)?;
        let record = control.sandbox(id).await?;
        if record.phase != Phase::Started {
            // A sandbox that is not started runs no processes, so it has no hub.
            return Ok(());
        }
        let preview = control.preview(id, hub_port(&setup.pin, id, 0)).await?;
        hub.end(&Toolbox::new(&control, &record, id, &preview.token, KeepAwake::No)?).await
    }

    /// Resets the sandbox's auto-stop timer. The pipe does not count as use of the sandbox unless it was opened
    /// with [`KeepAwake::Yes`], so the caller does this while calls are being made: once a minute is enough.
    pub async fn refresh_activity(&self, id: &SandboxId) -> Result<(), PlatformError> {
        self.control()?.refresh_activity(id).await
    }

    /// Removes the temporary files of work that was interrupted. To be called after every future of this client was dropped.
    pub async fn finish(&self) {
        let find_state = async |id: &SandboxId| match self.control()?.sandbox(id).await?.phase {
            Phase::Started => Ok(SandboxState::Running),
            Phase::Stopping(suspension) | Phase::Suspended(suspension) => {
                Ok(SandboxState::Suspended(suspension))
            }
            Phase::Starting => {
                let why = "the sandbox is starting".to_owned();
                Err(PlatformError::Unavailable { action: FINDING, why, retry_after: None })
            }
            Phase::Failed(why) => Err(PlatformError::Sandbox { action: FINDING, why }),
            Phase::Gone => Err(no_sandbox(id)),
        };
        self.last_sandbox.clean_up(find_state).await;
    }

    fn control(&self) -> Result<Control, PlatformError> {
        Control::new(&self.settings, &self.key, &self.dialer, self.redactor.clone())
    }
}

impl OpenSandbox<'_> {
    async fn open_preview(
        &self,
        hub: &HubSession,
        mut preview: Preview,
        setup: &HubSetup,
        progress: ShowProgress<'_>,
    ) -> Result<Pipe, PlatformError> {
        let first = hub_port(&setup.pin, self.id, 0);
        // A running hub is not reused if settings are to be written: their paths are known only after an installation.
        let running = match setup.harness {
            None => hub.running_port(&self.toolbox, setup).await?,
            Some(_) => None,
        };
        if let Some(running) = running {
            progress(Progress::Connecting);
            if running != first {
                preview = self.control.preview(self.id, running).await?;
            }
            if let Some(pipe) = self.connect(hub, &preview).await? {
                return Ok(pipe);
            }
        }
        let shim = install_with_settings(&*self.toolbox, setup, progress).await?;
        for attempt in 0..PORT_ATTEMPTS {
            progress(Progress::StartingHub);
            let port = hub_port(&setup.pin, self.id, attempt);
            preview = self.control.preview(self.id, port).await?;
            hub.start(&self.toolbox, &shim, setup, port).await?;
            progress(Progress::Connecting);
            if let Some(pipe) = self.connect(hub, &preview).await? {
                return Ok(pipe);
            }
        }
        let why = format!("programs of the sandbox use all {PORT_ATTEMPTS} ports that were tried");
        Err(PlatformError::Sandbox { action: hub_session::STARTING, why })
    }

    /// Connects as soon as the hub listens; `None` if another program uses its port.
    async fn connect(&self, hub: &HubSession, preview: &Preview) -> Result<Option<Pipe>, PlatformError> {
        let deadline = Instant::now() + LISTEN_TIMEOUT;
        let mut pause = FIRST_RETRY;
        loop {
            let why = match dial(self.control, preview, self.options).await? {
                DialResult::Connected(pipe) => {
                    // Another program that uses the port may have accepted the connection.
                    return match hub.status(&self.toolbox).await? {
                        HubStatus::Running => Ok(Some(pipe)),
                        HubStatus::PortInUse => Ok(None),
                    };
                }
                // The token was requested at the start of this attempt; the next attempt requests a new one.
                DialResult::TokenRefused => {
                    let why =
                        "the sandbox's token is refused: the sandbox was restarted meanwhile".to_owned();
                    return Err(PlatformError::Unavailable { action: CONNECTING, why, retry_after: None });
                }
                DialResult::NotListening(why) => why,
            };
            if let HubStatus::PortInUse = hub.status(&self.toolbox).await? {
                return Ok(None);
            }
            if Instant::now() + pause >= deadline {
                return Err(PlatformError::Unavailable { action: CONNECTING, why, retry_after: None });
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_RETRY);
        }
    }

    async fn open_ssh(
        &self,
        hub: &HubSession,
        setup: &HubSetup,
        known_hosts: Option<&Path>,
        progress: ShowProgress<'_>,
    ) -> Result<Pipe, PlatformError> {
        let shim = install_with_settings(&*self.toolbox, setup, progress).await?;
        // A hub still running from a preview connection would hold the socket that the shims connect to.
        hub.end(&self.toolbox).await?;
        let access = self.control.ssh_access(self.id).await?;
        progress(Progress::StartingHub);
        ssh::open(self.control, &access, &shim, setup, known_hosts).await
    }
}

/// Waits until the sandbox runs, and resumes it first if `suspended` permits that; returns its record.
async fn ensure_started(
    control: &Control,
    id: &SandboxId,
    suspended: WhenSuspended,
    progress: ShowProgress<'_>,
) -> Result<SandboxRecord, PlatformError> {
    let deadline = Instant::now() + RESUME_TIMEOUT;
    let mut start_requested = false;
    loop {
        let record = control.sandbox(id).await?;
        match (&record.phase, suspended) {
            (Phase::Started, _) => return Ok(record),
            (Phase::Gone, _) => return Err(no_sandbox(id)),
            (Phase::Failed(why), _) => {
                return Err(PlatformError::Sandbox { action: FINDING, why: why.clone() });
            }
            (Phase::Stopping(suspension) | Phase::Suspended(suspension), WhenSuspended::Refuse) => {
                return Err(PlatformError::Suspended { action: FINDING, suspension: *suspension });
            }
            (Phase::Suspended(_), WhenSuspended::Resume) if !start_requested => {
                progress(Progress::Resuming);
                control.start(id).await?;
                start_requested = true;
            }
            (Phase::Starting | Phase::Stopping(_) | Phase::Suspended(_), _) => {}
        }
        if Instant::now() + RESUME_POLL >= deadline {
            let why = format!("it was not running after {} s", RESUME_TIMEOUT.as_secs());
            return Err(PlatformError::Unavailable { action: RESUMING, why, retry_after: None });
        }
        sleep(RESUME_POLL).await;
    }
}

fn no_sandbox(id: &SandboxId) -> PlatformError {
    PlatformError::NoSandbox { action: FINDING, sandbox: id.to_string() }
}
