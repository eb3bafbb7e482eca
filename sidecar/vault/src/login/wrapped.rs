//! A response-wrapped secret-id: looked at before it is opened, opened once, kept in memory.
//!
//! What must stay true: nothing is unwrapped that was not made by the AppRole's own `secret-id` path; a wrap that is spent
//! is an alert and not tried again until another one is delivered.

use zeroize::Zeroizing;

use crate::api::Vault;
use crate::error::{Kind, Problem, RequestLine, UnwrappedBy, VaultError};
use crate::token::Token;

/// What became of the wrap that was delivered last.
#[derive(Default)]
pub(super) struct WrappedSecretId {
    /// Which wrap the rest is about.
    fingerprint: Option<[u8; 32]>,
    state: WrapState,
}

#[derive(Default)]
enum WrapState {
    #[default]
    New,
    /// We asked for it and saw no answer.
    RequestLine,
    Open(Zeroizing<String>),
    /// An alert: told again, not tried again.
    Bad(VaultError),
}

impl WrappedSecretId {
    /// The secret-id that is in `wrap`, or was. A wrap that was not made by the path `made_by` is not opened.
    pub(super) async fn secret_id(
        &mut self,
        vault: &Vault,
        wrap: &Token,
        made_by: &str,
    ) -> Result<Zeroizing<String>, VaultError> {
        let fingerprint = wrap.fingerprint();
        if self.fingerprint != Some(fingerprint) {
            *self = Self { fingerprint: Some(fingerprint), ..Self::default() };
        }
        let spent = match &self.state {
            WrapState::New => UnwrappedBy::AnotherParty,
            WrapState::RequestLine => UnwrappedBy::PerhapsSidecar,
            WrapState::Open(secret_id) => return Ok(secret_id.clone()),
            WrapState::Bad(error) => return Err(error.clone()),
        };
        match verify_wrap(vault, wrap, made_by, spent).await {
            Err(error) if error.kind() == Kind::Alert => return Err(self.alert(error.asked, error.problem)),
            looked => looked?,
        }
        self.state = WrapState::RequestLine;
        let envelope = match vault.unwrap(wrap).await {
            Err(error) if is_refusal(&error) => {
                return Err(self.alert(error.asked, Problem::WrapSpent { by: spent }));
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
                self.state = WrapState::Open(secret_id.clone());
                Ok(secret_id)
            }
            None => {
                let problem = Problem::Malformed { why: "there is no secret-id in what was wrapped" };
                Err(self.alert(asked(), problem))
            }
        }
    }

    fn alert(&mut self, asked: RequestLine, problem: Problem) -> VaultError {
        let error = VaultError { asked, problem };
        tracing::error!(why = %error.problem, next_step = error.next_step(), "the wrapped secret-id cannot be used");
        self.state = WrapState::Bad(error.clone());
        error
    }
}

/// Looks at a wrap, which stays as it is: is it there, and was it made by `made_by`?
pub(super) async fn verify_wrap(
    vault: &Vault,
    wrap: &Token,
    made_by: &str,
    spent: UnwrappedBy,
) -> Result<(), VaultError> {
    let problem = match vault.wrapping_lookup(wrap).await {
        // The whole path: one that only begins so belongs to another role.
        Ok(facts) if facts.creation_path == made_by => return Ok(()),
        Ok(_) => Problem::WrapForeign { expected: made_by.to_owned() },
        Err(error) if is_refusal(&error) => Problem::WrapSpent { by: spent },
        Err(error) => return Err(error),
    };
    Err(VaultError { asked: asked(), problem })
}

fn asked() -> RequestLine {
    RequestLine { method: http::Method::POST, path: "sys/wrapping/lookup".into() }
}

/// Vault says of a wrap that was used, expired or was revoked that it is not valid, with 400; older ones with 403.
fn is_refusal(error: &VaultError) -> bool {
    matches!(error.kind(), Kind::Denied | Kind::Invalid | Kind::Missing)
}

/// The path that makes the secret-ids of an AppRole.
pub(super) fn creation_path(mount: &str, role: &str) -> String {
    format!("auth/{mount}/role/{role}/secret-id")
}
