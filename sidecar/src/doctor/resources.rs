//! What the host gives the sidecar: disk, descriptors, processes and memory.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statvfs::statvfs;
use nix::unistd::geteuid;

use super::finding::Findings;
use crate::config::Config;

const MEBIBYTE: u64 = 1024 * 1024;
/// Below this the audit refuses sandboxes, so that its own last records fit.
const FULL_BELOW: u64 = 16 * MEBIBYTE;
/// A few days of audit of a busy sandbox.
const LOW_BELOW: u64 = 256 * MEBIBYTE;
/// Files that can still be made.
const FEW_FILES: u64 = 100;
/// The sidecar itself, with a few links and servers.
const MIN_DESCRIPTORS: u64 = 256;
/// What the default limits of links and processes need.
const ENOUGH_DESCRIPTORS: u64 = 4096;
/// A server has two processes or more, of which each thread counts.
const ENOUGH_PROCESSES: u64 = 256;
const ENOUGH_MEMORY: u64 = 256 * MEBIBYTE;

pub(super) fn probe(config: Option<&Config>, findings: &mut Findings) {
    if let Some(config) = config {
        probe_disk(&config.state_dir, findings);
    }
    probe_descriptors(findings);
    probe_processes(findings);
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    probe_cgroup(Path::new("/sys/fs/cgroup"), &own, findings);
}

fn probe_disk(state_dir: &Path, findings: &mut Findings) {
    let about = format!("disk of {}", state_dir.display());
    let existing = state_dir.ancestors().find_map(|directory| statvfs(directory).ok());
    let Some(disk) = existing else { return };
    let free = disk.blocks_available().saturating_mul(disk.fragment_size());
    // Some file systems have no fixed number of files, and say 0 of 0.
    let is_out_of_files = disk.files() > 0 && disk.files_available() < FEW_FILES;
    let next = "make room there: `cofferdam audit prune --older-than 90d` removes old audit files; or give `state-dir` another disk";
    let what = match is_out_of_files {
        true => format!("{} more files can be made there", disk.files_available()),
        false => format!("{} MiB are free", free / MEBIBYTE),
    };
    match free {
        free if free < FULL_BELOW || is_out_of_files => findings.error("disk-full", about, what, next),
        free if free < LOW_BELOW => findings.warning("disk-low", about, what, next),
        _ => findings.good("disk-ok", about, what),
    }
}

fn probe_descriptors(findings: &mut Findings) {
    // The sidecar raises its soft limit to the hard one.
    let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let what = format!("at most {hard} open files (`ulimit -Hn`)");
    let next = "raise it: `LimitNOFILE=65536` in the sidecar's systemd unit, or `nofile` in /etc/security/limits.conf";
    match hard {
        hard if hard < MIN_DESCRIPTORS => findings.error("descriptors-low", "limits", what, next),
        hard if hard < ENOUGH_DESCRIPTORS => findings.warning("descriptors-low", "limits", what, next),
        _ => {}
    }
}

/// The kernel counts the processes and threads of the user, in whatever session, and does not limit root.
fn probe_processes(findings: &mut Findings) {
    let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NPROC) else { return };
    if hard < ENOUGH_PROCESSES && !geteuid().is_root() {
        let what = format!("at most {hard} processes and threads of this user (`ulimit -u`)");
        let next = "raise it: `LimitNPROC=4096` in the sidecar's systemd unit, or `nproc` in /etc/security/limits.conf";
        findings.warning("processes-low", "limits", what, next);
    }
}

/// Looks at the limits of a process's cgroup and of those above it. Version 2 only: version 1 has them elsewhere. `own` is what
/// /proc/PID/cgroup says of the process.
fn probe_cgroup(root: &Path, own: &str, findings: &mut Findings) {
    let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::/")) else { return };
    let own = root.join(path.trim_end());
    let groups: Vec<PathBuf> =
        own.ancestors().take_while(|group| group.starts_with(root)).map(Path::to_owned).collect();
    let lowest = |file: &str| {
        let limits = groups.iter().filter_map(|group| fs::read_to_string(group.join(file)).ok());
        // Without a limit the file has the word `max`.
        limits.filter_map(|limit| limit.trim().parse::<u64>().ok()).min()
    };
    if let Some(limit) = lowest("pids.max").filter(|limit| *limit < ENOUGH_PROCESSES) {
        let what = format!("at most {limit} processes and threads (`pids.max` of its cgroup)");
        let next =
            "raise it: `TasksMax=4096` in the sidecar's systemd unit, or `--pids-limit` of the container";
        findings.warning("processes-low", "limits", what, next);
    }
    if let Some(limit) = lowest("memory.max").filter(|limit| *limit < ENOUGH_MEMORY) {
        let what = format!("at most {} MiB of memory (`memory.max` of its cgroup)", limit / MEBIBYTE);
        let next = "raise it: `MemoryMax=` in the sidecar's systemd unit, or `--memory` of the container; or lower `limits.total-memory`";
        findings.warning("memory-low", "limits", what, next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found with these files of a cgroup `system/cofferdam` and of the one above it.
    fn found(files: &[(&str, &str)]) -> Vec<(&'static str, String)> {
        let root = std::env::temp_dir().join(cofferdam_base::random::id("cofferdam-cgroup-"));
        fs::create_dir_all(root.join("system/cofferdam")).unwrap();
        for (file, text) in files {
            fs::write(root.join(file), text).unwrap();
        }
        let mut findings = Findings::default();
        probe_cgroup(&root, "1:name=systemd:/x\n0::/system/cofferdam\n", &mut findings);
        fs::remove_dir_all(&root).unwrap();
        findings.0.into_iter().map(|finding| (finding.code, finding.what)).collect()
    }

    #[test]
    fn the_lowest_limit_of_the_cgroups_counts() {
        let processes = |limit: &str| {
            ("processes-low", format!("at most {limit} processes and threads (`pids.max` of its cgroup)"))
        };
        let memory = |limit: &str| {
            ("memory-low", format!("at most {limit} MiB of memory (`memory.max` of its cgroup)"))
        };
        assert_eq!(found(&[("system/cofferdam/pids.max", "max\n"), ("system/pids.max", "256\n")]), []);
        assert_eq!(
            found(&[("system/cofferdam/pids.max", "1000\n"), ("system/pids.max", "255\n")]),
            [processes("255")]
        );
        assert_eq!(
            found(&[("system/cofferdam/memory.max", "134217728\n"), ("system/memory.max", "max\n")]),
            [memory("128")]
        );
        assert_eq!(found(&[("system/cofferdam/memory.max", "268435456\n")]), []);
        assert_eq!(
            found(&[("pids.max", "64\n"), ("memory.max", "1048576\n")]),
            [processes("64"), memory("1")]
        );
    }
}
