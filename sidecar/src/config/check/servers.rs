//! Checks `[servers.*]`: the command or URL, the templates for credentials, and the rules.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use cofferdam_policy::{Glob, Rules};
use cofferdam_secrets::{InvalidTemplate, Template};
use cofferdam_servers::spec::{Confinement, Reload, Replace, Retry, ServerKind, ServerSpec, StdioServer};
use relay_proto::name::Name;

use super::scopes::ServerEntries;
use super::{Checker, Section, confine, http_server, manifest, scopes, secrets, span_of, written_keys};
use crate::config::document::dotted;
use crate::config::raw::{RawArgvSecrets, RawReload, RawReplace, RawServer};
use crate::config::spanned::Spanned;

/// How a process is started, as it is written.
struct Command {
    words: Spanned<Vec<String>>,
    argv_secrets: RawArgvSecrets,
    cwd: Option<Spanned<String>>,
    confinement: Option<Confinement>,
}

/// A raw table of templates, as in `env`, `files` and `headers`.
pub(super) type RawTemplates = BTreeMap<Spanned<String>, Spanned<String>>;

pub(super) fn check_servers(
    checker: &mut Checker<'_, '_>,
    raw: BTreeMap<Spanned<String>, RawServer>,
    hidden: &Arc<[PathBuf]>,
) -> BTreeMap<Name, Arc<ServerSpec>> {
    let checked = raw.into_iter().filter_map(|(written, server)| {
        let name = checker.parse_name("a server", &written);
        let server = check_server(checker, &written, name, server, hidden)?;
        Some((server.name.clone(), Arc::new(server)))
    });
    checked.collect()
}

fn check_server(
    checker: &mut Checker<'_, '_>,
    written: &Spanned<String>,
    name: Option<Name>,
    mut raw: RawServer,
    hidden: &Arc<[PathBuf]>,
) -> Option<ServerSpec> {
    let table = dotted(&["servers", &written.value]);
    let call_timeout = checker.check_duration(
        &format!("{table}.call-timeout"),
        raw.call_timeout.take(),
        "4m",
        "100ms"..="1d",
    );
    let retry = match raw.retry.take() {
        Some(Spanned { value: true, .. }) => Retry::WhereSafe,
        Some(Spanned { value: false, .. }) | None => Retry::Never,
    };
    let allow =
        raw.tools.allow.take().map(|list| check_globs(checker, &format!("{table}.tools.allow"), list));
    let ask = check_globs(checker, &format!("{table}.tools.ask"), std::mem::take(&mut raw.tools.ask));
    let deny = check_globs(checker, &format!("{table}.tools.deny"), std::mem::take(&mut raw.tools.deny));
    let methods = check_globs(checker, &format!("{table}.methods"), std::mem::take(&mut raw.methods));
    let to_harness = std::mem::take(&mut raw.methods_to_harness.deny);
    let to_harness = check_globs(checker, &format!("{table}.methods-to-harness.deny"), to_harness);
    let rules = Rules::new(allow, ask, deny, methods).with_denied_to_harness(to_harness);
    let replace = raw.replace.as_ref().map(|replace| replace.value).map_or_else(Replace::default, Into::into);
    let reload = check_reload(checker, &table, written, &raw);
    let scopes = raw.scopes.take().map(|scopes| scopes.value).unwrap_or_default();
    let manifest = raw.manifest.clone();
    let mut kind = check_kind(checker, &table, written, raw, hidden);
    let entries = kind.as_ref().map(|kind| match kind {
        ServerKind::Http(http) => ServerEntries::Headers(http),
        ServerKind::Stdio(stdio) => ServerEntries::Process(stdio),
    });
    let scopes = scopes::check_scopes(checker, &written.value, scopes, entries);
    if let (Some(manifest), Some(kind)) = (&manifest, &mut kind) {
        manifest::check_manifest(checker, &table, manifest, kind, &scopes);
    }
    let rules = match scopes.is_empty() {
        true => rules,
        false => rules.with_credentials_per_tool(),
    };
    Some(ServerSpec { name: name?, kind: kind?, rules, call_timeout, retry, replace, reload, scopes })
}

