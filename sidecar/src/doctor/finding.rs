//! What `doctor` found: one thing that is wrong, may become wrong, or works.

use serde::Serialize;

use super::codes;
use crate::terminal::failure::Sysexit;

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Severity {
    Ok,
    Warning,
    Error,
}

/// No text of a finding contains a secret.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// Stable: see [`codes`].
    pub(super) code: &'static str,
    /// What it is about, as in `server github`.
    pub(super) about: String,
    pub(super) what: String,
    /// Why it matters.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) why: &'static str,
    /// The next command or change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
    /// The line of the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) line: Option<usize>,
}

/// The findings of one probe or of all.
#[derive(Debug, Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    pub(super) fn error(
        &mut self,
        code: &'static str,
        about: impl Into<String>,
        what: impl Into<String>,
        next: impl Into<String>,
    ) {
        self.add(Severity::Error, code, about.into(), what.into(), Some(next.into()));
    }

    pub(super) fn warning(
        &mut self,
        code: &'static str,
        about: impl Into<String>,
        what: impl Into<String>,
        next: impl Into<String>,
    ) {
        self.add(Severity::Warning, code, about.into(), what.into(), Some(next.into()));
    }

    /// Something works.
    pub(super) fn good(&mut self, code: &'static str, about: impl Into<String>, what: impl Into<String>) {
        self.add(Severity::Ok, code, about.into(), what.into(), None);
    }

    fn add(
        &mut self,
        severity: Severity,
        code: &'static str,
        about: String,
        what: String,
        next: Option<String>,
    ) {
        let why = codes::of(code).why;
        self.0.push(Finding { severity, code, about, what, why, next, line: None });
    }

    pub(super) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub(super) fn has_error(&self, code: &str) -> bool {
        self.0.iter().any(|finding| finding.code == code && finding.severity == Severity::Error)
    }

    pub(super) fn count(&self, severity: Severity) -> usize {
        self.0.iter().filter(|finding| finding.severity == severity).count()
    }

    /// The exit code of the first error.
    pub(super) fn exit_code(&self) -> Option<Sysexit> {
        let first = self.0.iter().find(|finding| finding.severity == Severity::Error)?;
        Some(codes::of(first.code).exit)
    }
}
