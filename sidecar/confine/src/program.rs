//! The files without which a server's program cannot run: its executable, the interpreter of a script, the packages around both.
//!
//! ```text
//! node_modules/.bin/server ──link──▶ node_modules/pkg/dist/index.js ──#!──▶ ~/.nvm/versions/node/v22/bin/node
//! └──────────── the directory node_modules ──────┘                    └─ the prefix ~/.nvm/versions/node/v22 ─┘
//! ```
//!
//! What must stay true: neither a home directory nor one that contains the sidecar's own files is shown, however a program is
//! installed; what is found here is looked up again at each start, so that an update needs no reload.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::profile::overlap;

/// How many links and interpreters are followed from the program on.
const MAX_STEPS: usize = 16;
/// The kernel reads as much of the first line of a script.
const FIRST_LINE_BYTES: u64 = 256;
/// What begins with one of these is shown to every server.
const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store"];
/// In a directory with one of these a script and its modules belong together.
const PACKAGE_FILES: [&str; 3] = ["package.json", "pyproject.toml", "setup.py"];
const SCRIPT_ENDINGS: [&str; 6] = ["cjs", "js", "mjs", "py", "rb", "ts"];
/// In the path of the wrapper scripts of version managers.
const SHIMS: &str = "shims";

/// A program that can be started inside walls.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Program {
    /// Its path, with no link in its directories. The file itself may be a link: some interpreters find their modules by it.
    pub path: PathBuf,
    /// What must be shown besides the operating system.
    pub shown: BTreeSet<PathBuf>,
    /// Directories of the paths in `command` that are links, and where they lead.
    pub links: BTreeMap<PathBuf, PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("`{}` leads to more than {MAX_STEPS} links and interpreters", .0.display())]
    TooManySteps(PathBuf),
    #[error("cannot read `{}`", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("`{}` is a script for `{interpreter}`, which is not installed", script.display())]
    NoInterpreter { script: PathBuf, interpreter: String },
    #[error(
        "`{}` is a wrapper of a version manager, which chooses the real program when it runs: write the path of that program \
         into `command` (pyenv and asdf print it with `which`)", .0.display()
    )]
    Shim(PathBuf),
}

/// What decides how much around a program may be shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surroundings<'a> {
    /// The home directory of the sidecar's user.
    pub(crate) home: Option<&'a Path>,
    /// The sidecar's own files.
    pub(crate) private: &'a [PathBuf],
    /// Where programs are searched for.
    pub(crate) search: Option<&'a OsStr>,
}

impl Program {
    /// Finds out what `path`, which is absolute, and the files among `arguments` need.
    pub(crate) fn find(
        path: &Path,
        arguments: &[PathBuf],
        surroundings: Surroundings<'_>,
    ) -> Result<Self, ProgramError> {
        let mut finder = Finder { surroundings, shown: BTreeSet::new(), links: BTreeMap::new(), steps: 0 };
        let located = finder.follow(path)?;
        for argument in arguments.iter().filter(|argument| argument.is_absolute() && argument.is_file()) {
            finder.follow(argument)?;
        }
        Ok(Self { path: located, shown: finder.shown, links: finder.links })
    }
}

struct Finder<'a> {
    surroundings: Surroundings<'a>,
    shown: BTreeSet<PathBuf>,
    links: BTreeMap<PathBuf, PathBuf>,
    steps: usize,
}

