//! Counters by a label value of a closed set. Every value is always rendered, in one order, so that a rate starts at zero.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// The values of a label.
pub trait Words: Copy + 'static {
    const LABEL: &'static str;
    const ALL: &'static [Self];

    fn word(self) -> &'static str;
    /// Its place in [`ALL`](Self::ALL).
    fn place(self) -> usize;
}

/// One counter for each word. Clones count together.
#[derive(Clone)]
pub struct Tally<W> {
    counts: Arc<[AtomicU64]>,
    words: PhantomData<fn(W)>,
}

/// Whether something worked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    Done,
    Failed,
}

/// A closed set of words, each with its spelling.
macro_rules! words {
    ($set:ident, $label:literal, $($word:ident => $spelling:literal),+ $(,)?) => {
        impl $crate::metrics::tally::Words for $set {
            const LABEL: &'static str = $label;
            const ALL: &'static [Self] = &[$(Self::$word),+];

            fn word(self) -> &'static str {
                match self { $(Self::$word => $spelling),+ }
            }

            fn place(self) -> usize {
                self as usize
            }
        }
    };
}
pub(super) use words;

words!(Outcome, "outcome", Done => "done", Failed => "failed");

impl<W: Words> Tally<W> {
    pub fn count(&self, word: W) {
        if let Some(count) = self.counts.get(word.place()) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn each(&self) -> impl Iterator<Item = (W, u64)> {
        W::ALL.iter().zip(&*self.counts).map(|(word, count)| (*word, count.load(Ordering::Relaxed)))
    }
}

impl<W: Words> Default for Tally<W> {
    fn default() -> Self {
        Self { counts: W::ALL.iter().map(|_| AtomicU64::new(0)).collect(), words: PhantomData }
    }
}

impl<W: Words> fmt::Debug for Tally<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.each().map(|(word, count)| (word.word(), count))).finish()
    }
}

impl<W: Words> EncodeMetric for Tally<W> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (word, count) in self.each() {
            let labels = [(W::LABEL, word.word())];
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
