//! The clients of the platforms.
//!
//! What must stay true: an API key is used in the header of requests and nowhere else; it and the tokens of sandboxes are among
//! the values that every link searches for as long as they are used; a client is created for a grant
//! only if the platform permits that grant.

use std::path::Path;
use std::sync::Arc;

use cofferdam_base::text::error_chain;
use cofferdam_net::{Dialer, Trust};
use cofferdam_platforms::daytona::{Daytona, Via};
use cofferdam_platforms::e2b::E2b;
use cofferdam_platforms::{
    ApiKey, HubSetup, KeepAwake, Pipe, PlatformError, PlatformKind, PreparedSandbox, Progress, SandboxId,
    SandboxState, WhenSuspended,
};
use cofferdam_scrub::shared::SharedValues;
use cofferdam_secrets::{SecretError, Secrets, fill_header};
use relay_proto::name::Name;

use super::keys::{KeyUse, PlatformKeys};
use super::pacing::AttemptError;
use super::request::Route;
#[cfg(test)]
use super::scripted::ScriptedClient;
use super::status::Kind;
use crate::config::Platform;
use crate::session::Context;

/// The client of one platform, for one attempt.
pub(super) enum PlatformClient {
    Daytona(Box<Daytona>),
    E2b(E2b),
    #[cfg(test)]
    Scripted(ScriptedClient),
}

/// How a pipe into a sandbox is to be opened.
pub(super) struct OpenOptions<'a> {
    pub(super) sandbox: &'a SandboxId,
    pub(super) when_suspended: WhenSuspended,
    pub(super) keep_awake: KeepAwake,
    pub(super) via: Route,
    pub(super) setup: &'a HubSetup,
    pub(super) progress: &'a (dyn Fn(Progress) + Send + Sync),
}

/// Whether a hub that outlived its pipe may be running in the sandbox.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum RemainingHub {
    None,
    Possible,
}

/// Creates clients of a platform.
pub(super) trait ClientFactory: Send + Sync {
    fn create_client(&self, key: KeyUse)
    -> impl Future<Output = Result<PlatformClient, AttemptError>> + Send;
}

/// Creates clients of one platform of the configuration.
pub(super) struct ConfiguredPlatform {
    pub(super) context: Arc<Context>,
    pub(super) keys: Arc<PlatformKeys>,
    pub(super) platform: Name,
    /// The grant of the sandbox that is attached.
    pub(super) grant: Name,
}

impl PlatformClient {
    /// The host keys of SSH gateways are stored in `state_dir`, so that the user's `known_hosts` is not changed.
    fn new(platform: &Platform, key: ApiKey, state_dir: &Path, values: &Arc<SharedValues>) -> Self {
        let (settings, dialer) = (platform.settings.clone(), Dialer::trusting(Trust::System));
        match settings.kind {
            PlatformKind::Daytona => {
                let client = Daytona::new(settings, key, dialer, values);
                Self::Daytona(Box::new(client.with_known_hosts(state_dir.join("known_hosts"))))
            }
            PlatformKind::E2b => Self::E2b(E2b::new(settings, key, dialer, values)),
        }
    }

    pub(super) async fn state(&self, sandbox: &SandboxId) -> Result<SandboxState, PlatformError> {
        match self {
            Self::Daytona(client) => client.state(sandbox).await,
            Self::E2b(client) => client.state(sandbox).await,
            #[cfg(test)]
            Self::Scripted(client) => client.state().await,
        }
    }

    pub(super) async fn open(&self, options: OpenOptions<'_>) -> Result<Pipe, PlatformError> {
        let OpenOptions { sandbox, when_suspended, keep_awake, via, setup, progress } = options;
        match self {
            Self::Daytona(client) => {
                let via = match via {
                    // No pipe is opened to a sandbox that dials out.
                    Route::DialOut | Route::Preview => Via::Preview,
                    Route::Ssh => Via::Ssh,
                };
                client.open(sandbox, when_suspended, keep_awake, via, setup, progress).await
            }
            Self::E2b(client) => client.open(sandbox, when_suspended, setup, progress).await,
            #[cfg(test)]
            Self::Scripted(client) => client.open(when_suspended, progress).await,
        }
    }

    /// Whether the hub of a pipe keeps running after the pipe ends, for the next pipe.
    pub(super) fn hub_after_pipe(&self) -> RemainingHub {
        match self {
            Self::Daytona(_) => RemainingHub::after_pipe(Kind::Daytona),
            Self::E2b(_) => RemainingHub::after_pipe(Kind::E2b),
            #[cfg(test)]
            Self::Scripted(_) => RemainingHub::Possible,
        }
    }

