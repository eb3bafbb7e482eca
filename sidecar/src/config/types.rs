//! What a configuration means once it has checked. Immutable: a reload makes a new one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use relay_proto::address::{Address, HostPort};
use relay_proto::name::Name;

use super::{Limits, Vault, VaultPath};
use crate::inject::Template;
use crate::policy::Glob;

/// A configuration that checked. Everything it names exists in it.
#[derive(Debug)]
pub struct Config {
    pub state_dir: PathBuf,
    pub audit_sync: AuditSync,
    pub relay: Relay,
    pub admin: Admin,
    /// Present wherever a secret comes from it.
    pub vault: Option<Vault>,
    pub secrets: BTreeMap<Name, Arc<SecretSource>>,
    pub servers: BTreeMap<Name, Arc<Server>>,
    pub grants: BTreeMap<Name, Arc<Grant>>,
    pub limits: Limits,
    /// SHA-256 in hex of what decides: servers' rules and grants, in a canonical order.
    pub policy_digest: String,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AuditSync {
    /// A decision is fsynced before the call, grouped with its neighbours.
    Call,
    /// `write(2)` returned: it survives the sidecar, not the host.
    Write,
}

#[derive(Debug)]
pub struct Relay {
    pub unix: Option<UnixRelay>,
    /// Who may connect to Unix sockets, by peer credentials; none means the sidecar's own user, and root.
    pub uids: Option<Vec<u32>>,
    pub tls: Option<TlsRelay>,
    /// A socket that is made for one sandbox below this directory has the name that a microVM's vsock gives it.
    pub vsock_dir: Option<PathBuf>,
    pub resume_grace: Duration,
    pub heartbeat: Duration,
}

/// The shared Unix socket: each link on it is a session of its own.
#[derive(Debug)]
pub struct UnixRelay {
    /// Its directory is mounted into sandboxes: nothing else that this configuration names lies in there.
    pub path: PathBuf,
    pub grant: Name,
}

/// The port for sandboxes that dial out.
#[derive(Debug)]
pub struct TlsRelay {
    pub listen: HostPort,
    /// What an enrolment string names: `tls://` or `wss://`.
    pub advertise: Address,
}

#[derive(Debug)]
pub struct Admin {
    pub socket: PathBuf,
    /// Always of loopback.
    pub http: Option<HostPort>,
}

#[derive(Clone, Debug)]
pub struct SecretSource {
    pub name: Name,
    pub origin: Origin,
    /// Fields that are not secret: neither scrubbed nor too short.
    pub public: Vec<String>,
    pub short: ShortValues,
}

#[derive(Clone, Debug)]
pub enum Origin {
    Env(String),
    /// Never empty; argv only, never a shell.
    Exec(Vec<String>),
    File(PathBuf),
    /// A static secret of Vault's, in a KV engine of either version.
    Kv {
        path: VaultPath,
        /// How often a newer version is looked for.
        refresh: Duration,
    },
    /// A credential that Vault makes: a lease, a certificate, a token.
    Vault {
        path: VaultPath,
        /// What is written to have it; without it, the path is read.
        write: Option<BTreeMap<String, serde_json::Value>>,
    },
}

impl Origin {
    pub fn is_in_vault(&self) -> bool {
        match self {
            Self::Env(_) | Self::Exec(_) | Self::File(_) => false,
            Self::Kv { .. } | Self::Vault { .. } => true,
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ShortValues {
    /// `short = "allow"`: values under 8 bytes are used, and scrubbed where they stand.
    Allow,
    Refuse,
}

#[derive(Debug)]
pub struct Server {
    pub name: Name,
    pub kind: ServerKind,
    pub rules: crate::policy::Rules,
    pub call_timeout: Duration,
    pub retry: Retry,
    /// How a new credential reaches a running process.
    pub replace: Replace,
    /// Where the server can re-read its files, which it then has; it is not replaced for what stands in them alone.
    pub reload: Option<Reload>,
    /// Tools that run with other credentials. The first scope that names a tool is the tool's.
    pub scopes: Vec<Arc<Scope>>,
}

/// What is done with a request that may have run and has no answer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Retry {
    /// It is answered `outcome_unknown`.
    #[default]
    Never,
    /// `retry = true`: it is sent once more where that is safe by its method or by what its tool says of itself.
    WhereSafe,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Replace {
    /// By another process, which takes over between two calls. Calls that run finish on the old one, for at most
    /// `limits.replace-drain`.
    #[default]
    Hitless,
    /// By another process, which takes over when no call runs, no task is open and nothing is asked of the harness, or
    /// when the old credential is over. The two run side by side for a moment.
    Idle,
    /// Not at all: a process keeps the credential that it was started with for as long as it runs, also when that has
    /// ended. The next one gets a new one.
    Never,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reload {
    /// It notices that a file has changed.
    File,
    /// It is told so.
    Sighup,
}

/// What some tools of a server run with. Complete: the server's own entries, with those of the scope in their place.
#[derive(Debug, Eq, PartialEq)]
pub struct Scope {
    /// Never empty.
    pub tools: Vec<Glob>,
    /// Of stdio servers only, as `files`.
    pub env: BTreeMap<String, Template>,
    pub files: BTreeMap<String, Template>,
    /// Of HTTP servers only; each name once.
    pub headers: Vec<(http::HeaderName, Template)>,
}

impl Server {
    /// The templates that are filled for this server, but for tools of a scope.
    pub fn templates(&self) -> impl Iterator<Item = &Template> {
        let (env, files, headers) = match &self.kind {
            ServerKind::Http(http) => (None, None, Some(&http.headers)),
            ServerKind::Stdio(stdio) => (Some(&stdio.env), Some(&stdio.files), None),
        };
        let of_process = env.into_iter().chain(files).flat_map(BTreeMap::values);
        of_process.chain(headers.into_iter().flatten().map(|(_, template)| template))
    }

    /// The secrets that they name, each once.
    pub fn secrets(&self) -> BTreeSet<&Name> {
        named(self.templates())
    }

    /// The secrets of the server and of all its scopes.
    pub fn every_secret(&self) -> BTreeSet<&Name> {
        named(self.templates().chain(self.scopes.iter().flat_map(|scope| scope.templates())))
    }

    /// The scope that a tool runs in, if it is not the server's own.
    pub fn scope(&self, tool: &str) -> Option<&Arc<Scope>> {
        self.scopes.iter().find(|scope| scope.pattern(tool).is_some())
    }

    /// Whether whatever is not in a scope runs with the same entries in both.
    pub fn runs_like(&self, other: &Self) -> bool {
        match (&self.kind, &other.kind) {
            (ServerKind::Http(one), ServerKind::Http(other)) => one.headers == other.headers,
            (ServerKind::Stdio(one), ServerKind::Stdio(other)) => {
                (&one.env, &one.files) == (&other.env, &other.files)
            }
            (ServerKind::Http(_), ServerKind::Stdio(_)) | (ServerKind::Stdio(_), ServerKind::Http(_)) => {
                false
            }
        }
    }
}

impl Scope {
    /// The first of its patterns that names a tool.
    pub fn pattern(&self, tool: &str) -> Option<&Glob> {
        self.tools.iter().find(|glob| glob.matches(tool))
    }

    /// Whether tools of both run with the same entries.
    pub fn runs_like(&self, other: &Self) -> bool {
        (&self.env, &self.files, &self.headers) == (&other.env, &other.files, &other.headers)
    }

    /// The templates that are filled for tools of this scope.
    pub fn templates(&self) -> impl Iterator<Item = &Template> {
        let of_process = self.env.values().chain(self.files.values());
        of_process.chain(self.headers.iter().map(|(_, template)| template))
    }

    /// The secrets that they name, each once.
    pub fn secrets(&self) -> BTreeSet<&Name> {
        named(self.templates())
    }
}

/// Its tools, as they are written.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tools: Vec<&str> = self.tools.iter().map(Glob::as_str).collect();
        f.write_str(&tools.join(", "))
    }
}

#[derive(Debug)]
pub enum ServerKind {
    Http(HttpServer),
    Stdio(StdioServer),
}

#[derive(Debug)]
pub struct StdioServer {
    /// Never empty; argv only, never a shell.
    pub command: Vec<String>,
    pub env: BTreeMap<String, Template>,
    /// File name → content; 0600, memory-backed.
    pub files: BTreeMap<String, Template>,
}

#[derive(Debug)]
pub struct HttpServer {
    /// `https`, or `http` where no header could carry a credential or the host is loopback. No user, no fragment.
    pub url: http::Uri,
    /// Each name once.
    pub headers: Vec<(http::HeaderName, Template)>,
    pub addresses: Addresses,
}

/// Which addresses a server's host name may resolve to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Addresses {
    /// `private = true`
    PrivateToo,
    PublicOnly,
}

#[derive(Debug)]
pub struct Grant {
    pub name: Name,
    pub servers: Vec<Name>,
    /// What its sessions' tokens may do in Vault, and nothing besides. Not empty where a server of the grant uses Vault.
    pub vault_policies: Vec<String>,
    pub ttl: Duration,
}

fn named<'a>(templates: impl Iterator<Item = &'a Template>) -> BTreeSet<&'a Name> {
    templates.flat_map(Template::fields).map(|(secret, _)| secret).collect()
}
