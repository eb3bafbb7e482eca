//! The walls around a confined server, by name, and what each is made of on this host.
//!
//! What must stay true: a wall that a profile requires stands, or the server does not start.

use std::collections::BTreeMap;
use std::fmt;

use cofferdam_process::{Proc, RunsAs};

/// What a profile may require besides files, processes and network, which stand around every confined server.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum FurtherWall {
    /// Landlock, the second wall around files.
    Landlock,
    /// A control group, so that `memory`, `pids` and `cpu` limit all processes of the server together.
    Limits,
    /// For a sidecar of root: a user that nothing else on this host is.
    User,
}

impl fmt::Display for FurtherWall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Landlock => "landlock",
            Self::Limits => "limits",
            Self::User => "user",
        })
    }
}

/// What each wall around a running server is made of.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Standing(BTreeMap<&'static str, Vec<&'static str>>);

/// Where the limits of a server are held.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LimitedBy {
    ControlGroup,
    /// Resource limits of its processes.
    Processes,
}

impl Standing {
    pub fn new(landlock: Landlock, limits: LimitedBy, proc: Proc, runs_as: &RunsAs) -> Self {
        let files = match landlock {
            Landlock::Enforced => vec!["namespace", "landlock"],
            Landlock::Missing => vec!["namespace"],
        };
        let processes = match proc {
            Proc::Own => vec!["namespace"],
            Proc::Empty => vec!["namespace", "no /proc"],
        };
        let limits = match limits {
            LimitedBy::ControlGroup => vec!["control group", "process limits"],
            LimitedBy::Processes => vec!["process limits"],
        };
        let user = match runs_as {
            RunsAs::Sidecar => "the sidecar's",
            RunsAs::Unused => "unused",
            RunsAs::Root { .. } => "root without capabilities",
        };
        Self(BTreeMap::from([
            ("files", files),
            ("limits", limits),
            ("network", vec!["namespace"]),
            ("processes", processes),
            ("system-calls", vec!["filter"]),
            ("user", vec![user]),
        ]))
    }
}

impl Standing {
    /// Each wall, with what it is made of.
    pub fn by_wall(&self) -> impl Iterator<Item = (&'static str, &[&'static str])> {
        self.0.iter().map(|(&wall, means)| (wall, &means[..]))
    }
}

/// Whether the kernel checks files with Landlock too.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Landlock {
    Enforced,
    Missing,
}

/// One line, for the log and for `sessions`.
impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (wall, means) in &self.0 {
            write!(f, "{separator}{wall}: {}", means.join(" and "))?;
            separator = ", ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walls_are_named_with_what_they_are_made_of() {
        let all = Standing::new(Landlock::Enforced, LimitedBy::ControlGroup, Proc::Own, &RunsAs::Unused);
        assert_eq!(
            all.to_string(),
            "files: namespace and landlock, limits: control group and process limits, network: namespace, \
             processes: namespace, system-calls: filter, user: unused"
        );
        let root = RunsAs::Root { why: "of a reason".into() };
        let fewer = Standing::new(Landlock::Missing, LimitedBy::Processes, Proc::Empty, &root);
        assert_eq!(
            fewer.to_string(),
            "files: namespace, limits: process limits, network: namespace, processes: namespace and no /proc, \
             system-calls: filter, user: root without capabilities"
        );
    }
}
