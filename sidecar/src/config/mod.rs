//! The configuration file: read into raw types, checked, then immutable.
//!
//! | where | what |
//! |---|---|
//! | `document`, `raw`, `spanned`, `quantities` | TOML text to raw types; each value keeps its position in the file |
//! | `check` | raw to checked types; reports every problem of the file, not only the first |
//! | `types`, `limits`, `limits_per_part` | the checked types; specs of secrets, servers and Vault live in the modules that use them |
//! | `environment` | environment variables, defaults, and where the file is searched for |
//! | `problem`, `suggest` | error messages with line numbers and suggestions |
//! | `private_paths` | paths that no sandbox may open |
//! | `digest` | the hash of all rules that every audit record carries |
//! | `schema` | the JSON Schema for editors |
//!
//! What must stay true: unknown keys are errors; no value is guessed; the file has no key that takes a credential; error
//! messages never quote a value of the file, because a credential may be written there by mistake.

mod check;
mod digest;
mod document;
mod environment;
mod limits;
mod limits_per_part;
mod private_paths;
mod problem;
mod quantities;
mod raw;
mod raw_confine;
mod schema;
mod spanned;
pub(crate) mod suggest;
#[cfg(test)]
mod tests;
mod types;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

pub use environment::{Environment, NoConfiguration, find};
pub use limits::Limits;
pub(crate) use limits::{MemoryCeilings, SCRUBBING_COPIES, SMALL_BUFFERS, SMALL_WINDOW};
pub use problem::{Position, Problem, Problems};
pub use schema::schema;
pub use types::*;

// Used only by `call`, which should import these from `servers::spec`.
pub use cofferdam_servers::spec::{Scope, ServerSpec as Server};

pub(crate) use check::relay::SHARED_DIRECTORIES;

/// A configuration has a few kilobytes. The limit protects against a wrong file and an endless device.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Reads and checks a file, with the defaults of this process's user.
pub fn load(path: &Path) -> Result<Config, Problems> {
    let file_problem = |message: String, hint: &str| Problems {
        path: path.to_owned(),
        list: vec![Problem { position: None, message, hint: hint.to_owned() }],
    };
    let bytes = read_file(path).map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::NotFound => "check the path, or name another file with `-c FILE`",
            io::ErrorKind::PermissionDenied => "make it readable for the user that runs the sidecar",
            _ => "name another file with `-c FILE`",
        };
        file_problem(format!("cannot read the configuration: {error}"), hint)
    })?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(file_problem("the file is larger than 1 MiB".to_owned(), "is this the configuration?"));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..valid].iter().filter(|byte| **byte == b'\n').count() + 1;
        file_problem(format!("line {line} is not UTF-8"), "save the file as UTF-8")
    })?;
    check_text(&text, path)
}

/// Finds the admin socket in a file that has errors. The sidecar that was started with an earlier version of the file may
/// still be running, and `kill` must reach it.
pub fn admin_socket(path: &Path) -> Option<PathBuf> {
    let table: toml::Table = String::from_utf8(read_file(path).ok()?).ok()?.parse().ok()?;
    let directory = std::path::absolute(path).ok()?.parent()?.to_owned();
    let path_in = |value: Option<&toml::Value>| value.and_then(|value| Some(directory.join(value.as_str()?)));
    let environment = Environment::of_process();
    path_in(table.get("admin").and_then(|admin| admin.get("socket"))).or_else(|| {
        let state = path_in(table.get("state-dir")).or_else(|| environment.default_state_dir())?;
        Some(environment.default_admin_socket(&state))
    })
}

/// The line on which a file sets a key, given as the path of its tables and its own name. `None` where a default applies.
pub(crate) fn line_of(path: &Path, key: &[&str]) -> Option<usize> {
    let text = String::from_utf8(read_file(path).ok()?).ok()?;
    let span = document::locate(&text, key)?;
    Some(problem::Report::new(&text).position(&span).line)
}

/// Parses a duration of the command line, in the same format as in the file.
pub(crate) fn parse_duration(text: &str) -> Result<std::time::Duration, String> {
    cofferdam_base::duration::parse(text).map_err(|error| error.to_string())
}

/// Parses a size of the command line, in the same format as in the file.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    text.parse::<quantities::RawSize>().map(|size| size.0).map_err(|error| error.to_string())
}

/// A size as in the file, in the largest unit that is exact.
pub(crate) fn format_size(bytes: u64) -> String {
    quantities::RawSize(bytes).to_string()
}

/// Checks a text as if it were the file at `path`, with the defaults of this process's user.
pub fn check_text(text: &str, path: &Path) -> Result<Config, Problems> {
    check_text_in(text, path, &Environment::of_process())
}

/// Checks a text as if it were the file at `path`, without side effects: the same text, absolute path and environment give
/// the same result.
pub fn check_text_in(text: &str, path: &Path, environment: &Environment) -> Result<Config, Problems> {
    let file = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut report = problem::Report::new(text);
    let context = check::CheckContext { file: &file, environment };
    let config =
        document::read(text, &mut report).and_then(|document| check::check(document, context, &mut report));
    match config {
        Some(config) if report.is_empty() => Ok(config),
        _ => Err(report.into_problems(path.to_owned())),
    }
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
