//! What a confined server sees, for people: each path, what may be done with it, and why it is there.
//!
//! What must stay true: this is read off the walls that a start would build, so that it cannot promise less than a server gets.

use std::path::{Path, PathBuf};

use cofferdam_process::{Access, Entry, EntryKind, FileAccess, FileRule, Limit, Walls};

use crate::profile::{HOME, Home, Profile, ShownPath};
use crate::program::Program;
use crate::system;
use crate::walls::{OwnDirectories, Start, WallsError, find_program, walls};

/// The view of one server.
#[derive(Debug)]
pub struct View {
    /// The program that is executed, as the server sees it.
    pub program: PathBuf,
    /// In the order of [`Why`], then by path.
    pub paths: Vec<SeenPath>,
    /// The only programs that may be executed; `None`: all in paths with [`Rights::execute`].
    pub programs: Option<Vec<PathBuf>>,
    /// As the kernel enforces them for each process, or all of them.
    pub limits: Vec<(Limit, u64)>,
    /// Whether there is a filter of system calls, and how long it is.
    pub filter_instructions: usize,
}

/// A path that a server sees, with all that is below it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SeenPath {
    pub path: PathBuf,
    pub rights: Rights,
    pub why: Why,
    pub content: Content,
}

/// What may be done with a path, besides reading it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rights {
    pub write: bool,
    pub execute: bool,
}

/// Why a path is shown.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Why {
    /// `confine.write` names it.
    Write,
    /// `confine.read` names it.
    Read,
    /// `confine.exec` names it.
    Exec,
    /// `cwd` names it.
    Directory,
    /// `confine.home` is `keep`.
    KeptHome,
    /// The program, or what belongs to it.
    Program,
    /// The program's interpreter and what belongs to it, or links on the way to it.
    Interpreter,
    /// A file that `command` names.
    Argument,
    /// It is made for the server.
    Own,
    /// The operating system.
    System,
}

/// What is at a path.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Content {
    Device,
    /// An empty directory that nobody can change.
    Empty,
    /// What is at this path of the host.
    Host(PathBuf),
    Link(PathBuf),
    /// A file that is written for the server.
    Made,
    /// An empty directory in memory of at most this many bytes, which ends with the process.
    Memory(u64),
    /// The server's own processes.
    Processes,
}

/// Describes a start. It needs no injected directory and no kept home, which may not exist yet.
pub fn view(profile: &Profile, start: &Start<'_>) -> Result<View, WallsError> {
    // Without the kept home its directory in memory stands at the same path.
    let own = OwnDirectories { kept_home: None, ..start.own };
    let (walls, program) = walls(profile, &Start { own, ..*start })?;
    let shown = find_program(start)?;
    let reasons = Reasons { profile, start, program: &shown, system: system::entries() };
    let mut paths: Vec<SeenPath> = Vec::new();
    for entry in &walls.entries {
        let path = PathBuf::from(&entry.path);
        // What is mounted later hides what was mounted at the same path before.
        paths.retain(|earlier| earlier.path != path);
        let rights = rights(entry, &walls);
        paths.push(SeenPath {
            rights,
            why: reasons.why(entry),
            content: content(entry, profile, start),
            path,
        });
    }
    let rights = Rights { write: false, execute: false };
    paths.push(SeenPath { path: "/proc".into(), rights, why: Why::Own, content: Content::Processes });
    paths.sort_by(|one, other| (one.why, &one.path).cmp(&(other.why, &other.path)));
    let programs = profile.exec.as_ref().map(|_| executable_files(&walls));
    let filter_instructions = walls.system_calls.len();
    Ok(View { program, paths, programs, limits: walls.limits, filter_instructions })
}

struct Reasons<'a> {
    profile: &'a Profile,
    start: &'a Start<'a>,
    program: &'a Program,
    system: Vec<Entry>,
}

