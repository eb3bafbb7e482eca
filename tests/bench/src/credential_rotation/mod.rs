//! Measures calls to a server with credentials from Vault: while they stay the same, and while its process is replaced because
//! they changed.
//!
//! Two sidecars that differ in where the credential is, in a file or in a real OpenBao, are called in turn. A third
//! checks its secret every second, and the benchmark changes that secret repeatedly; its harness makes calls one at a
//! time. A call counts as made during a replacement if the server had two processes when the call began or ended, or if
//! the process changed in between. Any error ends the measurement and is in the report.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use crate::bench_error::BenchError;
use crate::client::Client;
use crate::clock::{Deadline, now};
use crate::contender::{Contender, PreparedContender, Ready, replace_in};
use crate::contenders::{COFFERDAM, CONTENDERS, SIDECAR, SIDECAR_DIRECTORIES};
use crate::measure::{RoundLimits, SmallCalls};
use crate::process::Running;
use crate::program_paths::ProgramPaths;

use self::openbao::{OpenBao, TOKEN};

mod openbao;

/// The name of this measurement for `--only`.
pub(crate) const CREDENTIAL_ROTATION: &str = "vault";

#[derive(Clone, Debug)]
pub(crate) struct CredentialRotationResults {
    /// The rounds with a credential from a file, and with one from Vault, made in turn.
    pub(crate) from_file: Vec<SmallCalls>,
    pub(crate) from_vault: Vec<SmallCalls>,
    /// All calls while one process ran, and while a new process replaced it.
    pub(crate) quiet: SmallCalls,
    pub(crate) during: SmallCalls,
    /// The longest call of those during a replacement.
    pub(crate) longest: Duration,
    pub(crate) replacements: usize,
}

/// Runs the measurement; `dir` is for the files of the sidecars and of OpenBao.
pub(crate) fn run(
    limits: RoundLimits,
    dir: &Path,
    paths: &ProgramPaths,
) -> Result<CredentialRotationResults, BenchError> {
    let dir = dir.join(CREDENTIAL_ROTATION);
    let bao = OpenBao::start(&dir.join("openbao"), paths)?;
    let cofferdam = CONTENDERS.iter().find(|contender| contender.name == COFFERDAM);
    let cofferdam = cofferdam.ok_or_else(|| BenchError::Missing("cofferdam among the contenders".into()))?;
    let file = Sidecar::start(cofferdam.prepare(&dir.join("file"), paths)?)?;
    let warm = Sidecar::start(prepare_with_vault(&dir.join("warm"), paths, &bao, "1h")?)?;
    let replacing = Sidecar::start(prepare_with_vault(&dir.join("replacing"), paths, &bao, "1s")?)?;
    let (from_file, from_vault) = side_by_side(limits, &file, &warm)?;
    let (quiet, during) = calls_during_replacements(limits, &replacing, &bao)?;
    let longest = during.iter().max().copied().unwrap_or_default();
    let (quiet, during) = (SmallCalls::of(quiet), SmallCalls::of(during));
    eprintln!(
        "bench: {} replacements; p99 of calls during a replacement {:?}, of other calls {:?}",
        limits.rounds, during.p99, quiet.p99
    );
    Ok(CredentialRotationResults {
        from_file,
        from_vault,
        quiet,
        during,
        longest,
        replacements: limits.rounds,
    })
}

const SOCKET: &str = "relay/relay.sock";
const SIDECAR_AT_VAULT: Contender = Contender {
    name: CREDENTIAL_ROTATION,
    about: "a sidecar at OpenBao",
    directories: SIDECAR_DIRECTORIES,
    files: &[("cofferdam.toml", include_str!("cofferdam.toml")), ("token", TOKEN)],
    host: SIDECAR,
    ready: Ready::Unix(SOCKET),
    enrol: &[],
    client: &["{shim}", "--relay", "unix:{dir}/relay/relay.sock", "--server", "bench"],
    env: &[],
};
const MAX_CALLS: usize = 5_000;
const WARM_UP_CALLS: usize = 1_000;
/// Enough for the check after a second, the start of the new process and the end of the old one.
const REPLACEMENT_TIMEOUT: Duration = Duration::from_secs(20);
/// The time between two replacements.
const QUIET: Duration = Duration::from_millis(500);

