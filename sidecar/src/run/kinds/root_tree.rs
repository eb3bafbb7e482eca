//! The root directory of a sandbox that uses the host's system directories: mount points, symbolic links and a few empty
//! directories.

use std::path::{Path, PathBuf};

use super::GeneratedFile;
use crate::run::mount::{self, Mount, SystemEntry};
use crate::run::plan::Plan;

/// The files to create below `root`, and the mounts: first those of the host's system, then those of the plan.
pub(super) fn root_tree(plan: &Plan, root: &Path) -> (Vec<GeneratedFile>, Vec<Mount>) {
    let mut files = vec![GeneratedFile::directory(root)];
    let mut mounts = Vec::new();
    for entry in mount::system_entries() {
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
    // A mount point inside another mount must exist there, so it is not created below `root`.
    let nested = |mount: &Mount| {
        mounts.iter().any(|other| other.target != mount.target && mount.target.starts_with(&other.target))
    };
    for mount in mounts.iter().filter(|mount| !nested(mount)) {
        let mount_point = below(root, &mount.target);
        files.push(match mount.source.is_file() || mount.target == plan.paths.shim() {
            true => GeneratedFile::text(mount_point, ""),
            false => GeneratedFile::directory(mount_point),
        });
    }
    (files, mounts)
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}
