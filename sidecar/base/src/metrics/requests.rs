//! What became of the harnesses' requests, by server: each is counted once, when that is known.
//!
//! What must stay true: only names of configured servers come in here; there are as many as the configuration has ever had.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::tally::{Tally, Words, words};

/// Every server's counters. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Requests(Arc<RwLock<BTreeMap<Box<str>, ServerTally>>>);

/// One server's.
pub type ServerTally = Tally<RequestOutcome>;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RequestOutcome {
    Cancelled,
    /// The rules said no.
    Denied,
    /// The server answered with an error.
    Error,
    /// No message that may be relayed.
    Malformed,
    /// It did not run.
    Refused,
    Result,
    Unknown,
    /// The decision about it could not be written.
    Unrecorded,
}

words!(RequestOutcome, "outcome",
    Cancelled => "cancelled",
    Denied => "denied",
    Error => "error",
    Malformed => "malformed",
    Refused => "refused",
    Result => "result",
    Unknown => "unknown",
    Unrecorded => "unrecorded",
);

impl Requests {
    pub(super) fn of(&self, server: &str) -> ServerTally {
        if let Some(found) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(server) {
            return found.clone();
        }
        let mut servers = self.0.write().unwrap_or_else(PoisonError::into_inner);
        servers.entry(server.into()).or_default().clone()
    }
}

impl EncodeMetric for Requests {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (server, requests) in &*self.0.read().unwrap_or_else(PoisonError::into_inner) {
            for (outcome, count) in requests.each() {
                let labels = [("server", &**server), (RequestOutcome::LABEL, outcome.word())];
                encoder.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}
