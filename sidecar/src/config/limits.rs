//! Every limit of the sidecar: its name, its reason, its default and its allowed range.
//!
//! What must stay true: the table below is the only definition. The key under `[limits]`, the checked value, its default,
//! its range and its description in the schema all come from one entry.

use std::time::Duration;

use cofferdam_servers::upstream::http::QUEUED_MESSAGES;
use relay_proto::limits::MAX_WINDOW;
use schemars::JsonSchema;
use serde::Deserialize;

use super::problem::Report;
use super::quantities::{RawCount, RawDuration, RawSize};
use super::spanned::{Span, Spanned};

macro_rules! limits {
    ($( $(#[doc = $reason:literal])+ $name:ident: $type:ty = $unit:ident $default:literal in $min:literal..=$max:literal; )+) => {
        /// Every limit of the sidecar, by name. The keys are these names in kebab-case under `[limits]`.
        #[derive(Clone, Debug, Eq, PartialEq)]
        pub struct Limits {
            $( $(#[doc = $reason])+ pub $name: $type, )+
        }

        impl Default for Limits {
            fn default() -> Self {
                Self { $( $name: $unit::from_literal($default).into_limit(), )+ }
            }
        }

        #[derive(Debug, Default, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case")]
        #[schemars(rename = "Limits")]
        pub(super) struct RawLimits {
            $(
                $(#[doc = $reason])+
                #[schemars(extend("default" = $unit::json_literal($default)))]
                $name: Option<Spanned<$unit>>,
            )+
        }

        impl RawLimits {
            pub(super) fn check(self, report: &mut Report<'_>) -> Limits {
                let sizes = [&self.link_memory, &self.message_bytes, &self.window_bytes];
                let written = sizes.into_iter().flatten().map(|size| &size.span);
                let written = written.chain(self.requests_in_flight.iter().map(|count| &count.span)).next().cloned();
                let limits = self.check_ranges(report);
                if let Some(span) = written {
                    limits.check_link_memory(report, &span);
                }
                limits
            }

            /// Checks each limit by itself.
            fn check_ranges(self, report: &mut Report<'_>) -> Limits {
                let mut limits = Limits::default();
                $(
                    if let Some(written) = self.$name {
                        let key = stringify!($name).replace('_', "-");
                        let range = $unit::from_literal($min)..=$unit::from_literal($max);
                        if let Some(value) = report.check_range(&format!("limits.{key}"), &written, range) {
                            limits.$name = value.into_limit();
                        }
                    }
                )+
                limits
            }
        }

        #[cfg(test)]
        const ENTRIES: &[(&str, &str, &str, &str)] =
            &[$( (stringify!($name), $default, $min, $max), )+];
    };
}

limits! {
    /// Largest MCP message relayed in either direction. TypeScript clients close the connection at a line of 10 MiB.
    message_bytes: usize = RawSize "10239KiB" in "64KiB"..="10239KiB";
    /// Nesting depth of a message. Recursive parsers of servers and harnesses overflow their stacks; the sidecar's own parser stops at 128.
    message_depth: usize = RawCount "128" in "16"..="128";
    /// Sidecar memory that one link may use, however its harness and its servers behave. Messages, windows and requests in flight must fit in it. What scrubbing takes counts for the enrolment.
    link_memory: u64 = RawSize "244MiB" in "13MiB"..="4GiB";
    /// Sidecar memory that the links of one enrolment, or of one user of the shared socket, may use together; at least `link-memory`, and 128 KiB for each of `links`. Of this, 9 × `message-bytes` are kept for scrubbing, of one message at a time; of the rest a link may use no more than it leaves free. At this ceiling servers are not read and shims get no credit.
    enrolment_memory: u64 = RawSize "256MiB" in "13MiB"..="1024GiB";
    /// Sidecar memory that all links may use together, with what scrubbing their messages takes; at least twice `enrolment-memory`. An enrolment may use no more of it than it leaves free.
    total_memory: u64 = RawSize "1GiB" in "13MiB"..="1024GiB";
    /// Time that a response of a server waits for memory, to be received or scrubbed, when a ceiling is reached. Then it is refused, so that two responses that were received in part do not block each other.
    memory_wait: Duration = RawDuration "30s" in "100ms"..="10m";
    /// Requests of one link that wait for a response. The sidecar holds the id and the state of each in memory.
    requests_in_flight: usize = RawCount "256" in "1"..="4096";
    /// Enrolments, including those that ended less than a day ago. Each is a file and an entry in memory.
    enrolments: usize = RawCount "1024" in "1"..="65536";
    /// Sandboxes on platforms that the sidecar attaches. Each has a task, a connection to its platform and an enrolment. What the
    /// tables `[attach.NAME]` leave is shared equally among the grants.
    attachments: usize = RawCount "1024" in "1"..="65536";
    /// Links of one enrolment, or of one user of the shared socket, connected or within `resume-grace`. Each may have server processes.
    links: usize = RawCount "64" in "1"..="65536";
    /// New links of one grant within one minute. Each writes audit records and may start a session. One enrolment, or one user of the shared socket, gets 7/16 of them, and an eighth is only for those that opened none.
    links_per_minute: u32 = RawCount "1200" in "1"..="1000000";
    /// Server processes of one grant. They are the most expensive resource that a sandbox can make the host use. One enrolment, or one user of the shared socket, gets 7/16 of them (56 of 128), and an eighth is only for those that have none.
    processes: usize = RawCount "128" in "1"..="16384";
    /// Server starts of one grant within one minute. A sandbox that connects and disconnects in a loop must not keep the host busy. They are shared like `processes`.
    starts_per_minute: u32 = RawCount "240" in "1"..="60000";
    /// Connections that have not sent `Hello` yet. They have no session, so no other limit counts them.
    greeting_connections: usize = RawCount "64" in "1"..="4096";
    /// Time in which a new connection must send `Hello`. A silent connection is closed.
    greeting_timeout: Duration = RawDuration "5s" in "100ms"..="1m";
    /// Unacknowledged bytes from the shim to the sidecar. The shim holds them in memory to send them again after a reconnect. The window of the other direction is set by the shim, at most 4 MiB.
    window_bytes: u64 = RawSize "2MiB" in "64KiB"..="4MiB";
    /// Time from a server's start to its first response. Harnesses give up on a handshake that takes longer.
    server_start_timeout: Duration = RawDuration "30s" in "100ms"..="10m";
    /// Time in which a replaced process may finish its calls, while the process with the newer credential serves new ones.
    replace_drain: Duration = RawDuration "5m" in "1s"..="1d";
    /// Bytes of each directory in memory of a confined server: its home, its `/tmp` and its `/dev/shm`. They are memory of the host.
    confined_directory_bytes: u64 = RawSize "256MiB" in "1MiB"..="64GiB";
    /// Processes and threads of one confined server, unless its `confine.pids` says otherwise. It cannot use up those of the host. Root's processes are not limited by the kernel.
    confined_processes: u32 = RawCount "1024" in "1"..="65536";
    /// Bytes of one stderr line that are logged. A server may write a line without an end.
    stderr_line_bytes: usize = RawSize "4KiB" in "64B"..="64KiB";
    /// Stderr lines logged per server process and second. A flood of one server must not hide the lines of others.
    stderr_lines_per_second: u32 = RawCount "50" in "1"..="10000";
    /// Bytes of a server's stderr that `cofferdam logs` can show, in two files; the older half is removed when the newer is full. A server must not fill the disk.
    stderr_log_bytes: u64 = RawSize "8MiB" in "1MiB"..="1GiB";
    /// Bytes that are read from a secret source. A credential is small; a device or a wrong file may be endless.
    secret_bytes: usize = RawSize "64KiB" in "16B"..="1MiB";
    /// Time that the program of an `exec` source may take. Calls wait for its result.
    secret_exec_timeout: Duration = RawDuration "10s" in "100ms"..="5m";
    /// Size at which an audit file is rotated: small enough to copy, search and delete.
    audit_file_bytes: u64 = RawSize "64MiB" in "4KiB"..="1GiB";
    /// Audit bytes of one enrolment, or of one user of the shared socket, in all their sessions. They come back evenly within `audit-refill-time`. A link is opened only if the records of its start and its end fit. One sandbox cannot fill the disk.
    audit_session_bytes: u64 = RawSize "256MiB" in "16KiB"..="64GiB";
    /// Time in which used-up `audit-session-bytes` are available again.
    audit_refill_time: Duration = RawDuration "1d" in "1s"..="365d";
    /// Bytes of all audit files. A sandbox is refused when it has used as much as is left here or on the disk, so that there is room for the others. `cofferdam audit prune` makes room.
    audit_total_bytes: u64 = RawSize "16GiB" in "64KiB"..="65536GiB";
    /// Audit records of one enrolment, or of one user of the shared socket, per second on average; bursts of ten seconds' worth are allowed. One sandbox cannot keep the disk busy.
    audit_session_records_per_second: u32 = RawCount "2000" in "1"..="1000000";
    /// Bytes of one field in an audit record; longer values are truncated. Names in a message can be as long as the message.
    audit_field_bytes: usize = RawSize "256B" in "64B"..="4KiB";
    /// HTTP servers: time for name resolution, connection and TLS. `call-timeout` bounds what follows.
    http_connect_timeout: Duration = RawDuration "60s" in "100ms"..="10m";
    /// Time from closing a server's stdin to SIGKILL, when a server or its session ends; SIGTERM is sent after a quarter of it. All processes of a session end within 5 s.
    stop_grace: Duration = RawDuration "2s" in "10ms"..="2s";
}

/// Messages that a link may hold at once, in both directions: being assembled, scrubbed, copied and queued.
const MESSAGES_PER_LINK: u64 = 13 + QUEUED_MESSAGES as u64;
/// What scrubbing a message takes at most, as a multiple of its size, beyond what is charged for receiving it. The scrubber
/// removes texts whole that would take more (`budget` of `cofferdam-scrub`). Measured with runs of letters that belong to
/// several encodings at once, which take the most.
pub(crate) const SCRUBBING_COPIES: usize = 9;
/// Windows that a link may hold at once: received bytes, a copy in transit, and bytes that the server has not read.
const WINDOWS_PER_LINK: u64 = 3;
/// Memory of a request in flight: its names, and the part of its response that an HTTP server has sent so far.
const BYTES_PER_REQUEST: u64 = 66 * 1024;
/// Everything else. 3 MiB: requests queued for a server, requests to retry, messages to replay to a new process, and
/// buffers. Two windows: frames kept until the shim acknowledges them, and a copy in transit; the shim sets that window.
const OTHER_BYTES_PER_LINK: u64 = 3 * 1024 * 1024 + 2 * MAX_WINDOW;

/// What a link is charged at its opening: small buffers, and the smallest window.
const MIN_LINK_BYTES: u64 = SMALL_BUFFERS + SMALL_WINDOW;
/// Frames being decoded and written, short lines and messages.
pub(crate) const SMALL_BUFFERS: u64 = 64 * 1024;
/// The window of a link while memory is scarce. Large requests of such a link take more round trips.
pub(crate) const SMALL_WINDOW: u64 = 64 * 1024;

/// The ceilings of the memory that links use, in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct MemoryCeilings {
    pub(crate) total: usize,
    /// Of one enrolment, or one user of the shared socket.
    pub(crate) sandbox: usize,
    /// The part of `sandbox` that is kept for scrubbing one message.
    pub(crate) scrubbing: usize,
}

impl Limits {
    /// The ceilings, raised to what `links` and `link-memory` need, so that those limits can be reached.
    pub(crate) fn memory_ceilings(&self) -> MemoryCeilings {
        let links = self.links as u64 * MIN_LINK_BYTES;
        let sandbox = self.enrolment_memory.max(self.link_memory).max(links);
        // One sandbox leaves as much as it uses to the others.
        let total = self.total_memory.max(2 * sandbox);
        let scrubbing = SCRUBBING_COPIES * self.message_bytes;
        MemoryCeilings { total: total as usize, sandbox: sandbox as usize, scrubbing }
    }

    /// The most memory that a link can use with these limits.
    fn link_memory_needed(&self) -> u64 {
        self.memory_without_messages() + MESSAGES_PER_LINK * self.message_bytes as u64
    }

    fn memory_without_messages(&self) -> u64 {
        WINDOWS_PER_LINK * self.window_bytes
            + BYTES_PER_REQUEST * self.requests_in_flight as u64
            + OTHER_BYTES_PER_LINK
    }

    fn check_link_memory(&self, report: &mut Report<'_>, span: &Span) {
        let needed = self.link_memory_needed();
        if needed <= self.link_memory {
            return;
        }
        let mebibytes = needed.div_ceil(1024 * 1024);
        let mut hint = format!("raise `limits.link-memory` to {mebibytes}MiB");
        let message_kib =
            self.link_memory.saturating_sub(self.memory_without_messages()) / MESSAGES_PER_LINK / 1024;
        match message_kib >= RawSize::from_literal(MIN_MESSAGE).0 / 1024 {
            true => hint.push_str(&format!(", or lower `limits.message-bytes` to {message_kib}KiB")),
            false => hint.push_str(
                ", or lower `limits.message-bytes`, `limits.window-bytes` and `limits.requests-in-flight`",
            ),
        }
        report.add(
            span,
            "a link could use more than `limits.link-memory`: its messages, windows and requests do not fit",
            hint,
        );
    }
}

/// The smallest value of `message-bytes`.
const MIN_MESSAGE: &str = "64KiB";

/// Converts a raw value to the type of its limit. The ranges in the table keep every value within that type.
trait IntoLimit<T> {
    fn into_limit(self) -> T;
}

impl IntoLimit<Duration> for RawDuration {
    fn into_limit(self) -> Duration {
        self.0
    }
}

impl IntoLimit<u64> for RawSize {
    fn into_limit(self) -> u64 {
        self.0
    }
}

impl IntoLimit<usize> for RawSize {
    fn into_limit(self) -> usize {
        usize::try_from(self.0).expect("the range of a limit fits its type")
    }
}

impl IntoLimit<usize> for RawCount {
    fn into_limit(self) -> usize {
        usize::try_from(self.0).expect("the range of a limit fits its type")
    }
}

impl IntoLimit<u32> for RawCount {
    fn into_limit(self) -> u32 {
        u32::try_from(self.0).expect("the range of a limit fits its type")
    }
}

/// Parses the values in the table above.
macro_rules! literals {
    ($unit:ident as $json:expr) => {
        impl $unit {
            pub(super) fn from_literal(text: &'static str) -> Self {
                text.parse().expect("a value in the source parses: a test reads each of them")
            }

            fn json_literal(text: &'static str) -> serde_json::Value {
                let json: fn(Self) -> serde_json::Value = $json;
                json(Self::from_literal(text))
            }
        }
    };
}

literals!(RawCount as |count| count.0.into());
literals!(RawSize as |size| size.to_string().into());
literals!(RawDuration as |time| time.to_string().into());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_match_the_relay_protocol() {
        let limits = Limits::default();
        assert_eq!(limits.message_bytes, relay_proto::limits::MAX_MESSAGE);
        assert_eq!(limits.message_depth, relay_proto::limits::MAX_DEPTH);
        assert_eq!(limits.window_bytes, relay_proto::limits::DEFAULT_WINDOW);
        assert_eq!(limits.greeting_timeout, Duration::from_secs(5));
    }

    #[test]
    fn the_defaults_fit_in_link_memory_and_other_values_get_a_hint() {
        let limits = Limits::default();
        assert!(
            limits.link_memory_needed() <= limits.link_memory
                && limits.link_memory_needed() * 11 / 10 > limits.link_memory
        );
        for (text, hint) in [
            ("link-memory = \"100MiB\"", Some("to 244MiB, or lower `limits.message-bytes` to 3242KiB")),
            ("link-memory = \"100MiB\"\nmessage-bytes = \"3242KiB\"", None),
            ("link-memory = \"100MiB\"\nmessage-bytes = \"3243KiB\"", Some("to 101MiB")),
            ("requests-in-flight = 4096", Some("to 491MiB")),
            ("link-memory = \"13MiB\"", Some("and `limits.requests-in-flight`")),
        ] {
            let mut report = Report::new(text);
            toml::from_str::<RawLimits>(text).unwrap().check(&mut report);
            let problems = report.into_problems("cofferdam.toml".into());
            let found = problems.list.first().map(|problem| problem.hint.as_str());
            assert_eq!(found.is_some(), hint.is_some(), "{text}: {found:?}");
            assert!(found.zip(hint).is_none_or(|(found, hint)| found.contains(hint)), "{text}: {found:?}");
        }
    }

    #[test]
    fn memory_ceilings_have_room_for_the_other_limits() {
        const MIB: usize = 1024 * 1024;
        let scrubbing = 9 * Limits::default().message_bytes;
        let defaults = MemoryCeilings { total: 1024 * MIB, sandbox: 256 * MIB, scrubbing };
        assert_eq!(Limits::default().memory_ceilings(), defaults);
        for (limits, sandbox) in [
            (Limits { link_memory: 4096 * MIB as u64, ..Limits::default() }, 4096 * MIB),
            (Limits { links: 8192, ..Limits::default() }, 1024 * MIB),
            (Limits { enrolment_memory: 600 * MIB as u64, ..Limits::default() }, 600 * MIB),
        ] {
            assert_eq!(limits.memory_ceilings(), MemoryCeilings { total: 2 * sandbox, sandbox, scrubbing });
        }
    }

    #[test]
    fn every_limit_accepts_its_default_minimum_and_maximum() {
        for (name, default, min, max) in ENTRIES {
            for text in [default, min, max] {
                let value = match text.parse::<u64>() {
                    Ok(number) => number.to_string(),
                    Err(_) => format!("\"{text}\""),
                };
                let line = format!("{} = {value}", name.replace('_', "-"));
                let raw: RawLimits = toml::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
                let mut report = Report::new(&line);
                raw.check_ranges(&mut report);
                assert!(report.is_empty(), "{line}");
            }
        }
    }
}
