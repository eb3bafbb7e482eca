//! What `check` found on this host, as lines on stderr or as JSON on stdout.

use std::path::Path;

use serde::Serialize;

use crate::config::{self, Problems};
use crate::terminal::failure::{Failure, Sysexit};

/// The findings of one check, all of the same severity.
pub(crate) struct Findings<'a> {
    file: &'a Path,
    severity: Severity,
    list: Vec<Finding>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Severity {
    Error,
    Warning,
}

/// One finding. Neither text contains a value of the configuration or of a secret.
#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    severity: Severity,
    /// Stable, for programs: the codes of `cofferdam doctor`.
    pub(crate) code: &'static str,
    /// The key of the configuration. `None` for a problem of the file as a whole.
    pub(crate) key: Option<String>,
    /// `None` where a default applies.
    pub(crate) line: Option<usize>,
    pub(crate) message: String,
    pub(crate) hint: String,
}

/// The code of every problem that `cofferdam check` finds in the file itself.
pub(crate) const CONFIG_INVALID: &str = "config-invalid";

/// The output of `check --json`.
#[derive(Serialize)]
struct JsonReport<'a> {
    file: String,
    findings: &'a [Finding],
}

impl Severity {
    fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

impl<'a> Findings<'a> {
    pub(crate) fn new(file: &'a Path, severity: Severity) -> Self {
        Self { file, severity, list: Vec::new() }
    }

    /// Adds a finding about a key, which is given as the path of its tables and its own name.
    pub(crate) fn add(
        &mut self,
        code: &'static str,
        key: &[&str],
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.list.push(Finding {
            severity: self.severity,
            code,
            key: Some(key.join(".")),
            line: config::line_of(self.file, key),
            message: message.into(),
            hint: hint.into(),
        });
    }

    /// Whether the file sets this key, which is given as in [`Self::add`].
    pub(crate) fn is_written(&self, key: &[&str]) -> bool {
        config::line_of(self.file, key).is_some()
    }

    /// Sorts the findings by their lines; those without a line come last.
    pub(crate) fn sort(&mut self) {
        self.list.sort_by_key(|finding| finding.line.unwrap_or(usize::MAX));
    }

    /// The end of the summary: how many warnings there are, if any.
    pub(crate) fn summary(&self) -> String {
        match self.list.len() {
            0 => String::new(),
            number => format!("; {}", count(number, "warning")),
        }
    }

    pub(crate) fn into_list(self) -> Vec<Finding> {
        self.list
    }

    /// Prints the findings to stderr.
    pub(crate) fn print(&self) {
        for Finding { severity, line, message, hint, .. } in &self.list {
            let line = line.map(|line| format!("{line}:")).unwrap_or_default();
            eprintln!("{}:{line} {}: {message}\n  hint: {hint}", self.file.display(), severity.as_str());
        }
    }

    pub(crate) fn as_json(&self) -> String {
        to_json(self.file, &self.list)
    }

    /// The exit code of the check; `None` if nothing was found that counts as an error.
    pub(crate) fn exit_code(&self) -> Option<Sysexit> {
        (self.severity == Severity::Error && !self.list.is_empty()).then_some(Sysexit::Configuration)
    }

    pub(crate) fn failure(&self, code: Sysexit) -> Failure {
        let found = count(self.list.len(), "problem");
        Failure::new(code, format!("this host is not ready for the configuration: {found}"))
            .hint("follow the hints; without `--strict` these are warnings")
    }
}

/// The problems of a configuration that cannot be used, in the format of `check --json`.
pub(crate) fn problems_as_json(problems: &Problems) -> String {
    let findings: Vec<Finding> = problems
        .list
        .iter()
        .map(|problem| Finding {
            severity: Severity::Error,
            code: CONFIG_INVALID,
            key: None,
            line: problem.position.map(|position| position.line),
            message: problem.message.clone(),
            hint: problem.hint.clone(),
        })
        .collect();
    to_json(&problems.path, &findings)
}

/// A number with its noun: `1 server`, `2 servers`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

fn to_json(file: &Path, findings: &[Finding]) -> String {
    let report = JsonReport { file: file.display().to_string(), findings };
    serde_json::to_string_pretty(&report).expect("findings are plain data")
}
