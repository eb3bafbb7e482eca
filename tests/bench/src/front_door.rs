//! Measures what a new user waits for: from `install.sh` to the end of `cofferdam demo`, and `cofferdam import` of a file with
//! fifty servers. Also the sizes of what is published.
//!
//! Each round installs into a new directory and imports with a new home. The files are those of `dist/`, if `COFFERDAM_DIST`
//! names it; otherwise the archive is made of the measured programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::bench_error::BenchError;
use crate::clock::now;
use crate::footprint::file_size;
use crate::measure::RoundLimits;
use crate::process::{command, output_of};
use crate::program_paths::ProgramPaths;

/// The name of this measurement for `--only`.
pub(crate) const FRONT_DOOR: &str = "install";
/// The servers in the imported file, each with a token.
pub(crate) const SERVERS: usize = 50;

/// Of each time the best round.
#[derive(Clone, Debug)]
pub(crate) struct FrontDoorResults {
    pub(crate) install: Duration,
    /// From the start of `install.sh` to the end of the demo.
    pub(crate) install_and_demo: Duration,
    pub(crate) import: Duration,
    /// The name of each published file, and its size in bytes.
    pub(crate) files: Vec<(String, u64)>,
}

/// Runs all rounds; `dir` is for the files of the installations.
pub(crate) fn run(
    limits: RoundLimits,
    dir: &Path,
    paths: &ProgramPaths,
) -> Result<FrontDoorResults, BenchError> {
    let dir = dir.join(FRONT_DOOR);
    let dist = published(&dir, paths)?;
    let sidecar = paths.sidecar()?;
    let mut best = [Duration::MAX; 3];
    for number in 1..=limits.rounds.min(MAX_ROUNDS) {
        let round = dir.join(format!("round-{number}"));
        let home = round.join("home");
        write("the home of a round", || std::fs::create_dir_all(&home))?;
        let begin = now();
        let mut install = command("sh");
        install.arg(dist.join("install.sh")).arg("--prefix").arg(&round);
        done(install, &home, "install.sh")?;
        let installed = begin.elapsed();
        let mut demo = command(round.join("bin/cofferdam"));
        demo.arg("demo");
        done(demo, &home, "cofferdam demo")?;
        let shown = begin.elapsed();
        let imported = import_time(&sidecar, &round, &home)?;
        for (best, took) in best.iter_mut().zip([installed, shown, imported]) {
            *best = took.min(*best);
        }
        eprintln!("bench: round {number}, best install, install and demo, import: {best:?}");
    }
    let [install, install_and_demo, import] = best;
    Ok(FrontDoorResults { install, install_and_demo, import, files: sizes(&dist)? })
}

/// Each round copies some tens of megabytes.
const MAX_ROUNDS: usize = 5;
const TIMEOUT: Duration = Duration::from_secs(60);

/// The directory with `install.sh` and what it installs.
fn published(dir: &Path, paths: &ProgramPaths) -> Result<PathBuf, BenchError> {
    if let Some(dist) = std::env::var_os("COFFERDAM_DIST") {
        return Ok(dist.into());
    }
    let dist = dir.join("dist");
    write("the directory of an archive", || std::fs::create_dir_all(&dist))?;
    let shim = format!("{}={}", std::env::consts::ARCH, paths.shim()?.display());
    let mut archive = command(concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/archive"));
    archive.arg(&dist).arg(paths.sidecar()?).arg(shim);
    done(archive, dir, "packaging/archive")?;
    Ok(dist)
}

fn import_time(sidecar: &Path, round: &Path, home: &Path) -> Result<Duration, BenchError> {
    let settings = round.join("mcp.json");
    write("a file to import", || std::fs::write(&settings, settings_text()))?;
    let configuration = round.join("cofferdam.toml");
    let mut import = command(sidecar);
    import.args(["import", "--yes", "--to", "file", "-c"]).arg(&configuration).arg(&settings);
    let begin = now();
    done(import, home, "cofferdam import")?;
    let took = begin.elapsed();
    let text = std::fs::read_to_string(&configuration)
        .map_err(|source| BenchError::Read { what: "the imported configuration".into(), source })?;
    match text.matches("[servers.").count() {
        SERVERS => Ok(took),
        other => Err(BenchError::UnexpectedResponse(format!("import wrote {other} servers"))),
    }
}

/// A `.mcp.json` whose servers have a token each.
fn settings_text() -> String {
    let server = |number: usize| {
        let token = format!("ghp_{number:02}16C7e42F292c6912E7710c838347Ae178B");
        let entry = serde_json::json!({"command": "github-mcp-server", "args": ["stdio"], "env": {"GITHUB_TOKEN": token}});
        (format!("server-{number}"), entry)
    };
    let servers: serde_json::Map<_, _> = (0..SERVERS).map(server).collect();
    serde_json::json!({ "mcpServers": servers }).to_string()
}

/// Runs a command to its end, in an environment with little more than this home.
fn done(mut command: Command, home: &Path, what: &str) -> Result<(), BenchError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.env_clear().env("PATH", path).env("HOME", home).current_dir(home);
    let output = output_of(command, TIMEOUT);
    output.map(drop).ok_or_else(|| BenchError::Ended { what: what.into(), last_log_line: String::new() })
}

fn sizes(dist: &Path) -> Result<Vec<(String, u64)>, BenchError> {
    let read = |source| BenchError::Read { what: "the directory of what is published".into(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dist).map_err(read)? {
        let path = entry.map_err(read)?.path();
        if path.is_file() {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            files.push((name, file_size(&path)?));
        }
    }
    files.sort();
    Ok(files)
}

fn write(what: &str, action: impl FnOnce() -> std::io::Result<()>) -> Result<(), BenchError> {
    action().map_err(|source| BenchError::Write { what: what.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_imported_server_has_a_token_of_its_own() {
        let settings: serde_json::Value = serde_json::from_str(&settings_text()).unwrap();
        let servers = settings["mcpServers"].as_object().unwrap();
        let tokens: std::collections::BTreeSet<_> =
            servers.values().map(|server| server["env"]["GITHUB_TOKEN"].as_str().unwrap()).collect();
        assert_eq!((servers.len(), tokens.len()), (SERVERS, SERVERS));
    }
}
