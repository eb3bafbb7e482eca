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
use crate::system::PROGRAMS;

/// How many links and interpreters are followed from the program on.
const MAX_STEPS: usize = 16;
/// The kernel reads as much of the first line of a script.
const FIRST_LINE_BYTES: u64 = 256;
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
    /// The files that are executed to start it: itself, its interpreters, and `env` where that finds one.
    pub executed: BTreeSet<PathBuf>,
    /// Links among the paths in `command` and their directories, and where they lead.
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
        let mut finder = Finder {
            surroundings,
            shown: BTreeSet::new(),
            executed: BTreeSet::new(),
            links: BTreeMap::new(),
            steps: 0,
        };
        let located = finder.follow(path)?;
        let executed = std::mem::take(&mut finder.executed);
        for argument in arguments.iter().filter(|argument| argument.is_absolute() && argument.is_file()) {
            finder.follow(argument)?;
        }
        Ok(Self { path: located, shown: finder.shown, executed, links: finder.links })
    }
}

struct Finder<'a> {
    surroundings: Surroundings<'a>,
    shown: BTreeSet<PathBuf>,
    executed: BTreeSet<PathBuf>,
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
            self.show(&current)?;
            match std::fs::read_link(&current) {
                Ok(target) => {
                    current = self.locate(&current.parent().unwrap_or(Path::new("/")).join(target))?
                }
                Err(_) => break,
            }
        }
        self.executed.insert(current.clone());
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

    /// Shows what belongs to a file, or else the file alone; a link alone stays one.
    fn show(&mut self, file: &Path) -> Result<(), ProgramError> {
        if PROGRAMS.iter().any(|system| file.starts_with(system)) {
            return Ok(());
        }
        let around = [node_modules(file), virtual_environment(file), prefix(file), package(file)];
        let shown = around.into_iter().flatten().find(|directory| self.may_be_shown(directory));
        if shown.as_ref().is_some_and(|directory| self.shown.contains(directory)) {
            // With the interpreter that it was made with.
            return Ok(());
        }
        if let Some(base) = shown.as_deref().and_then(base_of_environment) {
            // The base interpreter of a virtual environment; if it is gone, the environment's own link is broken too.
            let _ = self.follow(&base);
        }
        match (shown, std::fs::read_link(file)) {
            (Some(directory), _) => _ = self.shown.insert(directory),
            (None, Ok(target)) => {
                let target = self.locate(&file.parent().unwrap_or(Path::new("/")).join(target))?;
                self.links.insert(file.to_owned(), target);
            }
            (None, Err(_)) => _ = self.shown.insert(file.to_owned()),
        }
        Ok(())
    }

    fn may_be_shown(&self, directory: &Path) -> bool {
        let is_personal = |home: &Path| home.starts_with(directory) || directory == home.join(".local");
        let of_users = ["/", "/home", "/root", "/opt", "/srv", "/tmp", "/var"];
        !self.surroundings.home.is_some_and(is_personal)
            && !of_users.iter().any(|path| Path::new(path) == directory)
            && !self.surroundings.private.iter().any(|private| overlap(directory, private))
    }

    /// The interpreter that the first line of a script names.
    fn interpreter(&mut self, file: &Path) -> Result<Option<PathBuf>, ProgramError> {
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
        self.executed.extend(Path::new(program).canonicalize());
        // Its options and variables come before the program.
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// A directory with files, some of them executable scripts.
    struct Files(tempfile::TempDir);

    impl Files {
        fn new(files: &[(&str, &str)]) -> Self {
            let directory = tempfile::tempdir().unwrap();
            for (name, content) in files {
                let path = directory.path().join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(&path, content).unwrap();
                std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            }
            Self(directory)
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().canonicalize().unwrap().join(name)
        }

        fn find(&self, program: &str, arguments: &[PathBuf]) -> Result<Program, ProgramError> {
            let search = std::env::join_paths([self.path("home/.nvm/v22/bin"), "/usr/bin".into()]).unwrap();
            let home = self.path("home");
            let private = [self.path("state")];
            let surroundings = Surroundings { home: Some(&home), private: &private, search: Some(&search) };
            Program::find(&self.path(program), arguments, surroundings)
        }

        #[track_caller]
        fn assert_shown(&self, program: &str, shown: &[&str]) {
            let expected: BTreeSet<PathBuf> = shown.iter().map(|name| self.path(name)).collect();
            assert_eq!(self.find(program, &[]).unwrap().shown, expected);
        }
    }

    #[test]
    fn a_program_of_the_system_needs_nothing_more() {
        let files = Files::new(&[]);
        let program = files.find("/bin/sh", &[]).unwrap();
        assert!(program.shown.is_empty(), "{program:?}");
    }

    #[test]
    fn a_program_alone_in_a_home_directory_is_shown_alone() {
        let files = Files::new(&[
            ("home/server", "\u{7f}ELF"),
            ("home/.local/bin/tool", ""),
            ("home/.local/lib/x", ""),
        ]);
        files.assert_shown("home/server", &["home/server"]);
        files.assert_shown("home/.local/bin/tool", &["home/.local/bin/tool"]);
    }

    #[test]
    fn a_linked_node_server_is_shown_with_its_modules_and_its_interpreter() {
        let modules = "home/project/node_modules";
        let script = format!("{modules}/pkg/dist/index.js");
        let files = Files::new(&[
            (&script, "#!/usr/bin/env -S node --no-warnings\n"),
            ("home/project/.env", "TOKEN=x"),
            ("home/.nvm/v22/bin/node", ""),
            ("home/.nvm/v22/lib/node_modules/npm/package.json", "{}"),
        ]);
        std::fs::create_dir(files.path("home/project/node_modules/.bin")).unwrap();
        symlink("../pkg/dist/index.js", files.path("home/project/node_modules/.bin/server")).unwrap();
        files.assert_shown("home/project/node_modules/.bin/server", &[modules, "home/.nvm/v22"]);
    }

    #[test]
    fn a_virtual_environment_is_shown_with_the_interpreter_that_it_was_made_with() {
        let files = Files::new(&[("home/.pyenv/3.11/bin/python3", ""), ("home/.pyenv/3.11/lib/os.py", "")]);
        let base = files.path("home/.pyenv/3.11/bin");
        std::fs::create_dir_all(files.path("home/venv/bin")).unwrap();
        std::fs::write(
            files.path("home/venv/pyvenv.cfg"),
            format!("home = {}\nversion = 3.11\n", base.display()),
        )
        .unwrap();
        symlink(base.join("python3"), files.path("home/venv/bin/python3")).unwrap();
        let script = format!("#!{}\n", files.path("home/venv/bin/python3").display());
        std::fs::write(files.path("home/venv/bin/server"), script).unwrap();
        files.assert_shown("home/venv/bin/server", &["home/venv", "home/.pyenv/3.11"]);
    }

    #[test]
    fn scripts_among_the_arguments_are_shown_with_their_package_but_never_a_home() {
        let files = Files::new(&[
            ("home/tools/package.json", "{}"),
            ("home/tools/dist/server.mjs", ""),
            ("home/alone.py", ""),
            ("state/server.py", ""),
        ]);
        let arguments =
            ["home/tools/dist/server.mjs", "home/alone.py", "state/server.py"].map(|name| files.path(name));
        let shown = files.find("/bin/sh", &arguments).unwrap().shown;
        let expected = ["home/tools", "home/alone.py", "state/server.py"].map(|name| files.path(name));
        assert_eq!(shown, BTreeSet::from(expected));
    }

    #[test]
    fn a_linked_directory_leads_to_the_same_place_inside() {
        let files = Files::new(&[("real/tool", "")]);
        symlink("real", files.path("linked")).unwrap();
        let program = files.find("linked/tool", &[]).unwrap();
        assert_eq!(program.path, files.path("real/tool"));
        assert_eq!(program.links, BTreeMap::from([(files.path("linked"), files.path("real"))]));
    }

    /// As `uv tool install` and `npm link` leave programs in `~/.local/bin`.
    #[test]
    fn a_link_to_a_program_elsewhere_stays_a_link() {
        let files = Files::new(&[("home/tools/server", "\u{7f}ELF"), ("home/.local/bin/other", "")]);
        let link = files.path("home/.local/bin/server");
        symlink("../../tools/server", &link).unwrap();
        let program = files.find("home/.local/bin/server", &[]).unwrap();
        let target = files.path("home/tools/server");
        assert_eq!((&program.path, &program.shown), (&link, &BTreeSet::from([target.clone()])));
        assert_eq!(program.links, BTreeMap::from([(link, target)]));
    }

    #[test]
    fn what_cannot_be_confined_is_an_error_with_a_way_out() {
        let files = Files::new(&[
            ("home/.pyenv/shims/python3", "#!/bin/sh\nexec pyenv exec python3\n"),
            ("home/script", "#!/usr/bin/env no-such-interpreter\n"),
        ]);
        symlink("loop", files.path("loop")).unwrap();
        let error = |program: &str| files.find(program, &[]).unwrap_err().to_string();
        assert!(error("home/.pyenv/shims/python3").contains("write the path of that program into `command`"));
        assert!(error("home/script").contains("a script for `no-such-interpreter`, which is not installed"));
        assert!(error("loop").contains("more than 16 links"));
    }
}
