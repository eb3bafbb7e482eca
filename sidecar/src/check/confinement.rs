//! What the walls of a server keep from it that its command and variables name.
//!
//! What must stay true: a suggestion is a line that the configuration takes as it is. It names hosts, and paths that exist on this
//! host, and nothing else of the values around them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cofferdam_confine::{Downloader, ShownPath, is_part_of_the_system};
use cofferdam_egress::{AllowedHost, named_hosts};
use cofferdam_secrets::{Template, TemplatePart};
use cofferdam_servers::spec::{Confinement, Scope, ServerKind, ServerSpec, StdioServer, WorkspaceAccess};

use super::findings::Findings;
use crate::config::{Config, WORKSPACE};

pub(super) fn check(config: &Config, findings: &mut Findings<'_>) {
    for server in config.servers.values() {
        let ServerKind::Stdio(stdio) = &server.kind else { continue };
        match &stdio.confinement {
            None => report_unconfined(server, findings),
            Some(confinement) => {
                check_downloader(server, stdio, confinement, findings);
                check_hosts(server, stdio, confinement, findings);
                check_paths(server, stdio, confinement, findings);
            }
        }
    }
}

fn report_unconfined(server: &ServerSpec, findings: &mut Findings<'_>) {
    let name = server.name.as_str();
    let message = format!(
        "`servers.{name}.confine` is off: the server can do all that the sidecar's user can, such as reading the credentials of \
         other servers"
    );
    let hint = "leave `confine` out, and name in it what the server misses then: `hosts`, `read`, `write`";
    findings.add("server-unconfined", &["servers", name, "confine"], message, hint);
}

fn check_downloader(
    server: &ServerSpec,
    stdio: &StdioServer,
    confinement: &Confinement,
    findings: &mut Findings<'_>,
) {
    let Some((program, arguments)) = stdio.command.words().split_first() else { return };
    let Some(downloader) = Downloader::of(program, arguments) else { return };
    if confinement.prevents(downloader) {
        let name = server.name.as_str();
        let message = format!(
            "`{downloader}` downloads `servers.{name}` at its start, for which the server's walls leave no network or no place; it \
             does not start"
        );
        findings.add("server-downloaded", &["servers", name, "command"], message, downloader.next_step(name));
    }
}

/// Suggests the hosts that the server's variables and arguments name and its profile does not.
fn check_hosts(
    server: &ServerSpec,
    stdio: &StdioServer,
    confinement: &Confinement,
    findings: &mut Findings<'_>,
) {
    let of_scopes = server.scopes.iter().flat_map(|scope| Scope::templates(scope));
    let templates: Vec<&Template> = server.templates().chain(of_scopes).collect();
    let in_templates = templates.into_iter().flat_map(|template| named_hosts(&with_gaps(template)));
    let in_arguments = plain_arguments(stdio).iter().flat_map(|argument| named_hosts(argument));
    let is_listed = |host: &AllowedHost| confinement.hosts.iter().any(|listed| listed.covers(host));
    let missing: BTreeSet<AllowedHost> =
        in_templates.chain(in_arguments).filter(|host| !is_listed(host)).collect();
    if missing.is_empty() {
        return;
    }
    let name = server.name.as_str();
    let written = confinement.hosts.iter().chain(&missing).map(ToString::to_string);
    let message = format!(
        "`servers.{name}` is told to use {}, which its walls do not let it reach",
        quoted(missing.iter().map(ToString::to_string))
    );
    let hint = format!("add to `[servers.{name}.confine]`: {}", line("hosts", written));
    findings.add("server-host-closed", &["servers", name], message, hint);
}

/// Suggests the directories and files that the arguments name and the server does not see.
fn check_paths(
    server: &ServerSpec,
    stdio: &StdioServer,
    confinement: &Confinement,
    findings: &mut Findings<'_>,
) {
    let name = server.name.as_str();
    let mut hidden = BTreeSet::new();
    for argument in plain_arguments(stdio) {
        // Also the value of an option, as in `--directory=/srv/project`.
        let is_option = argument.starts_with('-');
        let value =
            argument.split_once('=').filter(|_| is_option).map_or(argument.as_str(), |(_, value)| value);
        let path = Path::new(value);
        let is_shown_as_program = !is_option && path.is_file() && !is_database(path);
        if path.is_absolute() && path.exists() && !is_shown_as_program && !is_shown(path, stdio, confinement)
        {
            hidden.insert(match is_database(path) {
                // Databases make files beside themselves.
                true => path.parent().unwrap_or(path).to_owned(),
                false => path.to_owned(),
            });
        }
    }
    let possible = |path: &PathBuf| ShownPath::new(path.clone(), &confinement.hidden);
    for (path, problem) in hidden.iter().filter_map(|path| Some((path, possible(path).err()?))) {
        let message = format!(
            "`servers.{name}.command` names `{}`, which no confined server may see: {problem}",
            path.display()
        );
        let hint = "name the directories in it that the server needs, here and in its `confine.read` or `confine.write`";
        findings.add("server-path-hidden", &["servers", name, "command"], message, hint);
    }
    let paths: Vec<String> =
        hidden.iter().filter(|path| possible(path).is_ok()).map(|path| path.display().to_string()).collect();
    if !paths.is_empty() {
        let message =
            format!("`servers.{name}.command` names {}, which its walls hide", quoted(paths.iter().cloned()));
        let listed = confinement.profile.write.iter().map(|shown| shown.path().display().to_string());
        let workspace = (confinement.workspace == Some(WorkspaceAccess::Write)).then(|| WORKSPACE.to_owned());
        let line = line("write", listed.chain(workspace).chain(paths));
        let hint = format!("add to `[servers.{name}.confine]`: {line}, or `read` instead of `write`");
        findings.add("server-path-hidden", &["servers", name, "command"], message, hint);
    }
}

/// A template with a control character in the place of each placeholder, so that no host is found that is itself filled in.
fn with_gaps(template: &Template) -> String {
    let text = |part: &TemplatePart| match part {
        TemplatePart::Literal(text) => text.clone(),
        TemplatePart::Field { .. } | TemplatePart::File(_) => "\u{1a}".to_owned(),
    };
    template.parts.iter().map(text).collect()
}

/// The arguments, unless they have placeholders; those are among the templates.
fn plain_arguments(stdio: &StdioServer) -> &[String] {
    match stdio.argument_templates.is_empty() {
        true => stdio.command.arguments(),
        false => &[],
    }
}

fn is_database(path: &Path) -> bool {
    const ENDINGS: [&str; 4] = ["db", "duckdb", "sqlite", "sqlite3"];
    let ending = path.extension().and_then(|ending| ending.to_str());
    path.is_file() && ending.is_some_and(|ending| ENDINGS.contains(&ending))
}

fn is_shown(path: &Path, stdio: &StdioServer, confinement: &Confinement) -> bool {
    let profile = &confinement.profile;
    let named =
        profile.read.iter().chain(&profile.write).chain(profile.exec.iter().flatten()).map(ShownPath::path);
    let mut shown = named.chain(stdio.directory.as_deref());
    is_part_of_the_system(path) || path.starts_with("/dev") || shown.any(|shown| path.starts_with(shown))
}

/// A line of the profile.
fn line(key: &str, values: impl Iterator<Item = String>) -> String {
    format!("`{key} = {:?}`", values.collect::<Vec<_>>())
}

fn quoted(values: impl Iterator<Item = String>) -> String {
    values.map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ")
}