impl Reasons<'_> {
    fn why(&self, entry: &Entry) -> Why {
        let path = Path::new(&entry.path);
        let names = |list: &[ShownPath]| list.iter().any(|shown| shown.path() == path);
        if names(&self.profile.write) {
            return Why::Write;
        }
        if names(&self.profile.read) {
            return Why::Read;
        }
        if self.profile.exec.as_ref().is_some_and(|list| names(list)) {
            return Why::Exec;
        }
        if self.system.contains(entry) {
            return Why::System;
        }
        if path == Path::new(HOME) && self.profile.home == Home::Keep {
            return Why::KeptHome;
        }
        match entry.kind {
            EntryKind::Bind { .. } if self.start.directory == Some(path) => Why::Directory,
            EntryKind::Bind { .. } | EntryKind::Link { .. } => self.part_of_program(path),
            EntryKind::Device { .. }
            | EntryKind::Directory
            | EntryKind::File { .. }
            | EntryKind::Memory { .. } => Why::Own,
        }
    }

    /// Which of the files that are needed for the start are in `path`.
    fn part_of_program(&self, path: &Path) -> Why {
        let of = |file: &Path| {
            file.starts_with(path) || file.canonicalize().is_ok_and(|real| real.starts_with(path))
        };
        if of(self.start.program) || self.program.path.starts_with(path) {
            return Why::Program;
        }
        let mut arguments = self.start.arguments.iter().map(Path::new).filter(|file| file.is_absolute());
        match arguments.any(of) {
            true => Why::Argument,
            false => Why::Interpreter,
        }
    }
}

fn content(entry: &Entry, profile: &Profile, start: &Start<'_>) -> Content {
    match &entry.kind {
        EntryKind::Bind { source, .. } => Content::Host(source.into()),
        EntryKind::Device { .. } => Content::Device,
        EntryKind::Directory => Content::Empty,
        EntryKind::File { .. } => Content::Made,
        EntryKind::Link { target } => Content::Link(target.into()),
        EntryKind::Memory { bytes, .. } => match (profile.home, start.own.kept_home) {
            (Home::Keep, Some(kept)) if entry.path == HOME => Content::Host(kept.to_owned()),
            _ => Content::Memory(*bytes),
        },
    }
}

/// What the walls allow at an entry: writing by its mount, and executing by the rules of Landlock.
fn rights(entry: &Entry, walls: &Walls) -> Rights {
    let write = matches!(
        entry.kind,
        EntryKind::Bind { access: Access::Write, .. } | EntryKind::Device { .. } | EntryKind::Memory { .. }
    );
    let path = Path::new(&entry.path);
    let allows = |rule: &FileRule| {
        matches!(rule.access, FileAccess::ReadExecute | FileAccess::WriteExecute)
            && path.starts_with(&rule.path)
    };
    let execute = walls.file_rules.iter().any(allows) && !matches!(entry.kind, EntryKind::File { .. });
    Rights { write, execute }
}

