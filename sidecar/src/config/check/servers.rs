//! `[servers.*]`: what is started or called, with which credentials, under which rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use relay_proto::name::Name;

use super::{Checker, Section, http_server, present, scopes, secrets, span_of};
use crate::config::at::At;
use crate::config::document::dotted;
use crate::config::raw::{RawReload, RawReplace, RawServer};
use crate::policy::{Glob, Rules};
use crate::secrets::{InvalidTemplate, Template};
use crate::servers::spec::{Reload, Replace, Retry, ServerKind, ServerSpec, StdioServer};

/// A table of templates as it is written.
pub(super) type RawTemplates = BTreeMap<At<String>, At<String>>;

pub(super) fn check_servers(
    checker: &mut Checker<'_, '_>,
    raw: BTreeMap<At<String>, RawServer>,
) -> BTreeMap<Name, Arc<ServerSpec>> {
    let checked = raw.into_iter().filter_map(|(written, server)| {
        let name = checker.name("a server", &written);
        let server = check_server(checker, &written, name, server)?;
        Some((server.name.clone(), Arc::new(server)))
    });
    checked.collect()
}

fn check_server(
    checker: &mut Checker<'_, '_>,
    written: &At<String>,
    name: Option<Name>,
    mut raw: RawServer,
) -> Option<ServerSpec> {
    let table = dotted(&["servers", &written.value]);
    let call_timeout =
        checker.time(&format!("{table}.call-timeout"), raw.call_timeout.take(), "4m", "100ms"..="1d");
    let retry = match raw.retry.take() {
        Some(At { value: true, .. }) => Retry::WhereSafe,
        Some(At { value: false, .. }) | None => Retry::Never,
    };
    let allow =
        raw.tools.allow.take().map(|list| check_globs(checker, &format!("{table}.tools.allow"), list));
    let ask = check_globs(checker, &format!("{table}.tools.ask"), std::mem::take(&mut raw.tools.ask));
    let deny = check_globs(checker, &format!("{table}.tools.deny"), std::mem::take(&mut raw.tools.deny));
    let methods = check_globs(checker, &format!("{table}.methods"), std::mem::take(&mut raw.methods));
    let rules = Rules::new(allow, ask, deny, methods);
    let replace = raw.replace.as_ref().map(|replace| replace.value).map_or_else(Replace::default, Into::into);
    let reload = check_reload(checker, &table, written, &raw);
    let scopes = raw.scopes.take().map(|scopes| scopes.value).unwrap_or_default();
    let kind = check_kind(checker, &table, written, raw);
    let scopes = scopes::check_scopes(checker, &written.value, scopes, kind.as_ref());
    let rules = match scopes.is_empty() {
        true => rules,
        false => rules.by_tool(),
    };
    Some(ServerSpec { name: name?, kind: kind?, rules, call_timeout, retry, replace, reload, scopes })
}

fn check_kind(
    checker: &mut Checker<'_, '_>,
    table: &str,
    written: &At<String>,
    raw: RawServer,
) -> Option<ServerKind> {
    let of_stdio = present([
        ("env", span_of(&raw.env)),
        ("files", span_of(&raw.files)),
        ("reload", span_of(&raw.reload)),
        ("replace", span_of(&raw.replace)),
    ]);
    let of_http = present([("headers", span_of(&raw.headers)), ("private", span_of(&raw.private))]);
    let (foreign, belongs) = match (&raw.command, &raw.url) {
        (Some(_), None) => (of_http, "url"),
        (None, Some(_)) => (of_stdio, "command"),
        (Some(command), Some(_)) => {
            let hint = "keep `command` for a program, or `url` for a server that already runs";
            checker.add(&command.span, format!("`{table}` has both `command` and `url`"), hint);
            return None;
        }
        (None, None) => {
            if !checker.damage.touches(&["servers", &written.value]) {
                let hint = "set `command` to a program and its arguments, or `url` to an address";
                checker.add(&written.span, format!("`{table}` has neither `command` nor `url`"), hint);
            }
            return None;
        }
    };
    for (key, span) in foreign {
        let message = format!("`{table}.{key}` is for servers with `{belongs}`");
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
            check_stdio(checker, table, raw.command?, env, files).map(ServerKind::Stdio)
        }
    }
}

fn check_stdio(
    checker: &mut Checker<'_, '_>,
    table: &str,
    command: At<Vec<String>>,
    raw_env: RawTemplates,
    raw_files: RawTemplates,
) -> Option<StdioServer> {
    refuse_secrets_in_arguments(checker, &format!("{table}.command"), &command);
    let command = checker.arguments(&format!("{table}.command"), command);
    let names: Vec<String> = raw_files.keys().map(|name| name.value.clone()).collect();
    let files = check_files(checker, table, raw_files, &names);
    let env = check_variables(checker, table, raw_env, &names);
    Some(StdioServer { command: command?, env, files })
}

/// Files of a server, or of a scope of it, at `table`. `names` are all that a template there can name.
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

/// Environment variables of a server, or of a scope of it, at `table`; `names` as in [`check_files`].
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

/// That servers with a `url` have no `reload` is reported by [`check_kind`].
fn check_reload(
    checker: &mut Checker<'_, '_>,
    table: &str,
    server: &At<String>,
    raw: &RawServer,
) -> Option<Reload> {
    let written = raw.reload.as_ref()?;
    let files = raw.files.as_ref().is_some_and(|files| !files.value.is_empty());
    if raw.command.is_some() && !files && !checker.damage.touches(&["servers", &server.value]) {
        let message = format!("`{table}.reload` is set, but the server has no `files` to read again");
        checker.add(&written.span, message, "pass the credential in `files`, or leave it out");
    }
    Some(written.value.into())
}

/// A template whose secrets and files exist.
pub(super) fn check_template(
    checker: &mut Checker<'_, '_>,
    key: &str,
    written: &At<String>,
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
        checker.reference(key, Section::Secrets, secret.as_str(), &written.span);
    }
    for file in template.files() {
        if !files.iter().any(|name| name == file) {
            let message = format!("`{key}` names the file `{file}`, which the server does not have");
            checker.add(&written.span, message, format!("add `{file}` to the server's `files`"));
        }
    }
    Some(template)
}

/// Reports a secret in `command`: every process of the host can read the arguments of every other.
fn refuse_secrets_in_arguments(checker: &mut Checker<'_, '_>, key: &str, command: &At<Vec<String>>) {
    let named = |secret: &String| {
        let opening = format!("{{{secret}.");
        command.value.iter().any(|argument| argument.contains(&opening))
    };
    if let Some(secret) = checker.known.secrets.iter().find(|secret| named(secret)) {
        let message =
            format!("`{key}` uses the secret `{secret}`, but every process of the host can read arguments");
        checker.add(&command.span, message, "pass it in `env` or in `files`");
    }
}

pub(super) fn check_globs(checker: &mut Checker<'_, '_>, key: &str, written: Vec<At<String>>) -> Vec<Glob> {
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

/// A file directly in the server's own directory, neither hidden nor `..`.
fn is_plain_file_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (1..=64).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(inner)
}
