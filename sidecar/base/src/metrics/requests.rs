//! The outcomes of the harnesses' requests, by server: each request is counted once, when its outcome is known.
//!
//! What must stay true: only names of configured servers are used here, so the number of counters is bounded by the
//! number of servers that were configured since the start.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::tally::{LabelValue, Tally, label_values};

/// The counters of every server. Clones share their counters.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestCounters(Arc<RwLock<BTreeMap<Box<str>, ServerTally>>>);

/// The counters of one server.
pub type ServerTally = Tally<RequestOutcome>;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RequestOutcome {
    Cancelled,
    /// Denied by a rule.
    Denied,
    /// The server's response was an error.
    Error,
    /// Not a valid message.
    Malformed,
    /// The sidecar responded with an error; the server did not run the request.
    Refused,
    Result,
    /// The server may have run the request, but no response will come.
    Unknown,
    /// The decision could not be recorded.
    Unrecorded,
}

label_values!(RequestOutcome, "outcome",
    Cancelled => "cancelled",
    Denied => "denied",
    Error => "error",
    Malformed => "malformed",
    Refused => "refused",
    Result => "result",
    Unknown => "unknown",
    Unrecorded => "unrecorded",
);

impl RequestCounters {
    pub(super) fn of(&self, server: &str) -> ServerTally {
        if let Some(found) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(server) {
            return found.clone();
        }
        let mut servers = self.0.write().unwrap_or_else(PoisonError::into_inner);
        servers.entry(server.into()).or_default().clone()
    }
}

impl EncodeMetric for RequestCounters {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (server, requests) in &*self.0.read().unwrap_or_else(PoisonError::into_inner) {
            for (outcome, count) in requests.counts() {
                let labels = [("server", &**server), (RequestOutcome::LABEL, outcome.as_str())];
                encoder.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}
