//! The machine and the versions of the contenders. No host names, no paths.

use std::time::Duration;

use crate::awake::CoreSleep;
use crate::process::{command, output_of};
use crate::program_paths::ProgramPaths;

/// Where the numbers were measured, and what is compared.
#[derive(Debug)]
pub(crate) struct Host {
    /// Cores, memory, architecture and kernel in one line.
    pub(crate) machine: String,
    pub(crate) core_sleep: CoreSleep,
    pub(crate) versions: Vec<String>,
}

impl Host {
    pub(crate) fn describe(paths: &ProgramPaths, core_sleep: CoreSleep) -> Self {
        Self { machine: summary(), core_sleep, versions: versions(paths) }
    }
}

fn summary() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    format!(
        "{cores} cores, {} of memory, {}, Linux {}",
        memory(&meminfo).unwrap_or_else(|| "an unknown amount".into()),
        std::env::consts::ARCH,
        kernel(&release)
    )
}

fn versions(paths: &ProgramPaths) -> Vec<String> {
    let path_of = |word: &str| paths.fill(word.into()).ok();
    let printed = |program: Option<String>, argument| {
        let mut query = command(program?);
        query.arg(argument);
        output_of(query, VERSION_TIMEOUT)
    };
    let socat = printed(path_of("{socat}"), "-V").and_then(|text| {
        let version = text.split_once("socat version ")?.1.split_whitespace().next()?;
        Some(format!("socat {version}"))
    });
    let one_line = |text: String| text.lines().next().map(|line| line.trim().to_owned());
    let mcp_proxy = printed(path_of("{mcp-proxy}"), "--version").and_then(one_line);
    let node =
        printed(Some("node".into()), "--version").and_then(one_line).map(|text| format!("Node.js {text}"));
    let python = printed(Some("python3".into()), "--version").and_then(one_line);
    let npm = ["mcp-remote", "supergateway"].map(|package| paths.npm_version(package));
    [socat, mcp_proxy, python].into_iter().chain(npm).chain([node]).flatten().collect()
}

const VERSION_TIMEOUT: Duration = Duration::from_secs(20);

/// The version without the vendor's suffix, which may name the machine's provider.
fn kernel(release: &str) -> &str {
    let version = release.trim();
    let end = version.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
    &version[..end.unwrap_or(version.len())]
}

fn memory(meminfo: &str) -> Option<String> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(format!("{:.0} GiB", kibibytes / f64::from(1 << 20)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_version_and_memory_are_read() {
        assert_eq!(kernel("6.1.0-18-cloud-amd64\n"), "6.1.0");
        assert_eq!(memory("MemTotal:        8148176 kB\nMemFree: 1 kB\n").unwrap(), "8 GiB");
    }
}
