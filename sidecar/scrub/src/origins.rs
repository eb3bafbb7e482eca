//! Where in a text the bytes of its normal form come from.

use std::ops::Range;

/// Where the bytes of a normal form come from.
pub(super) struct Origins {
    /// For each byte, and for the end, where in the text it begins.
    starts: Vec<u32>,
    /// Where line ends begin that were left out.
    gaps: Vec<u32>,
}

impl Origins {
    /// For a normal form of at most this length.
    pub(super) fn with_capacity(length: usize) -> Self {
        Self { starts: Vec::with_capacity(length + 1), gaps: Vec::new() }
    }

    /// The part of the text that a part of the normal form comes from, every escape in full.
    pub(super) fn span(&self, part: Range<usize>) -> Range<usize> {
        let last = self.starts[part.end - 1];
        let next = self.starts[part.end..].iter().find(|start| **start > last).copied().unwrap_or(last + 1);
        let gap = self.gaps.get(self.gaps.partition_point(|gap| *gap <= last)).copied();
        self.starts[part.start] as usize..gap.map_or(next, |gap| gap.min(next)) as usize
    }
}

/// Where the bytes of a normal form come from, if that is of interest.
pub(super) trait RecordOrigins {
    fn push(&mut self, _origin: usize) {}
    fn extend(&mut self, _origins: Range<usize>) {}
    fn truncate(&mut self, _length: usize) {}
    fn at(&self, _index: usize) -> Option<usize> {
        None
    }
    /// From here on, text is left out.
    fn gap(&mut self, _origin: usize) {}
}

/// Where the bytes come from is not of interest.
pub(super) struct NoOrigins;

impl RecordOrigins for NoOrigins {}

impl RecordOrigins for Origins {
    fn push(&mut self, origin: usize) {
        self.starts.push(narrow(origin));
    }

    fn extend(&mut self, origins: Range<usize>) {
        self.starts.extend(narrow(origins.start)..narrow(origins.end));
    }

    fn truncate(&mut self, length: usize) {
        self.starts.truncate(length);
    }

    fn at(&self, index: usize) -> Option<usize> {
        self.starts.get(index).map(|start| *start as usize)
    }

    fn gap(&mut self, origin: usize) {
        self.gaps.push(narrow(origin));
    }
}

/// Messages are far smaller than 4 GiB.
pub(super) fn narrow(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}
