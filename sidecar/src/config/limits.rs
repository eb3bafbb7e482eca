//! Every bound of the sidecar: its name, the reason it exists, its default, and how far it can be moved.
//!
//! Must stay true: this table is the only place. The key under `[limits]`, the checked value, its default, its
//! range and its words in the schema all come from one entry.

use std::time::Duration;

use relay_proto::limits::MAX_WINDOW;
use schemars::JsonSchema;
use serde::Deserialize;

use super::at::{At, Span};
use super::problem::Report;
use super::units::{Count, Size, Time};
use cofferdam_servers::upstream::http::QUEUED_MESSAGES;

macro_rules! limits {
    ($( $(#[doc = $reason:literal])+ $name:ident: $type:ty = $unit:ident $default:literal in $least:literal..=$most:literal; )+) => {
        /// Every bound of the sidecar, by name. The keys are these names in kebab-case under `[limits]`.
        #[derive(Clone, Debug, Eq, PartialEq)]
        pub struct Limits {
            $( $(#[doc = $reason])+ pub $name: $type, )+
        }

        impl Default for Limits {
            fn default() -> Self {
                Self { $( $name: $unit::known($default).bound(), )+ }
            }
        }

        #[derive(Debug, Default, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case")]
        #[schemars(rename = "Limits")]
        pub(super) struct RawLimits {
            $(
                $(#[doc = $reason])+
                #[schemars(extend("default" = $unit::json($default)))]
                $name: Option<At<$unit>>,
            )+
        }

        impl RawLimits {
            pub(super) fn check(self, report: &mut Report<'_>) -> Limits {
                let sizes = [&self.link_memory, &self.message_bytes, &self.window_bytes];
                let written = sizes.into_iter().flatten().map(|size| &size.span);
                let written = written.chain(self.requests_in_flight.iter().map(|count| &count.span)).next().cloned();
                let limits = self.ranges(report);
                if let Some(span) = written {
                    limits.fit_a_link(report, &span);
                }
                limits
            }

            /// Each by itself.
            fn ranges(self, report: &mut Report<'_>) -> Limits {
                let mut limits = Limits::default();
                $(
                    if let Some(written) = self.$name {
                        let key = stringify!($name).replace('_', "-");
                        let range = $unit::known($least)..=$unit::known($most);
                        if let Some(value) = report.within(&format!("limits.{key}"), &written, range) {
                            limits.$name = value.bound();
                        }
                    }
                )+
                limits
            }
        }

        #[cfg(test)]
        const ENTRIES: &[(&str, &str, &str, &str)] =
            &[$( (stringify!($name), $default, $least, $most), )+];
    };
}

limits! {
    /// Largest MCP message relayed in either direction. TypeScript clients close the connection at a line of 10 MiB.
    message_bytes: usize = Size "10239KiB" in "64KiB"..="10239KiB";
    /// Nesting of a message. Recursive parsers behind us overflow their stacks, and our own reads no deeper.
    message_depth: usize = Count "128" in "16"..="128";
    /// Memory that one link may take of the sidecar, however it, its harness or its server behaves. The sizes of messages and windows must fit in it. A process of a scope may take as much again.
    link_memory: u64 = Size "244MiB" in "13MiB"..="4GiB";
    /// Requests of one link that wait for an answer. Each keeps its id and its place in memory.
    requests_in_flight: usize = Count "256" in "1"..="4096";
    /// Enrolments, those included that were over within a day. Each is a file, and a place in memory.
    enrolments: usize = Count "1024" in "1"..="65536";
    /// Links of the shared socket or of one enrolment, connected or within their grace. Each may hold processes.
    links: usize = Count "64" in "1"..="65536";
    /// New links of one grant within one minute. Each is a session with records of its own in the audit.
    links_per_minute: u32 = Count "600" in "1"..="1000000";
    /// Server processes of one grant. They are the dearest thing that a sandbox can make the host do.
    processes: usize = Count "64" in "1"..="16384";
    /// Server starts of one grant within one minute. A loop of connecting and leaving must not keep the host busy.
    starts_per_minute: u32 = Count "120" in "1"..="60000";
    /// Connections that have not said Hello yet. They belong to no session, so no other limit counts them.
    greeting_connections: usize = Count "64" in "1"..="4096";
    /// Time to say Hello. A silent connection gives its place back.
    greeting_timeout: Duration = Time "5s" in "100ms"..="1m";
    /// Unacknowledged bytes from the shim to the sidecar. The shim keeps them in memory to replay after a cut; the other direction's window is the shim's to give, 4 MiB at most.
    window_bytes: u64 = Size "2MiB" in "64KiB"..="4MiB";
    /// Time from start to the first answer of a server. Harnesses give up on a handshake that takes longer.
    server_start_timeout: Duration = Time "30s" in "100ms"..="10m";
    /// Time that a process may go on with its calls once another with a newer credential has taken over. Two run meanwhile.
    replace_drain: Duration = Time "5m" in "1s"..="1d";
    /// Bytes of one stderr line kept for the log. A server may write without ever ending the line.
    stderr_line_bytes: usize = Size "4KiB" in "64B"..="64KiB";
    /// Stderr lines logged per server process and second. A flood must not drown the log of the others.
    stderr_lines_per_second: u32 = Count "50" in "1"..="10000";
    /// Bytes of a secret source's output. A credential is small; a device or a wrong file is not.
    secret_bytes: usize = Size "64KiB" in "16B"..="1MiB";
    /// Time an `exec` source may take. A call waits for it.
    secret_exec_timeout: Duration = Time "10s" in "100ms"..="5m";
    /// One audit file before rotation. Small enough to copy, search and throw away.
    audit_file_bytes: u64 = Size "64MiB" in "4KiB"..="1GiB";
    /// Audit bytes of one session. One session cannot fill the disk for the others.
    audit_session_bytes: u64 = Size "256MiB" in "4KiB"..="64GiB";
    /// Audit records of one session per second, sustained; a burst of ten seconds' worth is allowed. One session cannot keep the disk busy for the others.
    audit_session_records_per_second: u32 = Count "2000" in "1"..="1000000";
    /// Bytes of one field in an audit record before it is cut. Names in a message can be as long as the message.
    audit_field_bytes: usize = Size "256B" in "64B"..="4KiB";
    /// HTTP: name, connection and TLS must be there within this. The call's own time-out rules what follows.
    http_connect_timeout: Duration = Time "60s" in "100ms"..="10m";
    /// Time that the children of an ended server or session may take to die politely. The end is promised within 5 s.
    stop_grace: Duration = Time "2s" in "10ms"..="2s";
}

/// Messages that a link may hold at once: being put together, scrubbed, copied on and waiting, in both directions.
const MESSAGES: u64 = 13 + QUEUED_MESSAGES as u64;
/// Windows: what has come, a copy on its way, and what its server has not read.
const WINDOWS: u64 = 3;
/// A request under way: its names, and what an HTTP server has answered of it so far.
const PER_REQUEST: u64 = 66 * 1024;
/// What waits for a server, what waits to be repeated, what a new process must be told, and buffers; and what is kept for
/// a shim until it acknowledges it, with a copy on its way: the window is the shim's to give.
const BESIDES: u64 = 3 * 1024 * 1024 + 2 * MAX_WINDOW;

impl Limits {
    /// The most that a link takes.
    fn of_a_link(&self) -> u64 {
        self.besides_messages() + MESSAGES * self.message_bytes as u64
    }

    fn besides_messages(&self) -> u64 {
        WINDOWS * self.window_bytes + PER_REQUEST * self.requests_in_flight as u64 + BESIDES
    }

    fn fit_a_link(&self, report: &mut Report<'_>, span: &Span) {
        let needed = self.of_a_link();
        if needed <= self.link_memory {
            return;
        }
        let mebibytes = needed.div_ceil(1024 * 1024);
        let mut hint = format!("raise `limits.link-memory` to {mebibytes}MiB");
        let messages = self.link_memory.saturating_sub(self.besides_messages()) / MESSAGES / 1024;
        match messages >= Size::known(LEAST_MESSAGE).0 / 1024 {
            true => hint.push_str(&format!(", or lower `limits.message-bytes` to {messages}KiB")),
            false => hint.push_str(
                ", or lower `limits.message-bytes`, `limits.window-bytes` and `limits.requests-in-flight`",
            ),
        }
        report.add(
            span,
            "a link could take more than `limits.link-memory`: its messages, windows and requests do not fit",
            hint,
        );
    }
}

/// `message-bytes` goes no lower.
const LEAST_MESSAGE: &str = "64KiB";

/// A written unit as the type that the code uses. The ranges above keep every value within that type.
trait Bound<T> {
    fn bound(self) -> T;
}

impl Bound<Duration> for Time {
    fn bound(self) -> Duration {
        self.0
    }
}

impl Bound<u64> for Size {
    fn bound(self) -> u64 {
        self.0
    }
}

impl Bound<usize> for Size {
    fn bound(self) -> usize {
        usize::try_from(self.0).expect("the range of a limit fits its type")
    }
}

impl Bound<usize> for Count {
    fn bound(self) -> usize {
        usize::try_from(self.0).expect("the range of a limit fits its type")
    }
}

impl Bound<u32> for Count {
    fn bound(self) -> u32 {
        u32::try_from(self.0).expect("the range of a limit fits its type")
    }
}

/// The texts of the table above.
macro_rules! known {
    ($unit:ident as $json:expr) => {
        impl $unit {
            pub(super) fn known(text: &'static str) -> Self {
                text.parse().expect("a value in the source parses: a test reads each of them")
            }

            fn json(text: &'static str) -> serde_json::Value {
                let json: fn(Self) -> serde_json::Value = $json;
                json(Self::known(text))
            }
        }
    };
}

known!(Count as |count| count.0.into());
known!(Size as |size| size.to_string().into());
known!(Time as |time| time.to_string().into());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_wire() {
        let limits = Limits::default();
        assert_eq!(limits.message_bytes, relay_proto::limits::MAX_MESSAGE);
        assert_eq!(limits.message_depth, relay_proto::limits::MAX_DEPTH);
        assert_eq!(limits.window_bytes, relay_proto::limits::DEFAULT_WINDOW);
        assert_eq!(limits.greeting_timeout, Duration::from_secs(5));
    }

    #[test]
    fn the_defaults_fit_a_link_and_what_does_not_is_told_what_to_do() {
        let limits = Limits::default();
        assert!(
            limits.of_a_link() <= limits.link_memory && limits.of_a_link() * 11 / 10 > limits.link_memory
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
    fn every_entry_can_be_set_to_all_three_of_its_values() {
        for (name, default, least, most) in ENTRIES {
            for text in [default, least, most] {
                let value = match text.parse::<u64>() {
                    Ok(number) => number.to_string(),
                    Err(_) => format!("\"{text}\""),
                };
                let line = format!("{} = {value}", name.replace('_', "-"));
                let raw: RawLimits = toml::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
                let mut report = Report::new(&line);
                raw.ranges(&mut report);
                assert!(report.is_clean(), "{line}");
            }
        }
    }
}
