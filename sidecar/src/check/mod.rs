//! What a configuration refers to, compared with this host and with Vault: for `check` and `doctor`.
//!
//! | module | what it holds |
//! |---|---|
//! | [`findings`] | what was found, as lines or as JSON |
//! | `secrets` | the sources of secrets, and the fields that templates use |
//! | `manifests` | permissions that a manifest allows and nothing refines |
//! | `files` | programs, directories, certificates and keys |
//! | [`online`] | whether Vault is set up for the configuration |
//! | [`vault_needs`] | what a configuration needs in Vault |
//!
//! What must stay true: the checks of this host have no side effects, so they run no program and create no file; a finding shows
//! neither a value of the configuration, which may be a credential by mistake, nor anything of a secret but names of fields that
//! the configuration uses.

mod files;
pub(crate) mod findings;
mod manifests;
pub(crate) mod online;
mod secrets;
pub(crate) mod vault_needs;

use std::path::Path;

use crate::config::Config;
use findings::{Findings, Severity};

/// Checks what the configuration names on this host.
pub(crate) fn check_host<'a>(file: &'a Path, config: &Config, severity: Severity) -> Findings<'a> {
    let mut findings = Findings::new(file, severity);
    secrets::check(config, &mut findings);
    files::check(config, &mut findings);
    manifests::check(config, &mut findings);
    findings.sort();
    findings
}