/// The files that a rule lets the server execute, where it may not execute all.
fn executable_files(walls: &Walls) -> Vec<PathBuf> {
    let executable = walls.file_rules.iter().filter(|rule| rule.access == FileAccess::ReadExecute);
    let mut files: Vec<PathBuf> = executable.map(|rule| PathBuf::from(&rule.path)).collect();
    files.sort();
    files.dedup();
    files
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use cofferdam_process::{Network, Proc};

    use super::*;

    /// A home directory with a virtual environment, whose interpreter is elsewhere in it, and a project.
    struct Host {
        directory: tempfile::TempDir,
        base: PathBuf,
    }

    impl Host {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let base = directory.path().canonicalize().unwrap();
            let host = Self { directory, base };
            for path in ["venv/bin", "python/bin", "python/lib", "project", "data"] {
                std::fs::create_dir_all(host.path(path)).unwrap();
            }
            let home = format!("home = {}\n", host.path("python/bin").display());
            std::fs::write(host.path("venv/pyvenv.cfg"), home).unwrap();
            std::fs::copy("/bin/true", host.path("python/bin/python3")).unwrap();
            symlink(host.path("python/bin/python3"), host.path("venv/bin/python3")).unwrap();
            let script = format!("#!{}\n", host.path("venv/bin/python3").display());
            std::fs::write(host.path("venv/bin/server"), script).unwrap();
            let executable = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(host.path("venv/bin/server"), executable).unwrap();
            host
        }

        fn path(&self, name: &str) -> PathBuf {
            self.base.join(name)
        }

        fn shown(&self, name: &str) -> ShownPath {
            ShownPath::new(self.path(name), &[]).unwrap()
        }

        fn view(&self, profile: &Profile) -> View {
            let kept = self.path("kept");
            let program = self.path("venv/bin/server");
            let start = Start {
                program: &program,
                arguments: &[OsString::from("--verbose")],
                directory: None,
                injected: None,
                own: OwnDirectories { kept_home: Some(&kept), memory_bytes: 1 << 20, processes: 64 },
                private: &[],
                network: &Network::default(),
                hosts: "",
                resolver: "",
                proc: Proc::Own,
            };
            view(profile, &start).unwrap()
        }
    }

    fn seen<'a>(view: &'a View, path: &Path) -> &'a SeenPath {
        let found: Vec<_> = view.paths.iter().filter(|seen| seen.path == path).collect();
        assert_eq!(found.len(), 1, "{} in {:#?}", path.display(), view.paths);
        found[0]
    }

    fn marks(rights: Rights) -> (&'static str, &'static str) {
        (if rights.write { "w" } else { "-" }, if rights.execute { "x" } else { "-" })
    }

    #[test]
    fn each_path_has_its_reason_and_its_rights() {
        let host = Host::new();
        let profile = Profile {
            read: vec![host.shown("data")],
            write: vec![host.shown("project")],
            ..Profile::default()
        };
        let view = host.view(&profile);
        for (path, why, expected) in [
            (host.path("project"), Why::Write, ("w", "x")),
            (host.path("data"), Why::Read, ("-", "x")),
            (host.path("venv"), Why::Program, ("-", "x")),
            (host.path("python"), Why::Interpreter, ("-", "x")),
            (HOME.into(), Why::Own, ("w", "x")),
            ("/tmp".into(), Why::Own, ("w", "x")),
            ("/etc/hosts".into(), Why::Own, ("-", "-")),
            ("/proc".into(), Why::Own, ("-", "-")),
            ("/usr".into(), Why::System, ("-", "x")),
            ("/dev/null".into(), Why::System, ("w", "-")),
            ("/etc/services".into(), Why::System, ("-", "-")),
        ] {
            if path == Path::new("/etc/services") && !path.exists() {
                continue;
            }
            let seen = seen(&view, &path);
            assert_eq!((seen.why, marks(seen.rights)), (why, expected), "{}", path.display());
        }
        assert_eq!(view.program, host.path("venv/bin/server"));
        assert_eq!(view.programs, None);
        assert!(view.filter_instructions > 0);
        assert!(view.paths.iter().all(|seen| seen.path != host.base), "nothing around them is shown");
        drop(host.directory);
    }

    #[test]
    fn with_a_list_of_programs_only_those_are_executable() {
        let host = Host::new();
        let listed = vec![ShownPath::new("/usr/bin/true".into(), &[]).unwrap()];
        let view = host.view(&Profile { exec: Some(listed), ..Profile::default() });
        assert_eq!(marks(seen(&view, &host.path("venv")).rights), ("-", "-"));
        assert_eq!(marks(seen(&view, Path::new("/tmp")).rights), ("w", "-"));
        let programs = view.programs.expect("a list");
        for program in [host.path("python/bin/python3"), Path::new("/usr/bin/true").canonicalize().unwrap()] {
            assert!(programs.contains(&program), "{programs:?} lacks {}", program.display());
        }
        assert!(!programs.contains(&PathBuf::from("/usr")), "{programs:?}");
    }

    #[test]
    fn a_kept_home_is_named_before_it_exists() {
        let host = Host::new();
        let view = host.view(&Profile { home: Home::Keep, ..Profile::default() });
        let home = seen(&view, Path::new(HOME));
        assert_eq!((home.why, &home.content), (Why::KeptHome, &Content::Host(host.path("kept"))));
        assert!(!host.path("kept").exists(), "a view makes nothing");
    }
}
