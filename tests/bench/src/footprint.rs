//! Measures the size of programs, their resident memory, their processor time and how often they wake up.

use std::path::Path;
use std::time::Duration;

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

/// The processor time and wake-ups of a process's threads since their start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Activity {
    pub(crate) processor: Duration,
    /// How often a thread has waited for something and was woken.
    pub(crate) wake_ups: u64,
}

impl Activity {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            processor: self.processor.saturating_sub(before.processor),
            wake_ups: self.wake_ups.saturating_sub(before.wake_ups),
        }
    }
}

/// The activity of all threads that a process has now.
pub(crate) fn activity(process: u32) -> Result<Activity, BenchError> {
    let read = |source| BenchError::Read { what: "the activity of a process".into(), source };
    let mut total = Activity::default();
    for thread in std::fs::read_dir(format!("/proc/{process}/task")).map_err(read)?.flatten() {
        // The thread may have ended meanwhile.
        let Ok(schedule) = std::fs::read_to_string(thread.path().join("schedstat")) else { continue };
        let Ok(status) = std::fs::read_to_string(thread.path().join("status")) else { continue };
        let missing = || BenchError::Missing("schedstat or voluntary_ctxt_switches of a thread".into());
        total.processor += processor_in(&schedule).ok_or_else(missing)?;
        total.wake_ups += wake_ups_in(&status).ok_or_else(missing)?;
    }
    Ok(total)
}

/// The first number is nanoseconds on a processor.
fn processor_in(schedule: &str) -> Option<Duration> {
    schedule.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

fn wake_ups_in(status: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()
}

fn resident_in(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_in_bytes() {
        assert_eq!(resident_in("Name:\tx\nVmRSS:\t    1464 kB\nRssAnon:\t 9 kB\n"), Some(1464 * 1024));
    }
    #[test]
    fn processor_time_is_in_nanoseconds_and_only_voluntary_switches_are_wake_ups() {
        assert_eq!(processor_in("1500000000 77 12\n"), Some(Duration::from_millis(1500)));
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t41\nnonvoluntary_ctxt_switches:\t7\n";
        assert_eq!(wake_ups_in(status), Some(41));
    }
}
