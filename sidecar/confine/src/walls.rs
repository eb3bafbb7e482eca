//! Makes the walls of one start from a profile, a program and what is injected.
//!
//! What must stay true: what the profile names is mounted after the server's own directories, so it can lie inside them; the
//! rules for Landlock allow no more than what is shown.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use cofferdam_process::{
    Access, Entry, EntryKind, FileAccess, FileRule, Limit, Missing, Network, Proc, Variable, Walls,
};
use zeroize::Zeroizing;

use crate::profile::{HOME, Home, Profile, ShownPath, ShownPathError, TEMPORARY};
use crate::program::{Program, ProgramError, Surroundings};
use crate::{system, system_calls};

const SHARED_MEMORY: &str = "/dev/shm";
/// What the server's user and group are called.
const USER: &str = "server";
/// The variables that every confined server has of its own, unless they are injected.
pub const OWN_VARIABLES: [(&str, &str); 4] =
    [("HOME", HOME), ("TMPDIR", TEMPORARY), ("USER", USER), ("LOGNAME", USER)];
const PRIVATE: u32 = 0o700;
const SHARED: u32 = 0o1777;
/// Files in a directory in memory: each takes about a kilobyte of the kernel's memory besides its content.
const MAX_FILES: u64 = 65_536;
const OPEN_FILES: u64 = 65_536;
const LOCKED_BYTES: u64 = 8 * 1024 * 1024;

/// What a start needs besides the profile.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// The program's absolute path, and its arguments.
    pub program: &'a Path,
    pub arguments: &'a [OsString],
    /// Where the server starts. `None`: in its home directory.
    pub directory: Option<&'a Path>,
    /// The directory with the injected files, at the same path inside.
    pub injected: Option<&'a Path>,
    pub own: OwnDirectories<'a>,
    /// The sidecar's own files, which are not shown.
    pub private: &'a [PathBuf],
    pub network: &'a Network,
    /// The content of `/etc/hosts` and of `/etc/resolv.conf`.
    pub hosts: &'a str,
    pub resolver: &'a str,
    pub proc: Proc,
}

