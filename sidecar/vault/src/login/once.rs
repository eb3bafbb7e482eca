//! A single login for `check --online`: its token is not renewed, and a wrapped secret-id is looked up but not
//! unwrapped.

use super::method::{Authenticator, Method, SecretId, check_credential, read_token};
use super::wrapped::{creation_path, verify_wrap};
use super::{LoginToken, Ownership};
use crate::api::Vault;
use crate::error::{UnwrappedBy, VaultError};

/// The result of a single login.
pub enum SingleLogin {
    /// A new token, which the caller has to revoke.
    SidecarToken(LoginToken),
    /// The token of a user's own file, which must not be revoked.
    UserToken(LoginToken),
    /// No login was made: it would use up the wrapped secret-id, which was created by a request to the configured path
    /// `made_by`.
    Wrapped { made_by: String },
}

impl SingleLogin {
    /// Logs in, or only checks the credentials where a login would use up a wrapped secret-id.
    pub async fn log_in(vault: &Vault, method: Method) -> Result<Self, VaultError> {
        if let Method::AppRole { mount, role_id_file, secret_id: SecretId::Wrapped { file, role } } = &method
        {
            let request = method.login_request();
            check_credential(role_id_file, &request).await?;
            let made_by = creation_path(mount, role);
            // A sidecar that runs with this configuration may have unwrapped it already.
            verify_wrap(vault, &read_token(file, &request).await?, &made_by, UnwrappedBy::PerhapsSidecar)
                .await?;
            return Ok(Self::Wrapped { made_by });
        }
        let ownership = Ownership::of(&method);
        let granted = Authenticator::new(method).log_in(vault).await?;
        let token = LoginToken {
            token: granted.token,
            accessor: granted.accessor,
            expires: granted.expires,
            renewable: granted.renewable,
            policies: granted.policies,
            generation: 0,
        };
        Ok(match ownership {
            Ownership::Sidecar => Self::SidecarToken(token),
            Ownership::User => Self::UserToken(token),
        })
    }
}
