//! Vault: whether it can be reached, the login works and the policies suffice, as `check --online` finds out; and its clock.

use std::time::Duration;

use cofferdam_base::duration;

use super::finding::Findings;
use crate::check::online::{self, Clocks, OnlineFinding, Stage, Stopped};
use crate::config::Config;

/// A difference below this is the time of the request and the resolution of HTTP's date.
const TOLERATED_SKEW: Duration = Duration::from_secs(10);
/// From here on, tokens of a few minutes are refused or outlive their end.
const HARMFUL_SKEW: Duration = Duration::from_secs(120);

/// Whether servers can get secrets from Vault.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum VaultState {
    /// Not configured, or the login works.
    Usable,
    Unusable,
    /// A wrapped secret-id works once, so a login would use it up.
    WrappedLogin,
}

pub(super) async fn probe(
    config: &Config,
    stop: impl Future<Output = ()>,
    findings: &mut Findings,
) -> VaultState {
    let Some(settings) = &config.vault else { return VaultState::Usable };
    let about = format!("vault {}", settings.address.to_string().trim_end_matches('/'));
    let collected = online::collect(config, settings, stop).await;
    if let Some(clocks) = collected.clocks {
        report_clock(&about, clocks, findings);
    }
    let mut state = VaultState::Usable;
    let is_complete = collected.stopped.is_none() && collected.found.is_empty();
    if let Some(Stopped { stage, failure }) = collected.stopped {
        let code = match stage {
            Stage::Connect => "vault-unreachable",
            Stage::Sealed => "vault-sealed",
            Stage::Login => "vault-login",
            Stage::Policies => "vault-not-checked",
        };
        let next = failure.next_step().unwrap_or("check `vault.address` and that Vault runs").to_owned();
        findings.error(code, about.clone(), failure.what(), next);
        if stage != Stage::Policies {
            state = VaultState::Unusable;
        }
    }
    for finding in collected.found {
        match finding {
            OnlineFinding::Lacking { need, reason, policy, lines } => {
                let what = format!("a policy lacks `{need}`: {reason}");
                let next =
                    format!("add this to {policy}, or run `cofferdam vault setup`:\n{}", lines.trim_end());
                findings.error("vault-policy", about.clone(), what, next);
            }
            OnlineFinding::Problem { what, next } => {
                findings.error("vault-setup", about.clone(), what, next);
            }
            OnlineFinding::NotChecked { what } => {
                let next = "correct what is reported before this, then run `cofferdam doctor` again";
                findings.warning("vault-not-checked", about.clone(), format!("not checked: {what}"), next);
            }
        }
    }
    if is_complete {
        findings.good("vault-ok", about, "the login works, and no policy lacks anything");
    }
    match settings.auth.is_wrapped() {
        true if state == VaultState::Usable => VaultState::WrappedLogin,
        _ => state,
    }
}

fn report_clock(about: &str, clocks: Clocks, findings: &mut Findings) {
    let Clocks { vault, host } = clocks;
    let (skew, word) = match host.duration_since(vault) {
        Ok(ahead) => (ahead, "ahead of"),
        Err(behind) => (behind.duration(), "behind"),
    };
    if skew < TOLERATED_SKEW {
        return;
    }
    let what = format!("this host's clock is {} {word} Vault's", duration::rounded(skew));
    let next = "correct the clock that is wrong: `timedatectl set-ntp true` on each of both hosts, then `timedatectl status`";
    match skew < HARMFUL_SKEW {
        true => findings.warning("clock-skew", about, what, next),
        false => findings.error("clock-skew", about, what, next),
    }
}
