//! How units are counted: pure state machines.
//!
//! Each answers two questions over its state: [`StateMachine::earliest`],
//! when would this cost conform, and [`StateMachine::commit`], count it at
//! that time. None reads a clock, locks or allocates on the way to an answer.
//!
//! **Conformity is monotone**: what conforms at a time conforms at every later
//! one while nothing else is committed. So the earliest time at which several
//! machines agree is the latest of their answers, found in one pass, and a
//! commit at a future time is a reservation.
//!
//! **A state says when it is idle**: after [`State::idle_at`] it
//! cannot be told from a new one, whatever the quota, so that the store can
//! drop it without knowing whose it is.

mod fixed_window;
mod gcra;
mod leaky_bucket;
mod sliding_log;
mod sliding_window;
mod token_bucket;
mod wide_gcra;

#[cfg(test)]
mod tests;

pub(crate) use self::{
    fixed_window::FixedWindow,
    leaky_bucket::LeakyBucket,
    sliding_log::{Log, SlidingLog},
    sliding_window::SlidingWindow,
    token_bucket::TokenBucket,
    wide_gcra::WideGcra,
};

use crate::{
    quota::{Algorithm, Quota},
    time::nanos,
};

/// Two words: token and leaky bucket, fixed and anchored window.
pub(crate) type Small = [u64; 2];

/// Four words: the sliding window, and rates that two words cannot hold.
pub(crate) type Wide = [u64; 4];

/// What is left of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Units that would pass at once.
    pub(crate) remaining: u64,
    /// Nanoseconds until the quota is full again, or the window ends.
    pub(crate) reset: u64,
}

/// A commit that is to be taken back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Committed {
    pub(crate) at: u64,
    pub(crate) cost: u64,
    /// When the quota was to be full again, as seen right after the commit.
    pub(crate) full_at: u64,
}

/// One quota's rules over one key's state. Times are nanoseconds since the
/// Unix epoch; all arithmetic saturates.
pub(crate) trait StateMachine {
    /// What is kept for a key.
    type State: State;

    /// The earliest time, `now` or later, at which `cost` conforms; `None`
    /// where it never will.
    fn earliest(&self, state: &Self::State, now: u64, cost: u64) -> Option<u64>;

    /// Counts `cost` at `at`, a time not before [`Self::earliest`].
    fn commit(&self, state: &mut Self::State, now: u64, at: u64, cost: u64);

    /// Commits `cost` at `now`, if that is the earliest time, and says what is
    /// left: the three questions in one.
    #[inline]
    fn charge(&self, state: &mut Self::State, now: u64, cost: u64) -> Option<Standing> {
        if self.earliest(state, now, cost) != Some(now) {
            return None;
        }
        self.commit(state, now, now, cost);
        Some(self.standing(state, now))
    }

    /// Gives back what was committed, where that cannot break the bound.
    fn refund(&self, state: &mut Self::State, now: u64, committed: Committed);

    /// What is left at `now`.
    fn standing(&self, state: &Self::State, now: u64) -> Standing;
}

/// What is kept for a key; the default is a new key.
pub(crate) trait State: Default {
    /// The time after which the state cannot be told from a new one.
    fn idle_at(&self) -> u64;

    /// Strictly after: the first word of a state is rounded down.
    fn is_idle(&self, now: u64) -> bool {
        self.idle_at() < now
    }
}

impl State for Small {
    fn idle_at(&self) -> u64 {
        self[0]
    }
}

impl State for Wide {
    fn idle_at(&self) -> u64 {
        self[0]
    }
}

/// The state machine of a quota, by the state that it keeps.
#[derive(Clone, Debug)]
pub(crate) enum Machine {
    TokenBucket(TokenBucket),
    LeakyBucket(LeakyBucket),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
    WideGcra(WideGcra),
}

impl Machine {
    /// The machine of a quota that the policy has found valid.
    pub(crate) fn new(quota: &Quota) -> Self {
        let (limit, window) = (quota.limit(), nanos(quota.window()).max(1));
        let burst = quota.capacity();
        match quota.counted_by() {
            Algorithm::TokenBucket => TokenBucket::new(limit, window, burst)
                .map_or_else(|| Self::WideGcra(WideGcra::bucket(limit, window, burst)), Self::TokenBucket),
            Algorithm::LeakyBucket => LeakyBucket::new(limit, window, burst)
                .map_or_else(|| Self::WideGcra(WideGcra::spaced(limit, window, burst)), Self::LeakyBucket),
            Algorithm::FixedWindow => Self::FixedWindow(FixedWindow::aligned(limit, window)),
            Algorithm::AnchoredWindow => Self::FixedWindow(FixedWindow::anchored(limit, window)),
            Algorithm::SlidingWindow => Self::SlidingWindow(SlidingWindow::new(limit, window)),
            Algorithm::SlidingLog => Self::SlidingLog(SlidingLog::new(limit, window)),
        }
    }

    /// The longest wait, in nanoseconds, that may be reserved: a leaky
    /// bucket's queue is bounded by its burst.
    pub(crate) fn longest_wait(&self) -> u64 {
        match self {
            Self::LeakyBucket(machine) => machine.longest_wait(),
            Self::WideGcra(machine) => machine.longest_wait(),
            _ => u64::MAX,
        }
    }
}