impl Finder<'_> {
    /// Shows a file, the files that it links to, and the interpreter of the last one. Returns the file with no link in its
    /// directories.
    fn follow(&mut self, path: &Path) -> Result<PathBuf, ProgramError> {
        let located = self.locate(path)?;
        let mut current = located.clone();
        loop {
            self.steps += 1;
            if self.steps > MAX_STEPS {
                return Err(ProgramError::TooManySteps(path.to_owned()));
            }
            self.show(&current);
            match std::fs::read_link(&current) {
                Ok(target) => {
                    current = self.locate(&current.parent().unwrap_or(Path::new("/")).join(target))?
                }
                Err(_) => break,
            }
        }
        if let Some(interpreter) = self.interpreter(&current)? {
            if current.components().any(|part| part.as_os_str() == SHIMS) {
                return Err(ProgramError::Shim(current));
            }
            self.follow(&interpreter)?;
        }
        Ok(located)
    }

    /// The same file, by a path without links in its directories. These links are shown too, so that both paths lead to it.
    fn locate(&mut self, path: &Path) -> Result<PathBuf, ProgramError> {
        let failed = |source| ProgramError::Read { path: path.to_owned(), source };
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return path.canonicalize().map_err(failed);
        };
        for directory in parent.ancestors().filter(|directory| directory.is_symlink()) {
            self.links.insert(directory.to_owned(), directory.canonicalize().map_err(failed)?);
        }
        Ok(parent.canonicalize().map_err(failed)?.join(name))
    }

    /// Shows what belongs to a file, or else the file alone.
    fn show(&mut self, file: &Path) {
        if SYSTEM.iter().any(|system| file.starts_with(system)) {
            return;
        }
        let around = [node_modules(file), virtual_environment(file), prefix(file), package(file)];
        let shown = around.into_iter().flatten().find(|directory| self.may_be_shown(directory));
        if let Some(base) = shown.as_deref().and_then(base_of_environment) {
            // The base interpreter of a virtual environment; if it is gone, the environment's own link is broken too.
            let _ = self.follow(&base);
        }
        self.shown.insert(shown.unwrap_or_else(|| file.to_owned()));
    }

    fn may_be_shown(&self, directory: &Path) -> bool {
        let is_personal = |home: &Path| home.starts_with(directory) || directory == home.join(".local");
        let of_users = ["/", "/home", "/root", "/opt", "/srv", "/tmp", "/var"];
        !self.surroundings.home.is_some_and(is_personal)
            && !of_users.iter().any(|path| Path::new(path) == directory)
            && !self.surroundings.private.iter().any(|private| overlap(directory, private))
    }

    /// The interpreter that the first line of a script names.
    fn interpreter(&self, file: &Path) -> Result<Option<PathBuf>, ProgramError> {
        let mut start = Vec::new();
        let read =
            std::fs::File::open(file).and_then(|file| file.take(FIRST_LINE_BYTES).read_to_end(&mut start));
        read.map_err(|source| ProgramError::Read { path: file.to_owned(), source })?;
        let Some(line) = start.strip_prefix(b"#!") else { return Ok(None) };
        let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let words: Vec<&OsStr> = line
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty())
            .map(OsStr::from_bytes)
            .collect();
        let Some((&program, arguments)) = words.split_first() else { return Ok(None) };
        if Path::new(program).file_name() != Some(OsStr::new("env")) {
            return Ok(Some(program.into()));
        }
        // `env` itself is part of the system; its options and variables come before the program.
        let is_program =
            |word: &&&OsStr| !word.as_bytes().starts_with(b"-") && !word.as_bytes().contains(&b'=');
        let Some(&name) = arguments.iter().find(is_program) else { return Ok(None) };
        let search = self.surroundings.search.map(std::env::split_paths).into_iter().flatten();
        let found = search.map(|directory| directory.join(name)).find(|path| path.is_file());
        let interpreter = name.to_string_lossy().into_owned();
        found.map(Some).ok_or(ProgramError::NoInterpreter { script: file.to_owned(), interpreter })
    }
}

/// The outermost directory `node_modules` around a file: the modules in it refer to each other.
fn node_modules(file: &Path) -> Option<PathBuf> {
    file.ancestors()
        .filter(|ancestor| ancestor.file_name() == Some(OsStr::new("node_modules")))
        .last()
        .map(Into::into)
}

fn virtual_environment(file: &Path) -> Option<PathBuf> {
    file.ancestors().skip(1).find(|ancestor| ancestor.join("pyvenv.cfg").is_file()).map(Into::into)
}

/// The directory of an interpreter with its libraries: that above `bin`.
fn prefix(file: &Path) -> Option<PathBuf> {
    let bin = file.parent().filter(|parent| parent.file_name() == Some(OsStr::new("bin")))?;
    let prefix = bin.parent()?;
    (prefix.join("lib").is_dir() || prefix.join("libexec").is_dir()).then(|| prefix.to_owned())
}

/// The directory of a script's package, or the script's own directory.
fn package(file: &Path) -> Option<PathBuf> {
    let is_script = file.extension().and_then(OsStr::to_str).is_some_and(|end| SCRIPT_ENDINGS.contains(&end));
    if !is_script {
        return None;
    }
    let has_manifest = |directory: &&Path| PACKAGE_FILES.iter().any(|name| directory.join(name).is_file());
    let with_manifest = file.ancestors().skip(1).find(has_manifest);
    with_manifest.or(file.parent()).map(Into::into)
}

/// The interpreter that a virtual environment was made with.
fn base_of_environment(directory: &Path) -> Option<PathBuf> {
    let settings = std::fs::read_to_string(directory.join("pyvenv.cfg")).ok()?;
    let home =
        settings.lines().find_map(|line| line.split_once('=').filter(|(key, _)| key.trim() == "home"))?.1;
    let home = Path::new(home.trim());
    ["python3", "python"].iter().map(|name| home.join(name)).find(|path| path.is_file())
}
