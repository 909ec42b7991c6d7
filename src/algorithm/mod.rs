//! How units are counted: one pure state machine per algorithm, and the interface of
//! all of them, [`StateMachine`].
//!
//! Nothing here reads a clock, takes a lock or knows a key. A backend stores
//! one [`State`] per key and tier and passes it to the tier's [`Machine`] together
//! with the time. Times are nanoseconds since the Unix epoch. All arithmetic
//! saturates, so no limit, window, cost or clock makes a machine panic or wrap.
//!
//! **The invariant is monotone conformity.** A cost that conforms at a time
//! conforms at every later time while nothing else is committed. So the
//! earliest time that suits several machines is the latest of their answers,
//! found in one pass, and a commit at a future time is a reservation.
//!
//! **A debt is a series of reservations.** A cost that is known only
//! afterwards is counted whatever the limit says, as if each of its units had
//! been reserved after the one before it. The debt is paid back before
//! anything else is admitted, and no state grows because of it.
//!
//! **A refund never undercounts.** Units that no later charge builds upon are
//! undone exactly. Of the others, a machine refunds only what provably has not
//! come back over time and forfeits the rest. A state never counts less than
//! if the refunded units had never been charged.
//!
//! **A state is never further ahead than it can be.** Its capacity takes a
//! [`span`](StateMachine::span) to come back, and a reservation
//! lies at most the longest wait ahead. After the clock was set back, states are
//! ahead of it by more. Until it has caught up, a backend moves them
//! [back](StateMachine::move_back) to that bound. What was used
//! stays used, so a key is rejected for at most the bound, not for the whole jump.
//! Of a debt, what exceeds the bound is forgiven.

mod arrival;
mod fixed_window;
mod gcra;
mod in_flight;
mod machine;
mod share;
mod sliding_log;
mod sliding_window;
mod window;

#[cfg(test)]
mod tests;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

pub use self::share::Share;
pub(crate) use self::{
    arrival::{narrowed, widened},
    in_flight::UNKNOWN_TIME,
    machine::{Machine, MachineOptions},
    share::{ShareHistory, gcd},
    sliding_log::RequestLog,
};

/// The rules of one quota over the state of one key.
pub(crate) trait StateMachine {
    /// What is stored for a key.
    type State: State;

    /// The earliest time, not before `now`, at which `cost` conforms.
    ///
    /// `None` if it never conforms, [`UNKNOWN_TIME`] if the time cannot be known.
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
    fn move_back(&self, state: &mut Self::State, latest: u64);

    /// What is left at `now`.
    fn status_of(&self, state: &Self::State, now: u64) -> QuotaStatus;
}

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
    fn extend(&mut self, contiguous: bool, units: u64) {
        self.units = if contiguous { self.units.saturating_add(units) } else { units };
    }
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

/// Two words: buckets, fixed and anchored windows, concurrency limits.
pub(crate) type CompactState = [u64; 2];

/// Six words, which fill a cache line together with the key: sliding windows,
/// rates that two words cannot hold, and buckets of rules that settle
/// afterwards.
pub(crate) type WideState = [u64; 6];

/// The bytes that all logs of a store use, and may use.
#[derive(Debug)]
pub(crate) struct LogMemory {
    used: AtomicUsize,
    max: usize,
}

impl LogMemory {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), max })
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// The bytes that one log counts, which are released when it is dropped.
#[derive(Debug, Default)]
struct LogShare {
    /// `None` before the log is counted.
    memory: Option<Arc<LogMemory>>,
    bytes: usize,
}

impl LogShare {
    /// Whether so many bytes more are within the bound.
    fn has_room(&self, bytes: usize) -> bool {
        let memory = self.memory.as_ref();
        memory.is_none_or(|memory| memory.used.load(Ordering::Relaxed).saturating_add(bytes) <= memory.max)
    }

    /// Counts `bytes` instead of what was counted before.
    fn set(&mut self, memory: &Arc<LogMemory>, bytes: usize) {
        if bytes == self.bytes {
            return;
        }
        let memory = self.memory.get_or_insert_with(|| Arc::clone(memory));
        memory.used.fetch_add(bytes, Ordering::Relaxed);
        memory.used.fetch_sub(std::mem::replace(&mut self.bytes, bytes), Ordering::Relaxed);
    }
}

impl Drop for LogShare {
    fn drop(&mut self) {
        if let Some(memory) = &self.memory {
            memory.used.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}
