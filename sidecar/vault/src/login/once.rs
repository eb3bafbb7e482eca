//! A single login for `check --online`: its token is not renewed, and a wrapped secret-id is looked up but not
//! unwrapped.

use std::sync::Arc;

use super::method::{Authenticator, Method, SecretId, check_credential, read_token};
use super::unwrap_records::{UnwrapProgress, UnwrapRecords};
use super::wrapped::{creation_path, lookup_request, verify_wrap};
use super::{LoginToken, Ownership};
use crate::api::Vault;
use crate::error::{Problem, UnwrappedBy, VaultError};

/// The result of a single login.
pub enum SingleLogin {
    /// A new token, which the caller has to revoke.
    SidecarToken(LoginToken),
    /// The token of a user's own file, which must not be revoked.
    UserToken(LoginToken),
    /// No login was made: it would use up the wrapped secret-id. The secret-id was created by a request to
    /// `creation_path`, which follows from the configuration.
    Wrapped { creation_path: String },
}

impl SingleLogin {
    /// Logs in, or only checks the credentials where a login would use up a wrapped secret-id.
    /// `unwraps` records which wrapped secret-ids the sidecar with this configuration has unwrapped already.
    pub async fn log_in(vault: &Vault, method: Method, unwraps: &UnwrapRecords) -> Result<Self, VaultError> {
        if let Method::AppRole { mount, role_id_file, secret_id: SecretId::Wrapped { file, role } } = &method
        {
            let request = method.login_request();
            check_credential(role_id_file, &request).await?;
            let creation_path = creation_path(mount, role);
            let wrap = read_token(file, &request).await?;
            if unwraps.find(&wrap.fingerprint()).await == Some(UnwrapProgress::Unwrapped) {
                return Err(VaultError { request: lookup_request(), problem: Problem::WrapUsedBySidecar });
            }
            // The records may not be readable by the user who runs the check.
            verify_wrap(vault, &wrap, &creation_path, UnwrappedBy::PerhapsSidecar).await?;
            return Ok(Self::Wrapped { creation_path });
        }
        let ownership = Ownership::of(&method);
        // The check serves no link.
        let own = Arc::default();
        let granted = Authenticator::new(method, None, own).log_in(vault).await?;
        let token = LoginToken {
            token: granted.token,
            accessor: granted.accessor,
            expires: granted.expires,
            renewable: granted.renewable,
            policies: granted.policies,
            token_number: 0,
        };
        Ok(match ownership {
            Ownership::Sidecar => Self::SidecarToken(token),
            Ownership::User => Self::UserToken(token),
        })
    }
}
