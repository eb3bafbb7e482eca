//! The command that runs in the sandbox: where it is, and which directories it needs.
//!
//! Harnesses are often installed in the home directory, which is not mounted into the sandbox. What must stay true: only the
//! installation of this program and of its interpreter is mounted from there, read-only, and never a directory that holds
//! data of other programs, such as the home itself, `~/.local/share` or `~/.cargo`.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use super::mount::is_in_system_directory;

/// A program on the host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Executable {
    /// The path at which it was found, symbolic links not resolved: some programs look at the name they are called by.
    pub(super) path: PathBuf,
    /// Directories and files outside the system directories that the program needs.
    pub(super) needs: BTreeSet<PathBuf>,
}

/// How many symbolic links and interpreters are followed; no installation has so many.
const MAX_HOPS: usize = 16;
/// The kernel reads at most this much of a script's first line.
const MAX_SHEBANG_BYTES: u64 = 256;
/// Directories whose `bin` belongs to many programs, and whose other contents may be private.
const SHARED_PREFIXES: [&str; 4] = [".local", ".cargo", ".config", ".cache"];

/// Finds a program as a shell does; names with a slash start at `directory`.
pub(super) fn find(program: &OsStr, path: &OsStr, directory: &Path) -> Option<PathBuf> {
    let is_executable = |path: &PathBuf| path.is_file() && access(path.as_path(), AccessFlags::X_OK).is_ok();
    match program.as_bytes().contains(&b'/') {
        true => Some(directory.join(program)).filter(is_executable),
        false => std::env::split_paths(path)
            .filter(|entry| entry.is_absolute())
            .map(|entry| entry.join(program))
            .find(is_executable),
    }
}

impl Executable {
    /// A program that the sandbox can write: its symbolic links and its first line are not trusted, so nothing is mounted for it.
    pub(super) fn untrusted(path: PathBuf) -> Self {
        Self { path, needs: BTreeSet::new() }
    }

    /// Finds what the program at `path` needs. `home` and `search_path` are the user's.
    pub(super) fn of(path: PathBuf, home: &Path, search_path: &OsStr) -> Self {
        let mut needs = BTreeSet::new();
        let mut program = Some(path.clone());
        let mut hops = 0;
        while let Some(current) = program.take()
            && hops < MAX_HOPS
        {
            hops += 1;
            if !is_in_system_directory(&current) {
                needs.extend(installation(&current, home));
            }
            program = match fs::read_link(&current) {
                Ok(target) => Some(normalize(&current.parent().unwrap_or(Path::new("/")).join(target))),
                Err(_) => interpreter(&current, search_path),
            };
        }
        Self { path, needs: without_nested(needs) }
    }
}

/// The directory or file to mount for this program: its installation, or the program alone.
fn installation(program: &Path, home: &Path) -> Option<PathBuf> {
    // Packages in one `node_modules` may require each other.
    let outermost = program.ancestors().filter(|path| path.ends_with("node_modules")).last();
    if let Some(packages) = outermost {
        return Some(packages.to_owned());
    }
    let directory = program.parent()?;
    let is_shared = |path: &Path| {
        home.starts_with(path) || SHARED_PREFIXES.iter().any(|shared| path == home.join(shared))
    };
    // `~/.local/share/NAME` belongs to one program; but `uv` has a subdirectory for each tool.
    let data = home.join(".local/share");
    if let Ok(below) = directory.strip_prefix(&data)
        && let Some(name) = below.components().next()
        && name.as_os_str() != "uv"
    {
        return Some(data.join(name));
    }
    if directory.ends_with("bin")
        && let Some(prefix) = directory.parent()
        && !is_shared(prefix)
    {
        return Some(prefix.to_owned());
    }
    match is_shared(directory) {
        true => Some(program.to_owned()),
        false => Some(directory.to_owned()),
    }
}

/// The interpreter that a script's first line names. For `env NAME`, the program that `env` would find.
fn interpreter(script: &Path, search_path: &OsStr) -> Option<PathBuf> {
    let mut first = Vec::new();
    fs::File::open(script).ok()?.take(MAX_SHEBANG_BYTES).read_to_end(&mut first).ok()?;
    let line = first.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let program = PathBuf::from(OsString::from_vec(words.next()?.to_vec()));
    if program.file_name() != Some(OsStr::new("env")) {
        return Some(program);
    }
    let name = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))?;
    find(OsStr::from_bytes(name), search_path, Path::new("/"))
}

/// Removes `.` and `..`, so that a file has one path only.
fn normalize(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(normal.pop()),
            std::path::Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

fn without_nested(paths: BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    let nested = |path: &PathBuf| paths.iter().any(|other| other != path && path.starts_with(other));
    paths.iter().filter(|path| !nested(path)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    /// A temporary home directory with programs in it, removed on drop.
    struct Home(PathBuf);

    impl Home {
        fn new() -> Self {
            let home = std::env::temp_dir().join(cofferdam_base::random::id("cofferdam-home-"));
            fs::create_dir(&home).unwrap();
            Self(home.canonicalize().unwrap())
        }

        fn write_program(&self, path: &str, text: &str) -> PathBuf {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        }

        fn link(&self, path: &str, target: &str) -> PathBuf {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(target, &path).unwrap();
            path
        }

        /// What a program needs, relative to the home.
        fn needs(&self, program: PathBuf) -> Vec<String> {
            let search_path = std::env::join_paths([self.0.join("node/bin"), "/usr/bin".into()]).unwrap();
            let executable = Executable::of(program, &self.0, &search_path);
            let below = |path: PathBuf| path.strip_prefix(&self.0).unwrap().display().to_string();
            executable.needs.into_iter().map(below).collect()
        }
    }

    impl Drop for Home {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_program_linked_from_local_bin_needs_that_directory_and_its_own_data_directory() {
        let home = Home::new();
        home.write_program(".local/share/claude/versions/2.1", "\x7fELF");
        home.write_program(".local/share/keyrings/login.keyring", "secret");
        let program = home.link(".local/bin/claude", "../share/claude/versions/2.1");
        assert_eq!(home.needs(program), [".local/bin", ".local/share/claude"]);
    }

    #[test]
    fn a_script_needs_its_package_and_its_interpreter() {
        let home = Home::new();
        home.write_program("node/bin/node", "\x7fELF");
        home.write_program("npm/lib/node_modules/@a/claude/cli.js", "#!/usr/bin/env -S node --x\n");
        let program = home.link("npm/bin/claude", "../lib/node_modules/@a/claude/cli.js");
        assert_eq!(home.needs(program), ["node", "npm"]);
    }

    #[test]
    fn directories_shared_with_other_programs_are_never_mounted_whole() {
        let home = Home::new();
        for (path, needs) in [
            ("bin/tool", "bin"),
            ("tool", "tool"),
            (".cargo/bin/tool", ".cargo/bin"),
            (".local/tool", ".local/tool"),
            ("go/bin/tool", "go"),
            (".local/share/uv/tools/x/bin/tool", ".local/share/uv/tools/x"),
        ] {
            let program = home.write_program(path, "\x7fELF");
            assert_eq!(home.needs(program), [needs], "{path}");
        }
    }

    #[test]
    fn programs_in_system_directories_need_no_mounts() {
        let home = Home::new();
        assert_eq!(home.needs("/usr/bin/env".into()), Vec::<String>::new());
    }

    #[test]
    fn a_cycle_of_links_is_followed_only_so_far() {
        let home = Home::new();
        home.link("a/bin/one", "two");
        let program = home.link("a/bin/two", "one");
        assert_eq!(home.needs(program), ["a"]);
    }
}
