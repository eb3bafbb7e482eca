//! The root directory of a sandbox that uses the host's system directories: mount points, symbolic links and a few empty
//! directories; and the mount points in the sandbox's home.

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

/// The mount points in the sandbox's home. Otherwise the sandbox's program would create them, and without root they would
/// belong to a user whose files this user cannot remove.
pub(super) fn home_mount_points(plan: &Plan, run_directory: &Path) -> Vec<GeneratedFile> {
    let mounts = &plan.files.mounts;
    let enclosing = |mount: &Mount| {
        let others = mounts.iter().filter(|other| other.target != mount.target);
        let others = others.filter(|other| mount.target.starts_with(&other.target));
        others.map(|other| other.target.clone()).max_by_key(|target| target.components().count())
    };
    let in_home = mounts.iter().filter(|mount| enclosing(mount).as_ref() == Some(&plan.paths.home));
    in_home
        .map(|mount| {
            let inside = mount.target.strip_prefix(&plan.paths.home).unwrap_or(&mount.target);
            let mount_point = run_directory.join(crate::run::directory::HOME).join(inside);
            match mount.source.is_file() {
                true => GeneratedFile::text(mount_point, ""),
                false => GeneratedFile::directory(mount_point),
            }
        })
        .collect()
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}
