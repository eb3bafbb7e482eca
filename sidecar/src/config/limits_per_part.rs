//! Converts `[limits]` into the limits of each part of the sidecar. Each part has its own type for them and does not
//! import `config`.

use cofferdam_secrets::SourceLimits;
use cofferdam_servers::grant_limits::GrantBounds;
use cofferdam_servers::spec::ServerLimits;

use super::Limits;

impl From<&Limits> for SourceLimits {
    fn from(limits: &Limits) -> Self {
        Self { bytes: limits.secret_bytes, exec_timeout: limits.secret_exec_timeout }
    }
}

impl From<&Limits> for ServerLimits {
    fn from(limits: &Limits) -> Self {
        Self {
            message_bytes: limits.message_bytes,
            requests_in_flight: limits.requests_in_flight,
            memory_wait: limits.memory_wait,
            http_connect_timeout: limits.http_connect_timeout,
            start_timeout: limits.server_start_timeout,
            replace_drain: limits.replace_drain,
            stop_grace: limits.stop_grace,
            stderr_line_bytes: limits.stderr_line_bytes,
            stderr_lines_per_second: limits.stderr_lines_per_second,
            confined_directory_bytes: limits.confined_directory_bytes,
            confined_processes: limits.confined_processes,
            sources: limits.into(),
        }
    }
}

impl From<&Limits> for GrantBounds {
    fn from(limits: &Limits) -> Self {
        Self {
            processes: limits.processes,
            links_per_minute: limits.links_per_minute,
            starts_per_minute: limits.starts_per_minute,
        }
    }
}
