//! [`Machine`]: the state machine of a quota, and of an instance's share of it.
//!
//! It only chooses: what a machine counts is in the file of its algorithm. A whole
//! quota is the share of an instance that is alone. The invariant: the machine of any
//! share uses the states of the whole quota's machine. So a share may change while
//! counters stay.

use super::{
    Claim, CompactState, WideState,
    fixed_window::FixedWindow,
    gcra::{BucketQuota, Gcra},
    in_flight::InFlight,
    share::{Share, ShareHistory},
    sliding_log::SlidingLog,
    sliding_window::SlidingWindow,
    window::{Calendar, WindowLimit},
};
use crate::{
    quota::{Algorithm, Quota},
    time::nanos,
};

/// The state machine of a quota.
#[derive(Clone, Debug)]
pub(crate) enum Machine {
    Bucket(Gcra<CompactState>),
    WideBucket(Gcra<WideState>),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
    InFlight(InFlight),
}

/// What a rule asks of the machines of its tiers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MachineOptions {
    /// The rule settles afterwards: buckets keep more words, to refund units
    /// that later charges build upon.
    pub(crate) settled_late: bool,
    /// Windows spread departures evenly.
    pub(crate) smooth: bool,
}

impl Machine {
    /// The machine of a quota that the policy has found valid.
    pub(crate) fn new(quota: &Quota, options: MachineOptions) -> Self {
        Self::of_share(quota, options, &ShareHistory::new(Share::whole()), 0).0
    }

    /// The machine of an instance's share of `quota`, which this is the machine
    /// of; and the time at which it has to be replaced, the end of time for
    /// never.
    pub(crate) fn share(&self, quota: &Quota, history: &ShareHistory, now: u64) -> (Self, u64) {
        let settled_late = matches!(self, Self::WideBucket(_));
        Self::of_share(quota, MachineOptions { settled_late, smooth: self.is_smooth() }, history, now)
    }

    fn of_share(quota: &Quota, options: MachineOptions, history: &ShareHistory, now: u64) -> (Self, u64) {
        let (limit, window) = (quota.limit(), nanos(quota.window()).max(1));
        // For windows that instances do not have in common, so that units cannot
        // rotate. A larger share counts after so many of them.
        let constant = |windows| history.least(limit, now, window.saturating_mul(windows));
        let is_smooth = options.smooth;
        match quota.counted_by() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                let is_spaced = quota.counted_by() == Algorithm::LeakyBucket;
                let quota = BucketQuota { limit, window, burst: quota.capacity(), is_spaced };
                let bucket = Gcra::new(quota, history);
                let is_wide = options.settled_late || !bucket.is_compact();
                let machine = if is_wide { Self::WideBucket(Gcra::new(quota, history)) } else { Self::Bucket(bucket) };
                (machine, u64::MAX)
            }
            Algorithm::FixedWindow => {
                let limits = WindowLimit::aligned(limit, Calendar::of(quota), history);
                (Self::FixedWindow(FixedWindow { limits, is_aligned: true, is_smooth }), u64::MAX)
            }
            Algorithm::AnchoredWindow => {
                let (limit, until) = constant(1);
                let limits = WindowLimit::same(limit, Calendar::even(window));
                (Self::FixedWindow(FixedWindow { limits, is_aligned: false, is_smooth }), until)
            }
            // Aligned, but the previous window's count weighs on this one, in
            // which another instance would have the unit.
            Algorithm::SlidingWindow => {
                let (limit, until) = constant(2);
                (Self::SlidingWindow(SlidingWindow::new(limit, window, is_smooth)), until)
            }
            Algorithm::SlidingLog => {
                let (limit, until) = constant(1);
                (Self::SlidingLog(SlidingLog { limit, window }), until)
            }
            // Each instance finds its own.
            Algorithm::Concurrency if quota.is_adaptive() => (Self::InFlight(InFlight { limit }), u64::MAX),
            // It has no window, so only the current share counts.
            Algorithm::Concurrency => (Self::InFlight(InFlight { limit: constant(0).0 }), u64::MAX),
        }
    }

    /// Whether departures are spread evenly.
    pub(crate) fn is_smooth(&self) -> bool {
        match self {
            Self::FixedWindow(machine) => machine.is_smooth,
            Self::SlidingWindow(machine) => machine.is_smooth,
            _ => false,
        }
    }

    /// The claim on what was committed for `at`. `full_at` is when the quota
    /// was to be full again, `version` that of the state.
    pub(crate) fn claim(&self, at: u64, cost: u64, full_at: u64, version: u64) -> Claim {
        let claim = Claim { units: cost, at, until: full_at, detail: version, before: 0 };
        match self {
            Self::FixedWindow(_) => Claim { detail: cost, ..claim },
            Self::SlidingWindow(_) => Claim { detail: cost, before: version, ..claim },
            Self::SlidingLog(_) => Claim { until: 0, ..claim },
            _ => claim,
        }
    }

    /// The longest wait, in nanoseconds, that may be reserved: a leaky bucket's
    /// queue is bounded by its burst.
    pub(crate) fn longest_wait(&self) -> u64 {
        match self {
            Self::Bucket(bucket) => bucket.longest_wait(),
            Self::WideBucket(bucket) => bucket.longest_wait(),
            _ => u64::MAX,
        }
    }
}
