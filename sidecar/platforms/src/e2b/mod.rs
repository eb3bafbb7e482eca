//! E2B, and platforms that are compatible with it: the control API, and the Connect protocol of `envd` in the sandbox.
//!
//! The pipe is the stdin and stdout of a hub that `envd` starts. What `envd` sends while no client listens is lost, so a cut
//! ends the pipe, and the relay replays over the next one.
//!
//! | module | what it holds |
//! |---|---|
//! | `control` | finding and resuming a sandbox |
//! | `envd` | processes and files in the sandbox |
//! | `connect` | the frames of the Connect protocol |
//! | `messages` | the messages in them |
//! | `pipe` | the hub and its pipe |
//! | `template` | what to add to a template |

mod connect;
mod control;
mod envd;
mod messages;
mod pipe;
mod template;

use std::sync::Arc;
use std::time::Duration;

use cofferdam_net::Dialer;
use tokio_util::task::TaskTracker;

use crate::harness_settings::write_settings;
use crate::install::{InstalledShim, install_shim};
use crate::prepared::PreparedSandbox;
use crate::{
    ApiKey, HubSetup, Pipe, PlatformError, PlatformSettings, Progress, SandboxId, SandboxState, ShimBinary,
    WhenSuspended,
};
use control::Control;
use envd::Envd;
use pipe::Hub;

/// Well under the shortest idle limit of the load balancers in front of a sandbox, which is 60 s.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// The client of one platform.
pub struct E2b {
    control: Arc<Control>,
    keep_alive: Duration,
    /// One task per pipe; it ends with the pipe.
    tasks: TaskTracker,
}

impl E2b {
    pub fn new(settings: PlatformSettings, key: ApiKey, dialer: Dialer) -> Self {
        let control = Arc::new(Control::new(settings, key, dialer));
        Self { control, keep_alive: KEEP_ALIVE, tasks: TaskTracker::new() }
    }

    /// Changes how often both sides of an idle pipe send a sign of life, in whole seconds. Without one for three times as
    /// long, the pipe ends.
    #[must_use]
    pub fn with_keep_alive(self, keep_alive: Duration) -> Self {
        Self { keep_alive, ..self }
    }

    /// Asks the control API only: it does not wake the sandbox.
    pub async fn state(&self, id: &SandboxId) -> Result<SandboxState, PlatformError> {
        Ok(self.control.find(id).await?.state)
    }

    /// Finds the sandbox, makes sure that the shim and the harness's settings are in it, starts the hub there and returns the
    /// pipe to it. A hub that this sidecar started there before is ended first.
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

    /// Does the same up to the start of the hub, for a sandbox that connects to the sidecar by itself.
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
    ) -> Result<(Envd, InstalledShim), PlatformError> {
        progress(Progress::Finding);
        let mut access = self.control.find(id).await?;
        if access.state == SandboxState::Suspended {
            if suspended == WhenSuspended::Refuse {
                return Err(PlatformError::Suspended { doing: "attach to the sandbox" });
            }
            progress(Progress::Resuming);
            access = self.control.resume(id).await?;
        }
        let envd = Envd::new(&self.control, id, access)?;
        let installed = install_shim(&envd, setup, progress).await?;
        if let Some(settings) = &setup.harness {
            write_settings(&envd, &installed, &**settings).await?;
        }
        Ok((envd, installed))
    }

    /// Waits until the hubs of all dropped pipes are ended. To be called at an orderly stop, after the last pipe was dropped.
    pub async fn finish(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// What to add to a template's Dockerfile so that nothing is uploaded later.
    pub fn template(shim: &ShimBinary) -> String {
        template::lines(shim)
    }
}
