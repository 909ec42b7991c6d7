//! Allowed and rejected requests over time: [`Timeline`].
//!
//! Invariant: at most [`BINS`] bins, of one length. Where the log is longer, they are
//! joined in pairs.

use serde::Serialize;

/// The most bins.
const BINS: usize = 240;

#[derive(Clone, Debug, Serialize)]
pub(super) struct Timeline {
    /// Seconds since the Unix epoch.
    pub(super) start: u64,
    pub(super) bin_seconds: u64,
    /// Pairs of requests that were allowed and rejected.
    pub(super) bins: Vec<[u64; 2]>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { start: 0, bin_seconds: 1, bins: Vec::new() }
    }
}

impl Timeline {
    /// `time` is in nanoseconds. One before the first counts as the first.
    pub(super) fn add(&mut self, time: u64, is_rejected: bool) {
        let second = time / 1_000_000_000;
        if self.bins.is_empty() {
            self.start = second;
        }
        let mut bin = second.saturating_sub(self.start) / self.bin_seconds;
        while bin >= BINS as u64 {
            let joined =
                self.bins.chunks(2).map(|pair| pair.iter().fold([0, 0], |sum, bin| [sum[0] + bin[0], sum[1] + bin[1]]));
            self.bins = joined.collect();
            self.bin_seconds *= 2;
            bin = second.saturating_sub(self.start) / self.bin_seconds;
        }
        let bin = usize::try_from(bin).unwrap_or(BINS - 1);
        if self.bins.len() <= bin {
            self.bins.resize(bin + 1, [0, 0]);
        }
        self.bins[bin][usize::from(is_rejected)] += 1;
    }
}
