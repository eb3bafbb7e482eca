//! What the configuration gives a server, in the words of a manifest.
//!
//! What must stay true: a way to reach something of the host that is not counted here would be outside of every manifest.

use std::path::Path;

use super::permission::{DIRECTORY, EXECUTE, HOME, HOSTS, Key, Permission, READ, VARIABLES, WRITE};
use crate::profile::{Home, Profile};

/// What the configuration gives a server beyond its own program, the operating system's files and what is made for it: among
/// these are its injected files.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    pub profile: &'a Profile,
    /// `cwd`, which is shown for reading.
    pub directory: Option<&'a Path>,
    /// How many hosts are listed.
    pub hosts: usize,
    /// How many environment variables are set for it.
    pub variables: usize,
}

/// A permission that something in the configuration asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Asked {
    pub permission: Permission,
    pub by: Key,
}

impl Given<'_> {
    /// Each permission once, in the order of [`Permission`], with the first key that asks for it.
    pub(super) fn asked(&self) -> Vec<Asked> {
        let Profile { read, write, exec, home, memory: _, pids: _ } = self.profile;
        let keeps_home = *home == Home::Keep;
        // What can be changed can be read too, and from a directory that can be changed files can be removed. A single file that
        // is shown cannot, because it is mounted. What does not exist yet may become a directory.
        let holds_files = write.iter().any(|path| !path.path().is_file());
        let by_exec = exec.as_ref().is_none_or(|programs| !programs.is_empty());
        [
            (Permission::FilesystemRead, READ, !read.is_empty()),
            (Permission::FilesystemRead, WRITE, !write.is_empty()),
            (Permission::FilesystemRead, DIRECTORY, self.directory.is_some()),
            (Permission::FilesystemRead, HOME, keeps_home),
            (Permission::FilesystemWrite, WRITE, !write.is_empty()),
            (Permission::FilesystemWrite, HOME, keeps_home),
            (Permission::FilesystemDelete, WRITE, holds_files),
            (Permission::FilesystemDelete, HOME, keeps_home),
            (Permission::EnvironmentRead, VARIABLES, self.variables > 0),
            (Permission::Execute, EXECUTE, by_exec),
            (Permission::NetworkClient, HOSTS, self.hosts > 0),
        ]
        .into_iter()
        .filter(|(_, _, is_asked)| *is_asked)
        .map(|(permission, by, _)| Asked { permission, by })
        .fold(Vec::new(), |mut asked, next| {
            if asked.iter().all(|earlier: &Asked| earlier.permission != next.permission) {
                asked.push(next);
            }
            asked
        })
    }
}
