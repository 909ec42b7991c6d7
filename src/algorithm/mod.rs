//! How units are counted: pure state machines.
//!
//! Each answers two questions over its state: [`StateMachine::earliest`],
//! when would this cost conform, and [`StateMachine::commit`], count it at
//! that time. None reads a clock, locks or allocates on the way to an answer.
//!
//! **Costs that are known late** are counted by [`StateMachine::charge_debt`], whatever
//! the limit says: as if so many requests of one unit had been reserved one
//! after the other. So a debt is paid back before anybody else is admitted,
//! unit by unit, and no state grows for it.
//!
//! **Giving back** undoes what nobody has built upon, exactly. Of the rest it
//! gives back what can be shown not to have come back by itself, and forfeits
//! what cannot: a state never counts less than it would had the units never
//! been charged.
//!
//! **Conformity is monotone**: what conforms at a time conforms at every later
//! one while nothing else is committed. So the earliest time at which several
//! machines agree is the latest of their answers, found in one pass, and a
//! commit at a future time is a reservation.
//!
//! **A state says when it is idle**: after [`State::idle_at`] it
//! cannot be told from a new one, whatever the quota, so that the store can
//! drop it without knowing whose it is.

mod adopting;
mod branch;
mod cycle;
mod fixed_window;
mod gcra;
mod in_flight;
mod leaky_bucket;
mod limits;
mod machine;
mod paced;
mod portion;
mod sliding_log;
mod sliding_window;
mod timeline;
mod token_bucket;
mod wide_gcra;

#[cfg(test)]
mod tests;

#[cfg(feature = "redis")]
pub(crate) use self::gcra::gcd;
pub(crate) use self::{
    fixed_window::FixedWindow,
    in_flight::{InFlight, UNKNOWN_TIME},
    leaky_bucket::LeakyBucket,
    machine::{Machine, MachineOptions},
    portion::Portion,
    sliding_log::{RequestLog, SlidingLog},
    sliding_window::SlidingWindow,
    timeline::Timeline,
    token_bucket::TokenBucket,
    wide_gcra::WideGcra,
};

/// Two words: token and leaky bucket, fixed and anchored window, in flight.
pub(crate) type CompactState = [u64; 2];

/// Six words, which with the key fill a cache line: the sliding window, rates
/// that two words cannot hold, and buckets that are settled late.
pub(crate) type WideState = [u64; 6];

/// What is left of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuotaStatus {
    /// Units that would pass at once.
    pub(crate) remaining: u64,
    /// Nanoseconds until the quota is full again, or the window ends.
    pub(crate) reset: u64,
}

/// What was charged, as far as it can be given back. All of it lies together,
/// in the terms of its state machine: what was charged before others came
/// between is left out, and so forfeited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Units that are left to give back.
    pub(crate) units: u64,
    /// The time that they were charged for.
    pub(crate) at: u64,
    /// Where they end. Buckets: the arrival time right after the charge,
    /// rounded up. Windows: the end of the last one that holds any. RequestLog: how
    /// many of them took the places of others.
    pub(crate) until: u64,
    /// What tells whether somebody has come since. Windows: how many units the
    /// last one holds. RequestLog: its version. WideState buckets: what had been given
    /// back by then.
    pub(crate) detail: u64,
}

impl Claim {
    /// Takes on `units` more, beside those that it has if they still lie
    /// together, else in their place.
    fn extend(&mut self, together: bool, units: u64) {
        self.units = if together { self.units.saturating_add(units) } else { units };
    }
}

/// One quota's rules over one key's state. Times are nanoseconds since the
/// Unix epoch; all arithmetic saturates.
pub(crate) trait StateMachine {
    /// What is kept for a key.
    type State: State;

    /// The earliest time, `now` or later, at which `cost` conforms; `None`
    /// where it never will, and [`UNKNOWN_TIME`] where nobody knows.
    fn earliest(&self, state: &Self::State, now: u64, cost: u64) -> Option<u64>;

    /// When `cost`, which could go at `at`, should go so that departures are
    /// spread evenly: `at`, or a later time up to which it counts for the
    /// same.
    fn smooth_departure(&self, state: &Self::State, at: u64, cost: u64) -> u64 {
        let _ = (state, cost);
        at
    }

    /// The last time, `at` or later, for which a commit leaves to others what
    /// one for `at` would.
    fn latest_departure(&self, state: &Self::State, at: u64) -> u64 {
        let _ = (state, at);
        u64::MAX
    }

    /// Counts `cost` at `at`, a time not before [`Self::earliest`].
    fn commit(&self, state: &mut Self::State, now: u64, at: u64, cost: u64);

    /// Commits `cost` at `now`, if that is the earliest time, and says what is
    /// left: the three questions in one.
    #[inline]
    fn charge(&self, state: &mut Self::State, now: u64, cost: u64) -> Option<QuotaStatus> {
        if self.earliest(state, now, cost) != Some(now) {
            return None;
        }
        self.commit(state, now, now, cost);
        Some(self.status_of(state, now))
    }

    /// What a claim on what is committed now has to remember of the state.
    fn version(&self, state: &Self::State) -> u64 {
        let _ = state;
        0
    }

    /// Counts `units` at `now`, whatever the limit says, and adds them to the
    /// claim.
    fn charge_debt(&self, state: &mut Self::State, now: u64, units: u64, claim: &mut Claim);

    /// Gives back `units` of those that are left of the claim, where that
    /// cannot break the bound; what is left is for the caller to take down.
    fn refund(&self, state: &mut Self::State, now: u64, units: u64, claim: &mut Claim);

    /// What is left at `now`.
    fn status_of(&self, state: &Self::State, now: u64) -> QuotaStatus;
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

impl State for CompactState {
    fn idle_at(&self) -> u64 {
        self[0]
    }
}

impl State for WideState {
    fn idle_at(&self) -> u64 {
        self[0]
    }
}
