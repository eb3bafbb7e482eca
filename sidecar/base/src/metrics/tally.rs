//! One counter for each value of a label. Values without an event are rendered as zero, so that a rate can be computed
//! from the first event on. The order is always the same.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// A closed set of values of one label.
pub trait LabelValue: Copy + 'static {
    const LABEL: &'static str;
    const ALL: &'static [Self];

    fn as_str(self) -> &'static str;
    /// The position in [`ALL`](Self::ALL).
    fn index(self) -> usize;
}

/// One counter for each value of a label. Clones share their counters.
#[derive(Clone)]
pub struct Tally<V> {
    counts: Arc<[AtomicU64]>,
    label: PhantomData<fn(V)>,
}

/// Whether an operation succeeded.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    Done,
    Failed,
}

/// Implements [`LabelValue`] for an enum, with the text of each value.
macro_rules! label_values {
    ($set:ident, $label:literal, $($value:ident => $text:literal),+ $(,)?) => {
        impl $crate::metrics::tally::LabelValue for $set {
            const LABEL: &'static str = $label;
            const ALL: &'static [Self] = &[$(Self::$value),+];

            fn as_str(self) -> &'static str {
                match self { $(Self::$value => $text),+ }
            }

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}
pub(super) use label_values;

label_values!(Outcome, "outcome", Done => "done", Failed => "failed");

impl<V: LabelValue> Tally<V> {
    pub fn count(&self, value: V) {
        if let Some(count) = self.counts.get(value.index()) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = (V, u64)> {
        V::ALL.iter().zip(&*self.counts).map(|(value, count)| (*value, count.load(Ordering::Relaxed)))
    }
}

impl<V: LabelValue> Default for Tally<V> {
    fn default() -> Self {
        Self { counts: V::ALL.iter().map(|_| AtomicU64::new(0)).collect(), label: PhantomData }
    }
}

impl<V: LabelValue> fmt::Debug for Tally<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.counts().map(|(value, count)| (value.as_str(), count))).finish()
    }
}

impl<V: LabelValue> EncodeMetric for Tally<V> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (value, count) in self.counts() {
            let labels = [(V::LABEL, value.as_str())];
            encoder.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}

impl Outcome {
    pub fn of<T, E>(result: &Result<T, E>) -> Self {
        match result {
            Ok(_) => Self::Done,
            Err(_) => Self::Failed,
        }
    }
}
