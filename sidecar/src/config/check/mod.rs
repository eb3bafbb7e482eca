//! From raw to checked: every rule of the configuration, each broken one reported, none hiding another.
//!
//! Must stay true: nothing here touches the network or the clock, and of the disk only what the environment reads for
//! it; and what is returned is used only when nothing was reported, so a value that could not be had may simply be left
//! out.

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

use self::vault::Presence;
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

/// Where a configuration stands and who reads it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting<'a> {
    /// The configuration file, absolute: relative paths in it start at its directory.
    pub(super) file: &'a Path,
    pub(super) environment: &'a Environment,
}

/// `None` where a value that everything depends on could not be had, which has then been reported.
pub(super) fn check(document: Document, setting: Setting<'_>, report: &mut Report<'_>) -> Option<Config> {
    let raw = document.raw;
    let mut checker = Checker { damage: document.damage, report, setting };
    let known = Known {
        vault: match raw.vault {
            Some(_) => Presence::Present,
            None => Presence::Absent,
        },
        secrets: raw.secrets.keys().map(|name| name.value.clone()).collect(),
        servers: raw.servers.keys().map(|name| name.value.clone()).collect(),
        grants: raw.grants.keys().map(|name| name.value.clone()).collect(),
    };
    let vault = raw.vault.and_then(|written| checker.vault(written));
    let secrets = checker.secrets(raw.secrets, known.vault);
    let servers = checker.servers(raw.servers, &known);
    let grants = checker.grants(raw.grants, &known, &grants::vault_uses(&servers, &secrets));
    let state_dir = checker.state_dir(raw.state_dir);
    let admin = checker.admin(raw.admin, state_dir.as_deref());
    let (socket_span, vsock_span) = (span_of(&raw.relay.unix), span_of(&raw.relay.vsock_dir));
    let relay = checker.relay(raw.relay, &known);
    let places = checker.places(state_dir.as_deref(), admin.as_ref(), vault.as_ref(), &secrets, &servers);
    let socket_directory = relay.unix.as_ref().and_then(|unix| unix.path.parent());
    for (key, directory, span) in [
        ("relay.unix", socket_directory, socket_span),
        ("relay.vsock-dir", relay.vsock_dir.as_deref(), vsock_span),
    ] {
        if let (Some(value), Some(span)) = (directory, span) {
            checker.keep_apart(key, &At { value, span }, &places);
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

struct Checker<'a, 'text> {
    damage: Damage,
    report: &'a mut Report<'text>,
    setting: Setting<'a>,
}

/// Names as they were written, well-formed or not: naming a server whose table is wrong is not a second mistake.
struct Known {
    vault: Presence,
    secrets: Vec<String>,
    servers: Vec<String>,
    grants: Vec<String>,
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

    /// A reference from `key` to the table `[section.NAME]`.
    fn reference(
        &mut self,
        key: &str,
        section: &str,
        known: &[String],
        name: &str,
        span: &Span,
    ) -> Option<Name> {
        if known.iter().any(|candidate| candidate == name) {
            // Where the name itself is malformed, its table has been reported.
            return name.parse().ok();
        }
        if !self.damage.touches(&[section]) {
            let what = section.trim_end_matches('s');
            let hint = match nearest(name, known.iter().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("define it in a table `[{section}.{name}]`"),
            };
            self.add(span, format!("`{key}` names the {what} `{name}`, which is not defined"), hint);
        }
        None
    }
}

/// Keys by where they may stand, for tables in which some keys exclude others.
fn present<'a>(keys: impl IntoIterator<Item = (&'a str, Option<Span>)>) -> BTreeMap<&'a str, Span> {
    keys.into_iter().filter_map(|(key, span)| Some((key, span?))).collect()
}

fn span_of<T>(written: &Option<At<T>>) -> Option<Span> {
    written.as_ref().map(|at| at.span.clone())
}
