//! The root directory of a sandbox that shares the host's system: empty, but for the places where something is mounted.

use std::path::{Path, PathBuf};

use super::GeneratedFile;
use crate::run::mount::{self, Mount, SystemEntry};
use crate::run::plan::Plan;

/// The files of the root, and what is mounted into it, parents first.
pub(super) fn root_tree(plan: &Plan, root: &Path) -> (Vec<GeneratedFile>, Vec<Mount>) {
    let mut files = vec![GeneratedFile::directory(root)];
    let mut mounts = Vec::new();
    for entry in mount::system() {
        match entry {
            SystemEntry::Mount(mount) => mounts.push(mount),
            SystemEntry::Link { path, target } => {
                files.push(GeneratedFile {
                    path: below(root, &path),
                    content: super::FileContent::Link(target),
                });
            }
        }
    }
    mounts.extend(plan.files.mounts.iter().cloned());
    for path in ["/dev", "/proc", "/sys", "/tmp", "/etc", "/run", "/var/tmp"] {
        files.push(GeneratedFile::directory(below(root, Path::new(path))));
    }
    // What is mounted below another mount has its place there.
    let nested = |mount: &Mount| {
        mounts.iter().any(|other| other.target != mount.target && mount.target.starts_with(&other.target))
    };
    for mount in mounts.iter().filter(|mount| !nested(mount)) {
        let place = below(root, &mount.target);
        files.push(match mount.source.is_file() || mount.target == plan.paths.shim() {
            true => GeneratedFile::text(place, ""),
            false => GeneratedFile::directory(place),
        });
    }
    (files, mounts)
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}