struct Sidecar {
    host: Running,
    prepared: PreparedContender,
}

impl Sidecar {
    fn start(prepared: PreparedContender) -> Result<Self, BenchError> {
        let host = prepared.start_host()?.ok_or_else(|| BenchError::Missing("a sidecar".into()))?;
        Ok(Self { host, prepared })
    }

    /// A harness after its warm-up calls.
    fn client(&self) -> Result<Client, BenchError> {
        let mut client = Client::start(&self.prepared.client)?;
        for _ in 0..WARM_UP_CALLS {
            client.small_call()?;
        }
        Ok(client)
    }

    /// The sidecar's child processes: one keeper for each server process.
    fn children(&self) -> BTreeSet<u32> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.host.child.id()));
        let children = tasks.into_iter().flatten().flatten().filter_map(|task| {
            let text = std::fs::read_to_string(task.path().join("children")).ok()?;
            Some(text.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<u32>>())
        });
        children.flatten().collect()
    }
}

/// Prepares a sidecar and writes the address of the running Vault into its configuration.
fn prepare_with_vault(
    dir: &Path,
    paths: &ProgramPaths,
    bao: &OpenBao,
    refresh: &str,
) -> Result<PreparedContender, BenchError> {
    let prepared = SIDECAR_AT_VAULT.prepare(dir, paths)?;
    replace_in(&dir.join("cofferdam.toml"), &[("{vault}", &bao.address()), ("{refresh}", refresh)])?;
    Ok(prepared)
}

fn side_by_side(
    limits: RoundLimits,
    file: &Sidecar,
    vault: &Sidecar,
) -> Result<(Vec<SmallCalls>, Vec<SmallCalls>), BenchError> {
    let round = |sidecar: &Sidecar| {
        let mut client = sidecar.client()?;
        let small = limits.small_calls(MAX_CALLS, || client.small_call())?;
        client.end();
        Ok::<_, BenchError>(small)
    };
    let (mut from_file, mut from_vault) = (Vec::new(), Vec::new());
    for number in 1..=limits.rounds {
        // Each round starts with the other sidecar, so that neither always has the same position.
        let (of_file, of_vault) = match number % 2 {
            0 => (round(file)?, round(vault)?),
            _ => {
                let of_vault = round(vault)?;
                (round(file)?, of_vault)
            }
        };
        eprintln!(
            "bench: round {number}, small call with a credential from a file: {:?}, from Vault: {:?}",
            of_file.median, of_vault.median
        );
        from_file.push(of_file);
        from_vault.push(of_vault);
    }
    Ok((from_file, from_vault))
}

/// Makes calls without a pause while the credential changes repeatedly; returns the durations of calls without and with
/// a replacement.
fn calls_during_replacements(
    limits: RoundLimits,
    sidecar: &Sidecar,
    bao: &OpenBao,
) -> Result<(Vec<Duration>, Vec<Duration>), BenchError> {
    let mut client = sidecar.client()?;
    let (mut quiet, mut during) = (Vec::new(), Vec::new());
    let mut before = sidecar.children();
    for number in 1..=limits.rounds {
        let first = before.clone();
        bao.change_secret(number)?;
        let deadline = Deadline::after(REPLACEMENT_TIMEOUT);
        let mut quiet_time: Option<Deadline> = None;
        while quiet_time.is_none_or(|quiet_time| !quiet_time.is_over()) {
            let begin = now();
            client.small_call()?;
            let took = begin.elapsed();
            let after = sidecar.children();
            match before.len() == 1 && before == after {
                true => quiet.push(took),
                false => during.push(took),
            }
            if after.len() == 1 && after != first {
                quiet_time = quiet_time.or_else(|| Some(Deadline::after(QUIET)));
            } else if deadline.is_over() {
                return Err(BenchError::UnexpectedResponse("no process was replaced".into()));
            }
            before = after;
        }
    }
    client.end();
    Ok((quiet, during))
}
