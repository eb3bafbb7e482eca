//! Each server, really started: with its credentials, the handshake and the list of its tools; and rules that match none of
//! them.
//!
//! What must stay true: no tool is called; when the probe ends, also by an interruption, every process it started has ended and
//! every Vault token it made is revoked or about to be; nothing of a running sidecar is touched: its state directory is not
//! opened, and tokens that it has recorded are not revoked.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cofferdam_audit::{self as audit, Audit};
use cofferdam_base::memory::MemoryAccount;
use cofferdam_base::text::{error_chain, visible_lines};
use cofferdam_scrub::Scrubber;
use cofferdam_secrets::files::FileStore;
use cofferdam_servers::spec::{ServerKind, ServerSpec};
use cofferdam_servers::stderr_files::{StderrFollower, StderrRecord, StderrSink, stderr_directory};
use cofferdam_servers::trial::{ToolNames, Trial, TrialError, try_server};
use cofferdam_servers::{HostResources, Launcher};
use cofferdam_vault::RemainingLinks;
use futures_util::StreamExt as _;
use futures_util::stream;
use relay_proto::name::Name;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::finding::Findings;
use super::vault::VaultState;
use crate::check::findings::count;
use crate::config::Config;
use crate::session::principal::{Enrolled, EnrolledBy, Principal};
use crate::session::{Context, NetworkAudit, Session};

/// Servers that are tried at once: enough to be quick, few enough that a small host is not busy.
pub(super) const AT_ONCE: usize = 4;
/// How long a trial's credentials may live if they cannot be revoked.
const CREDENTIAL_LIFETIME: Duration = Duration::from_secs(300);
/// For the end of all processes and tokens.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const STDERR_TIMEOUT: Duration = Duration::from_secs(1);
const EXCERPT_CHARACTERS: usize = 160;
/// Of an error that a server answered with.
const MESSAGE_CHARACTERS: usize = 300;

/// A directory for the trials, with the audit, the working directories and the stderr of the servers. Removed on drop.
struct ScratchState(PathBuf);

