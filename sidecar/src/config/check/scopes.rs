//! `[[servers.*.scopes]]`: which tools run with other credentials, and with which.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::servers::RawTemplates;
use super::{Checker, http_server, present, servers, span_of};
use crate::config::at::At;
use crate::config::document::dotted;
use crate::config::raw::RawScope;
use crate::policy::Glob;
use crate::servers::spec::{HttpServer, Scope, ServerKind, StdioServer};

/// `kind` is missing where the server itself is wrong; then only the tools can be checked.
pub(super) fn check_scopes(
    checker: &mut Checker<'_, '_>,
    server: &str,
    raw: Vec<At<RawScope>>,
    kind: Option<&ServerKind>,
) -> Vec<Arc<Scope>> {
    let scopes = ["servers", server, "scopes"];
    // A damaged entry is removed from all scopes alike: in which one it stood is not known.
    let inside = |key| checker.damage.touches(&["servers", server, "scopes", key]);
    let damaged = checker.damage.touches(&scopes) || ["env", "files", "headers"].into_iter().any(inside);
    // Messages name no number of a scope: the line identifies it.
    let table = dotted(&scopes);
    let mut checked = Vec::new();
    for At { value: mut scope, span } in raw {
        if scope.tools.as_ref().is_none_or(Vec::is_empty) && !damaged {
            let hint = "name them by patterns, as in `tools = [\"write_*\"]`";
            checker.add(&span, format!("`{table}` does not say which tools it is for"), hint);
        }
        let tools =
            servers::check_globs(checker, &format!("{table}.tools"), scope.tools.take().unwrap_or_default());
        let Some(kind) = kind else { continue };
        let entries = [&scope.env, &scope.files, &scope.headers];
        if entries.into_iter().flatten().all(|entries| entries.value.is_empty()) && !damaged {
            let own = match kind {
                ServerKind::Http(_) => "`headers`",
                ServerKind::Stdio(_) => "`env` or `files`",
            };
            let hint = format!("give its tools other {own}, or leave the scope out");
            checker.add(&span, format!("`{table}` changes nothing for its tools"), hint);
        }
        checked.push(Arc::new(match kind {
            ServerKind::Http(http) => http_scope(checker, &table, tools, scope, http),
            ServerKind::Stdio(stdio) => stdio_scope(checker, &table, tools, scope, stdio),
        }));
    }
    checked
}

fn http_scope(
    checker: &mut Checker<'_, '_>,
    table: &str,
    tools: Vec<Glob>,
    raw: RawScope,
    server: &HttpServer,
) -> Scope {
    let foreign = present([("env", span_of(&raw.env)), ("files", span_of(&raw.files))]);
    for (key, span) in foreign {
        checker.add(&span, format!("`{table}.{key}` is for servers with `command`"), "leave it out");
    }
    let mut headers = http_server::check_headers(checker, table, entries(raw.headers), Some(&server.url));
    let others = server.headers.iter().filter(|(name, _)| headers.iter().all(|(own, _)| own != name));
    let others: Vec<_> = others.cloned().collect();
    headers.extend(others);
    Scope { tools, env: BTreeMap::new(), files: BTreeMap::new(), headers }
}

fn stdio_scope(
    checker: &mut Checker<'_, '_>,
    table: &str,
    tools: Vec<Glob>,
    raw: RawScope,
    server: &StdioServer,
) -> Scope {
    if let Some(span) = span_of(&raw.headers) {
        checker.add(&span, format!("`{table}.headers` is for servers with `url`"), "leave it out");
    }
    let raw_files = entries(raw.files);
    let names: Vec<String> =
        raw_files.keys().map(|name| &name.value).chain(server.files.keys()).cloned().collect();
    let (mut files, mut env) = (server.files.clone(), server.env.clone());
    files.extend(servers::check_files(checker, table, raw_files, &names));
    env.extend(servers::check_variables(checker, table, entries(raw.env), &names));
    Scope { tools, env, files, headers: Vec::new() }
}

fn entries(written: Option<At<RawTemplates>>) -> RawTemplates {
    written.map(|written| written.value).unwrap_or_default()
}
