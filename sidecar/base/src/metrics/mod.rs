//! Metrics of the sidecar: counted where the events happen, rendered on request.
//!
//! | module | what it holds |
//! |---|---|
//! | [`requests`] | the outcomes of the harnesses' requests, by server |
//! | [`tally`] | one counter for each value of a label |
//! | [`vault`] | logins, tokens, reads, renewals, failures, revocations |
//!
//! What must stay true: incrementing a counter is one atomic addition and cannot fail; label values are constants of
//! this program and names of configured servers, never text from a sandbox, a server or Vault; the same numbers render
//! as the same bytes.

mod requests;
mod tally;
mod vault;

use std::sync::LazyLock;

use prometheus_client::encoding::text;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use requests::RequestCounters;
pub use requests::{RequestOutcome, ServerTally};
pub use tally::{Outcome, Tally};
pub use vault::{Revocation, VaultFailure, VaultMetrics};

/// The values of the gauges when the metrics are rendered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gauges {
    pub sessions: usize,
    pub links: usize,
    pub processes: usize,
    /// Records in the audit's chain, since its beginning.
    pub audit_records: u64,
    /// Whether the sidecar is logged in to Vault; `None` if no Vault is configured.
    pub logged_in: Option<bool>,
}

static VAULT: LazyLock<VaultMetrics> = LazyLock::new(VaultMetrics::default);
static REQUESTS: LazyLock<RequestCounters> = LazyLock::new(RequestCounters::default);
static AUDIT_WRITES: LazyLock<Tally<Outcome>> = LazyLock::new(Tally::default);
static REREADS: LazyLock<Tally<Outcome>> = LazyLock::new(Tally::default);
static REPLACEMENTS: LazyLock<Tally<Outcome>> = LazyLock::new(Tally::default);

pub fn vault() -> &'static VaultMetrics {
    &VAULT
}

/// The counters of a configured server's requests. A caller that counts often should store the returned value.
pub fn requests_of(server: &str) -> ServerTally {
    REQUESTS.of(server)
}

/// Counts a write to the audit, whatever its number of records.
pub fn count_audit_write(outcome: Outcome) {
    AUDIT_WRITES.count(outcome);
}

/// Counts a secret that was read again because a server refused it.
pub fn count_reread(outcome: Outcome) {
    REREADS.count(outcome);
}

/// Counts the replacement of a server process by one with a new credential. If it fails, the old process stays.
pub fn count_replacement(outcome: Outcome) {
    REPLACEMENTS.count(outcome);
}

/// All metrics as OpenMetrics text.
pub fn render(gauges: Gauges) -> String {
    let Gauges { sessions, links, processes, audit_records, logged_in } = gauges;
    let mut registry = Registry::with_prefix("cofferdam");
    let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("build", "Version of the sidecar", build);
    let gauge = |number: usize| ConstGauge::new(i64::try_from(number).unwrap_or(i64::MAX));
    registry.register("sessions", "Sessions that have links", gauge(sessions));
    registry.register("links", "Links, including disconnected ones that can still be resumed", gauge(links));
    registry.register("server_processes", "Processes of stdio servers", gauge(processes));
    registry.register("requests", "Requests of harnesses, by outcome", REQUESTS.clone());
    let records = ConstGauge::new(i64::try_from(audit_records).unwrap_or(i64::MAX));
    registry.register("audit_records", "Records of the audit's chain, since its beginning", records);
    registry.register("audit_writes", "Writes to the audit", AUDIT_WRITES.clone());
    registry.register(
        "credential_rereads",
        "Secrets read again because a server refused them",
        REREADS.clone(),
    );
    registry.register(
        "credential_replacements",
        "Server processes replaced because a credential changed",
        REPLACEMENTS.clone(),
    );
    if let Some(logged_in) = logged_in {
        let logged_in = ConstGauge::new(i64::from(logged_in));
        registry.register("vault_logged_in", "Whether the sidecar is logged in to Vault", logged_in);
        VAULT.register(&mut registry);
    }
    let mut rendered = String::new();
    text::encode(&mut rendered, &registry).expect("writing to a string cannot fail");
    rendered
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_same_numbers_render_as_the_same_openmetrics_text() {
        requests_of("zeta").count(RequestOutcome::Result);
        requests_of("alpha").count(RequestOutcome::Denied);
        vault().observe_time_to_revoke(Duration::from_millis(300));
        let gauges = Gauges { sessions: 2, logged_in: Some(true), ..Gauges::default() };
        let text = render(gauges);
        assert_eq!(text, render(gauges));
        for line in [
            "# TYPE cofferdam_sessions gauge",
            "cofferdam_sessions 2",
            "cofferdam_vault_logged_in 1",
            "cofferdam_requests_total{server=\"alpha\",outcome=\"denied\"} 1",
            "cofferdam_requests_total{server=\"zeta\",outcome=\"error\"} 0",
            "cofferdam_vault_time_to_revoke_seconds_bucket{le=\"0.5\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(text.find("server=\"alpha\"") < text.find("server=\"zeta\""));
        assert!(text.ends_with("# EOF\n"));
        assert!(
            !render(Gauges::default()).contains("vault"),
            "Vault metrics although no Vault is configured"
        );
    }
}
