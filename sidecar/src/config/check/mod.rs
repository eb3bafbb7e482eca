//! Checks the raw types and converts them into checked types. Every problem of the file is reported, not only the first.
//!
//! Each section of the file has a module of functions, which share a [`Checker`].
//!
//! What must stay true: the checks use neither the network nor the clock, and read files only through [`Environment`]. The
//! result is used only if no problem was reported, so a check may leave out a value that it reports.

mod admin_tls;
mod confine;
mod grants;
mod http_server;
mod manifest;
mod paths;
mod platforms;
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

use cofferdam_audit::SyncMode;
use relay_proto::name::Name;

use super::Config;
use super::digest::policy_digest;
use super::document::{Document, RemovedEntries};
use super::environment::Environment;
use super::private_paths::{hidden_paths, private_paths, programs};
use super::problem::Report;
use super::quantities::RawDuration;
use super::raw::RawAuditSync;
use super::spanned::{Span, Spanned};
use super::suggest::nearest;
use paths::normalized;

/// The inputs of the checks besides the file's text.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckContext<'a> {
    /// The absolute path of the configuration file. Relative paths in the file start at its directory.
    pub(super) file: &'a Path,
    pub(super) environment: &'a Environment,
}

/// Checks the whole document. `None` if a required value is missing; the report says which.
pub(super) fn check(
    document: Document,
    context: CheckContext<'_>,
    report: &mut Report<'_>,
) -> Option<Config> {
    let raw = document.raw;
    let defined = DefinedNames {
        vault: match raw.vault {
            Some(_) => Presence::Present,
            None => Presence::Absent,
        },
        secrets: raw.secrets.keys().map(|name| name.value.clone()).collect(),
        servers: raw.servers.keys().map(|name| name.value.clone()).collect(),
        grants: raw.grants.keys().map(|name| name.value.clone()).collect(),
        platforms: raw.platforms.keys().map(|name| name.value.clone()).collect(),
    };
    let mut checker = Checker { removed: document.removed, report, context, defined };
    let checker = &mut checker;
    let vault = raw.vault.and_then(|written| vault::check_vault(checker, written));
    let secrets = secrets::check_secrets(checker, raw.secrets);
    let state_dir = relay::check_state_dir(checker, raw.state_dir);
    let admin = relay::check_admin(checker, raw.admin, state_dir.as_deref());
    let (socket_span, vsock_span) = (span_of(&raw.relay.unix), span_of(&raw.relay.vsock_dir));
    let relay = relay::check_relay(checker, raw.relay);
    let file = normalized(checker.context.file);
    let private = private_paths(&file, state_dir.as_deref(), admin.as_ref(), vault.as_ref(), &secrets);
    let hidden = hidden_paths(&private, &relay);
    let servers = servers::check_servers(checker, raw.servers, &hidden);
    let grants = grants::check_grants(checker, raw.grants, &grants::servers_using_vault(&servers, &secrets));
    let platforms = platforms::check_platforms(checker, raw.platforms, &secrets);
    let attachments = platforms::check_attachments(checker, raw.attach, &platforms);
    let private = [private, programs(&servers)].concat();
    let socket_directory = relay.unix.as_ref().and_then(|unix| unix.path.parent());
    for (key, directory, span) in [
        ("relay.unix", socket_directory, socket_span),
        ("relay.vsock-dir", relay.vsock_dir.as_deref(), vsock_span),
    ] {
        if let (Some(value), Some(span)) = (directory, span) {
            relay::check_relay_directory(checker, key, &Spanned { value, span }, &private);
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
        platforms,
        attachments,
        limits,
    })
}

/// Shared by the checks of all sections: the report, and the names that the file defines.
struct Checker<'a, 'text> {
    removed: RemovedEntries,
    report: &'a mut Report<'text>,
    context: CheckContext<'a>,
    defined: DefinedNames,
}

/// Names of the tables in the file, valid or not: a reference to a table with problems is not reported again.
struct DefinedNames {
    vault: Presence,
    secrets: Vec<String>,
    servers: Vec<String>,
    grants: Vec<String>,
    platforms: Vec<String>,
}

/// Whether the file has a table `[vault]`, valid or not.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Presence {
    Absent,
    Present,
}

/// A section whose tables other sections refer to by name.
#[derive(Clone, Copy, Debug)]
enum Section {
    Grants,
    Platforms,
    Secrets,
    Servers,
}

impl Checker<'_, '_> {
    fn add(&mut self, span: &Span, message: impl Into<String>, hint: impl Into<String>) {
        self.report.add(span, message, hint);
    }

    /// Parses the name of a table such as `[servers.NAME]`.
    fn parse_name(&mut self, what: &str, written: &Spanned<String>) -> Option<Name> {
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

    /// Checks an optional duration; `default` applies if it is not written.
    fn check_duration(
        &mut self,
        key: &str,
        written: Option<Spanned<RawDuration>>,
        default: &'static str,
        range: RangeInclusive<&'static str>,
    ) -> Duration {
        let range = RawDuration::from_literal(range.start())..=RawDuration::from_literal(range.end());
        let checked = written.and_then(|written| self.report.check_range(key, &written, range));
        checked.unwrap_or_else(|| RawDuration::from_literal(default)).0
    }

    /// Checks a reference from `key` to the table `[SECTION.NAME]`.
    fn check_reference(&mut self, key: &str, section: Section, name: &str, span: &Span) -> Option<Name> {
        let known = match section {
            Section::Grants => &self.defined.grants,
            Section::Platforms => &self.defined.platforms,
            Section::Secrets => &self.defined.secrets,
            Section::Servers => &self.defined.servers,
        };
        if known.iter().any(|candidate| candidate == name) {
            // A malformed name is reported at the table that defines it.
            return name.parse().ok();
        }
        let (table, what) = section.table_and_noun();
        if !self.missing_key_may_be_reported(&[table]) {
            let hint = match nearest(name, known.iter().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("define it in a table `[{table}.{name}]`"),
            };
            self.add(span, format!("`{key}` names the {what} `{name}`, which is not defined"), hint);
        }
        None
    }

    /// Whether a key that is missing in this table may be reported already: an entry of the table, or of a table around it,
    /// could not be read, and may be that key with a typing mistake.
    fn missing_key_may_be_reported(&self, table: &[&str]) -> bool {
        self.removed.affects(table)
    }

    /// Reports `key` if the file has no table `[vault]`.
    fn require_vault(&mut self, key: &str, span: &Span) {
        if self.defined.vault == Presence::Absent && !self.missing_key_may_be_reported(&["vault"]) {
            let hint = "add a table `[vault]` with its `address` and how to log in (`auth`)";
            self.add(span, format!("`{key}` needs Vault, and there is no table `[vault]`"), hint);
        }
    }
}

impl Section {
    /// The table's key in the file, and the noun for messages.
    fn table_and_noun(self) -> (&'static str, &'static str) {
        match self {
            Self::Grants => ("grants", "grant"),
            Self::Platforms => ("platforms", "platform"),
            Self::Secrets => ("secrets", "secret"),
            Self::Servers => ("servers", "server"),
        }
    }
}

/// The keys that the file sets, with their spans: for tables in which some keys exclude others.
fn written_keys<'a>(keys: impl IntoIterator<Item = (&'a str, Option<Span>)>) -> BTreeMap<&'a str, Span> {
    keys.into_iter().filter_map(|(key, span)| Some((key, span?))).collect()
}

fn span_of<T>(written: &Option<Spanned<T>>) -> Option<Span> {
    written.as_ref().map(|written| written.span.clone())
}
