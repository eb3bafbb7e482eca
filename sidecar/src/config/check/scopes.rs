//! Checks `[[servers.*.scopes]]`: tools that run with other credentials than the rest of their server.

use std::collections::BTreeMap;
use std::sync::Arc;

use cofferdam_policy::Glob;
use cofferdam_servers::spec::{HttpServer, Scope, StdioServer};

use super::servers::RawTemplates;
use super::{Checker, http_server, servers, span_of, written_keys};
use crate::config::document::dotted;
use crate::config::raw::RawScope;
use crate::config::spanned::Spanned;

/// The server's own entries, which a scope replaces or extends.
#[derive(Clone, Copy)]
pub(super) enum ServerEntries<'a> {
    Headers(&'a HttpServer),
    Process(&'a StdioServer),
}

/// `server_entries` is `None` if the server itself has problems; then only the tool patterns can be checked.
pub(super) fn check_scopes(
    checker: &mut Checker<'_, '_>,
    server: &str,
    raw: Vec<Spanned<RawScope>>,
    server_entries: Option<ServerEntries<'_>>,
) -> Vec<Arc<Scope>> {
    let scopes = ["servers", server, "scopes"];
    // The path of a removed entry does not say in which scope it was.
    let removed_in = |key| checker.removed.affects(&["servers", server, "scopes", key]);
    let has_removed =
        checker.removed.affects(&scopes) || ["env", "files", "headers"].into_iter().any(removed_in);
    // Messages identify a scope by its line, not by its index.
    let table = dotted(&scopes);
    let mut checked = Vec::new();
    for Spanned { value: mut scope, span } in raw {
        if scope.tools.as_ref().is_none_or(Vec::is_empty) && !has_removed {
            let hint = "name them by patterns, as in `tools = [\"write_*\"]`";
            checker.add(&span, format!("`{table}` does not say which tools it is for"), hint);
        }
        let tools =
            servers::check_globs(checker, &format!("{table}.tools"), scope.tools.take().unwrap_or_default());
        let Some(server_entries) = server_entries else { continue };
        let entries = [&scope.env, &scope.files, &scope.headers];
        if entries.into_iter().flatten().all(|entries| entries.value.is_empty()) && !has_removed {
            let keys = match server_entries {
                ServerEntries::Headers(_) => "`headers`",
                ServerEntries::Process(_) => "`env` or `files`",
            };
            let hint = format!("give its tools other {keys}, or leave the scope out");
            checker.add(&span, format!("`{table}` changes nothing for its tools"), hint);
        }
        checked.push(Arc::new(match server_entries {
            ServerEntries::Headers(http) => check_http_scope(checker, &table, tools, scope, http),
            ServerEntries::Process(stdio) => check_stdio_scope(checker, &table, tools, scope, stdio),
        }));
    }
    checked
}

fn check_http_scope(
    checker: &mut Checker<'_, '_>,
    table: &str,
    tools: Vec<Glob>,
    raw: RawScope,
    server: &HttpServer,
) -> Scope {
    let misplaced = written_keys([("env", span_of(&raw.env)), ("files", span_of(&raw.files))]);
    for (key, span) in misplaced {
        checker.add(&span, format!("`{table}.{key}` is for servers with `command`"), "leave it out");
    }
    let mut headers =
        http_server::check_headers(checker, table, entries_or_empty(raw.headers), Some(&server.url));
    let inherited =
        server.headers.iter().filter(|(name, _)| headers.iter().all(|(replaced, _)| replaced != name));
    let inherited: Vec<_> = inherited.cloned().collect();
    headers.extend(inherited);
    Scope { tools, env: BTreeMap::new(), files: BTreeMap::new(), headers }
}

fn check_stdio_scope(
    checker: &mut Checker<'_, '_>,
    table: &str,
    tools: Vec<Glob>,
    raw: RawScope,
    server: &StdioServer,
) -> Scope {
    if let Some(span) = span_of(&raw.headers) {
        checker.add(&span, format!("`{table}.headers` is for servers with `url`"), "leave it out");
    }
    let raw_files = entries_or_empty(raw.files);
    let names: Vec<String> =
        raw_files.keys().map(|name| &name.value).chain(server.files.keys()).cloned().collect();
    let (mut files, mut env) = (server.files.clone(), server.env.clone());
    files.extend(servers::check_files(checker, table, raw_files, &names));
    env.extend(servers::check_variables(checker, table, entries_or_empty(raw.env), &names));
    Scope { tools, env, files, headers: Vec::new() }
}

fn entries_or_empty(written: Option<Spanned<RawTemplates>>) -> RawTemplates {
    written.map(|written| written.value).unwrap_or_default()
}
