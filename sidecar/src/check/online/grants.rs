//! Checks whether the policies of a grant allow what its servers' secrets need, with a token like that of a session. The
//! policies of a platform whose API key is in Vault are checked in the same way.

use cofferdam_secrets::{VaultOrigin, VaultPath};
use cofferdam_vault::{Auth, Kind, KvVersion, Need, Settings, VaultError, Verdict};

use super::check_login::CheckLogin;
use super::login::{self, MayMint};
use super::report::{Report, Section};
use crate::check::vault_needs::{TokenUser, Wanted, generated_need, mint, quoted_list};

/// Paths below this path work only for a token that belongs to an entity.
const ENTITY_PATH: &str = "identity/oidc/token/";
const NO_ENGINE_HINT: &str = "correct the path, or enable and configure that engine";

pub(super) async fn check(
    settings: &Settings,
    user: &TokenUser<'_>,
    check_login: &CheckLogin,
    may_mint: MayMint,
    report: &mut Report,
) -> Result<(), VaultError> {
    let TokenUser { kind, name, secrets, .. } = user;
    if secrets.is_empty() {
        return Ok(());
    }
    let policies = quoted_list(user.policies);
    report.print_line(&format!("{kind} {name}: {} has {policies}", user.token));
    if may_mint == MayMint::No {
        report.not_checked("the login cannot create such a token");
        return Ok(());
    }
    let child = match check_login.mint(user, mint(settings)).await {
        Ok(child) => child,
        Err(error) if matches!(error.kind(), Kind::Denied | Kind::Invalid) => {
            login::report_no_token(settings, user.policies, &error, report);
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    if child.accessor.is_none() {
        let next = "set `token_type` of the token role to `service`";
        report.problem("the created token is a batch token, which cannot be revoked", next);
    }
    let policy = match user.policies.len() {
        1 => format!("the policy {policies} of {kind} `{name}`"),
        _ => format!("one of the policies {policies} of {kind} `{name}`"),
    };
    let namespace = settings.namespace.as_ref().map(|name| format!(", in namespace `{name}`"));
    // A session's token belongs to the configured namespace, so paths in its policies need no prefix.
    let mut section = Section::new(format!("{policy}{}", namespace.unwrap_or_default()), String::new());
    let outcome = GrantCheck { check_login, child: &child, report, section: &mut section }.run(user).await;
    report.close(section);
    outcome
}

struct GrantCheck<'a> {
    check_login: &'a CheckLogin,
    child: &'a Auth,
    report: &'a mut Report,
    section: &'a mut Section,
}

impl GrantCheck<'_> {
    async fn run(mut self, user: &TokenUser<'_>) -> Result<(), VaultError> {
        for (name, (origin, users)) in &user.secrets {
            let reason = format!("secret `{name}` of {users}");
            match origin {
                VaultOrigin::Kv { path, .. } => self.check_kv(path, reason).await?,
                VaultOrigin::Generated { path, write } => {
                    let need = generated_need(path.as_str(), write.as_ref());
                    self.check_generated(path, Wanted { need, reason }).await?;
                }
            }
        }
        for wanted in user.token_needs() {
            self.report_need(wanted).await?;
        }
        Ok(())
    }

    /// Checks a path at which Vault creates a credential, without creating one.
    async fn check_generated(&mut self, path: &VaultPath, wanted: Wanted) -> Result<(), VaultError> {
        if self.report_need(wanted).await? == Verdict::Missing {
            return Ok(());
        }
        match self.check_login.vault.mount(&self.child.token, path.as_str()).await {
            Err(error) if is_refusal(&error) => {
                let what = format!("nothing is mounted at `{path}`");
                self.report.problem(&what, NO_ENGINE_HINT);
            }
            Err(error) => return Err(error),
            Ok(_) if path.as_str().starts_with(ENTITY_PATH) && self.child.entity_id.is_empty() => {
                let what = format!("`{path}` needs a token with an entity, but the session's token has none");
                let next = "log in with a method that gives one (`token-file` may not), and not through an orphan token role";
                self.report.problem(&what, next);
            }
            Ok(_) => {}
        }
        Ok(())
    }

    /// Checks a path in a KV engine, whose version decides the path of the API.
    async fn check_kv(&mut self, path: &VaultPath, reason: String) -> Result<(), VaultError> {
        let path = path.as_str();
        let mut found = None;
        for token in [&self.child.token, self.check_login.token()] {
            match self.check_login.vault.mount(token, path).await {
                Ok(mount) => {
                    found = Some(mount);
                    break;
                }
                Err(error) if is_refusal(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let Some(mount) = found else { return self.report_unknown_kv(path, reason).await };
        let kind = mount.kind.clone();
        let Some(version) = mount.kv_version(path) else {
            let what = format!("`kv = \"{path}\"` ({reason}) is in an engine of type `{kind}`");
            self.report.problem(&what, "use `vault` instead of `kv` for credentials that an engine creates");
            return Ok(());
        };
        self.report_need(Wanted { need: Need::read(version.api_path(path)), reason }).await.map(drop)
    }

    /// Reports a path whose engine Vault shows neither to the session's token nor to the login: either the session may read
    /// nothing there, or no engine is mounted. Most engines have version 2 and are mounted at the first segment, so a policy
    /// line for this case is proposed first. If the session has that line already, a line for the path without `data/` is
    /// proposed: with this line Vault shows the engine, whatever its version.
    async fn report_unknown_kv(&mut self, path: &str, reason: String) -> Result<(), VaultError> {
        let first = path.split('/').next().unwrap_or_default();
        let version_2 = Need::read(KvVersion::V2 { mount: format!("{first}/") }.api_path(path));
        let version_1 = Need::read(path);
        for (need, comment) in [
            (
                version_2,
                format!("if the engine of `{path}` has version 1, use this path instead: \"{path}\""),
            ),
            (
                version_1,
                format!(
                    "the engine of `{path}` is not mounted at `{first}/`, or has version 1: with this line the check can find out which"
                ),
            ),
        ] {
            if self.verdict(&need).await? != Some(Verdict::Allowed) {
                self.section.comment(comment);
                return self.report_need(Wanted { need, reason }).await.map(drop);
            }
        }
        self.report.problem(&format!("nothing is mounted at `{path}` ({reason})"), NO_ENGINE_HINT);
        Ok(())
    }

    async fn report_need(&mut self, wanted: Wanted) -> Result<Verdict, VaultError> {
        let (wanted, verdict) = match self.verdict(&wanted.need).await? {
            Some(verdict) => (wanted, verdict),
            None => {
                let reason = format!(
                    "needed only by this check, to look up the capabilities on `{}`",
                    wanted.need.path
                );
                (Wanted { need: Need::update("sys/capabilities-self"), reason }, Verdict::Missing)
            }
        };
        self.report.need(self.section, &wanted, verdict);
        Ok(verdict)
    }

    /// `None` if the session's token may not look up its own capabilities.
    async fn verdict(&self, need: &Need) -> Result<Option<Verdict>, VaultError> {
        match self.check_login.vault.verdicts(&self.child.token, std::slice::from_ref(need)).await {
            Ok(verdicts) => Ok(verdicts.first().copied()),
            Err(error) if error.kind() == Kind::Denied => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether Vault refused the request. Its error is the same if the token may not read the path and if nothing is mounted
/// there.
fn is_refusal(error: &VaultError) -> bool {
    matches!(error.kind(), Kind::Denied | Kind::Invalid | Kind::Missing)
}