impl ScratchState {
    fn create() -> std::io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        let path = std::env::temp_dir().join(cofferdam_base::random::id("cofferdam-doctor-"));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for ScratchState {
    fn drop(&mut self) {
        // A server may have made files there that this user cannot remove; they are in the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server, and what its trial had as a result.
struct Tried {
    spec: Arc<ServerSpec>,
    result: Result<Trial, TrialError>,
    /// Removes the credentials from what the server says of itself.
    scrubber: Scrubber,
    /// An excerpt of the first line on stdout that is not MCP, scrubbed.
    stray_output: Option<String>,
}

/// `path` is that of the configuration. `stopped` ends the trials.
pub(super) async fn probe(
    path: &Path,
    vault: VaultState,
    stopped: &CancellationToken,
    findings: &mut Findings,
) {
    let scratch = match ScratchState::create() {
        Ok(scratch) => scratch,
        Err(error) => {
            let next = "make room in the directory for temporary files, or set TMPDIR to another";
            findings.warning(
                "server-not-tried",
                "servers",
                format!("no directory for the trials: {error}"),
                next,
            );
            return;
        }
    };
    let context = match open(path, &scratch, vault) {
        Ok(context) => context,
        Err(why) => {
            findings.warning(
                "server-not-tried",
                "servers",
                why,
                "correct this, then run `cofferdam doctor` again",
            );
            return;
        }
    };
    let config = context.config.load_full();
    let mut to_try = Vec::new();
    for server in config.servers.values() {
        match why_not(server, &config, vault) {
            Some((what, next)) => {
                findings.warning("server-not-tried", format!("server {}", server.name), what, next);
            }
            None => to_try.push(Arc::clone(server)),
        }
    }
    let trials = stream::iter(to_try).map(|server| try_one(&context, &config, server));
    // At an interruption the trials are dropped, which ends their processes.
    let mut tried: Vec<Tried> = tokio::select! {
        tried = trials.buffer_unordered(AT_ONCE).collect() => tried,
        () = stopped.cancelled() => Vec::new(),
    };
    end(&context).await;
    tried.sort_by(|one, other| one.spec.name.cmp(&other.spec.name));
    for tried in &tried {
        report(tried, &stderr_directory(&scratch.0), findings);
    }
    for server in config.servers.values() {
        if grant_of(&server.name, &config).is_none() {
            let next = format!("add `{}` to `servers` of a grant, or remove the server", server.name);
            findings.warning(
                "server-not-granted",
                format!("server {}", server.name),
                "no grant names it",
                next,
            );
        }
    }
}

/// A context like the daemon's, with the state in a directory of its own.
fn open(path: &Path, scratch: &ScratchState, vault: VaultState) -> Result<Arc<Context>, String> {
    let mut config = crate::config::load(path).map_err(|problems| problems.to_string())?;
    config.state_dir.clone_from(&scratch.0);
    if vault != VaultState::Usable {
        config.vault = None;
    }
    let files = FileStore::open().map_err(|error| error_chain(&error))?;
    let audit = Audit::open(config.audit_options(audit::WriteBy::Caller));
    let audit = audit.map_err(|error| error_chain(&error))?;
    let context = Context::new(config, audit, files, Arc::default());
    context.map(Arc::new).map_err(|error| error_chain(&error))
}

/// Why a server is not tried, and what to do.
fn why_not(server: &ServerSpec, config: &Config, vault: VaultState) -> Option<(String, String)> {
    let from_vault = server
        .every_secret()
        .into_iter()
        .find(|secret| config.secrets.get(*secret).is_some_and(|source| source.origin.vault().is_some()))?;
    let next = match vault {
        VaultState::Usable => return None,
        VaultState::Unusable => "correct what is reported about Vault, then run `cofferdam doctor` again",
        VaultState::WrappedLogin => {
            "run `cofferdam serve`, then a call through a shim: a wrapped secret-id works only once"
        }
    };
    Some((format!("it needs the secret `{from_vault}` from Vault"), next.to_owned()))
}

fn grant_of(server: &Name, config: &Config) -> Option<Name> {
    config.grants.values().find(|grant| grant.servers.contains(server)).map(|grant| grant.name.clone())
}

async fn try_one(context: &Arc<Context>, config: &Arc<Config>, server: Arc<ServerSpec>) -> Tried {
    let grant = grant_of(&server.name, config).unwrap_or_else(|| server.name.clone());
    let enrolment = Enrolled {
        id: cofferdam_base::random::id("doctor").into(),
        name: "cofferdam doctor".into(),
        expires: Instant::now() + CREDENTIAL_LIFETIME,
        kind: EnrolledBy::Connection,
        next_step: "",
    };
    let principal = Principal { grant, enrolment: Some(enrolment), uid: None };
    let session = Arc::new(Session::new(context, &principal));
    session.enter();
    let host = HostResources {
        sandbox_limits: session.sandbox_limits.clone(),
        memory: MemoryAccount::new(usize::try_from(config.limits.link_memory).unwrap_or(usize::MAX)),
        files: context.files.clone(),
        tasks: context.tasks.clone(),
        working_directories: context.server_state.directories.clone(),
        workspace: config.grants.get(&session.grant).and_then(|grant| grant.workspace.clone()),
        stderr: StderrSink { files: context.server_state.stderr.clone(), session: Arc::clone(&session.id) },
        network_events: Arc::new(NetworkAudit { session: Arc::clone(&session), link: "doctor".into() }),
    };
    let launcher = Launcher::new(
        Arc::clone(&server),
        (&config.limits).into(),
        Arc::clone(&config.secrets),
        Arc::clone(&session.credentials),
        host,
        "doctor".into(),
    );
    let result = try_server(launcher).await;
    let scrubber = session.credentials.scrubber();
    let stray = match &result {
        Ok(trial) => trial.stray_output.as_deref(),
        Err(error) => error.stray_output(),
    };
    let stray_output = stray.map(|line| excerpt(&String::from_utf8_lossy(&scrubber.text(line).bytes)));
    if session.leave() == RemainingLinks::None
        && let Some(vault) = &session.vault
    {
        // What is not revoked by then is revoked when the probe ends, or expires.
        vault.end(Instant::now() + END_TIMEOUT).await;
    }
    let result = result.map_err(|error| shortened(error.map_text(|text| scrubber.name(&text).into_owned())));
    Tried { spec: server, result, scrubber, stray_output }
}

/// Ends what the trials have left.
async fn end(context: &Context) {
    if let Some(vault) = &context.vault {
        vault.end().await;
    }
    context.tasks.close();
    // Tasks that end processes; the keepers kill the processes in any case.
    let _ = timeout(END_TIMEOUT, context.tasks.wait()).await;
    context.server_state.stderr.finish(STDERR_TIMEOUT);
}

fn report(tried: &Tried, stderr: &Path, findings: &mut Findings) {
    let name = &tried.spec.name;
    let about = format!("server {name}");
    let last_line = || match last_stderr(stderr, name) {
        Some(line) => format!("; its last line on stderr: `{line}`"),
        None => String::new(),
    };
    let on_stdout = || match &tried.stray_output {
        Some(line) => format!("; it printed `{line}` to stdout"),
        None => String::new(),
    };
    let is_process = matches!(tried.spec.kind, ServerKind::Stdio(_));
    match &tried.result {
        Ok(trial) => report_working(tried, trial, &about, findings),
        Err(TrialError::NotStarted(why)) => {
            let next = match is_process {
                true if tried.spec.kind.package().is_some() => format!("run `cofferdam install {name}`"),
                true => format!("install the program of `servers.{name}.command`, or correct it"),
                false => format!("correct `servers.{name}.url`"),
            };
            findings.error("server-not-started", about, format!("it does not start: {why}"), next);
        }
        Err(TrialError::NoCredential(why)) => {
            let next = "correct the secret that is named, then run `cofferdam doctor` again";
            findings.error("server-no-credential", about, why.clone(), next);
        }
        Err(TrialError::Ended { why, .. }) if is_process => {
            let what = format!("{why}{}{}", on_stdout(), last_line());
            let next = format!(
                "run its command by hand: it has to answer MCP on stdin and stdout; `servers.{name}.env` has to name all variables \
                 that it needs"
            );
            findings.error("server-ended", about, what, next);
        }
        Err(TrialError::Ended { why, .. }) => {
            let next = format!(
                "is the server there, and is `servers.{name}.url` its MCP endpoint? Try it with `curl -v`"
            );
            findings.error("server-unreachable", about, why.clone(), next);
        }
        Err(TrialError::NoAnswer { stray_output: Some(_), .. }) => {
            let what = format!("it does not speak MCP on stdout{}{}", on_stdout(), last_line());
            let next = format!(
                "`servers.{name}.command` has to start the server with stdio as its transport: look for an argument such as `stdio`"
            );
            findings.error("server-not-mcp", about, what, next);
        }
        Err(error @ TrialError::NoAnswer { .. }) => {
            let what = format!("{error}{}", last_line());
            let next =
                "run its command by hand; if it only starts slowly, raise `limits.server-start-timeout`";
            findings.error("server-no-answer", about, what, next);
        }
        Err(error @ TrialError::Refused { .. }) => {
            let what = format!("{error}{}", last_line());
            let next = "look in the server's documentation for the credential or setting that it asks for";
            findings.error("server-refused", about, what, next);
        }
    }
}

fn report_working(tried: &Tried, trial: &Trial, about: &str, findings: &mut Findings) {
    let (count_text, names) = match &trial.tools {
        ToolNames::All(names) => (count(names.len(), "tool"), Some(names)),
        ToolNames::Some(names) => (format!("more than {}", count(names.len(), "tool")), None),
        ToolNames::None => ("no tools".to_owned(), None),
    };
    let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
    let what = format!(
        "{}; {count_text}; handshake after {}, tools after {}",
        excerpt(&tried.scrubber.name(&trial.software)),
        seconds(trial.handshake),
        seconds(trial.listed)
    );
    findings.good("server-ok", about, what);
    if names.is_some_and(BTreeSet::is_empty) || trial.tools == ToolNames::None {
        let next = "look in the server's documentation: a credential with more rights, or a setting, may bring its tools";
        findings.warning("server-no-tools", about, "it offers no tools", next);
    }
    if let Some(line) = &tried.stray_output {
        let what = format!("it printed a line to stdout that is not MCP: `{line}`");
        findings.warning("server-stray-output", about, what, "make it write such lines to stderr");
    }
    if let Some(names) = names {
        report_rules(tried, names, about, findings);
    }
}

/// Rules and scopes that match no tool of the server.
fn report_rules(tried: &Tried, names: &BTreeSet<String>, about: &str, findings: &mut Findings) {
    let server = &tried.spec;
    let of_scopes = server.scopes.iter().flat_map(|scope| &scope.tools);
    let of_scopes = of_scopes.filter(|glob| !names.iter().any(|name| glob.matches(name)));
    let of_scopes = of_scopes.map(|glob| format!("scopes {}", glob.as_str()));
    let of_rules = server.rules.without_match(names.iter().map(String::as_str));
    for rule in of_rules.into_iter().map(str::to_owned).chain(of_scopes) {
        let pattern = rule.rsplit(' ').next().unwrap_or_default();
        let next = match crate::config::suggest::nearest(pattern, names.iter().map(String::as_str)) {
            Some(near) => {
                let near = excerpt(&tried.scrubber.name(near));
                format!("did you mean `{near}`? Otherwise remove the rule")
            }
            None => format!(
                "remove the rule, or correct it: `cofferdam-shim tools {}` in a sandbox lists the tools that are permitted",
                server.name
            ),
        };
        let what = format!("the rule `{rule}` matches none of its {}", count(names.len(), "tool"));
        findings.warning("rule-matches-nothing", about, what, next);
    }
}

/// The last line of the server's stderr, which is scrubbed.
fn last_stderr(directory: &Path, server: &Name) -> Option<String> {
    let line = StderrFollower::from_start(directory, server).ok()?.last(1).ok()?.pop_back()?;
    Some(excerpt(StderrRecord::parse(&line)?.text()?))
}

/// An error of the server's own may have any length.
fn shortened(error: TrialError) -> TrialError {
    match error {
        TrialError::Refused { request, message } => {
            TrialError::Refused { request, message: first_characters(&message, MESSAGE_CHARACTERS) }
        }
        error => error,
    }
}

/// What a server said, on one line. It was scrubbed before, because the rest of a credential that was cut in two would not be
/// recognised.
fn excerpt(text: &str) -> String {
    first_characters(text.trim(), EXCERPT_CHARACTERS)
}

fn first_characters(text: &str, count: usize) -> String {
    let visible = visible_lines(text).replace('\n', " ");
    match visible.char_indices().nth(count) {
        Some((end, _)) => format!("{}…", &visible[..end]),
        None => visible,
    }
}
