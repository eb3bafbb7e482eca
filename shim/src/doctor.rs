//! `cofferdam-shim doctor`: which link a shim would use here and why, whether it works, and what is in its way.
//!
//! Must stay true: nothing is changed: no key is made, no enrolment string is used up, and no link is opened; no secret is printed.

use std::fmt::Write as _;
use std::path::Path;

use relay_proto::address::Address;
use relay_proto::control::Status;
use rustix::fs::{Access, access};
use serde::Serialize;

use crate::default_socket;
use crate::failure::Failure;
use crate::options::{Options, OutputFormat, RelayOrigin};
#[cfg(feature = "tls")]
use crate::state::{EnrolmentState, FoundEnrolment};
use crate::status::{self, Outcome, Report};
use crate::wrap::{push_wrapped, terminal_width};

#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Severity {
    Ok,
    Warning,
    Error,
}

/// The same members as in `cofferdam doctor --json`.
#[derive(Debug, Serialize)]
struct Finding {
    severity: Severity,
    code: &'static str,
    about: &'static str,
    what: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    why: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

#[derive(Default, Serialize)]
struct Findings {
    errors: usize,
    warnings: usize,
    findings: Vec<Finding>,
    #[serde(skip)]
    exit_code: Option<u8>,
}

/// The link that a shim would use.
enum Chosen {
    /// Not through an enrolment that is stored.
    Address(Address),
    #[cfg(feature = "tls")]
    Enrolled(Address),
    /// An enrolment string waits: the first shim uses it.
    #[cfg(feature = "tls")]
    Waiting,
    /// The first default socket that can be used.
    DefaultSocket,
}

const EX_CANTCREAT: u8 = 73;
#[cfg(feature = "tls")]
const EX_CONFIG: u8 = 78;
/// HTTP's dates have whole seconds, and a paused sandbox wakes up with an old time for a moment.
const TOLERATED_SKEW_SECONDS: u64 = 120;

const NO_TOOLS: &str = "the harness in this sandbox gets no tools";
const NO_KEY: &str = "the sandbox's key cannot be stored, so a link over the network cannot be enrolled";

/// Runs every probe and formats what they found.
pub(crate) async fn report(options: Options, origin: RelayOrigin, format: OutputFormat) -> Report {
    let mut findings = Findings::default();
    let chosen = choose(&options, origin, &mut findings);
    let relay = match &chosen {
        Chosen::Address(address) => Some(address),
        #[cfg(feature = "tls")]
        Chosen::Enrolled(address) => Some(address),
        _ => None,
    };
    probe_state_directory(&options.state, needs_key(&chosen), &mut findings);
    #[cfg(feature = "tls")]
    probe_proxy(&options, relay, &mut findings);
    probe_link(&options, &chosen, relay.cloned(), &mut findings).await;
    let outcome = match findings.exit_code {
        Some(exit_code) => Outcome::Failure { exit_code },
        None => Outcome::Success,
    };
    let text = match format {
        OutputFormat::Json => {
            serde_json::to_string(&findings).expect("strings and numbers always serialise") + "\n"
        }
        OutputFormat::Text => findings.as_text(terminal_width()),
    };
    Report { text, outcome }
}

fn choose(options: &Options, origin: RelayOrigin, findings: &mut Findings) -> Chosen {
    if let Some(address) = &options.relay {
        let from = match origin {
            RelayOrigin::Variable => "COFFERDAM_RELAY",
            RelayOrigin::Option | RelayOrigin::Default => "--relay",
        };
        findings.good("link-chosen", "link", format!("{address}, from {from}"));
        #[cfg(feature = "tls")]
        if matches!(address, Address::Tls(_) | Address::WebSocket(_)) {
            return match inspect_enrolment(options, findings) {
                FoundEnrolment::Waiting => Chosen::Waiting,
                _ => Chosen::Address(address.clone()),
            };
        }
        return Chosen::Address(address.clone());
    }
    #[cfg(feature = "tls")]
    match inspect_enrolment(options, findings) {
        FoundEnrolment::Stored { relay, .. } => {
            let from = options.state.display();
            findings.good("link-chosen", "link", format!("{relay}, from the enrolment in {from}"));
            return Chosen::Enrolled(relay);
        }
        FoundEnrolment::Waiting => return Chosen::Waiting,
        FoundEnrolment::None | FoundEnrolment::Unusable => {}
    }
    let what =
        "the first of the default sockets, because there is no --relay, no COFFERDAM_RELAY and no enrolment";
    findings.good("link-chosen", "link", what);
    for path in options.default_sockets.paths() {
        match default_socket::check(path) {
            Err(untrusted) if !untrusted.is_absent() => {
                let next = "on the host, make the directory the sandbox user's or root's, and writable by its owner only; or name the \
                            socket with --relay, if it is the intended one";
                let why = "another user of this sandbox could have put a socket of his own there, so it is not used";
                findings.warning("socket-untrusted", "link", why, untrusted.to_string(), next);
            }
            _ => {}
        }
    }
    Chosen::DefaultSocket
}

#[cfg(feature = "tls")]
fn inspect_enrolment(options: &Options, findings: &mut Findings) -> FoundEnrolment {
    let state = EnrolmentState::new(options.state.clone(), options.enrolment_sources.clone());
    match state.inspect() {
        Ok(found) => {
            match &found {
                FoundEnrolment::Stored { pin, relay } => {
                    let what = format!("stored, for {relay}; the sidecar's key is pinned: {pin}");
                    findings.good("enrolment-stored", "enrolment", what);
                }
                FoundEnrolment::Waiting => {
                    let what =
                        "an enrolment string is there, and was not used yet; its ticket may have expired";
                    findings.good("enrolment-waiting", "enrolment", what);
                }
                FoundEnrolment::None | FoundEnrolment::Unusable => {}
            }
            found
        }
        Err(error) => {
            let next = "on the host run `cofferdam enroll --grant GRANT`, and write its string to /run/cofferdam/enroll here";
            findings.error("enrolment-unusable", "enrolment", NO_TOOLS, error.to_string(), next, EX_CONFIG);
            FoundEnrolment::Unusable
        }
    }
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum KeyNeed {
    None,
    /// The link proves the sandbox's key.
    Needed,
}

fn needs_key(chosen: &Chosen) -> KeyNeed {
    match chosen {
        Chosen::Address(Address::Tls(_) | Address::WebSocket(_)) => KeyNeed::Needed,
        #[cfg(feature = "tls")]
        Chosen::Enrolled(_) | Chosen::Waiting => KeyNeed::Needed,
        Chosen::Address(_) | Chosen::DefaultSocket => KeyNeed::None,
    }
}

/// The directory is made when it is needed, so the nearest one that exists counts.
fn probe_state_directory(directory: &Path, need: KeyNeed, findings: &mut Findings) {
    let existing = directory.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(Path::new("/"));
    if existing.is_dir() && access(existing, Access::WRITE_OK | Access::EXEC_OK).is_ok() {
        return;
    }
    let what = format!("`{}` cannot be written", directory.display());
    let next = "give `--state` or COFFERDAM_STATE a directory that can be written; a tmpfs is enough";
    match need {
        KeyNeed::Needed => {
            findings.error("state-not-writable", "state directory", NO_KEY, what, next, EX_CANTCREAT);
        }
        KeyNeed::None => findings.warning("state-not-writable", "state directory", NO_KEY, what, next),
    }
}

/// A proxy matters to links over the network only.
#[cfg(feature = "tls")]
fn probe_proxy(options: &Options, relay: Option<&Address>, findings: &mut Findings) {
    use relay_proto::address::HostPort;
    let target = match relay {
        Some(Address::Tls(endpoint)) => endpoint.clone(),
        Some(Address::WebSocket(endpoint)) => HostPort { host: endpoint.host.clone(), port: endpoint.port },
        _ => return,
    };
    match options.network.proxies.proxy_for(&target) {
        Ok(Some(_)) => {
            let what = "the link goes through a proxy: --proxy, HTTPS_PROXY or ALL_PROXY names one, and NO_PROXY does not exempt the sidecar";
            findings.good("proxy-used", "proxy", what);
        }
        Ok(None) => findings.good("proxy-none", "proxy", "the link goes out directly"),
        Err((variable, source)) => {
            let next = format!("correct {variable}, or give another proxy with --proxy");
            findings.error(
                "proxy-invalid",
                "proxy",
                NO_TOOLS,
                format!("{variable}: {source}"),
                &next,
                EX_CONFIG,
            );
        }
    }
}

async fn probe_link(options: &Options, chosen: &Chosen, relay: Option<Address>, findings: &mut Findings) {
    #[cfg(feature = "tls")]
    if matches!(chosen, Chosen::Waiting) {
        let what = "not tried: that would use the enrolment string";
        let why = "whether the sidecar can be reached is not known";
        findings.warning(
            "link-not-tried",
            "link",
            why,
            what.into(),
            "run `cofferdam-shim status`, which uses it",
        );
        return;
    }
    if matches!(relay, Some(Address::Fd(_) | Address::Listen(_))) {
        let what = "not tried: on this link only the running shim can connect";
        let why = "whether the sidecar can be reached is not known";
        findings.warning("link-not-tried", "link", why, what.into(), "on the host run `cofferdam sessions`");
        return;
    }
    let _ = chosen;
    let (link, fetched) = status::fetch(options.clone()).await;
    match fetched {
        Ok(status) => report_status(link.as_deref().unwrap_or("?"), &status, findings),
        Err(failure) => {
            let exit_code = failure.exit_code();
            let Failure { code, message, .. } = failure;
            let (code, next) = match code.as_str() {
                "relay_unavailable" => (
                    "link-unreachable",
                    "on the host run `cofferdam doctor`; the directory of the relay's socket has to be mounted here, not the socket itself",
                ),
                "version_refused" => ("link-refused", "upgrade the older one of shim and sidecar"),
                _ => (
                    "link-refused",
                    "on the host run `cofferdam enrolments`, and `cofferdam enroll` for a new enrolment",
                ),
            };
            findings.error(code, "link", NO_TOOLS, message, next, exit_code);
        }
    }
}

fn report_status(link: &str, status: &Status, findings: &mut Findings) {
    let servers: Vec<String> = status.servers.iter().map(ToString::to_string).collect();
    let what = format!(
        "{link} answers ({}); grant `{}` with {}",
        status.software,
        status.grant,
        match servers.is_empty() {
            true => "no server".to_owned(),
            false => servers.join(", "),
        }
    );
    findings.good("link-ok", "link", what);
    if servers.is_empty() {
        let next =
            format!("on the host add a server to `grants.{}.servers`, then `cofferdam reload`", status.grant);
        findings.warning("grant-empty", "link", NO_TOOLS, "the grant names no server".into(), &next);
    }
    let Some(theirs) = status.unix_time else { return };
    let skew = unix_time().abs_diff(theirs);
    if skew > TOLERATED_SKEW_SECONDS {
        let what = format!("this sandbox's clock differs from the host's by {skew} s");
        let why = "the times in logs do not fit together, and programs here refuse valid certificates";
        findings.warning(
            "clock-skew",
            "clock",
            why,
            what,
            "synchronise the sandbox's clock after it was paused or copied",
        );
    }
}

#[expect(clippy::disallowed_methods, reason = "the clock itself is examined")]
fn unix_time() -> u64 {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

impl Findings {
    fn good(&mut self, code: &'static str, about: &'static str, what: impl Into<String>) {
        self.add(Severity::Ok, code, about, "", what.into(), None);
    }

    fn warning(
        &mut self,
        code: &'static str,
        about: &'static str,
        why: &'static str,
        what: String,
        next: &str,
    ) {
        self.warnings += 1;
        self.add(Severity::Warning, code, about, why, what, Some(next));
    }

    fn error(
        &mut self,
        code: &'static str,
        about: &'static str,
        why: &'static str,
        what: String,
        next: &str,
        exit_code: u8,
    ) {
        self.errors += 1;
        self.exit_code.get_or_insert(exit_code);
        self.add(Severity::Error, code, about, why, what, Some(next));
    }

    fn add(
        &mut self,
        severity: Severity,
        code: &'static str,
        about: &'static str,
        why: &'static str,
        what: String,
        next: Option<&str>,
    ) {
        let next = next.map(str::to_owned);
        self.findings.push(Finding { severity, code, about, what, why, next });
    }

    /// For a terminal of this many columns, or with each text on one line.
    fn as_text(&self, width: Option<usize>) -> String {
        let mut text = String::new();
        for Finding { severity, code, about, what, why, next } in &self.findings {
            match severity {
                Severity::Ok => push_wrapped(&mut text, "ok       ", &format!("{about}: {what}"), width),
                Severity::Warning => {
                    push_wrapped(&mut text, "WARNING  ", &format!("{about}: {what} [{code}]"), width);
                }
                Severity::Error => {
                    push_wrapped(&mut text, "ERROR    ", &format!("{about}: {what} [{code}]"), width);
                }
            }
            if !why.is_empty() {
                push_wrapped(&mut text, "         why:  ", why, width);
            }
            if let Some(next) = next {
                push_wrapped(&mut text, "         next: ", next, width);
            }
        }
        let plural = |number: usize| if number == 1 { "" } else { "s" };
        let (errors, warnings) = (self.errors, self.warnings);
        // Writing to a String cannot fail.
        let _ = match (errors, warnings) {
            (0, 0) => writeln!(text, "nothing is wrong"),
            (0, _) => writeln!(text, "nothing is broken; {warnings} warning{}", plural(warnings)),
            _ => writeln!(text, "{errors} error{}, {warnings} warning{}", plural(errors), plural(warnings)),
        };
        text.chars().filter(|character| *character == '\n' || !character.is_control()).collect()
    }
}
