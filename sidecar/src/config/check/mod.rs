//! From raw to checked: every rule of the configuration. Each violation is reported, and none hides another.
//!
//! Each section has a file of functions, which share a [`Checker`].
//!
//! Must stay true: nothing here uses the network or the clock, and of the disk only what the environment reads for it. The
//! result is used only when nothing was reported, so a value that is wrong may simply be left out.

mod grants;
mod http_server;
mod paths;
mod port;
pub(crate) mod relay;
mod scopes;
mod secrets;
mod servers;
mod vault;
mod vault_auth;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use relay_proto::name::Name;

use super::Config;
use super::at::{At, Span};
use super::digest::policy_digest;
use super::document::{Damage, Document};
use super::environment::Environment;
use super::problem::Report;
use super::raw::RawAuditSync;
use super::suggest::nearest;
use super::units::Time;
use crate::audit::SyncMode;

/// Where the configuration file is, and in which environment it is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting<'a> {
    /// The configuration file, absolute: relative paths in it start at its directory.
    pub(super) file: &'a Path,
    pub(super) environment: &'a Environment,
}

/// `None` where a value that everything depends on is missing, which has then been reported.
pub(super) fn check(document: Document, setting: Setting<'_>, report: &mut Report<'_>) -> Option<Config> {
    let raw = document.raw;
    let known = Known {
        vault: match raw.vault {
            Some(_) => Presence::Present,
            None => Presence::Absent,
        },
        secrets: raw.secrets.keys().map(|name| name.value.clone()).collect(),
        servers: raw.servers.keys().map(|name| name.value.clone()).collect(),
        grants: raw.grants.keys().map(|name| name.value.clone()).collect(),
    };
    let mut checker = Checker { damage: document.damage, report, setting, known };
    let checker = &mut checker;
    let vault = raw.vault.and_then(|written| vault::check_vault(checker, written));
    let secrets = secrets::check_secrets(checker, raw.secrets);
    let servers = servers::check_servers(checker, raw.servers);
    let grants = grants::check_grants(checker, raw.grants, &grants::vault_uses(&servers, &secrets));
    let state_dir = relay::check_state_dir(checker, raw.state_dir);
    let admin = relay::check_admin(checker, raw.admin, state_dir.as_deref());
    let (socket_span, vsock_span) = (span_of(&raw.relay.unix), span_of(&raw.relay.vsock_dir));
    let relay = relay::check_relay(checker, raw.relay);
    let private = relay::private_paths(
        checker,
        state_dir.as_deref(),
        admin.as_ref(),
        vault.as_ref(),
        &secrets,
        &servers,
    );
    let socket_directory = relay.unix.as_ref().and_then(|unix| unix.path.parent());
    for (key, directory, span) in [
        ("relay.unix", socket_directory, socket_span),
        ("relay.vsock-dir", relay.vsock_dir.as_deref(), vsock_span),
    ] {
        if let (Some(value), Some(span)) = (directory, span) {
            relay::keep_out_of_relay_directory(checker, key, &At { value, span }, &private);
        }
    }
    let limits = raw.limits.check(checker.report);
    Some(Config {
        state_dir: state_dir?,
        audit_sync: match raw.audit_sync {
            Some(RawAuditSync::Call) => SyncMode::Call,
            Some(RawAuditSync::Write) | None => SyncMode::Write,
        },
        relay,
        admin: admin?,
        vault,
        policy_digest: policy_digest(&servers, &grants),
        secrets: std::sync::Arc::new(secrets),
        servers,
        grants,
        limits,
    })
}

/// What every section is checked with: where problems are reported, and what the rest of the file defines.
struct Checker<'a, 'text> {
    damage: Damage,
    report: &'a mut Report<'text>,
    setting: Setting<'a>,
    known: Known,
}

/// Names as they were written, well-formed or not: a reference to a server whose table is wrong is not a second mistake.
struct Known {
    vault: Presence,
    secrets: Vec<String>,
    servers: Vec<String>,
    grants: Vec<String>,
}

/// Whether there is a table `[vault]`, right or wrong.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Presence {
    Absent,
    Present,
}

/// A section whose tables other sections refer to by name.
#[derive(Clone, Copy, Debug)]
enum Section {
    Grants,
    Secrets,
    Servers,
}

impl Checker<'_, '_> {
    fn add(&mut self, span: &Span, message: impl Into<String>, hint: impl Into<String>) {
        self.report.add(span, message, hint);
    }

    /// The key of a table as a name.
    fn name(&mut self, what: &str, written: &At<String>) -> Option<Name> {
        match written.value.parse() {
            Ok(name) => Some(name),
            Err(_) => {
                self.add(
                    &written.span,
                    format!("{what} cannot be named `{}`", written.value),
                    "use 1 to 64 of a-z, 0-9, `-` and `_`, beginning with a letter or digit",
                );
                None
            }
        }
    }

    fn time(
        &mut self,
        key: &str,
        written: Option<At<Time>>,
        default: &'static str,
        range: RangeInclusive<&'static str>,
    ) -> Duration {
        let range = Time::known(range.start())..=Time::known(range.end());
        let checked = written.and_then(|written| self.report.within(key, &written, range));
        checked.unwrap_or_else(|| Time::known(default)).0
    }

    /// A reference from `key` to the table `[SECTION.NAME]`.
    fn reference(&mut self, key: &str, section: Section, name: &str, span: &Span) -> Option<Name> {
        let known = match section {
            Section::Grants => &self.known.grants,
            Section::Secrets => &self.known.secrets,
            Section::Servers => &self.known.servers,
        };
        if known.iter().any(|candidate| candidate == name) {
            // Where the name itself is malformed, its table has been reported.
            return name.parse().ok();
        }
        let (table, what) = section.words();
        if !self.damage.touches(&[table]) {
            let hint = match nearest(name, known.iter().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("define it in a table `[{table}.{name}]`"),
            };
            self.add(span, format!("`{key}` names the {what} `{name}`, which is not defined"), hint);
        }
        None
    }

    /// Reports `key` where there is no Vault.
    fn needs_vault(&mut self, key: &str, span: &Span) {
        if self.known.vault == Presence::Absent && !self.damage.touches(&["vault"]) {
            let hint = "add a table `[vault]` with its `address` and how to log in (`auth`)";
            self.add(span, format!("`{key}` needs Vault, and there is no table `[vault]`"), hint);
        }
    }
}

impl Section {
    /// The key of its tables, and what one of them is called in a message.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Grants => ("grants", "grant"),
            Self::Secrets => ("secrets", "secret"),
            Self::Servers => ("servers", "server"),
        }
    }
}

/// Those of the keys that are written, with their places: for tables in which some keys exclude others.
fn present<'a>(keys: impl IntoIterator<Item = (&'a str, Option<Span>)>) -> BTreeMap<&'a str, Span> {
    keys.into_iter().filter_map(|(key, span)| Some((key, span?))).collect()
}

fn span_of<T>(written: &Option<At<T>>) -> Option<Span> {
    written.as_ref().map(|at| at.span.clone())
}
