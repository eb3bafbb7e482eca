//! What a profile lacks for something that a server asked for.
//!
//! What must stay true: only what a profile can name is proposed, so never a file of the sidecar; nothing is proposed that the
//! server was given, or that does not exist for the sidecar either.

use std::path::{Path, PathBuf};

use cofferdam_process::Wanted;

use crate::profile::{InvalidPath, ShownPath};
use crate::view::{Content, SeenPath, View, Why};

/// Something that a server asked for and did not get.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Lack {
    /// This list of the profile would allow it, with this path.
    Entry { key: &'static str, path: PathBuf },
    /// It is a file of the sidecar's own, which no profile can name.
    Private(PathBuf),
}

const READ: &str = "read";
const WRITE: &str = "write";
const EXECUTE: &str = "exec";

impl View {
    /// What is missing for a path that the server asked for; `None` if nothing is, or nothing can be done about it. `private` are
    /// the sidecar's own files. `made` says whether the server asked to make or change a path, which may so be its own.
    pub fn lacks(
        &self,
        asked: &Path,
        wanted: Wanted,
        private: &[PathBuf],
        made: impl Fn(&Path) -> bool,
    ) -> Option<Lack> {
        // What is asked for becomes a line of the configuration.
        asked.to_str()?;
        let around = self.around(asked).filter(|around| match around.content {
            Content::Empty => around.path == asked,
            Content::Memory(_) => is_in_memory(asked, wanted, &around.path, made),
            _ => true,
        });
        let (key, path) = match wanted {
            Wanted::Execute => self.lacks_for_execution(asked, around)?,
            Wanted::Read => (READ, self.is_hidden(asked, around).then(|| asked.to_owned())?),
            Wanted::Write => (WRITE, lacks_for_writing(asked, around)?),
        };
        match ShownPath::new(path.clone(), private) {
            Ok(_) => Some(Lack::Entry { key, path }),
            Err(InvalidPath::ContainsPrivate(_)) => Some(Lack::Private(path)),
            // Every server has its own.
            Err(InvalidPath::Own(_)) => None,
        }
    }

    fn lacks_for_execution(
        &self,
        asked: &Path,
        around: Option<&SeenPath>,
    ) -> Option<(&'static str, PathBuf)> {
        let real = asked.canonicalize().ok().filter(|real| real.is_file())?;
        match &self.programs {
            Some(programs) if programs.contains(&real) || programs.iter().any(|program| program == asked) => {
                None
            }
            Some(_) => Some((EXECUTE, asked.to_owned())),
            None => self.is_hidden(asked, around).then(|| (READ, asked.to_owned())),
        }
    }

    /// Whether something of the host is at a path where the server finds nothing.
    fn is_hidden(&self, asked: &Path, around: Option<&SeenPath>) -> bool {
        // The directories around what is shown exist too.
        let is_parent = self.paths.iter().any(|seen| seen.path.starts_with(asked));
        around.is_none() && !is_parent && std::fs::symlink_metadata(asked).is_ok()
    }

    /// The innermost path that is shown and contains this one.
    fn around(&self, asked: &Path) -> Option<&SeenPath> {
        let containing = self.paths.iter().filter(|seen| asked.starts_with(&seen.path));
        containing.max_by_key(|seen| seen.path.as_os_str().len())
    }
}

/// The file itself, or the directory in which a new one would be.
fn lacks_for_writing(asked: &Path, around: Option<&SeenPath>) -> Option<PathBuf> {
    // A server's own program is not its data: many programs try to keep caches beside their modules.
    let is_data = |around: &SeenPath| matches!(around.why, Why::Read | Why::Directory | Why::Exec);
    if around.is_some_and(|around| around.rights.write || !is_data(around)) {
        return None;
    }
    match std::fs::symlink_metadata(asked) {
        // To make a directory that is there already is no wish to change it.
        Ok(found) if found.is_dir() => None,
        Ok(_) => Some(asked.to_owned()),
        Err(_) => asked.parent().filter(|parent| parent.is_dir()).map(Path::to_owned),
    }
}

