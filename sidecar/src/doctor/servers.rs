//! Each server, really started: with its credentials, the handshake and the list of its tools; and rules that match none of
//! them.
//!
//! What must stay true: no tool is called; when the probe ends, also by an interruption, every process it started has ended and
//! every Vault token it made is revoked or about to be; nothing of a running sidecar is touched: its state directory is not
//! opened, and tokens that it has recorded are not revoked.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_base::text::visible_lines;
use cofferdam_scrub::Scrubber;
use cofferdam_servers::spec::{ServerKind, ServerSpec};
use cofferdam_servers::trial::{RecordedUse, ToolNames, Trial, TrialError};
use futures_util::StreamExt as _;
use futures_util::stream;
use tokio_util::sync::CancellationToken;

use super::finding::Findings;
use super::vault::VaultState;
use crate::check::findings::count;
use crate::config::Config;
use crate::trials::{self, Trials, TrialsError, VaultUse, grant_of};

/// Servers that are tried at once: enough to be quick, few enough that a small host is not busy.
pub(super) const AT_ONCE: usize = 4;
const EXCERPT_CHARACTERS: usize = 160;
/// Of an error that a server answered with.
const MESSAGE_CHARACTERS: usize = 300;

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
    let use_vault = if vault == VaultState::Usable { VaultUse::LogIn } else { VaultUse::Leave };
    let trials = match Trials::open(path, use_vault, "doctor") {
        Ok(trials) => trials,
        Err(error) => {
            let next = match &error {
                TrialsError::Scratch(_) => {
                    "make room in the directory for temporary files, or set TMPDIR to another"
                }
                TrialsError::Context(_) => "correct this, then run `cofferdam doctor` again",
            };
            findings.warning("server-not-tried", "servers", error.to_string(), next);
            return;
        }
    };
    let config = trials.context.config.load_full();
    let mut to_try = Vec::new();
    for server in config.servers.values() {
        match why_not(server, &config, vault) {
            Some((what, next)) => {
                findings.warning("server-not-tried", format!("server {}", server.name), what, next);
            }
            None => to_try.push(Arc::clone(server)),
        }
    }
    let tried = stream::iter(to_try).map(|server| try_one(&trials, server));
    // At an interruption the trials are dropped, which ends their processes.
    let mut tried: Vec<Tried> = tokio::select! {
        tried = tried.buffer_unordered(AT_ONCE).collect() => tried,
        () = stopped.cancelled() => Vec::new(),
    };
    trials.end().await;
    tried.sort_by(|one, other| one.spec.name.cmp(&other.spec.name));
    for tried in &tried {
        report(tried, &trials, findings);
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

async fn try_one(trials: &Trials, server: Arc<ServerSpec>) -> Tried {
    let trials::Tried { result, scrubber } = trials.run(&server, &RecordedUse::default(), None).await;
    let stray = match &result {
        Ok(trial) => trial.stray_output.as_deref(),
        Err(error) => error.stray_output(),
    };
    let stray_output = stray.map(|line| excerpt(&String::from_utf8_lossy(&scrubber.text(line).bytes)));
    let result = result.map_err(|error| shortened(error.map_text(|text| scrubber.name(&text).into_owned())));
    Tried { spec: server, result, scrubber, stray_output }
}

fn report(tried: &Tried, trials: &Trials, findings: &mut Findings) {
    let name = &tried.spec.name;
    let about = format!("server {name}");
    let last_line = || match trials.last_stderr(name) {
        Some(line) => format!("; its last line on stderr: `{}`", excerpt(&line)),
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
