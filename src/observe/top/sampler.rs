//! Which admitted requests are counted for the top tenants: [`Sampler`].
//!
//! It counts nothing for a tenant. Invariant: what the sampled requests stand for sums up to
//! what all requests were charged, up to the last sampled one.

use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};

use crate::{jitter::draw, sync::lock};

/// At most one of so many requests is sampled, once there are many.
const ONE_IN: u64 = 128;

/// Decisions of each minute from which on fewer and fewer requests are sampled. Before, all
/// are.
const ALL_OF: u64 = 512;

/// Chooses the request that is charged one of the units drawn, so that a request counts by its
/// cost. The distance to the next drawn unit is random: callers that take turns must not
/// meet it always, or never. Written by one thread only.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    /// Units that are charged before the next drawn one.
    left: AtomicU64,
    last: Mutex<LastSample>,
}

#[derive(Debug, Default)]
struct LastSample {
    /// The units that were then left.
    left: u64,
    /// The thread's decisions by then.
    decisions: u64,
    /// What a request costs, on average and bounded by what it was before.
    cost: u64,
    /// The minute, and the thread's decisions when it began.
    minute: (u64, u64),
}

impl Sampler {
    /// Whether a request that was charged so many units is sampled.
    #[inline]
    pub(crate) fn is_due(&self, units: u64) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.wrapping_sub(units), Ordering::Relaxed);
        units > left
    }

    /// How many units the request that is [due](Self::is_due) stands for: all since the last
    /// one. `decisions` are those of this thread so far.
    pub(crate) fn take(&self, units: u64, decisions: u64, minute: u64) -> u64 {
        let mut last = lock(&self.last);
        let left = self.left.load(Ordering::Relaxed).wrapping_add(units);
        let charged = last.left.wrapping_sub(left).saturating_add(units);
        let requests = decisions.wrapping_sub(last.decisions).max(1);
        last.decisions = decisions;
        // One dear request does not make thousands pass unseen.
        last.cost = (charged / requests).clamp(1, last.cost.saturating_mul(2).saturating_add(1));
        if last.minute.0 != minute {
            last.minute = (minute, decisions);
        }
        let one_in = (decisions.wrapping_sub(last.minute.1) * 2 / ALL_OF).clamp(1, ONE_IN);
        last.left = draw((one_in - 1).saturating_mul(last.cost).saturating_mul(2));
        self.left.store(last.left, Ordering::Relaxed);
        charged
    }
}

#[cfg(test)]
#[cfg(feature = "test-util")]
mod tests;