    /// Ends a hub that outlived its pipe.
    pub(super) async fn end_hub(&self, sandbox: &SandboxId, setup: &HubSetup) -> Result<(), PlatformError> {
        match self {
            Self::Daytona(client) => client.end_hub(sandbox, setup).await,
            Self::E2b(_) => Ok(()),
            #[cfg(test)]
            Self::Scripted(client) => client.end_hub(),
        }
    }

    /// Whether the platform suspends a sandbox that looks unused, whatever pipes lead into it.
    pub(super) fn stops_unused_sandboxes(&self) -> bool {
        match self {
            Self::Daytona(_) => true,
            Self::E2b(_) => false,
            #[cfg(test)]
            Self::Scripted(_) => true,
        }
    }

    /// Tells a platform that suspends unused sandboxes that this one is in use.
    pub(super) async fn refresh_activity(&self, sandbox: &SandboxId) -> Result<(), PlatformError> {
        match self {
            Self::Daytona(client) => client.refresh_activity(sandbox).await,
            Self::E2b(_) => Ok(()),
            #[cfg(test)]
            Self::Scripted(client) => client.refresh_activity(),
        }
    }

    /// Puts the shim into the sandbox and starts nothing.
    pub(super) async fn prepare(&self, options: OpenOptions<'_>) -> Result<PreparedSandbox, PlatformError> {
        let OpenOptions { sandbox, when_suspended, keep_awake, setup, progress, .. } = options;
        match self {
            Self::Daytona(client) => {
                client.prepare(sandbox, when_suspended, keep_awake, setup, progress).await
            }
            Self::E2b(client) => client.prepare(sandbox, when_suspended, setup, progress).await,
            #[cfg(test)]
            Self::Scripted(_) => unimplemented!("no script dials out"),
        }
    }

    /// Waits until everything that the client started in the sandbox has ended, and removes the temporary files of
    /// interrupted work. Call it after the pipe, and every future of this client, was dropped.
    pub(super) async fn finish(&self) {
        match self {
            Self::Daytona(client) => client.finish().await,
            Self::E2b(client) => client.finish().await,
            #[cfg(test)]
            Self::Scripted(_) => {}
        }
    }
}

impl RemainingHub {
    /// On Daytona the hub listens for the next pipe; on E2B the hub is the process whose stdin and stdout are the pipe.
    pub(super) fn after_pipe(kind: Kind) -> Self {
        match kind {
            Kind::Daytona => Self::Possible,
            Kind::E2b => Self::None,
        }
    }
}

impl ClientFactory for ConfiguredPlatform {
    async fn create_client(&self, key: KeyUse) -> Result<PlatformClient, AttemptError> {
        let config = self.context.config.load_full();
        let Some(platform) = config.platforms.get(&self.platform) else {
            let why = format!("the configuration has no table `[platforms.{}]`; add it", self.platform);
            return Err(AttemptError::Configuration(why));
        };
        // A reload may have changed the grants of the platform.
        if !platform.permits(&self.grant) {
            let (name, grant) = (&self.platform, &self.grant);
            let why = format!(
                "the platform `{name}` is not for the grant `{grant}`; name it in `grants` of `[platforms.{name}]`"
            );
            return Err(AttemptError::Configuration(why));
        }
        let platform_key = self.keys.of(&self.context, platform);
        let mut secrets = Secrets::new();
        for (name, _) in platform.api_key.fields() {
            let Some(spec) = config.secrets.get(name) else { continue };
            let material = platform_key.read(spec, (&config.limits).into(), key).await;
            secrets.insert(name.clone(), material.map_err(|error| self.unreadable_key(&error))?);
        }
        let header = fill_header(&platform.api_key, &secrets)
            .map_err(|error| AttemptError::Configuration(self.key_error(&error)))?;
        let values = self.context.values();
        Ok(PlatformClient::new(platform, ApiKey::new(header), &config.state_dir, values))
    }
}

impl ConfiguredPlatform {
    /// The error of an attempt for which the key could not be read. If its source may return the key later, the attempt is
    /// repeated like one for which the platform is unavailable.
    fn unreadable_key(&self, error: &SecretError) -> AttemptError {
        let why = format!("{}; {}", self.key_error(error), error.next_step());
        match error.failure() {
            Some(_) => AttemptError::KeyUnavailable(why),
            None => AttemptError::Configuration(why),
        }
    }

    fn key_error(&self, error: &dyn std::error::Error) -> String {
        format!("cannot read the API key of the platform `{}`: {}", self.platform, error_chain(error))
    }
}
