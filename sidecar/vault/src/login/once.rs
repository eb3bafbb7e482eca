//! One login, for `check --online`: nothing keeps its token alive, and a wrapped secret-id is looked at and
//! never opened.

use super::method::{Authenticator, Method, SecretId, credential_is_there, token};
use super::wrapped::{creation_path, verify_wrap};
use super::{LoginToken, Ownership};
use crate::api::Vault;
use crate::error::{UnwrappedBy, VaultError};

/// What came of it.
pub enum SingleLogin {
    /// A token of ours, which the caller has to revoke.
    SidecarToken(LoginToken),
    /// The token of the user's own file: it stays as it is.
    UserToken(LoginToken),
    /// The secret-id is wrapped, by this path as it should be, and it stays so.
    Wrapped { made_by: String },
}

impl SingleLogin {
    /// Logs in, or looks whether that could be done where doing it would use something up.
    pub async fn log_in(vault: &Vault, method: Method) -> Result<Self, VaultError> {
        if let Method::AppRole { mount, role_id_file, secret_id: SecretId::Wrapped { file, role } } = &method
        {
            let asked = method.asked();
            credential_is_there(role_id_file, &asked).await?;
            let made_by = creation_path(mount, role);
            // A sidecar that runs with this configuration has opened it.
            verify_wrap(vault, &token(file, &asked).await?, &made_by, UnwrappedBy::PerhapsSidecar).await?;
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
