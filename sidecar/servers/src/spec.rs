//! The checked configuration of a server: what is started or called, with which credentials, under which rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cofferdam_confine::Profile;
use cofferdam_confine::manifest::{Given, Manifest};
use cofferdam_egress::AllowedHost;
use cofferdam_net::AddressPolicy;
use cofferdam_policy::{Glob, Rules};
use cofferdam_secrets::{SourceLimits, Template};
use relay_proto::name::Name;

/// Limits of one server, of its stderr and of its sources of secrets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ServerLimits {
    pub message_bytes: usize,
    pub requests_in_flight: usize,
    /// HTTP: name resolution, connection and TLS handshake.
    /// How long a message of a server waits for memory.
    pub memory_wait: Duration,
    pub http_connect_timeout: Duration,
    /// From start to the first response.
    pub start_timeout: Duration,
    /// How long a replaced process may finish its calls.
    pub replace_drain: Duration,
    /// How long a server and its descendants may take to exit after its stdin is closed. SIGTERM follows after a quarter of
    /// this time, SIGKILL at its end.
    pub stop_grace: Duration,
    pub stderr_line_bytes: usize,
    pub stderr_lines_per_second: u32,
    /// Of each directory in memory of a confined server.
    pub confined_directory_bytes: u64,
    pub confined_processes: u32,
    pub sources: SourceLimits,
}

#[derive(Debug)]
pub struct ServerSpec {
    pub name: Name,
    pub kind: ServerKind,
    pub rules: Rules,
    pub call_timeout: Duration,
    pub retry: Retry,
    /// How a new credential reaches a running process.
    pub replace: Replace,
    /// Set where the server can read its files again: it is then not replaced when only secrets in files change.
    pub reload: Option<Reload>,
    /// Tools that run with other credentials. A tool belongs to the first scope that names it.
    pub scopes: Vec<Arc<Scope>>,
}

