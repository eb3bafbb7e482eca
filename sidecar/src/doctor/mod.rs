//! `cofferdam doctor`: looks for what is wrong with the configuration, this host and Vault, and names the next step.
//!
//! | module | what it looks at |
//! |---|---|
//! | [`clock`] | whether this host's clock is synchronised |
//! | [`configuration`] | the configuration, and what it names on this host |
//! | [`vault`] | Vault: login, policies, clock |
//! | [`servers`] | each server, really started; rules that match none of its tools |
//! | [`ports`] | the ports of the sidecar, running or not |
//! | [`relay`] | the running sidecar, its sockets, and the relay's directory |
//! | [`sandboxes`] | the kinds of sandbox that work here |
//! | [`harnesses`] | the settings of this user's harnesses |
//! | [`resources`] | disk, descriptors, processes, memory |
//! | [`finding`], [`codes`] | one finding; every code, why it matters, and its exit code |
//! | [`report`] | findings for a person, or as JSON |
//!
//! What must stay true: nothing is changed, and what a probe starts or creates has ended and is gone when it returns; each
//! probe has a deadline, and one that fails does not keep the others from running; after an interruption no probe begins;
//! no secret is printed.

mod clock;
mod codes;
mod configuration;
mod finding;
mod harnesses;
mod ports;
mod relay;
mod report;
mod resources;
mod sandboxes;
mod servers;
mod vault;
mod walls;

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_process as process;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::terminal::failure::{Failure, Sysexit};
use crate::terminal::interruption::{Interruption, Interruptions};
use crate::terminal::progress::{Output, Progress};
use crate::terminal::table::TableWidth;
use configuration::Loaded;
use finding::Findings;
use vault::VaultState;

/// Which probes run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Servers {
    Start,
    /// They may cost money, or must not run twice.
    Skip,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Format {
    Json,
    Text,
}

/// For a probe that reads files: longer means that a file system hangs.
const FILES_TIMEOUT: Duration = Duration::from_secs(15);
/// For the sockets and ports of the sidecar.
const RELAY_TIMEOUT: Duration = Duration::from_secs(15);
/// For the trials of all kinds of sandbox.
const SANDBOXES_TIMEOUT: Duration = Duration::from_secs(60);
/// For Vault; each of its requests has its own, shorter limit.
const VAULT_TIMEOUT: Duration = Duration::from_secs(60);
/// For a server, beyond the time that it has to answer.
const SERVER_TIMEOUT: Duration = Duration::from_secs(45);
/// For the end of what an interrupted probe has started: processes, and tokens of Vault.
const END_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn run(file: Option<&Path>, servers: Servers, format: Format) -> Result<ExitCode, Failure> {
    let failed = |error: io::Error| Failure::new(Sysexit::OperatingSystem, error);
    process::harden().map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let output = match io::stderr().is_terminal() && format == Format::Text {
        true => Output::Lines,
        false => Output::Quiet,
    };
    let progress = Progress::new("cofferdam doctor", output);
    let examined = runtime.block_on(async {
        let interruptions = Interruptions::new().map_err(failed)?;
        Ok(examine(file.map(Path::to_owned), servers, &progress, interruptions).await)
    });
    progress.clear();
    // A file system that hangs must not keep this process.
    runtime.shutdown_background();
    let (path, findings) = match examined? {
        Ok(examined) => examined,
        Err(interruption) => {
            eprintln!("error: interrupted before every probe was done");
            return Ok(interruption.exit_code());
        }
    };
    match format {
        Format::Json => {
            let path = path.map(|path| path.display().to_string());
            report::print_json(path.as_deref(), &findings);
        }
        Format::Text => report::print(&findings, TableWidth::of_stdout()),
    }
    Ok(findings.exit_code().map_or(ExitCode::SUCCESS, ExitCode::from))
}

/// Runs every probe, in an order in which the first error is the one to correct first.
async fn examine(
    file: Option<PathBuf>,
    servers: Servers,
    progress: &Progress,
    mut interruptions: Interruptions,
) -> Result<(Option<PathBuf>, Findings), Interruption> {
    let stopped = CancellationToken::new();
    let mut probes = pin!(run_probes(file, servers, progress, &stopped));
    let interruption = tokio::select! {
        (path, findings) = &mut probes => return Ok((path, findings)),
        interruption = interruptions.next() => interruption,
    };
    stopped.cancel();
    // What was started is ended in order, unless that takes too long or a second signal arrives. Then the keepers of the
    // processes end them when this process exits.
    tokio::select! {
        _ = timeout(END_TIMEOUT, probes) => {}
        _ = interruptions.next() => {}
    }
    Err(interruption)
}

