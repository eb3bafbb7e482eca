//! Prints what was found, what will be done, and what to do next. Secrets are shown masked.

use std::path::Path;

use cofferdam_import::{Document, FoundEntry, FoundServer, Plan, ServerOrigin, SettingsChange, StoredAt};
use cofferdam_vault_setup::{Line, difference};

use super::gather::ReadSettings;
use super::projects::RefusingProject;
use crate::config::suggest::nearest;
use crate::terminal::print_line;
use cofferdam_base::text::{shell_quoted, visible_lines};

pub(super) fn show_settings(read: &ReadSettings) {
    let file = read.settings.path.display();
    print_line(&format!("{file}:{}", if read.settings.entries.is_empty() { " no servers" } else { "" }));
    for entry in &read.settings.entries {
        match entry {
            FoundEntry::Server(server) => show_server(server),
            FoundEntry::Shim(shim) => line(&format!("  {}: starts the shim already", shim.name)),
            FoundEntry::Skipped { name, why } => line(&format!("  {name}: NOT IMPORTED: {why}")),
        }
    }
}

fn show_server(server: &FoundServer) {
    line(&format!("  {}: {}", server.name, server.summary()));
    for secret in &server.secrets {
        line(&format!("    secret in {}: {}, {}", secret.place, secret.masked(), secret.reason));
        if secret.is_in_argument() {
            line(
                "      WARNING: other processes of the host can read arguments; give it in a variable if the server accepts one",
            );
        }
    }
    server.referenced().for_each(|source| line(&format!("    value from {source}")));
    server.notes.iter().for_each(|note| line(&format!("    note: {note}")));
}

/// Prints a line of a text that comes from settings, without control sequences.
fn line(text: &str) {
    print_line(&visible_lines(text).replace('\n', " "));
}

pub(super) fn show_plan(path: &Path, before: &str, plan: &Plan, settings: &[ReadSettings]) {
    print_line("");
    for secret in &plan.secrets {
        let fields: Vec<&str> = secret.fields.keys().map(String::as_str).collect();
        print_line(&format!("store {}: {}", secret.place, fields.join(", ")));
    }
    let found = settings.iter().flat_map(|read| read.settings.servers());
    for (server, planned) in found.zip(&plan.servers) {
        match planned.origin {
            ServerOrigin::Present => {
                line(&format!("server {}: the configuration has it as `{}`", server.name, planned.name))
            }
            ServerOrigin::Added if server.name != planned.name => {
                line(&format!("server {}: becomes `{}`", server.name, planned.name));
            }
            ServerOrigin::Added => {}
        }
        if planned.has_argument_secrets {
            line(&format!(
                "server {}: gets argv-secrets = \"allow\", because of a secret in its arguments",
                planned.name
            ));
        }
    }
    if before == plan.configuration {
        print_line(&format!("{}: as it should be", path.display()));
        return;
    }
    print_line(&format!("{}: {}", path.display(), if before.is_empty() { "new" } else { "changed" }));
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    for change in difference(&lines(before), &lines(&plan.configuration)) {
        match change {
            Line::Added(text) => line(format!("  + {text}").trim_end()),
            Line::Removed(text) => line(format!("  - {text}").trim_end()),
            Line::Same(_) => {}
        }
    }
}

pub(super) fn show_changes(changes: &[SettingsChange], kept: &[String], plan: &Plan) {
    for change in changes {
        let entries: Vec<&str> =
            change.entries.iter().filter_map(|entry| entry.0.last()).map(String::as_str).collect();
        line(&format!("{}: rewritten, with a backup: {}", change.path.display(), entries.join(", ")));
        for (secret, field, lines) in remaining(change, plan) {
            line(&format!(
                "  WARNING: the value of `{field}` of `{secret}` stays in line {lines} of it, outside of the entries: remove it by hand"
            ));
        }
    }
    kept.iter().for_each(|text| line(text));
}

/// Says that a grant that was named is a new one, which may be a mistake.
pub(super) fn show_new_grant(name: &str, known: &[String]) {
    let near = nearest(name, known.iter().map(String::as_str));
    let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
    line(&format!("grant {name}: is new{near}"));
}

/// Secrets that the rewritten file still contains, for instance in comments.
fn remaining<'a>(change: &SettingsChange, plan: &'a Plan) -> Vec<(&'a str, &'a str, String)> {
    let mut found = Vec::new();
    for secret in &plan.secrets {
        for (field, value) in
            secret.fields.iter().filter(|(_, value)| value.len() >= cofferdam_secrets::MIN_VALUE_BYTES)
        {
            let lines = Document::lines_with(&change.rewritten, value);
            if !lines.is_empty() {
                let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
                found.push((secret.name.as_str(), field.as_str(), lines.join(", ")));
            }
        }
    }
    found
}

/// A project in which the new configuration cannot be used.
pub(super) fn show_refusing(project: &RefusingProject) {
    line(&format!(
        "WARNING: `cofferdam run` refuses to start a sandbox in `{}`, which could change what it starts on this host:",
        project.directory.display()
    ));
    for file in &project.files {
        line(&format!("  {}: `{}`", file.what, file.path.display()));
    }
    line("  copy it to a directory outside of the project, and write that place into the configuration");
}

/// `configuration` is the one that was named on the command line.
pub(super) fn show_next(
    configuration: Option<&Path>,
    plan: &Plan,
    changes: &[SettingsChange],
    refusing: &[RefusingProject],
) {
    let option = configuration.map(|path| format!(" -c {}", shell_quoted(&path.to_string_lossy())));
    let option = option.unwrap_or_default();
    if plan.needs_vault_policies {
        print_line(&format!(
            "\nnext: `cofferdam vault setup{option}`, which makes the policy `cofferdam-{}` of the grant in Vault",
            plan.grant
        ));
    }
    let has_files = plan.secrets.iter().any(|secret| matches!(secret.place, StoredAt::File(_)));
    if has_files {
        print_line("\nthe files in `secrets/` have mode 0600; a sidecar of another user has to own them");
    }
    let run = match refusing.is_empty() {
        true => format!("`cofferdam run{option} --grant {} -- claude`", plan.grant),
        false => "what the warning says, so that `cofferdam run` can be used there".to_owned(),
    };
    print_line(&format!("\nnext: `cofferdam check{option}`, then {run}"));
    if changes.is_empty() {
        print_line("the settings still have the secrets: `--rewrite` replaces their servers by the shim");
    } else {
        print_line(&format!(
            "when all works: `cofferdam import --forget{option}` deletes the backups, which have the secrets; `--undo FILE` restores a file"
        ));
    }
}
