//! The size of the client's program, and its resident memory after calls.

use std::path::Path;

use crate::bench_error::BenchError;
use crate::client::Client;
use crate::contender::CommandLine;
use crate::measure::LARGE;

/// Resident memory of a client, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResidentMemory {
    pub(crate) after_small_calls: u64,
    /// After another call, with a large result, whose memory should have been freed.
    pub(crate) after_large_call: u64,
}

pub(crate) const SMALL_CALLS: usize = 1_000;

/// Starts a new client, so that earlier calls do not count. Only the process that the harness starts is measured.
pub(crate) fn measure_memory(line: &CommandLine) -> Result<ResidentMemory, BenchError> {
    let mut client = Client::start(line)?;
    for _ in 0..SMALL_CALLS {
        client.small_call()?;
    }
    let after_small_calls = resident(client.process_id())?;
    client.large_call(LARGE)?;
    client.small_call()?;
    let after_large_call = resident(client.process_id())?;
    client.end();
    Ok(ResidentMemory { after_small_calls, after_large_call })
}

pub(crate) fn file_size(path: &Path) -> Result<u64, BenchError> {
    let metadata = std::fs::metadata(path);
    Ok(metadata.map_err(|source| BenchError::Read { what: "the size of the shim".into(), source })?.len())
}

/// Bytes of a process that are in memory.
pub(crate) fn resident(process: u32) -> Result<u64, BenchError> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    let status =
        status.map_err(|source| BenchError::Read { what: "the memory of a process".into(), source })?;
    resident_in(&status).ok_or_else(|| BenchError::Missing("VmRSS of a process".into()))
}

fn resident_in(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::resident_in;

    #[test]
    fn resident_memory_is_read_in_bytes() {
        assert_eq!(resident_in("Name:\tx\nVmRSS:\t    1464 kB\nRssAnon:\t 9 kB\n"), Some(1464 * 1024));
    }
}
