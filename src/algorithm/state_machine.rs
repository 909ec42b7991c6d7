//! What every algorithm implements: [`StateMachine`], over a [`State`] per key.
//!
//! It is an interface, not an algorithm. Times are nanoseconds since the Unix
//! epoch. The invariant: all arithmetic saturates, so no limit, window, cost or
//! clock makes an implementation panic or wrap.

use std::sync::Arc;

use super::log_memory::LogMemory;

/// Two words: buckets, fixed and anchored windows, concurrency limits.
pub(crate) type CompactState = [u64; 2];

/// Six words, which fill a cache line together with the key: sliding windows,
/// rates that two words cannot hold, and buckets of rules that settle
/// afterwards.
pub(crate) type WideState = [u64; 6];

/// What is left of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuotaStatus {
    /// Units that would be admitted at once.
    pub(crate) remaining: u64,
    /// Nanoseconds until the quota is full again, or the window ends.
    pub(crate) reset: u64,
}

/// The part of a charge that can still be refunded.
///
/// Its units are contiguous in the terms of the state machine. Units that were
/// charged before another request's are left out, and thereby forfeited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Units that can still be refunded.
    pub(crate) units: u64,
    /// The time for which they were charged.
    pub(crate) at: u64,
    /// Where they end. Buckets: the arrival time right after the charge,
    /// rounded up. Windows: the end of the last window that counts any of
    /// them. Log: how many of them reuse the entries of earlier units.
    pub(crate) until: u64,
    /// How the machine recognises its state. Windows: how many of the units
    /// the last window counts. Others: [`StateMachine::version`] right after
    /// the charge.
    pub(crate) detail: u64,
    /// Sliding windows: [`StateMachine::version`] right after the charge, or zero
    /// once more was charged.
    pub(crate) before: u64,
}

impl Claim {
    /// Adds `units` to the claim if they are contiguous with it; otherwise they
    /// replace it.
    pub(super) fn extend(&mut self, contiguous: bool, units: u64) {
        self.units = if contiguous { self.units.saturating_add(units) } else { units };
    }
}

/// The rules of one quota over the state of one key.
pub(crate) trait StateMachine {
    /// What is stored for a key.
    type State: State;

    /// The earliest time, not before `now`, at which `cost` conforms.
    ///
    /// `None` if it never conforms,
    /// [`UNKNOWN_TIME`](super::in_flight::UNKNOWN_TIME) if the time cannot be
    /// known.
    fn earliest(&self, state: &Self::State, now: u64, cost: u64) -> Option<u64>;

    /// The departure time, not before `at`, that spreads requests evenly. A
    /// commit then is counted like a commit at `at`.
    fn smooth_departure(&self, _state: &Self::State, at: u64, _cost: u64) -> u64 {
        at
    }

    /// The latest time for which a commit leaves to other requests what a
    /// commit for `at` would.
    fn latest_departure(&self, _state: &Self::State, _at: u64) -> u64 {
        u64::MAX
    }

    /// Counts `cost` at `at`, which is not before [`Self::earliest`].
    fn commit(&self, state: &mut Self::State, now: u64, at: u64, cost: u64);

    /// Commits `cost` at `now` and returns the status; `None`, with nothing
    /// charged, if the request would have to wait.
    fn charge(&self, state: &mut Self::State, now: u64, cost: u64) -> Option<QuotaStatus> {
        if !self.admits(state, now, cost) {
            return None;
        }
        self.commit(state, now, now, cost);
        Some(self.status_of(state, now))
    }

    /// Whether `cost` is admitted at `now`.
    fn admits(&self, state: &Self::State, now: u64, cost: u64) -> bool {
        self.earliest(state, now, cost) == Some(now) && self.smooth_departure(state, now, cost) == now
    }

    /// What a claim on the latest commit stores as [`Claim::detail`] or
    /// [`Claim::before`].
    fn version(&self, _state: &Self::State) -> u64 {
        0
    }

    /// Counts `units` at `now`, whatever the limit says, and adds them to the
    /// claim.
    fn charge_debt(&self, state: &mut Self::State, now: u64, units: u64, claim: &mut Claim);

    /// Whether a refund of the claim admits at its time what it was charged for:
    /// nothing was charged after it.
    fn is_last(&self, state: &Self::State, now: u64, claim: &Claim) -> bool;

    /// Refunds `units` of the claim as far as that cannot break the limit. The
    /// caller reduces [`Claim::units`].
    fn refund(&self, state: &mut Self::State, now: u64, units: u64, claim: &mut Claim);

    /// The longest time, in nanoseconds, after which a state without reservations
    /// and debts is idle; zero where it depends on no time.
    fn span(&self) -> u64;

    /// Moves a state back in time so that it is idle at `latest` or a little
    /// before, and keeps what it has used. Windows of the wall clock move by
    /// whole windows.
    fn move_back(&self, state: &mut Self::State, now: u64, latest: u64);

    /// What is left at `now`.
    fn status_of(&self, state: &Self::State, now: u64) -> QuotaStatus;
}

/// What is stored for a key; the default is the state of a new key.
pub(crate) trait State: Default {
    /// The time after which the state equals a new one, whatever its quota. The
    /// store may then drop it.
    fn idle_at(&self) -> u64;

    /// Counts the memory that the state has beside its own size. Called after
    /// each change that may take more.
    fn account(&mut self, _memory: &Arc<LogMemory>) {}

    /// Strictly after [`Self::idle_at`], whose nanoseconds may be rounded down.
    fn is_idle(&self, now: u64) -> bool {
        self.idle_at() < now
    }
}

impl<const WORDS: usize> State for [u64; WORDS]
where
    Self: Default,
{
    fn idle_at(&self) -> u64 {
        self[0]
    }
}
