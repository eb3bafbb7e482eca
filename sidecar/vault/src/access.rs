//! Access to Vault that all sessions share: one client, one login, one revoker.
//!
//! What must stay true: tokens of sessions are created at a bounded rate in total; the login outlives the revocations
//! that need it; nothing is started after [`Access::end`].

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cofferdam_base::metrics::{self, Outcome};
use cofferdam_scrub::OwnCredentials;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::accessor_files::AccessorFiles;
use crate::address::AddressError;
use crate::api::{ClientSettings, SettingsError, Vault};
use crate::envelope::Auth;
use crate::error::{Kind, Problem, RequestLine, VaultError};
use crate::login::{Login, LoginRecords, LoginToken, Method, SecretId};
use crate::revoker::Revoker;
use crate::settings::{AuthSettings, SecretIdForm, Settings};
use crate::token_calls::{ChildToken, Mint};

/// The shortest time between two new tokens, of all sessions: after a new login, two hundred may need one at once.
const TOKEN_INTERVAL: Duration = Duration::from_millis(50);
/// A caller that would wait longer to create its token is refused: its own timeout is ten seconds.
const MAX_CREATION_WAIT: Duration = Duration::from_secs(4);
/// For revoking the login's token.
const LOGOUT_TIMEOUT: Duration = Duration::from_secs(2);

pub struct Access {
    pub(crate) vault: Vault,
    pub(crate) login: Login,
    token_role: Option<String>,
    pub(crate) revoker: Arc<Revoker>,
    spacing: TokenSpacing,
    pub(crate) tasks: TaskTracker,
    /// Cancelled by [`Access::end`]: ends the login and the retries of revocations.
    pub(crate) stop: CancellationToken,
}

/// When the next token may be created.
struct TokenSpacing(Mutex<Instant>);

#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error("cannot set up access to Vault")]
    Settings(#[from] SettingsError),
    #[error(
        "cannot open the accessors of Vault tokens in `state-dir`, which are needed to revoke tokens after a crash"
    )]
    Accessors(#[source] std::io::Error),
}

impl Access {
    /// Starts to log in, and to revoke tokens that an earlier sidecar left behind. Waits for neither.
    pub fn start(
        settings: &Settings,
        state: &Path,
        own: &Arc<OwnCredentials>,
        tasks: &TaskTracker,
    ) -> Result<Arc<Self>, AccessError> {
        Self::with_client(client(settings)?, settings, state, own, tasks)
    }

    pub(crate) fn with_client(
        vault: Vault,
        settings: &Settings,
        state: &Path,
        own: &Arc<OwnCredentials>,
        tasks: &TaskTracker,
    ) -> Result<Arc<Self>, AccessError> {
        let (accessors, leftover) = AccessorFiles::open(state).map_err(AccessError::Accessors)?;
        let accessors = Arc::new(accessors);
        let stop = CancellationToken::new();
        let records = LoginRecords::in_state(state, Arc::clone(&accessors));
        let login =
            Login::start(vault.clone(), method(&settings.auth), records, Arc::clone(own), tasks, &stop);
        let revoker =
            Revoker::start(vault.clone(), login.clone(), (accessors, leftover), tasks, stop.clone());
        Ok(Arc::new(Self {
            vault,
            login,
            token_role: settings.token_role.clone(),
            revoker,
            spacing: TokenSpacing(Mutex::new(Instant::now())),
            tasks: tasks.clone(),
            stop,
        }))
    }

    /// Creates a child of the login's token and returns that login too. If Vault has revoked the login's token, waits
    /// for the next login once.
    pub(crate) async fn create_token(
        &self,
        child: &ChildToken,
    ) -> Result<(Auth, Arc<LoginToken>), VaultError> {
        let login = self.login.current().await?;
        let made = self.create_token_under(&login, child).await;
        if made.as_ref().is_err_and(|error| error.kind() == Kind::Denied)
            && let Some(next) = self.login.successor_of(&login).await
        {
            return Ok((self.create_token_under(&next, child).await?, next));
        }
        Ok((made?, login))
    }

    async fn create_token_under(&self, login: &LoginToken, child: &ChildToken) -> Result<Auth, VaultError> {
        let mint = self.token_role.as_deref().map_or(Mint::Plain, Mint::Role);
        let at = self.spacing.reserve_time().ok_or_else(|| VaultError {
            request: RequestLine { method: http::Method::POST, path: "auth/token/create".into() },
            problem: Problem::Unreachable { why: "too many sessions need a token at once".into() },
        })?;
        sleep_until(at).await;
        let made = self.vault.create_child(&login.token, child, mint).await;
        metrics::vault().count_token(Outcome::of(&made));
        made
    }

