//! A response-wrapped secret-id: looked at before it is opened, opened once, kept in memory.
//!
//! What must stay true: nothing is unwrapped that was not made by the AppRole's own `secret-id` path; a wrap that is spent
//! is an alert and not tried again until another one is delivered.

use zeroize::Zeroizing;

use crate::vault::api::Vault;
use crate::vault::error::{Asked, Kind, Problem, Spent, VaultError};
use crate::vault::token::Token;

/// What became of the wrap that was delivered last.
#[derive(Default)]
pub(super) struct Wrapped {
    /// Which wrap the rest is about.
    fingerprint: Option<[u8; 32]>,
    state: State,
}

#[derive(Default)]
enum State {
    #[default]
    New,
    /// We asked for it and saw no answer.
    Asked,
    Open(Zeroizing<String>),
    /// An alert: told again, not tried again.
    Bad(VaultError),
}

impl Wrapped {
    /// The secret-id that is in `wrap`, or was.
    pub(super) async fn secret_id(
        &mut self,
        vault: &Vault,
        wrap: &Token,
        mount: &str,
        role: Option<&str>,
    ) -> Result<Zeroizing<String>, VaultError> {
        let fingerprint = wrap.fingerprint();
        if self.fingerprint != Some(fingerprint) {
            *self = Self { fingerprint: Some(fingerprint), ..Self::default() };
        }
        let spent = match &self.state {
            State::New => Spent::SomebodyElse,
            State::Asked => Spent::PerhapsUs,
            State::Open(secret_id) => return Ok(secret_id.clone()),
            State::Bad(error) => return Err(error.clone()),
        };
        let facts = match vault.wrapping_lookup(wrap).await {
            Err(error) if is_refusal(&error) => {
                return Err(self.alert(error.asked, Problem::WrapSpent { by: spent }));
            }
            facts => facts?,
        };
        let asked = || Asked { method: http::Method::POST, path: "sys/wrapping/lookup".into() };
        if !is_made_by(&facts.creation_path, mount, role) {
            let expected = format!("auth/{mount}/role/{}/secret-id", role.unwrap_or("ROLE"));
            return Err(self.alert(asked(), Problem::WrapForeign { expected }));
        }
        self.state = State::Asked;
        let envelope = match vault.unwrap(wrap).await {
            Err(error) if is_refusal(&error) => {
                return Err(self.alert(error.asked, Problem::WrapSpent { by: spent }));
            }
            Err(error) => {
                if matches!(error.problem, Problem::Unreachable { .. }) {
                    self.state = State::New;
                }
                return Err(error);
            }
            Ok(envelope) => envelope,
        };
        match envelope.data.and_then(|data| data.text("secret_id")) {
            Some(secret_id) => {
                self.state = State::Open(secret_id.clone());
                Ok(secret_id)
            }
            None => {
                let problem = Problem::Malformed { why: "there is no secret-id in what was wrapped" };
                Err(self.alert(asked(), problem))
            }
        }
    }

    fn alert(&mut self, asked: Asked, problem: Problem) -> VaultError {
        let error = VaultError { asked, problem };
        tracing::error!(why = %error.problem, next_step = error.next_step(), "the wrapped secret-id cannot be used");
        self.state = State::Bad(error.clone());
        error
    }
}

/// Vault says of a wrap that was used, expired or was revoked that it is not valid, with 400; older ones with 403.
fn is_refusal(error: &VaultError) -> bool {
    matches!(error.kind(), Kind::Denied | Kind::Invalid | Kind::Missing)
}

/// Whether a wrap was made by the `secret-id` path of the role, or of one role where none is named.
fn is_made_by(creation_path: &str, mount: &str, role: Option<&str>) -> bool {
    let rest = creation_path.strip_prefix("auth/").and_then(|rest| rest.strip_prefix(mount));
    let found = rest.and_then(|rest| rest.strip_prefix("/role/")?.strip_suffix("/secret-id"));
    found.is_some_and(|found| match role {
        Some(role) => found == role,
        None => !found.is_empty() && !found.contains('/'),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_creation_path_is_matched_whole() {
        for role in [None, Some("agent")] {
            assert!(is_made_by("auth/approle/role/agent/secret-id", "approle", role));
            assert!(is_made_by("auth/team/approle/role/agent/secret-id", "team/approle", role));
        }
        for bad in [
            "sys/wrapping/wrap",
            "cubbyhole/response",
            "auth/approle/role/agent/secret-id/lookup",
            "auth/approle/role/agent/custom-secret-id",
            "auth/approle/role/a/b/secret-id",
            "auth/approle/role//secret-id",
            "auth/approle2/role/agent/secret-id",
            "x/auth/approle/role/agent/secret-id",
        ] {
            assert!(!is_made_by(bad, "approle", Some("agent")), "{bad}");
            assert!(!is_made_by(bad, "approle", None), "{bad}");
        }
        assert!(!is_made_by("auth/approle/role/other/secret-id", "approle", Some("agent")));
    }
}
