//! E2B, and platforms that are compatible with it: the control API, and the Connect protocol of `envd` in the sandbox.
//!
//! The pipe is the stdin and stdout of a hub that `envd` starts. Events that `envd` sends while the client is disconnected are
//! lost, so a disconnect ends the pipe, and the relay retransmits over the next one.
//!
//! | module | what it holds |
//! |---|---|
//! | `control` | finding and resuming a sandbox |
//! | `envd` | processes and files in the sandbox |
//! | `connect` | the frames of the Connect protocol |
//! | `messages` | the messages in them |
//! | `pipe` | the hub and its pipe |
//! | `template` | lines for a template that contains the shim |

mod connect;
mod control;
mod envd;
mod messages;
mod pipe;
mod template;

use std::sync::Arc;
use std::time::Duration;

use cofferdam_net::Dialer;
use cofferdam_scrub::shared::SharedValues;
use tokio_util::task::TaskTracker;

use crate::harness_settings::install_with_settings;
use crate::install::InstalledShim;
use crate::prepared::PreparedSandbox;
use crate::redactor::Redactor;
use crate::temporary_files::LastSandbox;
use crate::{
    ApiKey, HubSetup, Pipe, PlatformError, PlatformSettings, Progress, SandboxId, SandboxState, ShimBinary,
    WhenSuspended,
};
use control::Control;
use envd::Envd;
use pipe::Hub;

/// Well below the shortest idle timeout of the load balancers in front of a sandbox, which is 60 s.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// The client of one platform.
pub struct E2b {
    control: Arc<Control>,
    keep_alive: Duration,
    /// One task per pipe. It ends after the pipe was dropped and its hub has exited.
    tasks: TaskTracker,
    last_sandbox: LastSandbox<Envd>,
}

impl E2b {
    /// `values` are those that every link and the log search for; the API key and the tokens of sandboxes are among them as
    /// long as this client, or what it has started, uses them.
    pub fn new(settings: PlatformSettings, key: ApiKey, dialer: Dialer, values: &Arc<SharedValues>) -> Self {
        let control = Arc::new(Control::new(settings, key, dialer, Redactor::holding_in(values)));
        Self {
            control,
            keep_alive: KEEP_ALIVE,
            tasks: TaskTracker::new(),
            last_sandbox: LastSandbox::default(),
        }
    }

    /// Changes the interval at which both sides of an idle pipe send a keep-alive, in whole seconds. If none arrives for three
    /// intervals, the pipe ends.
    #[must_use]
    pub fn with_keep_alive(self, keep_alive: Duration) -> Self {
        Self { keep_alive, ..self }
    }

    /// The state of the sandbox. Sends a request to the control API only, which does not resume the sandbox.
    pub async fn state(&self, id: &SandboxId) -> Result<SandboxState, PlatformError> {
        Ok(self.control.find(id).await?.state)
    }

    /// Finds the sandbox, installs the shim and the harness's settings if necessary, starts the hub and returns the pipe to it. A
    /// hub that this sidecar has started there before is killed first.
    pub async fn open(
        &self,
        id: &SandboxId,
        suspended: WhenSuspended,
        setup: &HubSetup,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<Pipe, PlatformError> {
        let (envd, shim) = self.install(id, suspended, setup, progress).await?;
        progress(Progress::StartingHub);
        let hub = Hub {
            control: Arc::clone(&self.control),
            envd,
            sandbox: id.clone(),
            shim: shim.file,
            pin: setup.pin.clone(),
            keep_alive: self.keep_alive,
        };
        let pipe = hub.open(&self.tasks).await?;
        progress(Progress::Connecting);
        Ok(pipe)
    }

    /// Does the same as [`Self::open`] without starting a hub, for a sandbox that connects to the sidecar by itself.
    pub async fn prepare(
        &self,
        id: &SandboxId,
        suspended: WhenSuspended,
        setup: &HubSetup,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<PreparedSandbox, PlatformError> {
        let (envd, shim) = self.install(id, suspended, setup, progress).await?;
        Ok(PreparedSandbox::new(envd, shim))
    }

    async fn install(
        &self,
        id: &SandboxId,
        suspended: WhenSuspended,
        setup: &HubSetup,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<(Arc<Envd>, InstalledShim), PlatformError> {
        progress(Progress::Finding);
        let mut access = self.control.find(id).await?;
        if let SandboxState::Suspended(suspension) = access.state {
            if suspended == WhenSuspended::Refuse {
                return Err(PlatformError::Suspended { action: "attach to the sandbox", suspension });
            }
            progress(Progress::Resuming);
            access = self.control.resume(id).await?;
        }
        let envd = self.last_sandbox.remember(id, Envd::new(&self.control, id, access)?);
        let installed = install_with_settings(&*envd, setup, progress).await?;
        Ok((envd, installed))
    }

    /// Waits until the hubs of all dropped pipes have exited, and removes the temporary files of work that was interrupted. To be
    /// called after the last pipe, and every future of this client, was dropped.
    pub async fn finish(&self) {
        self.tasks.close();
        tokio::join!(self.tasks.wait(), self.last_sandbox.clean_up(async |id| self.state(id).await));
    }

    /// Lines to add to a template's Dockerfile, so that the shim need not be uploaded.
    pub fn template(shim: &ShimBinary) -> String {
        template::lines(shim)
    }
}
