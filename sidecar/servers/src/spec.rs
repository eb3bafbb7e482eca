//! The checked configuration of a server: what is started or called, with which credentials, under which rules.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cofferdam_confine::{Downloader, Profile, ShownPath};
use cofferdam_egress::AllowedHost;
use cofferdam_net::AddressPolicy;
use cofferdam_packages::PackageSource;
use cofferdam_policy::{Glob, Rules};
use cofferdam_secrets::{SourceLimits, Template};
use relay_proto::name::Name;

/// Limits of one server, of its stderr and of its sources of secrets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ServerLimits {
    pub message_bytes: usize,
    pub requests_in_flight: usize,
    /// How long a message of a server waits for memory.
    pub memory_wait: Duration,
    /// HTTP: name resolution, connection and TLS handshake.
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

    /// The program of this host that is started. `None` for a package too, whose files are in the state directory.
    pub fn program(&self) -> Option<&Path> {
        match self {
            Self::Http(_) => None,
            Self::Stdio(stdio) => stdio.command.words().first().map(Path::new),
        }
    }

    /// The package that it is started from.
    pub fn package(&self) -> Option<&PackageSource> {
        match self {
            Self::Stdio(StdioServer { command: ServerCommand::Package(source, _), .. }) => Some(source),
            Self::Http(_) | Self::Stdio(_) => None,
        }
    }
}

#[derive(Debug)]
pub struct StdioServer {
    pub command: ServerCommand,
    /// `argv-secrets = "allow"`: the arguments of the program, with secrets in them. Otherwise empty.
    pub argument_templates: Vec<Template>,
    pub env: BTreeMap<String, Template>,
    /// File name → content; 0600, memory-backed.
    pub files: BTreeMap<String, Template>,
    /// Where the process starts, absolute. `None`: in a directory of the server's own.
    pub directory: Option<PathBuf>,
    /// What it may reach on this host. `None`: all that the sidecar's user can.
    pub confinement: Option<Confinement>,
}

/// What is started: argv only, never a shell.
#[derive(Debug)]
pub enum ServerCommand {
    /// The program and its arguments. Never empty.
    Program(Vec<String>),
    /// A package that is installed, and the arguments of its program.
    Package(PackageSource, Vec<String>),
}

impl ServerCommand {
    /// The program and its arguments as configured. Empty for a package.
    pub fn words(&self) -> &[String] {
        match self {
            Self::Program(words) => words,
            Self::Package(..) => &[],
        }
    }

    /// The arguments as configured.
    pub fn arguments(&self) -> &[String] {
        match self {
            Self::Program(words) => words.get(1..).unwrap_or_default(),
            Self::Package(_, arguments) => arguments,
        }
    }
}

/// What a confined server may reach.
#[derive(Clone, Debug)]
pub struct Confinement {
    pub profile: Profile,
    /// What it may do with the directory that the sandbox's grant names. `None`: it does not see it.
    pub workspace: Option<WorkspaceAccess>,
    /// What it may connect to. A [plan](cofferdam_egress::Plan) can be made of them.
    pub hosts: Vec<AllowedHost>,
    /// The sidecar's own files, which no confined server sees.
    pub hidden: Arc<[PathBuf]>,
}

/// How a confined server sees the workspace of the grant through which it is reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WorkspaceAccess {
    Read,
    Write,
}

impl Confinement {
    /// The profile, with the workspace of a grant where the server sees that. `None` if the grant has none.
    pub fn profile_in(&self, workspace: Option<&ShownPath>) -> Option<Cow<'_, Profile>> {
        let Some(access) = self.workspace else { return Some(Cow::Borrowed(&self.profile)) };
        let mut profile = self.profile.clone();
        let paths = match access {
            WorkspaceAccess::Read => &mut profile.read,
            WorkspaceAccess::Write => &mut profile.write,
        };
        paths.push(workspace?.clone());
        Some(Cow::Owned(profile))
    }

    /// Whether a server that is downloaded at its start cannot be.
    pub fn prevents(&self, downloader: Downloader) -> bool {
        !downloader.works_with(&self.profile, self.hosts.len())
    }
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
