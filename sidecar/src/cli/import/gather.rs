//! Finds and reads the settings files.

use std::path::{Path, PathBuf};

use cofferdam_import::{
    FileState, FileVersion, ReadFileError, Settings, Surroundings, known_files, project_of, read_version,
};
use zeroize::Zeroizing;

use super::Before;
use crate::cli::server_needs;
use crate::terminal::failure::{Failure, Sysexit};
use crate::terminal::print_line;

/// A settings file as it was read.
pub(super) struct ReadSettings {
    pub(super) settings: Settings,
    pub(super) version: FileVersion,
    pub(super) bytes: Zeroizing<Vec<u8>>,
}

/// Whether a file was named, or is only looked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Choice {
    LookedFor,
    Named,
}

/// Reads the named files, or those that exist where harnesses keep them. `before` is the configuration before the import.
pub(super) fn gather(named: &[PathBuf], before: &Before) -> Result<Vec<ReadSettings>, Failure> {
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    let directory = std::env::current_dir().map_err(|error| Failure::new(Sysexit::NoInput, error))?;
    let (files, choice) = match named.is_empty() {
        true => (known_files(&directory, home.as_deref(), &variable), Choice::LookedFor),
        false => (named.iter().map(|file| one_path(&directory.join(file))).collect(), Choice::Named),
    };
    let mut gathered: Vec<ReadSettings> = Vec::new();
    for file in files {
        let is_known = gathered.iter().any(|read| read.settings.path == file);
        match read(&file, home.as_deref(), before) {
            Ok(Some(settings)) if !is_known => gathered.push(settings),
            Ok(None) if choice == Choice::Named => {
                let what = format!("`{}` does not exist", file.display());
                return Err(Failure::new(Sysexit::NoInput, what).hint("check the path"));
            }
            Ok(_) => {}
            Err(failure) if choice == Choice::Named => return Err(failure.into_failure(&file)),
            Err(failure) => print_line(&format!("{}: not read: {}", file.display(), failure.why)),
        }
    }
    Ok(gathered)
}

/// The same path for every way to name a file. Whether the file itself is a symbolic link is checked later.
pub(super) fn one_path(file: &Path) -> PathBuf {
    let parent = file.parent().and_then(|parent| parent.canonicalize().ok());
    match parent.zip(file.file_name()) {
        Some((parent, name)) => parent.join(name),
        None => file.to_owned(),
    }
}

/// Why a file cannot be used.
struct Unusable {
    code: Sysexit,
    why: String,
    hint: String,
}

impl Unusable {
    fn into_failure(self, file: &Path) -> Failure {
        let what = format!("cannot import `{}`: {}", file.display(), self.why);
        Failure::new(self.code, what).hint(self.hint)
    }
}

/// `None` if there is no such file.
fn read(file: &Path, home: Option<&Path>, before: &Before) -> Result<Option<ReadSettings>, Unusable> {
    let (version, bytes) = match read_version(file) {
        Ok(FileState::Absent) => return Ok(None),
        Ok(FileState::Present { version, bytes }) => (version, bytes),
        Err(ReadFileError::SymbolicLink { target }) => {
            let target = file.parent().unwrap_or(Path::new("")).join(target);
            return Err(Unusable {
                code: Sysexit::Data,
                why: format!("it is a symbolic link to `{}`", target.display()),
                hint: "name that file instead".to_owned(),
            });
        }
        Err(error) => {
            let why = cofferdam_base::text::error_chain(&error);
            return Err(Unusable {
                code: Sysexit::NoInput,
                why,
                hint: "make it readable for this user".to_owned(),
            });
        }
    };
    let config = before.config.as_ref();
    let hidden = server_needs::hidden(&before.path, config);
    let surroundings = Surroundings {
        home: home.map(Path::to_owned),
        project: project_of(file, home),
        variable: &variable,
        exists: &|path| path.exists(),
        directory: &|path| server_needs::directory(path, &hidden),
        text_of: &server_needs::text_of,
        default_registry: &server_needs::default_registry,
        is_configured: &|name| {
            config.is_some_and(|config| config.servers.keys().any(|known| known.as_str() == name))
        },
    };
    match Settings::read(file, &bytes, &surroundings) {
        Ok(settings) => Ok(Some(ReadSettings { settings, version, bytes })),
        Err(error) => Err(Unusable {
            code: Sysexit::Data,
            why: error.to_string(),
            hint: "correct it there; nothing was changed".to_owned(),
        }),
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
