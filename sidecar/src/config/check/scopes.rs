//! `[[servers.*.scopes]]`: which tools run with other credentials, and with which.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::servers::RawTemplates;
use super::{Checker, Known, present, span_of};
use crate::config::at::At;
use crate::config::document::dotted;
use crate::config::raw::RawScope;
use crate::config::{HttpServer, Scope, ServerKind, StdioServer};
use crate::policy::Glob;

impl Checker<'_, '_> {
    /// `kind` is missing where the server itself is wrong; then only the tools can be checked.
    pub(super) fn scopes(
        &mut self,
        server: &str,
        raw: Vec<At<RawScope>>,
        kind: Option<&ServerKind>,
        known: &Known,
    ) -> Vec<Arc<Scope>> {
        let scopes = ["servers", server, "scopes"];
        // Entries are taken out of all scopes alike: which one they stood in is not known.
        let inside = |key| self.damage.touches(&["servers", server, "scopes", key]);
        let damaged = self.damage.touches(&scopes) || ["env", "files", "headers"].into_iter().any(inside);
        // In messages scopes have no number: the line says which.
        let table = dotted(&scopes);
        let mut checked = Vec::new();
        for At { value: mut scope, span } in raw {
            if scope.tools.as_ref().is_none_or(Vec::is_empty) && !damaged {
                let hint = "name them by patterns, as in `tools = [\"write_*\"]`";
                self.add(&span, format!("`{table}` does not say which tools it is for"), hint);
            }
            let tools = self.globs(&format!("{table}.tools"), scope.tools.take().unwrap_or_default());
            let Some(kind) = kind else { continue };
            let entries = [&scope.env, &scope.files, &scope.headers];
            if entries.into_iter().flatten().all(|entries| entries.value.is_empty()) && !damaged {
                let own = match kind {
                    ServerKind::Http(_) => "`headers`",
                    ServerKind::Stdio(_) => "`env` or `files`",
                };
                let hint = format!("give its tools other {own}, or leave the scope out");
                self.add(&span, format!("`{table}` changes nothing for its tools"), hint);
            }
            checked.push(Arc::new(match kind {
                ServerKind::Http(http) => self.scope_of_http(&table, tools, scope, http, known),
                ServerKind::Stdio(stdio) => self.scope_of_stdio(&table, tools, scope, stdio, known),
            }));
        }
        checked
    }

    fn scope_of_http(
        &mut self,
        table: &str,
        tools: Vec<Glob>,
        raw: RawScope,
        server: &HttpServer,
        known: &Known,
    ) -> Scope {
        let foreign = present([("env", span_of(&raw.env)), ("files", span_of(&raw.files))]);
        for (key, span) in foreign {
            self.add(&span, format!("`{table}.{key}` is for servers with `command`"), "leave it out");
        }
        let mut headers = self.headers(table, entries(raw.headers), Some(&server.url), known);
        let others = server.headers.iter().filter(|(name, _)| headers.iter().all(|(own, _)| own != name));
        let others: Vec<_> = others.cloned().collect();
        headers.extend(others);
        Scope { tools, env: BTreeMap::new(), files: BTreeMap::new(), headers }
    }

    fn scope_of_stdio(
        &mut self,
        table: &str,
        tools: Vec<Glob>,
        raw: RawScope,
        server: &StdioServer,
        known: &Known,
    ) -> Scope {
        if let Some(span) = span_of(&raw.headers) {
            self.add(&span, format!("`{table}.headers` is for servers with `url`"), "leave it out");
        }
        let raw_files = entries(raw.files);
        let names: Vec<String> =
            raw_files.keys().map(|name| &name.value).chain(server.files.keys()).cloned().collect();
        let (mut files, mut env) = (server.files.clone(), server.env.clone());
        files.extend(self.files(table, raw_files, &names, known));
        env.extend(self.variables(table, entries(raw.env), &names, known));
        Scope { tools, env, files, headers: Vec::new() }
    }
}

fn entries(written: Option<At<RawTemplates>>) -> RawTemplates {
    written.map(|written| written.value).unwrap_or_default()
}
