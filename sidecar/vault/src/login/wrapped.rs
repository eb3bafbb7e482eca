//! A response-wrapped secret-id: looked up before it is unwrapped, unwrapped once, kept in memory.
//!
//! What must stay true: nothing is unwrapped that was not created by the AppRole's own `secret-id` path; a wrapping
//! token that was used already is an alert, and is not tried again until another one is delivered; one that an earlier
//! start of this sidecar unwrapped is no alert, and Vault is not asked about it.

use zeroize::Zeroizing;

use super::unwrap_records::{Fingerprint, UnwrapProgress, UnwrapRecords};
use crate::api::Vault;
use crate::error::{Kind, Problem, RequestLine, UnwrappedBy, VaultError};
use crate::token::Token;

/// The wrapping token that was delivered last, and its secret-id.
pub(super) struct WrappedSecretId {
    /// Identifies the wrapping token that `state` belongs to.
    fingerprint: Option<Fingerprint>,
    state: WrapState,
    /// `None` where nothing is stored.
    records: Option<UnwrapRecords>,
}

#[derive(Default)]
enum WrapState {
    #[default]
    New,
    /// A request to unwrap it was sent, and there was no response.
    Requested,
    Unwrapped(Zeroizing<String>),
    /// The secret-id is not stored, so that it is lost.
    UnwrappedByEarlierStart,
    /// An alert: returned again without another request.
    Alert(VaultError),
}

impl WrappedSecretId {
    pub(super) fn new(records: Option<UnwrapRecords>) -> Self {
        Self { fingerprint: None, state: WrapState::default(), records }
    }

    /// The secret-id that `wrap` contains or contained. A wrap that was not created by the path `made_by` is not
    /// unwrapped.
    pub(super) async fn secret_id(
        &mut self,
        vault: &Vault,
        wrap: &Token,
        made_by: &str,
    ) -> Result<Zeroizing<String>, VaultError> {
        let fingerprint = wrap.fingerprint();
        if self.fingerprint != Some(fingerprint) {
            self.fingerprint = Some(fingerprint);
            self.state = self.recorded_state(&fingerprint).await;
        }
        let unwrapped_by = match &self.state {
            WrapState::New => UnwrappedBy::AnotherParty,
            WrapState::Requested => UnwrappedBy::PerhapsSidecar,
            WrapState::Unwrapped(secret_id) => return Ok(secret_id.clone()),
            WrapState::UnwrappedByEarlierStart => {
                return Err(VaultError { request: lookup_request(), problem: Problem::WrapUsedBySidecar });
            }
            WrapState::Alert(error) => return Err(error.clone()),
        };
        match verify_wrap(vault, wrap, made_by, unwrapped_by).await {
            Err(error) if error.kind() == Kind::Alert => return Err(self.alert(error.request, error.problem)),
            verified => verified?,
        }
        self.record(&fingerprint, UnwrapProgress::Requested).await;
        self.state = WrapState::Requested;
        let envelope = match vault.unwrap(wrap).await {
            Err(error) if is_unknown_wrap(&error) => {
                return Err(self.alert(error.request, Problem::WrapSpent { by: unwrapped_by }));
            }
            Err(error) => {
                if matches!(error.problem, Problem::Unreachable { .. }) {
                    self.state = WrapState::New;
                }
                return Err(error);
            }
            Ok(envelope) => envelope,
        };
        match envelope.data.and_then(|data| data.text("secret_id")) {
            Some(secret_id) => {
                self.record(&fingerprint, UnwrapProgress::Unwrapped).await;
                self.state = WrapState::Unwrapped(secret_id.clone());
                Ok(secret_id)
            }
            None => {
                let problem = Problem::Malformed { why: "the wrapped response has no secret-id" };
                Err(self.alert(lookup_request(), problem))
            }
        }
    }

    /// What earlier starts of the sidecar did with a wrapping token.
    async fn recorded_state(&self, fingerprint: &Fingerprint) -> WrapState {
        let Some(records) = &self.records else { return WrapState::New };
        match records.find(fingerprint).await {
            None => WrapState::New,
            Some(UnwrapProgress::Requested) => WrapState::Requested,
            Some(UnwrapProgress::Unwrapped) => WrapState::UnwrappedByEarlierStart,
        }
    }

    async fn record(&self, fingerprint: &Fingerprint, progress: UnwrapProgress) {
        if let Some(records) = &self.records {
            records.record(fingerprint, progress).await;
        }
    }

    fn alert(&mut self, request: RequestLine, problem: Problem) -> VaultError {
        let error = VaultError { request, problem };
        tracing::error!(why = %error.problem, next_step = error.next_step(), "the wrapped secret-id cannot be used");
        self.state = WrapState::Alert(error.clone());
        error
    }
}

/// Checks, without using it up, that a wrap exists and was created by `made_by`.
pub(super) async fn verify_wrap(
    vault: &Vault,
    wrap: &Token,
    made_by: &str,
    unwrapped_by: UnwrappedBy,
) -> Result<(), VaultError> {
    let problem = match vault.wrapping_lookup(wrap).await {
        // The whole path is compared: a longer one belongs to another role.
        Ok(info) if info.creation_path == made_by => return Ok(()),
        Ok(_) => Problem::WrapNotFromRole { expected: made_by.to_owned() },
        Err(error) if is_unknown_wrap(&error) => Problem::WrapSpent { by: unwrapped_by },
        Err(error) => return Err(error),
    };
    Err(VaultError { request: lookup_request(), problem })
}

pub(super) fn lookup_request() -> RequestLine {
    RequestLine { method: http::Method::POST, path: "sys/wrapping/lookup".into() }
}

/// Vault's status for a wrap that was used, expired or revoked is 400, in older versions 403.
fn is_unknown_wrap(error: &VaultError) -> bool {
    matches!(error.kind(), Kind::Denied | Kind::Invalid | Kind::Missing)
}

/// The path that creates the secret-ids of an AppRole.
pub(super) fn creation_path(mount: &str, role: &str) -> String {
    format!("auth/{mount}/role/{role}/secret-id")
}
