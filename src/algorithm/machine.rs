//! [`Machine`]: the state machine of a quota, and of an instance's share of it.
//!
//! It only chooses: what a machine counts is in the file of its algorithm. The
//! invariant: the machine of a share uses the same states as that of the whole
//! quota, so a share may change while counters stay.

use super::{
    fixed_window::FixedWindow,
    gcra::{LeakyBucket, TokenBucket},
    in_flight::InFlight,
    share_history::ShareHistory,
    shared_bucket::SharedBucket,
    sliding_log::SlidingLog,
    sliding_window::SlidingWindow,
    state_machine::Claim,
    wide_gcra::WideGcra,
    window_limit::{FixedLimit, SharedLimit},
};
use crate::{
    quota::{Algorithm, Quota},
    time::nanos,
};

/// The state machine of a quota.
#[derive(Clone, Debug)]
pub(crate) enum Machine {
    TokenBucket(TokenBucket),
    LeakyBucket(LeakyBucket),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
    WideGcra(WideGcra),
    InFlight(InFlight),
    SharedTokenBucket(SharedBucket<TokenBucket>),
    SharedLeakyBucket(SharedBucket<LeakyBucket>),
    SharedWideGcra(SharedBucket<WideGcra>),
    SharedFixedWindow(FixedWindow<Box<SharedLimit>>),
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
    pub(crate) fn new(quota: &Quota, MachineOptions { settled_late, smooth }: MachineOptions) -> Self {
        let (limit, window) = (quota.limit(), nanos(quota.window()).max(1));
        let burst = quota.capacity();
        match quota.counted_by() {
            Algorithm::TokenBucket => TokenBucket::new(limit, window, burst)
                .filter(|_| !settled_late)
                .map_or_else(|| Self::WideGcra(WideGcra::token_bucket(limit, window, burst)), Self::TokenBucket),
            Algorithm::LeakyBucket => LeakyBucket::new(limit, window, burst)
                .filter(|_| !settled_late)
                .map_or_else(|| Self::WideGcra(WideGcra::leaky_bucket(limit, window, burst)), Self::LeakyBucket),
            Algorithm::FixedWindow | Algorithm::AnchoredWindow => {
                let is_aligned = quota.counted_by() == Algorithm::FixedWindow;
                Self::FixedWindow(FixedWindow { limits: FixedLimit(limit), window, is_aligned, is_smooth: smooth })
            }
            Algorithm::SlidingWindow => Self::SlidingWindow(SlidingWindow::new(limit, window, smooth)),
            Algorithm::SlidingLog => Self::SlidingLog(SlidingLog { limit, window }),
            Algorithm::InFlight => Self::InFlight(InFlight { limit }),
        }
    }

    /// The machine of an instance's share of `quota`, which this is the machine
    /// of; and the time at which it has to be replaced, the end of time for
    /// never.
    pub(crate) fn share(&self, quota: &Quota, history: &ShareHistory, now: u64) -> (Self, u64) {
        let (limit, window) = (quota.limit(), nanos(quota.window()).max(1));
        let whole = (limit, window, quota.capacity());
        // For windows that instances do not have in common, so that extra units
        // cannot rotate. A larger share counts after so many of them.
        let stable = |windows| history.least(limit, now, window.saturating_mul(windows));
        let machine = match self {
            Self::TokenBucket(bucket) => Self::SharedTokenBucket(SharedBucket::new(bucket, whole, history)),
            Self::LeakyBucket(bucket) => Self::SharedLeakyBucket(SharedBucket::new(bucket, whole, history)),
            Self::WideGcra(bucket) => Self::SharedWideGcra(SharedBucket::new(bucket, whole, history)),
            Self::FixedWindow(machine) if machine.is_aligned => {
                Self::SharedFixedWindow(machine.with_limits(SharedLimit::new(limit, history)))
            }
            Self::FixedWindow(machine) => {
                let (limit, until) = stable(1);
                return (Self::FixedWindow(machine.with_limits(FixedLimit(limit))), until);
            }
            // Aligned, but the previous window's count weighs on this one, in
            // which another instance has the extra unit.
            Self::SlidingWindow(machine) => {
                let (limit, until) = stable(2);
                return (Self::SlidingWindow(SlidingWindow { limit, ..machine.clone() }), until);
            }
            Self::SlidingLog(machine) => {
                let (limit, until) = stable(1);
                return (Self::SlidingLog(SlidingLog { limit, ..machine.clone() }), until);
            }
            // It has no window, so only the current share counts.
            Self::InFlight(_) => Self::InFlight(InFlight { limit: stable(0).0 }),
            Self::SharedTokenBucket(_)
            | Self::SharedLeakyBucket(_)
            | Self::SharedWideGcra(_)
            | Self::SharedFixedWindow(_) => self.clone(),
        };
        (machine, u64::MAX)
    }

    /// A machine that rejects everything.
    pub(crate) fn rejecting() -> Self {
        Self::InFlight(InFlight { limit: 0 })
    }

    /// Whether departures are spread evenly.
    #[cfg(feature = "redis")]
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
        let claim = Claim { units: cost, at, until: full_at, detail: version };
        match self {
            Self::FixedWindow(_) | Self::SlidingWindow(_) | Self::SharedFixedWindow(_) => {
                Claim { detail: cost, ..claim }
            }
            Self::SlidingLog(_) => Claim { until: 0, ..claim },
            _ => claim,
        }
    }

    /// The longest wait, in nanoseconds, that may be reserved: a leaky bucket's
    /// queue is bounded by its burst.
    pub(crate) fn longest_wait(&self) -> u64 {
        match self {
            Self::LeakyBucket(bucket) => bucket.longest_wait(),
            Self::WideGcra(bucket) => bucket.longest_wait(),
            Self::SharedLeakyBucket(shared) => shared.bucket().longest_wait(),
            Self::SharedWideGcra(shared) => shared.bucket().longest_wait(),
            _ => u64::MAX,
        }
    }
}