/// When `stopped` is cancelled, the running probe ends, and no other begins.
async fn run_probes(
    file: Option<PathBuf>,
    servers: Servers,
    progress: &Progress,
    stopped: &CancellationToken,
) -> (Option<PathBuf>, Findings) {
    let mut findings = Findings::default();
    progress.step("reading the configuration");
    let loaded = in_background("configuration", &mut findings, stopped, move |found| {
        configuration::probe(file.as_deref(), found)
    });
    let Loaded { path, config } = loaded.await.unwrap_or_default();
    let config = config.map(Arc::new);
    if let (Some(path), Some(config)) = (&path, &config) {
        progress.step("asking Vault");
        let mut found = Findings::default();
        let asked = timeout(VAULT_TIMEOUT, vault::probe(config, stopped.cancelled(), &mut found)).await;
        findings.extend(found);
        let state = asked.unwrap_or_else(|_| {
            out_of_time("vault", VAULT_TIMEOUT, &mut findings);
            VaultState::Unusable
        });
        let may_start = servers == Servers::Start && !findings.has_error("config-invalid");
        if may_start && !stopped.is_cancelled() {
            progress.step("starting each server");
            let rounds = u32::try_from(config.servers.len().div_ceil(servers::AT_ONCE)).unwrap_or(u32::MAX);
            let limit = rounds * (config.limits.server_start_timeout + SERVER_TIMEOUT);
            let mut found = Findings::default();
            let tried = timeout(limit, servers::probe(path, state, stopped, &mut found)).await;
            findings.extend(found);
            if tried.is_err() {
                out_of_time("servers", limit, &mut findings);
            }
        }
        progress.step("looking for the sidecar");
        let mut found = Findings::default();
        let looked = timeout(RELAY_TIMEOUT, relay::probe(config, path, &mut found));
        let looked = stopped.run_until_cancelled(looked).await;
        findings.extend(found);
        if matches!(looked, Some(Err(_))) {
            out_of_time("relay", RELAY_TIMEOUT, &mut findings);
        }
    }
    progress.step("trying sandboxes");
    let mut found = Findings::default();
    let tried = timeout(SANDBOXES_TIMEOUT, sandboxes::probe(stopped, &mut found)).await;
    findings.extend(found);
    if tried.is_err() {
        out_of_time("sandboxes", SANDBOXES_TIMEOUT, &mut findings);
    }
    progress.step("reading the settings of harnesses");
    let for_harnesses = config.clone();
    let probe = move |found: &mut Findings| harnesses::probe(for_harnesses.as_deref(), found);
    in_background("harnesses", &mut findings, stopped, probe).await;
    let for_walls = config.clone();
    in_background("walls", &mut findings, stopped, move |found| walls::probe(for_walls.as_deref(), found))
        .await;
    let probe = move |found: &mut Findings| resources::probe(config.as_deref(), found);
    in_background("resources", &mut findings, stopped, probe).await;
    in_background("clock", &mut findings, stopped, clock::probe).await;
    (path, findings)
}

/// Runs a probe that blocks. Returns nothing if it does not end in time, or `stopped` is cancelled.
async fn in_background<T: Send + 'static>(
    name: &'static str,
    findings: &mut Findings,
    stopped: &CancellationToken,
    probe: impl FnOnce(&mut Findings) -> T + Send + 'static,
) -> Option<T> {
    if stopped.is_cancelled() {
        return None;
    }
    let task = spawn_blocking(move || {
        let mut found = Findings::default();
        let result = probe(&mut found);
        (found, result)
    });
    match stopped.run_until_cancelled(timeout(FILES_TIMEOUT, task)).await? {
        Ok(Ok((found, result))) => {
            findings.extend(found);
            Some(result)
        }
        Ok(Err(_)) => {
            let next = "please report it, with the output of `cofferdam check`";
            findings.error("probe-failed", name, "this probe failed: see the message on stderr", next);
            None
        }
        Err(_) => {
            out_of_time(name, FILES_TIMEOUT, findings);
            None
        }
    }
}

fn out_of_time(name: &str, limit: Duration, findings: &mut Findings) {
    let what = format!("it did not end within {} s", limit.as_secs());
    let next = "is a disk, a network file system or a program slow or hanging there? Then run `cofferdam doctor` again";
    findings.warning("probe-timeout", name, what, next);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_probe_that_fails_is_a_finding_and_none_begins_after_an_interruption() {
        let (stopped, mut findings) = (CancellationToken::new(), Findings::default());
        let failed: Option<()> =
            in_background("limits", &mut findings, &stopped, |_| panic!("as an error of the program")).await;
        assert_eq!(failed, None);
        let codes = |findings: &Findings| findings.0.iter().map(|finding| finding.code).collect::<Vec<_>>();
        assert_eq!(codes(&findings), ["probe-failed"]);
        assert_eq!(findings.exit_code(), Some(Sysexit::Software));
        stopped.cancel();
        let begun = in_background("limits", &mut findings, &stopped, |_| ()).await;
        assert_eq!((begun, codes(&findings).len()), (None, 1));
    }
}
