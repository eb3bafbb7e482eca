//! The configuration: raw (what was written), then checked (what it means), then immutable.
//!
//! | where | what |
//! |---|---|
//! | `document`, `raw`, `at`, `units` | text to raw types that know their places |
//! | `check` | raw to checked: every rule, every problem at once |
//! | `types`, `limits`, `bounds` | what a checked configuration is; specs of secrets, servers and Vault live with their users |
//! | `environment` | defaults and where the file is |
//! | `problem`, `suggest` | what is said when it is wrong |
//! | `digest`, `schema` | what others need of it: the audit, editors |
//!
//! Must stay true: unknown keys are errors; nothing is guessed; a credential never stands in the file, and the
//! values that stand in it are never repeated in an error.

mod at;
mod bounds;
mod check;
mod digest;
mod document;
mod environment;
mod limits;
mod problem;
mod raw;
mod schema;
mod suggest;
#[cfg(test)]
mod tests;
mod types;
mod units;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

pub use environment::{Environment, NoConfiguration, find};
pub use limits::Limits;
pub use problem::{Place, Problem, Problems};
pub use schema::schema;
pub use types::*;

// For `call` alone, until it imports these from `servers::spec`.
pub use crate::servers::spec::{Scope, ServerSpec as Server};

pub(crate) use check::relay::SHARED_DIRECTORIES;

/// A configuration is a few kilobytes; this stops at a wrong file, or one that never ends.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Reads and checks a file, with the defaults of this process's user.
pub fn load(path: &Path) -> Result<Config, Problems> {
    let whole = |message: String, hint: &str| Problems {
        path: path.to_owned(),
        list: vec![Problem { place: None, message, hint: hint.to_owned() }],
    };
    let bytes = read(path).map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::NotFound => "is the path right? `-c FILE` names another",
            io::ErrorKind::PermissionDenied => "make it readable for the user that runs the sidecar",
            _ => "`-c FILE` names another",
        };
        whole(format!("cannot read the configuration: {error}"), hint)
    })?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(whole("the file is larger than 1 MiB".to_owned(), "is this the configuration?"));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..valid].iter().filter(|byte| **byte == b'\n').count() + 1;
        whole(format!("line {line} is not UTF-8"), "save the file as UTF-8")
    })?;
    check_text(&text, path)
}

/// Where the admin socket is, as far as a file that does not check any more still says: the sidecar that was started
/// with it runs on, and a session must be possible to end even then.
pub fn admin_socket(path: &Path) -> Option<PathBuf> {
    let table: toml::Table = String::from_utf8(read(path).ok()?).ok()?.parse().ok()?;
    let folder = std::path::absolute(path).ok()?.parent()?.to_owned();
    let place = |value: Option<&toml::Value>| value.and_then(|value| Some(folder.join(value.as_str()?)));
    let environment = Environment::of_process();
    place(table.get("admin").and_then(|admin| admin.get("socket"))).or_else(|| {
        let state = place(table.get("state-dir")).or_else(|| environment.default_state_dir())?;
        Some(environment.default_admin_socket(&state))
    })
}

/// A duration as it is written in the file, for the command line.
pub(crate) fn parse_duration(text: &str) -> Result<std::time::Duration, String> {
    crate::duration::parse(text).map_err(|error| error.to_string())
}

/// Checks a text as if it stood at `path`, with the defaults of this process's user.
pub fn check_text(text: &str, path: &Path) -> Result<Config, Problems> {
    check_text_in(text, path, &Environment::of_process())
}

/// The pure form: the same text, an absolute path and the same environment give the same result.
pub fn check_text_in(text: &str, path: &Path, environment: &Environment) -> Result<Config, Problems> {
    let file = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut report = problem::Report::new(text);
    let setting = check::Setting { file: &file, environment };
    let config =
        document::read(text, &mut report).and_then(|document| check::check(document, setting, &mut report));
    match config {
        Some(config) if report.is_clean() => Ok(config),
        _ => Err(report.into_problems(path.to_owned())),
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