fn check_kind(
    checker: &mut Checker<'_, '_>,
    table: &str,
    written: &Spanned<String>,
    raw: RawServer,
    hidden: &Arc<[PathBuf]>,
) -> Option<ServerKind> {
    let stdio_keys = written_keys([
        ("argv-secrets", span_of(&raw.argv_secrets)),
        ("confine", span_of(&raw.confine)),
        ("cwd", span_of(&raw.cwd)),
        ("env", span_of(&raw.env)),
        ("files", span_of(&raw.files)),
        ("manifest", span_of(&raw.manifest)),
        ("reload", span_of(&raw.reload)),
        ("replace", span_of(&raw.replace)),
    ]);
    let http_keys = written_keys([("headers", span_of(&raw.headers)), ("private", span_of(&raw.private))]);
    let (misplaced, required) = match (&raw.command, &raw.url) {
        (Some(_), None) => (http_keys, "url"),
        (None, Some(_)) => (stdio_keys, "command"),
        (Some(command), Some(_)) => {
            let hint = "keep `command` for a program, or `url` for a server that already runs";
            checker.add(&command.span, format!("`{table}` has both `command` and `url`"), hint);
            return None;
        }
        (None, None) => {
            if !checker.missing_key_may_be_reported(&["servers", &written.value]) {
                let hint = "set `command` to a program and its arguments, or `url` to an address";
                checker.add(&written.span, format!("`{table}` has neither `command` nor `url`"), hint);
            }
            return None;
        }
    };
    for (key, span) in misplaced {
        let message = format!("`{table}.{key}` is for servers with `{required}`");
        checker.add(&span, message, "leave it out");
    }
    match raw.url {
        Some(url) => {
            let headers = raw.headers.map(|headers| headers.value).unwrap_or_default();
            http_server::check_http(checker, table, &url, headers, raw.private).map(ServerKind::Http)
        }
        None => {
            let env = raw.env.map(|env| env.value).unwrap_or_default();
            let files = raw.files.map(|files| files.value).unwrap_or_default();
            let argv_secrets = raw.argv_secrets.map(|written| written.value).unwrap_or_default();
            let confinement = confine::check_confine(checker, table, raw.confine, hidden);
            let command = Command { words: raw.command?, argv_secrets, cwd: raw.cwd, confinement };
            check_stdio(checker, table, command, env, files).map(ServerKind::Stdio)
        }
    }
}

fn check_stdio(
    checker: &mut Checker<'_, '_>,
    table: &str,
    command: Command,
    raw_env: RawTemplates,
    raw_files: RawTemplates,
) -> Option<StdioServer> {
    let Command { words, argv_secrets, cwd, confinement } = command;
    let key = format!("{table}.command");
    let names: Vec<String> = raw_files.keys().map(|name| name.value.clone()).collect();
    let argument_templates = match argv_secrets {
        RawArgvSecrets::Allow => check_arguments(checker, &key, &words, &names),
        RawArgvSecrets::Deny => {
            check_arguments_for_secrets(checker, &key, &words);
            Vec::new()
        }
    };
    let command = checker.check_command(&key, words);
    let directory = cwd.map(|cwd| checker.check_path(&format!("{table}.cwd"), &cwd));
    let files = check_files(checker, table, raw_files, &names);
    let env = check_variables(checker, table, raw_env, &names);
    let directory = directory.flatten();
    Some(StdioServer { command: command?, argument_templates, env, files, directory, confinement })
}

/// Checks the files of a server or of one of its scopes; `table` is its path in the file. `names` are all files that a
/// template there can refer to.
pub(super) fn check_files(
    checker: &mut Checker<'_, '_>,
    table: &str,
    raw_files: RawTemplates,
    names: &[String],
) -> BTreeMap<String, Template> {
    let mut files = BTreeMap::new();
    for (name, written) in raw_files {
        let key = format!("{table}.files.{}", dotted(&[&name.value]));
        let template = check_template(checker, &key, &written, names);
        if !is_plain_file_name(&name.value) {
            let hint = "use 1 to 64 of letters, digits, `.`, `-` and `_`, not beginning with a dot";
            checker.add(&name.span, format!("`{key}` is not a plain file name"), hint);
        }
        files.extend(template.map(|template| (name.value, template)));
    }
    files
}