/// The directories that a server has for itself.
#[derive(Clone, Copy, Debug)]
pub struct OwnDirectories<'a> {
    /// The lasting home directory on the host, for [`Home::Keep`].
    pub kept_home: Option<&'a Path>,
    /// The most bytes of each directory in memory.
    pub memory_bytes: u64,
    /// Processes and threads, unless the profile says otherwise.
    pub processes: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum WallsError {
    #[error("`{}` cannot be shown to a confined server: its path is not UTF-8", .0.display())]
    NotUtf8(PathBuf),
    #[error("`{}` cannot be shown to a confined server", path.display())]
    Path { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Shown(#[from] ShownPathError),
}

/// The walls of a start, and the path of its program inside them.
pub fn walls(profile: &Profile, start: &Start<'_>) -> Result<(Walls, PathBuf), WallsError> {
    let program = find_program(start)?;
    let mut view = View::default();
    view.entries.extend(system::entries());
    for path in system::PROGRAMS {
        view.rule(path, FileAccess::ReadExecute);
    }
    view.rule("/etc", FileAccess::Read);
    view.rule("/proc", FileAccess::Read);
    view.rule("/dev", FileAccess::Write);
    view.settings(start);
    view.memory(SHARED_MEMORY, SHARED, start.own.memory_bytes);
    view.memory(TEMPORARY, SHARED, start.own.memory_bytes);
    match (profile.home, start.own.kept_home) {
        (Home::Keep, Some(kept)) => view.show_at(Path::new(HOME), &real(kept)?, Access::Write)?,
        (Home::Keep | Home::Private, _) => view.memory(HOME, PRIVATE, start.own.memory_bytes),
    }
    for path in &program.shown {
        view.show(path, Access::Read)?;
    }
    for (path, target) in &program.links {
        view.link(path, target)?;
    }
    for shown in profile.exec.iter().flatten().chain(&profile.read) {
        view.show_at(shown.path(), shown.source()?, Access::Read)?;
    }
    for shown in &profile.write {
        view.show_at(shown.path(), shown.source()?, Access::Write)?;
    }
    // Shown read-only, unless `write` names it or a directory around it.
    if let Some(directory) = start.directory
        && !view.shows(directory)
    {
        view.show_at(directory, &real(directory)?, Access::Read)?;
    }
    if let Some(injected) = start.injected {
        view.show(injected, Access::Read)?;
    }
    let View { entries, file_rules } = view;
    let limits = vec![
        (Limit::Files, OPEN_FILES),
        (Limit::LockedMemory, LOCKED_BYTES),
        (Limit::Processes, profile.pids.unwrap_or(start.own.processes)),
    ];
    let limits = limits.into_iter().chain(profile.memory.map(|bytes| (Limit::Data, bytes))).collect();
    let network = start.network.clone();
    let system_calls = system_calls::filter();
    let file_rules = only_executable(file_rules, profile, &program)?;
    let observed_calls = Vec::new();
    let walls =
        Walls { entries, proc: start.proc, network, file_rules, system_calls, observed_calls, limits };
    Ok((walls, program.path))
}

/// The files that the program of a start needs.
pub(crate) fn find_program(start: &Start<'_>) -> Result<Program, ProgramError> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let search = std::env::var_os("PATH");
    let surroundings =
        Surroundings { home: home.as_deref(), private: start.private, search: search.as_deref() };
    let files: Vec<PathBuf> = start.arguments.iter().map(PathBuf::from).collect();
    Program::find(start.program, &files, surroundings)
}

/// The environment of a confined server: that of an ordinary one, with its own directories and user, unless they are injected.
pub fn environment(inherited: Vec<Variable>, injected: &[OsString]) -> Vec<Variable> {
    let mut environment = inherited;
    for (name, value) in OWN_VARIABLES {
        if injected.iter().any(|other| other == name) {
            continue;
        }
        environment.retain(|(other, _)| other != name);
        environment.push((name.into(), Zeroizing::new(value.as_bytes().to_vec())));
    }
    environment
}

/// If the profile lists programs, only these and the server's own may be executed.
fn only_executable(
    rules: Vec<FileRule>,
    profile: &Profile,
    program: &Program,
) -> Result<Vec<FileRule>, WallsError> {
    let Some(listed) = &profile.exec else { return Ok(rules) };
    let without = |rule: FileRule| FileRule {
        access: match rule.access {
            FileAccess::ReadExecute => FileAccess::Read,
            FileAccess::WriteExecute => FileAccess::Write,
            other => other,
        },
        ..rule
    };
    let mut rules: Vec<FileRule> = rules.into_iter().map(without).collect();
    // The loader of dynamic programs is executed with each of them.
    let loaders = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-x86_64.so.1"];
    let programs = listed.iter().map(ShownPath::path).chain(program.executed.iter().map(PathBuf::as_path));
    for path in programs.chain(loaders.map(Path::new)) {
        let Ok(path) = path.canonicalize() else { continue };
        rules.push(FileRule { path: text(&path)?, access: FileAccess::ReadExecute });
    }
    Ok(rules)
}

/// What the server sees so far.
#[derive(Default)]
struct View {
    entries: Vec<Entry>,
    file_rules: Vec<FileRule>,
}

impl View {
    fn settings(&mut self, start: &Start<'_>) {
        let (user, group) = (nix::unistd::geteuid(), nix::unistd::getegid());
        let nobody = "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
        let files = [
            ("/etc/passwd", format!("{USER}:x:{user}:{group}:{USER}:{HOME}:/bin/sh\n{nobody}")),
            ("/etc/group", format!("{USER}:x:{group}:\nnogroup:x:65534:\n")),
            ("/etc/hosts", start.hosts.to_owned()),
            ("/etc/hostname", "confined\n".to_owned()),
            ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n".to_owned()),
            ("/etc/resolv.conf", start.resolver.to_owned()),
        ];
        for (path, content) in files {
            self.entries.push(Entry { path: path.into(), kind: EntryKind::File { content } });
        }
        for path in ["/run", "/var/tmp", "/sys"] {
            self.entries.push(Entry { path: path.into(), kind: EntryKind::Directory });
        }
    }

    fn memory(&mut self, path: &str, mode: u32, bytes: u64) {
        let kind = EntryKind::Memory { mode, bytes, files: MAX_FILES };
        self.entries.push(Entry { path: path.into(), kind });
        self.rule(path, FileAccess::WriteExecute);
    }

    /// Shows a path of the host, which has no link in it, at the same path.
    fn show(&mut self, path: &Path, access: Access) -> Result<(), WallsError> {
        self.show_at(path, path, access)
    }

    /// Shows a path of the host that has no link in it.
    fn show_at(&mut self, inside: &Path, source: &Path, access: Access) -> Result<(), WallsError> {
        let inside = text(inside)?;
        let kind = EntryKind::Bind { source: text(source)?, access, missing: Missing::Refuse };
        let access = match access {
            Access::Read => FileAccess::ReadExecute,
            Access::Write => FileAccess::WriteExecute,
        };
        self.rule(&inside, access);
        self.entries.push(Entry { path: inside, kind });
        Ok(())
    }

    /// A link to a directory, unless it is visible in what is shown already.
    fn link(&mut self, path: &Path, target: &Path) -> Result<(), WallsError> {
        if !self.shows(path) {
            let kind = EntryKind::Link { target: text(target)? };
            self.entries.push(Entry { path: text(path)?, kind });
        }
        Ok(())
    }

    fn shows(&self, path: &Path) -> bool {
        let contains = |entry: &Entry| match entry.kind {
            EntryKind::Bind { .. } => path.starts_with(&entry.path),
            // The system's own links, such as `/bin`.
            EntryKind::Link { .. } => path == Path::new(&entry.path),
            _ => false,
        };
        self.entries.iter().any(contains)
    }

    fn rule(&mut self, path: &str, access: FileAccess) {
        self.file_rules.push(FileRule { path: path.into(), access });
    }
}

fn real(path: &Path) -> Result<PathBuf, WallsError> {
    path.canonicalize().map_err(|source| WallsError::Path { path: path.to_owned(), source })
}

fn text(path: &Path) -> Result<String, WallsError> {
    match path.as_os_str().to_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(WallsError::NotUtf8(path.to_owned())),
    }
}
