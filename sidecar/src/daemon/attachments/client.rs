//! The client of a platform, and where its API key comes from.
//!
//! What must stay true: a key is read from the source that the configuration names, is known to the log's scrubber before it
//! is used, and goes nowhere but into a request's header; a key that the platform refused is read again before it is sent
//! again.

use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use cofferdam_base::text::error_chain;
use cofferdam_net::{Dialer, Trust};
use cofferdam_platforms::daytona::{Daytona, Via};
use cofferdam_platforms::e2b::E2b;
use cofferdam_platforms::{
    ApiKey, HubSetup, KeepAwake, Pipe, PlatformError, PlatformKind, PreparedSandbox, Progress, SandboxId,
    SandboxState, WhenSuspended,
};
use cofferdam_secrets::credentials::Credentials;
use cofferdam_secrets::reread::Reread;
use cofferdam_secrets::{Material, SecretSpec, Secrets, SourceLimits, fill_header};
use relay_proto::name::Name;

use super::pacing::AttemptError;
use super::request::Route;
#[cfg(test)]
use super::scripted::ScriptedClient;
use crate::config::Platform;
use crate::session::Context;

/// The client of one platform, for one attempt.
pub(super) enum PlatformClient {
    Daytona(Box<Daytona>),
    E2b(E2b),
    #[cfg(test)]
    Scripted(ScriptedClient),
}

/// How a sandbox is to be opened.
pub(super) struct Opening<'a> {
    pub(super) sandbox: &'a SandboxId,
    pub(super) when_suspended: WhenSuspended,
    pub(super) keep_awake: KeepAwake,
    pub(super) via: Route,
    pub(super) setup: &'a HubSetup,
    pub(super) progress: &'a (dyn Fn(Progress) + Send + Sync),
}

/// Whether the key that was read before may be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum KeyUse {
    Held,
    /// The platform refused it: it may have been replaced at its source.
    ReadAgain,
}

/// Makes clients.
pub(super) trait Clients: Send + Sync {
    fn client(&self, key: KeyUse) -> impl Future<Output = Result<PlatformClient, AttemptError>> + Send;
}

/// The API keys of all platforms. Replaced at a reload, since a secret of the same name may have another source then.
pub(super) struct PlatformKeys(ArcSwap<Credentials>);

/// Makes clients of one platform of the configuration.
pub(super) struct ConfiguredPlatform {
    pub(super) context: Arc<Context>,
    pub(super) keys: Arc<PlatformKeys>,
    pub(super) platform: Name,
}

impl PlatformClient {
    /// `state_dir` keeps the host keys of SSH gateways, so that the user's own list is left alone.
    fn new(platform: &Platform, key: ApiKey, state_dir: &Path) -> Self {
        let (settings, dialer) = (platform.settings.clone(), Dialer::trusting(Trust::System));
        match settings.kind {
            PlatformKind::Daytona => {
                let client = Daytona::new(settings, key, dialer);
                Self::Daytona(Box::new(client.with_known_hosts(state_dir.join("known_hosts"))))
            }
            PlatformKind::E2b => Self::E2b(E2b::new(settings, key, dialer)),
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

    pub(super) async fn open(&self, opening: Opening<'_>) -> Result<Pipe, PlatformError> {
        let Opening { sandbox, when_suspended, keep_awake, via, setup, progress } = opening;
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

    /// Puts the shim into the sandbox and starts nothing.
    pub(super) async fn prepare(&self, opening: Opening<'_>) -> Result<PreparedSandbox, PlatformError> {
        let Opening { sandbox, when_suspended, keep_awake, setup, progress, .. } = opening;
        match self {
            Self::Daytona(client) => {
                client.prepare(sandbox, when_suspended, keep_awake, setup, progress).await
            }
            Self::E2b(client) => client.prepare(sandbox, when_suspended, setup, progress).await,
            #[cfg(test)]
            Self::Scripted(_) => unimplemented!("no script dials out"),
        }
    }

    /// Waits until what the client started in the sandbox is ended. To be called after its pipe was dropped.
    pub(super) async fn finish(self) {
        if let Self::E2b(client) = self {
            client.finish().await;
        }
    }
}

impl PlatformKeys {
    pub(super) fn new(context: &Context) -> Self {
        Self(ArcSwap::from_pointee(credentials(context)))
    }

    /// The configuration has changed.
    pub(super) fn forget(&self, context: &Context) {
        self.0.store(Arc::new(credentials(context)));
    }
}

/// Without Vault: the check of the configuration refuses keys that come from there.
fn credentials(context: &Context) -> Credentials {
    Credentials::new(Arc::clone(&context.log), None, context.tasks.clone())
}

impl Clients for ConfiguredPlatform {
    async fn client(&self, key: KeyUse) -> Result<PlatformClient, AttemptError> {
        let config = self.context.config.load_full();
        let Some(platform) = config.platforms.get(&self.platform) else {
            let why = format!("the configuration has no table `[platforms.{}]`; add it", self.platform);
            return Err(AttemptError::Configuration(why));
        };
        let unreadable = |error: &dyn std::error::Error| {
            AttemptError::Configuration(format!(
                "read the API key of the platform `{}`: {}",
                self.platform,
                error_chain(error)
            ))
        };
        let credentials = self.keys.0.load_full();
        let mut secrets = Secrets::new();
        for (name, _) in platform.api_key.fields() {
            let Some(spec) = config.secrets.get(name) else { continue };
            let material = read(&credentials, spec, (&config.limits).into(), key);
            secrets.insert(name.clone(), material.await.map_err(|error| unreadable(&error))?);
        }
        let header = fill_header(&platform.api_key, &secrets).map_err(|error| unreadable(&error))?;
        Ok(PlatformClient::new(platform, ApiKey::new(header), &config.state_dir))
    }
}

async fn read(
    credentials: &Credentials,
    spec: &SecretSpec,
    limits: SourceLimits,
    key: KeyUse,
) -> Result<Arc<Material>, cofferdam_secrets::SecretError> {
    let held = credentials.obtain(spec, limits).await?;
    match key {
        KeyUse::Held => Ok(held),
        KeyUse::ReadAgain => match credentials.reread(spec, limits, held.generation).await? {
            Reread::Read(material) => Ok(material),
            Reread::TooSoon { .. } => Ok(held),
        },
    }
}