    /// Whether the login has a valid token.
    pub fn is_logged_in(&self) -> bool {
        self.login.is_logged_in()
    }

    /// Passes every alert of the login to `forward`, until the login ends.
    pub async fn forward_alerts(&self, forward: impl Fn(&str)) {
        self.login.forward_alerts(forward).await;
    }

    /// The number of the login's current token.
    pub(crate) fn login_token_number(&self) -> u64 {
        *self.login.token_numbers().borrow()
    }

    /// Ends the login, after the last session has ended.
    pub async fn end(&self) {
        self.stop.cancel();
        match timeout(LOGOUT_TIMEOUT, self.login.end()).await {
            Ok(Ok(())) => tracing::info!("logged out of Vault"),
            Ok(Err(error)) => {
                tracing::warn!(
                    why = error.explained(),
                    "the login's Vault token was not revoked; the next sidecar revokes it, or it expires"
                );
            }
            Err(_) => tracing::warn!(
                "the login's Vault token was not revoked in time; the next sidecar revokes it, or it expires"
            ),
        }
    }
}

impl TokenSpacing {
    /// When this caller may create its token. `None` if that would be too late.
    fn reserve_time(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut next = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = (*next).max(now);
        (at <= now + MAX_CREATION_WAIT).then(|| {
            *next = at + TOKEN_INTERVAL;
            at
        })
    }
}

/// The configured client. Sends nothing.
pub fn client(settings: &Settings) -> Result<Vault, SettingsError> {
    let address =
        settings.address.to_string().parse().map_err(|error: AddressError| SettingsError::from(error))?;
    Vault::new(&ClientSettings {
        address,
        namespace: settings.namespace.as_ref().map(ToString::to_string),
        ca_file: settings.ca_file.clone(),
    })
}

pub fn method(auth: &AuthSettings) -> Method {
    match auth {
        AuthSettings::AppRole { mount, role_id_file, secret_id_file, secret_id } => Method::AppRole {
            mount: mount.to_string(),
            role_id_file: role_id_file.clone(),
            secret_id: match secret_id {
                SecretIdForm::Plain => SecretId::Plain { file: secret_id_file.clone() },
                SecretIdForm::Wrapped { role } => {
                    SecretId::Wrapped { file: secret_id_file.clone(), role: role.clone() }
                }
            },
        },
        AuthSettings::Cert { mount, cert_file, key_file, role } => Method::Cert {
            mount: mount.to_string(),
            certificate_file: cert_file.clone(),
            key_file: key_file.clone(),
            role: Some(role.clone()),
        },
        AuthSettings::Jwt { mount, role, jwt_file } => {
            Method::Jwt { mount: mount.to_string(), role: role.clone(), jwt_file: jwt_file.clone() }
        }
        AuthSettings::Kubernetes { mount, role, jwt_file } => {
            Method::Kubernetes { mount: mount.to_string(), role: role.clone(), jwt_file: jwt_file.clone() }
        }
        AuthSettings::TokenFile { path } => Method::TokenFile { path: path.clone() },
        AuthSettings::Userpass { mount, username, password_file } => Method::Userpass {
            mount: mount.to_string(),
            username: username.clone(),
            password_file: password_file.clone(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tokens_are_made_at_a_bounded_rate_and_no_caller_waits_too_long() {
        let spacing = TokenSpacing(Mutex::new(Instant::now()));
        let began = Instant::now();
        let given: Vec<Instant> = std::iter::from_fn(|| spacing.reserve_time()).collect();
        assert_eq!(given.len(), 81, "one now, and twenty in each of four seconds");
        assert!(given.windows(2).all(|pair| pair[1] - pair[0] == TOKEN_INTERVAL));
        assert_eq!(*given.last().unwrap() - began, MAX_CREATION_WAIT);
        tokio::time::advance(TOKEN_INTERVAL).await;
        assert!(spacing.reserve_time().is_some() && spacing.reserve_time().is_none());
        tokio::time::advance(2 * MAX_CREATION_WAIT).await;
        assert_eq!(spacing.reserve_time(), Some(Instant::now()), "unused times are not saved up");
    }
}
