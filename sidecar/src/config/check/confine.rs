//! Checks `[servers.NAME.confine]`.
//!
//! What must stay true: a server is confined unless the file says `confine = "off"`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use cofferdam_confine::{FurtherWall, Home, Profile, ShownPath};
use cofferdam_egress::{AddressPool, AllowedHost, Plan};
use cofferdam_servers::spec::{Confinement, WorkspaceAccess};

use super::Checker;
use crate::config::quantities::{RawCount, RawSize};
use crate::config::raw_confine::{RawConfine, RawHome, RawProcessors, RawProfile, RawSwitch, RawWall};
use crate::config::spanned::Spanned;

/// Stands for the directory that the sandbox's grant names.
pub(crate) const WORKSPACE: &str = "{workspace}";

/// `None` if the server is not confined, which must be written out. `hidden` are the sidecar's own files.
pub(super) fn check_confine(
    checker: &mut Checker<'_, '_>,
    table: &str,
    written: Option<Spanned<RawConfine>>,
    hidden: &Arc<[PathBuf]>,
) -> Option<Confinement> {
    let RawProfile { read, write, exec, hosts, home, memory, pids, cpu, require } =
        match written.map(|written| written.value) {
            Some(RawConfine::Switch(RawSwitch::Off)) => return None,
            Some(RawConfine::Profile(profile)) => *profile,
            None => RawProfile::default(),
        };
    let names_workspace = |list: &[Spanned<String>]| list.iter().any(|entry| entry.value == WORKSPACE);
    let workspace = match (names_workspace(&read), names_workspace(&write)) {
        (_, true) => Some(WorkspaceAccess::Write),
        (true, false) => Some(WorkspaceAccess::Read),
        (false, false) => None,
    };
    let mut paths = |key: &str, list: Vec<Spanned<String>>| {
        let key = format!("{table}.confine.{key}");
        let paths = list.iter().filter(|written| written.value != WORKSPACE);
        paths.filter_map(|written| check_shown(checker, &key, written, hidden)).collect()
    };
    let (read, write) = (paths("read", read), paths("write", write));
    let exec = exec.map(|list| paths("exec", list));
    let hosts = check_hosts(checker, &format!("{table}.confine.hosts"), hosts);
    let memory = memory.and_then(|written| {
        let range = RawSize::from_literal("16MiB")..=RawSize::from_literal("1024GiB");
        checker.report.check_range(&format!("{table}.confine.memory"), &written, range)
    });
    let pids = pids.and_then(|written| {
        let range = RawCount::from_literal("1")..=RawCount::from_literal("65536");
        checker.report.check_range(&format!("{table}.confine.pids"), &written, range)
    });
    let cpu = cpu.and_then(|written| {
        let range = RawProcessors(10)..=RawProcessors(1_024_000);
        checker.report.check_range(&format!("{table}.confine.cpu"), &written, range)
    });
    let require = check_required(checker, &format!("{table}.confine.require"), require);
    let home = match home {
        Some(RawHome::Keep) => Home::Keep,
        Some(RawHome::Private) | None => Home::Private,
    };
    let (memory, pids) = (memory.map(|size| size.0), pids.map(|count| count.0));
    let cpu = cpu.map(|processors| processors.0);
    let profile = Profile { read, write, exec, home, memory, pids, cpu, require };
    Some(Confinement { profile, workspace, hosts, hidden: Arc::clone(hidden) })
}

/// The walls that are required besides those of every confined server, which must be named too: so that a profile that names only
/// some of them is not taken for one that goes without the others.
fn check_required(
    checker: &mut Checker<'_, '_>,
    key: &str,
    written: Option<Spanned<Vec<RawWall>>>,
) -> BTreeSet<FurtherWall> {
    let Some(Spanned { value: named, span }) = written else { return BTreeSet::new() };
    let always =
        [(RawWall::Files, "files"), (RawWall::Processes, "processes"), (RawWall::Network, "network")];
    for (_, name) in always.iter().filter(|(wall, _)| !named.contains(wall)) {
        let hint = "name it: these three are made together, by namespaces, and no server is confined without one of them";
        checker.add(&span, format!("`{key}` lacks `{name}`"), hint);
    }
    let further = |wall: RawWall| match wall {
        RawWall::Files | RawWall::Network | RawWall::Processes => None,
        RawWall::Landlock => Some(FurtherWall::Landlock),
        RawWall::Limits => Some(FurtherWall::Limits),
        RawWall::User => Some(FurtherWall::User),
    };
    named.into_iter().filter_map(further).collect()
}

fn check_hosts(checker: &mut Checker<'_, '_>, key: &str, written: Vec<Spanned<String>>) -> Vec<AllowedHost> {
    let mut hosts = Vec::new();
    for Spanned { value, span } in written {
        match value.parse() {
            Ok(host) => hosts.push(host),
            Err(problem) => {
                checker.add(&span, format!("`{key}`: {problem}"), "write a host and its port");
                continue;
            }
        }
        // The plan of all hosts so far: what is wrong with it is wrong since this entry.
        if let Err(problem) = Plan::new(&hosts, AddressPool::default()) {
            checker.add(&span, format!("`{key}`: {problem}"), "leave this entry out");
            hosts.pop();
        }
    }
    hosts
}

/// Checks a path that a confined server is to see.
pub(super) fn check_shown(
    checker: &mut Checker<'_, '_>,
    key: &str,
    written: &Spanned<String>,
    hidden: &Arc<[PathBuf]>,
) -> Option<ShownPath> {
    if written.value.contains(WORKSPACE) {
        let message = format!("`{key}` names a part of `{WORKSPACE}`, and it can only be shown whole");
        checker.add(&written.span, message, format!("write `{WORKSPACE}` alone"));
        return None;
    }
    let path = checker.check_path(key, written)?;
    match ShownPath::new(path, hidden) {
        Ok(shown) => Some(shown),
        Err(problem) => {
            let message = format!("`{key}` cannot name `{}`: {problem}", written.value);
            checker.add(&written.span, message, "name the files or directories that the server needs");
            None
        }
    }
}
