//! Checks `[servers.NAME.confine]`.

use std::path::PathBuf;
use std::sync::Arc;

use cofferdam_confine::{Home, Profile, ShownPath};
use cofferdam_egress::{AddressPool, AllowedHost, Plan};
use cofferdam_servers::spec::Confinement;

use super::Checker;
use crate::config::quantities::{RawCount, RawSize};
use crate::config::raw_confine::{RawConfine, RawHome, RawProfile, RawSwitch};
use crate::config::spanned::Spanned;

/// `None` if the server is not confined. `hidden` are the sidecar's own files.
pub(super) fn check_confine(
    checker: &mut Checker<'_, '_>,
    table: &str,
    written: Option<Spanned<RawConfine>>,
    hidden: &Arc<[PathBuf]>,
) -> Option<Confinement> {
    let RawProfile { read, write, exec, hosts, home, memory, pids } = match written?.value {
        RawConfine::Switch(RawSwitch::Off) => return None,
        RawConfine::Profile(profile) => profile,
    };
    let mut paths = |key: &str, list: Vec<Spanned<String>>| {
        let key = format!("{table}.confine.{key}");
        list.iter().filter_map(|written| check_shown(checker, &key, written, hidden)).collect()
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
    let home = match home {
        Some(RawHome::Keep) => Home::Keep,
        Some(RawHome::Private) | None => Home::Private,
    };
    let (memory, pids) = (memory.map(|size| size.0), pids.map(|count| count.0));
    let profile = Profile { read, write, exec, home, memory, pids };
    // The manifest is read when the whole server is known.
    Some(Confinement { profile, hosts, hidden: Arc::clone(hidden), manifest: None })
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

fn check_shown(
    checker: &mut Checker<'_, '_>,
    key: &str,
    written: &Spanned<String>,
    hidden: &Arc<[PathBuf]>,
) -> Option<ShownPath> {
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
