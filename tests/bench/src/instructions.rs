//! Counts instructions with callgrind. The counts are recorded for comparison with later versions; there is no target.
//!
//! Each count is the difference between a run with 2 n frames or calls and a run with n, divided by n, so that the costs of
//! start and exit cancel out. Instructions in the kernel are not counted.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::bench_error::BenchError;
use crate::client::Client;
use crate::contender::{Contender, PreparedContender};
use crate::contenders::{COFFERDAM, CONTENDERS, SOCAT};
use crate::process::{Running, command, into_file, on_path};
use crate::program_paths::ProgramPaths;

/// One row of the report's table.
#[derive(Debug)]
pub(crate) struct InstructionCount {
    pub(crate) what: &'static str,
    /// Instructions per frame or call, or the reason why there is no number.
    pub(crate) instructions: Result<u64, String>,
}

/// Counts everything, with temporary files below `dir`.
pub(crate) fn count_all(dir: &Path, paths: &ProgramPaths) -> Vec<InstructionCount> {
    let Some(valgrind) = on_path("valgrind") else {
        let missing = "valgrind is missing; `tests/tools --bench` installs it";
        return vec![InstructionCount { what: "all counts", instructions: Err(missing.into()) }];
    };
    let callgrind = Callgrind { valgrind, dir, paths };
    let mut counts = Vec::new();
    let mut record = |what: &'static str, instructions: Result<u64, BenchError>| {
        eprintln!("bench: counted: {what}");
        counts
            .push(InstructionCount { what, instructions: instructions.map_err(|error| error.with_causes()) });
    };
    record("codec: one frame with a small call, encoded and decoded", callgrind.codec("small", FRAMES));
    record(
        "codec: one full frame (64 KiB), encoded and decoded; a copied byte may count as one",
        callgrind.codec("full", FULL_FRAMES),
    );
    record("one relayed call in the client's end of the two socat", callgrind.client(SOCAT));
    record("one relayed call in the shim", callgrind.client(COFFERDAM));
    record("one relayed call in the sidecar", callgrind.sidecar());
    counts
}

struct Callgrind<'a> {
    valgrind: PathBuf,
    dir: &'a Path,
    paths: &'a ProgramPaths,
}

const FRAMES: u64 = 10_000;
const FULL_FRAMES: u64 = 500;
const CALLS: u64 = 400;
/// Under valgrind everything is some fifty times slower.
const VALGRIND_TIMEOUT: Duration = Duration::from_secs(20);

impl Callgrind<'_> {
    fn codec(&self, body: &str, frames: u64) -> Result<u64, BenchError> {
        let this_program = std::env::current_exe()
            .map_err(|source| BenchError::Read { what: "the path of this program".into(), source })?;
        self.count_per_unit(frames, |out, frames| {
            let prefix = self.prefix(out);
            let mut counted = command(&prefix[0]);
            counted.args(&prefix[1..]).arg(&this_program).args(["codec", body, &frames.to_string()]);
            counted.stdin(Stdio::null()).stdout(Stdio::null()).stderr(into_file(&self.dir.join("codec.log")));
            let status = Running::spawn(counted, "the codec")?.ends_within(VALGRIND_TIMEOUT);
            match status.is_some_and(|status| status.success()) {
                true => Ok(()),
                false => Err(BenchError::Ended { what: "the codec".into(), last_log_line: String::new() }),
            }
        })
    }

    /// Counts the program that the harness starts; the host's program runs uncounted.
    fn client(&self, name: &str) -> Result<u64, BenchError> {
        let prepared = self.prepare(name, "client")?;
        let _host = prepared.start_host()?;
        self.count_per_unit(CALLS, |out, calls| {
            let mut client = Client::start(&prepared.client.under(&self.prefix(out)))?;
            for _ in 0..calls {
                client.small_call()?;
            }
            client.end();
            Ok(())
        })
    }

    /// Counts the sidecar; the shim runs uncounted.
    fn sidecar(&self) -> Result<u64, BenchError> {
        let this_program = std::env::current_exe()
            .map_err(|source| BenchError::Read { what: "the path of this program".into(), source })?;
        let counted = this_program.with_file_name("bench-sidecar").display().to_string();
        self.count_per_unit(CALLS, |out, calls| {
            let mut prepared = self.prepare(COFFERDAM, "host")?;
            prepared.host.argv[0].clone_from(&counted);
            prepared.host = prepared.host.under(&self.prefix(out));
            let mut host = prepared.start_host()?;
            let mut client = Client::start(&prepared.client)?;
            for _ in 0..calls {
                client.small_call()?;
            }
            client.end();
            // Callgrind writes its counts only when the process exits normally.
            if let Some(host) = &mut host {
                host.end(VALGRIND_TIMEOUT);
            }
            Ok(())
        })
    }

    fn prepare(&self, name: &str, side: &str) -> Result<PreparedContender, BenchError> {
        let contender: Option<&Contender> = CONTENDERS.iter().find(|contender| contender.name == name);
        let contender = contender.ok_or_else(|| BenchError::Missing(format!("a contender `{name}`")))?;
        contender.prepare(&self.dir.join(format!("{side}-of-{}", name.replace(' ', "-"))), self.paths)
    }

    fn prefix(&self, out: &Path) -> Vec<String> {
        vec![
            self.valgrind.display().to_string(),
            "--tool=callgrind".into(),
            format!("--callgrind-out-file={}", out.display()),
        ]
    }

    fn count_per_unit(
        &self,
        work: u64,
        mut run: impl FnMut(&Path, u64) -> Result<(), BenchError>,
    ) -> Result<u64, BenchError> {
        let mut counted = |work| {
            let out = tempfile::Builder::new().prefix("callgrind-").tempdir_in(self.dir);
            let out =
                out.map_err(|source| BenchError::Write { what: "a directory for counts".into(), source })?;
            // Processes that the counted process forks write their counts to other files in the same directory.
            run(&out.path().join("out.%p"), work)?;
            total(out.path())
        };
        let (once, twice) = (counted(work)?, counted(2 * work)?);
        Ok(twice.saturating_sub(once) / work)
    }
}

/// The largest total of the files that callgrind wrote: that of the counted process, not of those that it forked.
fn total(dir: &Path) -> Result<u64, BenchError> {
    let read = |source| BenchError::Read { what: "callgrind's counts".into(), source };
    let mut largest = None;
    for entry in std::fs::read_dir(dir).map_err(read)? {
        let text = std::fs::read(entry.map_err(read)?.path()).map_err(read)?;
        largest = largest.max(total_in(&String::from_utf8_lossy(&text)));
    }
    largest.ok_or_else(|| BenchError::Missing("callgrind's counts: the process did not exit normally".into()))
}

fn total_in(counts: &str) -> Option<u64> {
    let number = |line: &str| line.split_once(':').and_then(|(_, number)| number.trim().parse().ok());
    let line = |name| counts.lines().rev().find(|line: &&str| line.starts_with(name)).and_then(number);
    line("totals:").or_else(|| line("summary:"))
}

#[cfg(test)]
mod tests {
    use super::total_in;

    #[test]
    fn the_total_is_read_from_totals_or_summary() {
        assert_eq!(total_in("events: Ir\nsummary: 12\nfn=(1)\n1 2\n\ntotals: 34\n"), Some(34));
        assert_eq!(total_in("summary: 12\n"), Some(12));
        assert_eq!(total_in("fn=(1)\n"), None);
    }
}