/// What is done with a request that may have run and got no response.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Retry {
    /// The harness gets the error `outcome_unknown`.
    #[default]
    Never,
    /// `retry = true`: it is sent once more where its method or the annotations of its tool say that this is safe.
    WhereSafe,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Replace {
    /// Another process takes over between two calls. Running calls finish on the old one, for at most
    /// `limits.replace-drain`.
    #[default]
    Hitless,
    /// Another process takes over when no call, task or request to the harness is open, or when the old credential has
    /// expired. The two run side by side for a moment.
    Idle,
    /// A process keeps the credential that it was started with for as long as it runs, even when that has expired. The
    /// next process gets a new one.
    Never,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reload {
    /// The server notices by itself that a file has changed.
    File,
    /// The server reads its files again after SIGHUP.
    Sighup,
}

/// What some tools of a server run with: the server's own variables, files or headers, overridden by those of the
/// scope.
#[derive(Debug, Eq, PartialEq)]
pub struct Scope {
    /// Never empty.
    pub tools: Vec<Glob>,
    /// For stdio servers only, like `files`.
    pub env: BTreeMap<String, Template>,
    pub files: BTreeMap<String, Template>,
    /// For HTTP servers only; each name once.
    pub headers: Vec<(http::HeaderName, Template)>,
}

impl ServerSpec {
    /// The templates that are filled for this server, except those for tools of a scope.
    pub fn templates(&self) -> impl Iterator<Item = &Template> {
        let (env, files, headers) = match &self.kind {
            ServerKind::Http(http) => (None, None, Some(&http.headers)),
            ServerKind::Stdio(stdio) => (Some(&stdio.env), Some(&stdio.files), None),
        };
        let of_process = env.into_iter().chain(files).flat_map(BTreeMap::values);
        let of_headers = headers.into_iter().flatten().map(|(_, template)| template);
        of_process.chain(of_headers).chain(self.arguments())
    }

    /// The arguments that may have secrets in them, which every process of the server gets, also one of a scope.
    pub fn arguments(&self) -> impl Iterator<Item = &Template> {
        match &self.kind {
            ServerKind::Http(_) => [].iter(),
            ServerKind::Stdio(stdio) => stdio.argument_templates.iter(),
        }
    }

    /// The secrets that [`Self::templates`] name, each once.
    pub fn secrets(&self) -> BTreeSet<&Name> {
        secret_names(self.templates())
    }

    /// The secrets of the server and of all its scopes.
    pub fn every_secret(&self) -> BTreeSet<&Name> {
        secret_names(self.templates().chain(self.scopes.iter().flat_map(|scope| scope.templates())))
    }

    /// The scope that a tool belongs to; `None` if it runs with the server's own credentials.
    pub fn scope(&self, tool: &str) -> Option<&Arc<Scope>> {
        self.scopes.iter().find(|scope| scope.pattern(tool).is_some())
    }

    /// Whether both specs have the same variables, files and arguments with secrets (stdio) or headers (HTTP), apart from
    /// scopes.
    pub fn has_same_templates(&self, other: &Self) -> bool {
        match (&self.kind, &other.kind) {
            (ServerKind::Http(one), ServerKind::Http(other)) => one.headers == other.headers,
            (ServerKind::Stdio(one), ServerKind::Stdio(other)) => {
                (&one.env, &one.files, &one.argument_templates)
                    == (&other.env, &other.files, &other.argument_templates)
            }
            (ServerKind::Http(_), ServerKind::Stdio(_)) | (ServerKind::Stdio(_), ServerKind::Http(_)) => {
                false
            }
        }
    }
}

impl Scope {
    /// The first of its patterns that matches a tool.
    pub fn pattern(&self, tool: &str) -> Option<&Glob> {
        self.tools.iter().find(|glob| glob.matches(tool))
    }

    /// Whether tools of both run with the same variables, files and headers.
    pub fn has_same_templates(&self, other: &Self) -> bool {
        (&self.env, &self.files, &self.headers) == (&other.env, &other.files, &other.headers)
    }

    /// The templates that are filled for tools of this scope.
    pub fn templates(&self) -> impl Iterator<Item = &Template> {
        let of_process = self.env.values().chain(self.files.values());
        of_process.chain(self.headers.iter().map(|(_, template)| template))
    }

    /// The secrets that [`Self::templates`] name, each once.
    pub fn secrets(&self) -> BTreeSet<&Name> {
        secret_names(self.templates())
    }
}

/// The tool patterns, as configured.
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

impl ServerKind {
    /// Whether it runs as processes of this host, one more for each scope. Otherwise one connection is made to it, and
    /// each request carries the credentials of its scope.
    pub fn runs_processes(&self) -> bool {
        match self {
            Self::Http(_) => false,
            Self::Stdio(_) => true,
        }
    }

    /// The program of this host that is started.
    pub fn program(&self) -> Option<&Path> {
        match self {
            Self::Http(_) => None,
            Self::Stdio(stdio) => stdio.command.first().map(Path::new),
        }
    }
}

#[derive(Debug)]
pub struct StdioServer {
    /// Never empty; argv only, never a shell.
    pub command: Vec<String>,
    /// `argv-secrets = "allow"`: what follows the program in `command`, with secrets in it. Otherwise empty.
    pub argument_templates: Vec<Template>,
    pub env: BTreeMap<String, Template>,
    /// File name → content; 0600, memory-backed.
    pub files: BTreeMap<String, Template>,
    /// Where the process starts, absolute. `None`: in a directory of the server's own.
    pub directory: Option<PathBuf>,
    /// What it may reach on this host. `None`: all that the sidecar's user can.
    pub confinement: Option<Confinement>,
}

impl StdioServer {
    /// What the server is given, with the scopes of its tools, in the terms of a manifest; `None` if it is not confined.
    pub fn given(&self, scopes: &[Arc<Scope>]) -> Option<Given<'_>> {
        let confinement = self.confinement.as_ref()?;
        let of_scopes = scopes.iter().flat_map(|scope| scope.env.keys());
        Some(Given {
            profile: &confinement.profile,
            directory: self.directory.as_deref(),
            hosts: confinement.hosts.len(),
            variables: self.env.keys().chain(of_scopes).collect::<BTreeSet<_>>().len(),
        })
    }
}

/// What a confined server may reach.
#[derive(Debug)]
pub struct Confinement {
    pub profile: Profile,
    /// What it may connect to. A [plan](cofferdam_egress::Plan) can be made of them.
    pub hosts: Vec<AllowedHost>,
    /// The sidecar's own files, which no confined server sees.
    pub hidden: Arc<[PathBuf]>,
    /// The bound that the server declares of itself. The profile, the hosts and the variables are within it.
    pub manifest: Option<Box<Manifest>>,
}

#[derive(Debug)]
pub struct HttpServer {
    /// `https`, or `http` where no header could carry a credential or the host is loopback. No user, no fragment.
    pub url: http::Uri,
    /// Each name once.
    pub headers: Vec<(http::HeaderName, Template)>,
    pub addresses: AddressPolicy,
}

/// The secrets that templates name, each once.
pub(crate) fn secret_names<'a>(templates: impl Iterator<Item = &'a Template>) -> BTreeSet<&'a Name> {
    templates.flat_map(Template::fields).map(|(secret, _)| secret).collect()
}