/// Whether a path below a directory in memory is one that the server made, or makes: then it is not that of the host.
fn is_in_memory(asked: &Path, wanted: Wanted, directory: &Path, made: impl Fn(&Path) -> bool) -> bool {
    if asked == directory || wanted == Wanted::Write && asked.parent() == Some(directory) {
        return true;
    }
    // That it asks to write this path does not say that there is a directory for it.
    let skipped = usize::from(wanted == Wanted::Write);
    asked.ancestors().take_while(|path| *path != directory).skip(skipped).any(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::Rights;

    struct Host {
        directory: tempfile::TempDir,
    }

    impl Host {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            for name in ["read", "write", "program", "hidden/deep", "state", "memory/made", "memory/host"] {
                std::fs::create_dir_all(directory.path().join(name)).unwrap();
            }
            let files = ["read/file", "write/file", "program/file", "hidden/file", "state/key"];
            for name in files.into_iter().chain(["memory/file", "memory/made/file", "memory/host/file"]) {
                std::fs::write(directory.path().join(name), "").unwrap();
            }
            Self { directory }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }

        fn lacks(&self, programs: Option<Vec<PathBuf>>, name: &str, wanted: Wanted) -> Option<Lack> {
            let seen = |path: PathBuf, why, write, content| {
                let rights = Rights { write, execute: true };
                SeenPath { path, rights, why, content }
            };
            let host = |name: &str| Content::Host(self.path(name));
            let paths = vec![
                seen(self.path("read"), Why::Read, false, host("read")),
                seen(self.path("write"), Why::Write, true, host("write")),
                seen(self.path("program"), Why::Program, false, host("program")),
                seen(self.path("memory"), Why::Own, true, Content::Memory(1)),
                seen("/run".into(), Why::Own, false, Content::Empty),
                seen("/usr".into(), Why::System, false, Content::Host("/usr".into())),
            ];
            let view = View {
                program: self.path("program/file"),
                paths,
                programs,
                limits: Vec::new(),
                filter_instructions: 0,
            };
            let asked = match Path::new(name).is_absolute() {
                true => name.into(),
                false => self.path(name),
            };
            view.lacks(&asked, wanted, &[self.path("state")], |path| path == self.path("memory/made"))
        }

        fn entry(&self, key: &'static str, name: &str) -> Option<Lack> {
            Some(Lack::Entry { key, path: self.path(name) })
        }
    }

    #[test]
    fn what_exists_outside_and_not_inside_is_lacking_for_reading() {
        let host = Host::new();
        let lacks = |name: &str| host.lacks(None, name, Wanted::Read);
        assert_eq!(lacks("hidden/file"), host.entry("read", "hidden/file"));
        assert_eq!(lacks("hidden/deep"), host.entry("read", "hidden/deep"));
        for given in [
            "read/file",
            "read/missing",
            "write",
            "program/file",
            "",
            "hidden/missing",
            "/usr/lib",
            "/proc/1",
        ] {
            assert_eq!(lacks(given), None, "{given}");
        }
        assert_eq!(lacks("state/key"), Some(Lack::Private(host.path("state/key"))));
    }

    #[test]
    fn for_writing_the_file_or_the_directory_of_a_new_one_is_lacking() {
        let host = Host::new();
        let lacks = |name: &str| host.lacks(None, name, Wanted::Write);
        assert_eq!(lacks("read/file"), host.entry("write", "read/file"));
        assert_eq!(lacks("read/new"), host.entry("write", "read"));
        assert_eq!(lacks("hidden/new"), host.entry("write", "hidden"));
        for nothing in [
            "write/file",
            "write/new",
            "program/new",
            "hidden/deep",
            "hidden/missing/new",
            "/usr/new",
            "/etc/new",
        ] {
            assert_eq!(lacks(nothing), None, "{nothing}");
        }
        assert_eq!(lacks("state/new"), Some(Lack::Private(host.path("state"))));
    }

    #[test]
    fn what_the_host_has_below_a_directory_in_memory_is_lacking_unless_the_server_made_it() {
        let host = Host::new();
        let read = |name: &str| host.lacks(None, name, Wanted::Read);
        let write = |name: &str| host.lacks(None, name, Wanted::Write);
        assert_eq!(read("memory/file"), host.entry("read", "memory/file"));
        assert_eq!(read("memory/host/file"), host.entry("read", "memory/host/file"));
        assert_eq!(write("memory/host/file"), host.entry("write", "memory/host/file"));
        assert_eq!(write("memory/host/new"), host.entry("write", "memory/host"));
        for own in ["memory", "memory/made", "memory/made/file", "memory/new"] {
            assert_eq!((read(own), write(own)), (None, None), "{own}");
        }
        assert_eq!((write("memory/file"), write("memory/made/new")), (None, None));
    }

    #[test]
    fn a_program_is_lacking_where_others_are_listed_or_it_is_not_shown() {
        let host = Host::new();
        let lacks = |programs: Option<&[&str]>, name: &str| {
            let programs = programs.map(|list| list.iter().map(PathBuf::from).collect());
            host.lacks(programs, name, Wanted::Execute)
        };
        let env = Path::new("/usr/bin/env").canonicalize().unwrap();
        let entry = |path: &str| Some(Lack::Entry { key: "exec", path: path.into() });
        assert_eq!(lacks(None, "/usr/bin/env"), None);
        assert_eq!(lacks(None, "hidden/file"), host.entry("read", "hidden/file"));
        assert_eq!(lacks(None, "/usr/bin/missing"), None);
        assert_eq!(lacks(Some(&[env.to_str().unwrap()]), "/usr/bin/env"), None);
        assert_eq!(lacks(Some(&[]), "/usr/bin/env"), entry("/usr/bin/env"));
    }
}
