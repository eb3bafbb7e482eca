//! Why a record could not be written, and what the operator can do about it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// If a decision cannot be recorded because of one of these errors, its call must not be made.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error("the sandbox's audit budget is used up: {0}")]
    Budget(BudgetLimit),
    #[error("`{}` is in use by another sidecar{}", .path.display(), pid_in_parentheses(*.pid))]
    Busy {
        path: PathBuf,
        /// The process id that the other sidecar wrote to its lock; `None` for one of an older version.
        pid: Option<u32>,
    },
    #[error("the audit cannot be continued with `{}`: {what}", .path.display())]
    Damaged { path: PathBuf, what: &'static str },
    #[error("the key `{}` is {length} bytes long, not {expected}", .path.display())]
    Key { path: PathBuf, length: u64, expected: u64 },
    #[error("the disk of the audit is too slow: too many records wait for it")]
    Overloaded,
    #[error("an incomplete line could not be removed from `{}`", .path.display())]
    Poisoned {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{doing} `{}`", .path.display())]
    Prepare {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot read the audit in `{}`", .path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot sync the audit to the disk (`{}`)", .path.display())]
    Sync {
        path: PathBuf,
        #[source]
        source: Arc<io::Error>,
    },
    #[error("cannot write an audit record to `{}`", .path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Which limit a sandbox has reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum BudgetLimit {
    #[error("bytes (`audit-session-bytes`)")]
    Bytes,
    #[error("records per second (`audit-session-records-per-second`)")]
    Rate,
    #[error("room in the audit's directory (`audit-total-bytes`) or on its disk")]
    Total,
}

impl BudgetLimit {
    /// The next step for the operator.
    pub fn hint(self) -> &'static str {
        match self {
            Self::Bytes => {
                "wait until it has refilled (`limits.audit-refill-time`), or raise `limits.audit-session-bytes`"
            }
            Self::Rate => "call less often, or raise `limits.audit-session-records-per-second`",
            Self::Total => {
                "remove old records with `cofferdam audit prune`, free disk space, or raise `limits.audit-total-bytes`"
            }
        }
    }
}

impl AuditError {
    /// The next step for the operator.
    pub fn hint(&self) -> Option<String> {
        let disk_hint = |source: &io::Error| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "free some space there: calls are then accepted again without a restart".to_owned()
            }
            io::ErrorKind::NotFound => {
                "create the directory around it, or point `state-dir` elsewhere".to_owned()
            }
            io::ErrorKind::ReadOnlyFilesystem => {
                "make it writable, or point `state-dir` elsewhere".to_owned()
            }
            io::ErrorKind::PermissionDenied => {
                "the user of the sidecar must own `state-dir` and be able to write there".to_owned()
            }
            _ => {
                "check the disk and the kernel's log; calls are accepted again when writing works".to_owned()
            }
        };
        match self {
            Self::Budget(limit) => Some(limit.hint().to_owned()),
            Self::Busy { pid, .. } => {
                let stop = pid.map(|pid| format!(" (`kill {pid}`)")).unwrap_or_default();
                Some(format!(
                    "`cofferdam reload` makes it read a changed configuration; otherwise stop it first{stop}, or give this one its own \
                     `state-dir`, `relay.unix` and `admin.socket`"
                ))
            }
            Self::Damaged { .. } => Some(
                "run `cofferdam audit verify`, keep a copy, then move the audit directory aside to start a new one"
                    .to_owned(),
            ),
            Self::Key { path, .. } => {
                Some(format!("move `{}` aside: a new key is created at the next start", path.display()))
            }
            Self::Overloaded => {
                Some("check the disk of `state-dir`; calls are accepted again when it keeps up".to_owned())
            }
            Self::Poisoned { path, .. } => Some(format!(
                "removal is retried with every call; if `{}` is append-only, restart the sidecar to have the line marked as torn",
                path.display()
            )),
            Self::Prepare { source, .. } | Self::Write { source, .. } | Self::Read { source, .. } => Some(disk_hint(source)),
            Self::Sync { source, .. } => Some(disk_hint(source)),
        }
    }

    pub(super) fn prepare(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Prepare { doing, path: path.to_owned(), source }
    }

    pub(super) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Read { path: path.to_owned(), source }
    }
}

fn pid_in_parentheses(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_of_a_failed_write_names_the_remedy_for_its_reason() {
        for (kind, remedy) in [
            (io::ErrorKind::StorageFull, "free some space"),
            (io::ErrorKind::QuotaExceeded, "free some space"),
            (io::ErrorKind::NotFound, "create the directory around it"),
            (io::ErrorKind::ReadOnlyFilesystem, "make it writable"),
            (io::ErrorKind::PermissionDenied, "must own `state-dir`"),
            (io::ErrorKind::Other, "check the disk"),
        ] {
            let error = AuditError::Write { path: "audit".into(), source: kind.into() };
            let hint = error.hint().unwrap();
            assert!(hint.contains(remedy), "{kind:?}: {hint}");
        }
    }

    #[test]
    fn the_hint_of_a_used_up_budget_names_its_limit() {
        for (limit, setting) in [
            (BudgetLimit::Bytes, "`limits.audit-session-bytes`"),
            (BudgetLimit::Rate, "`limits.audit-session-records-per-second`"),
            (BudgetLimit::Total, "`limits.audit-total-bytes`"),
        ] {
            assert!(limit.hint().contains(setting), "{limit}");
            assert_eq!(AuditError::Budget(limit).hint().unwrap(), limit.hint());
        }
    }

    #[test]
    fn the_process_that_uses_the_audit_is_named_if_it_is_known() {
        let busy = |pid| AuditError::Busy { path: "audit".into(), pid }.to_string();
        assert_eq!(busy(Some(7)), "`audit` is in use by another sidecar (process 7)");
        assert_eq!(busy(None), "`audit` is in use by another sidecar");
    }
}