/// Checks the environment variables of a server or of one of its scopes; parameters as in [`check_files`].
pub(super) fn check_variables(
    checker: &mut Checker<'_, '_>,
    table: &str,
    raw_env: RawTemplates,
    names: &[String],
) -> BTreeMap<String, Template> {
    let mut env = BTreeMap::new();
    for (name, written) in raw_env {
        let key = format!("{table}.env.{}", dotted(&[&name.value]));
        let template = check_template(checker, &key, &written, names);
        let variable = secrets::check_variable(checker, &key, &name);
        if template.as_ref().is_some_and(|template| template.literals().any(|text| text.contains('\0'))) {
            let hint = "a variable cannot contain one: leave it out";
            checker.add(&written.span, format!("`{key}` holds a NUL character"), hint);
        }
        env.extend(variable.zip(template));
    }
    env
}

/// Checks that a server with `reload` has files. A `reload` of a server with `url` is reported by [`check_kind`].
fn check_reload(
    checker: &mut Checker<'_, '_>,
    table: &str,
    server: &Spanned<String>,
    raw: &RawServer,
) -> Option<Reload> {
    let written = raw.reload.as_ref()?;
    let has_files = raw.files.as_ref().is_some_and(|files| !files.value.is_empty());
    if raw.command.is_some()
        && !has_files
        && !checker.missing_key_may_be_reported(&["servers", &server.value])
    {
        let message = format!("`{table}.reload` is set, but the server has no `files` to read again");
        checker.add(&written.span, message, "pass the credential in `files`, or leave it out");
    }
    Some(written.value.into())
}

/// Parses a template and checks that its secrets and files are defined.
pub(super) fn check_template(
    checker: &mut Checker<'_, '_>,
    key: &str,
    written: &Spanned<String>,
    files: &[String],
) -> Option<Template> {
    let template: Template = match written.value.parse() {
        Ok(template) => template,
        Err(error) => {
            let error: InvalidTemplate = error;
            checker.add(&written.span, format!("`{key}`: {error}"), error.hint());
            return None;
        }
    };
    for (secret, _) in template.fields() {
        checker.check_reference(key, Section::Secrets, secret.as_str(), &written.span);
    }
    for file in template.files() {
        if !files.iter().any(|name| name == file) {
            let message = format!("`{key}` names the file `{file}`, which the server does not have");
            checker.add(&written.span, message, format!("add `{file}` to the server's `files`"));
        }
    }
    Some(template)
}

/// Parses what follows the program in `command`.
fn check_arguments(
    checker: &mut Checker<'_, '_>,
    key: &str,
    command: &Spanned<Vec<String>>,
    files: &[String],
) -> Vec<Template> {
    let arguments = command.value.iter().skip(1).filter_map(|argument| {
        let written = Spanned { value: argument.clone(), span: command.span.clone() };
        check_template(checker, key, &written, files)
    });
    arguments.collect()
}

/// Reports a secret in `command`: every process of the host can read the arguments of other processes.
fn check_arguments_for_secrets(checker: &mut Checker<'_, '_>, key: &str, command: &Spanned<Vec<String>>) {
    let is_used = |secret: &String| {
        let opening = format!("{{{secret}.");
        command.value.iter().any(|argument| argument.contains(&opening))
    };
    if let Some(secret) = checker.defined.secrets.iter().find(|secret| is_used(secret)) {
        let message =
            format!("`{key}` uses the secret `{secret}`, but every process of the host can read arguments");
        checker.add(&command.span, message, "pass it in `env` or in `files`; if the server takes it in no other way, set `argv-secrets = \"allow\"`");
    }
}

pub(super) fn check_globs(
    checker: &mut Checker<'_, '_>,
    key: &str,
    written: Vec<Spanned<String>>,
) -> Vec<Glob> {
    let parsed = written.into_iter().filter_map(|written| match written.value.parse::<Glob>() {
        Ok(glob) => Some(glob),
        Err(error) => {
            let hint = "write a name, with `*` for any run of characters and `?` for one";
            checker.add(&written.span, format!("`{key}`: {error}"), hint);
            None
        }
    });
    parsed.collect()
}

impl From<RawReplace> for Replace {
    fn from(raw: RawReplace) -> Self {
        match raw {
            RawReplace::Hitless => Self::Hitless,
            RawReplace::Idle => Self::Idle,
            RawReplace::Never => Self::Never,
        }
    }
}

impl From<RawReload> for Reload {
    fn from(raw: RawReload) -> Self {
        match raw {
            RawReload::File => Self::File,
            RawReload::Sighup => Self::Sighup,
        }
    }
}

/// Whether the name is that of a file directly in the server's directory, and not hidden.
fn is_plain_file_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (1..=64).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(is_allowed)
}
