//! One limit for a fleet that talks to nobody: [`Split`], and where its
//! [`Share`] comes from.

mod dns;
mod env;
pub(super) mod machines;
mod share;
mod weights;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use tokio::sync::watch;

use self::machines::ShareMachines;
pub use self::{
    dns::{Addresses, Dns, Resolve},
    share::Share,
};
use super::{
    contract::{Backend, forward_backend},
    in_process::InProcess,
    memory::{MAX_KEYS, engine::Engine},
};

/// Decides in this process, on this instance's share of every limit.
///
/// No store, no round trip, nothing that can fail: N instances that know
/// their [`Share`] keep one limit together. It decides as [`Local`] does, and
/// as fast; a policy says the limit of the whole fleet.
///
/// ```
/// use tower_ratelimit::{Algorithm, Quota, RateLimiter, backend::{Share, Split}};
///
/// // Instance 3 of 96: ten a second, all together.
/// let limiter = RateLimiter::builder()
///     .policy(Quota::per_second(10).algorithm(Algorithm::FixedWindow))
///     .backend(Split::new(Share::new(3, 96)?))
///     .build()?;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
///
/// # What the fleet admits
///
/// For a limit L, a window W, a burst B, and N instances that all have another
/// index of the same count:
///
/// | algorithm | an instance has | the fleet admits |
/// |---|---|---|
/// | `FixedWindow` | its share of each window | L in each window, exactly |
/// | `TokenBucket` | the rate L/N, exactly, and its part of B, at least 1 | max(B, N) + L·t/W in any time t |
/// | `LeakyBucket` | departures N·W/L apart, and its part of the queue, at least 1 | L·t/W + N in any time t |
/// | `AnchoredWindow` | a part of L that stays the same | L in windows of each instance's own; so up to 2L in some W |
/// | `SlidingWindow` | a part of L that stays the same | L, the last window weighted, as one instance would |
/// | `SlidingLog` | a part of L that stays the same | L in any W, exactly |
/// | `InFlight` | a part of L that stays the same | L at once |
///
/// **Shares of windows sum to L exactly**, for every window, also where N does
/// not divide L, and where L is less than N. What is left over goes round: who
/// has a unit of it is a function of the window's number and the index alone,
/// so all agree without talking. In any N windows each instance has it equally
/// often, and its turns are spread as evenly as can be.
///
/// **By weights** all that goes round as well: in each window a share is less
/// than four units away from its weight's part, of two instances less than one.
/// In the long run each has its part, though not exactly so in any number of
/// windows: what an instance has had in 10,000 of them was in no test more
/// than 100 units away from it. Weights that are all the same are equal parts.
///
/// **Of a higher limit nobody has less**, in any window, also by weights. So a
/// window in which a policy's limit changes holds no more than the larger one,
/// whichever instance hears of it first.
///
/// **Parts that stay the same** sum to L as well; what is left over of equal
/// ones goes to the lowest indexes, and by weights each is less than two units
/// away from its weight's part. Of such a limit below N some have none at all,
/// and reject everything for good. A limit of that kind wants a `FixedWindow`,
/// or another backend.
///
/// **A request that costs more than an instance's share** never fits, where
/// one process with the whole limit could let it pass: the largest cost is
/// L/N, rounded up for windows; by weights the most that a window has.
///
/// **Uneven load leaves quota unused**: what one instance has not spent no
/// other can.
///
/// # Clocks
///
/// Windows are aligned to the wall clock, so that all open and close together
/// as far as clocks agree. Where clocks are up to D apart, windows hold L by
/// the clocks of the instances. A window of true time then sees the end of one
/// and the beginning of another window of each instance whose clock is off: it
/// holds at most L, and one more share of each of those; up to 2L, if all
/// spend their shares within D of the border. Where load is steady, it sees one
/// share of each: L, give or take a unit of each instance where N does not
/// divide L. ([`Rule::smooth`](crate::Rule::smooth) makes load steady.)
///
/// # When shares change
///
/// [`Split::watch`] follows a count that changes. A change counts from the
/// next decision on:
///
/// - In a window that is open then, an instance has the smaller of its shares
///   at the window's start and now. So all that the fleet admits in a window
///   stays within the limit, whether others have changed yet or not, and
///   whatever those that have gone had spent, as long as no instance misses a
///   change (see below): a smaller share counts at once, a larger one from the
///   next window on. Parts that stay the same are raised
///   once a whole window has passed, of sliding windows two; until then, who
///   had none is told no `retry_after`.
/// - A bucket keeps what is left in it, and fills at the new rate from there.
/// - All that was counted stays counted. What was reserved stays reserved: a
///   smaller share finds later windows as full as they are.
/// - What is in flight above a smaller share stays until it ends.
///
/// An instance hears of a change with its next decision. **One that decides
/// nothing between two changes misses the first**: in the window of the second
/// it has the smaller of the shares that it knew and knows now, where others
/// may have a still smaller one by what it missed. Where the count goes from
/// 80 to 96 and back, it has 1/80 in a window that others hold by 1/96, and
/// the fleet may admit that difference beyond the limit, once for each such
/// instance. The window after that holds the limit. Parts that stay the same
/// have that until the others are raised.
///
/// As long as instances do not agree on the count, their shares do not sum to
/// the limit: they have converged one window after the last has heard of the
/// change.
///
/// **Who joins** has its share at once. In the window in which it does, the
/// fleet may then admit its share on top of what others have spent by theirs,
/// and so may one that was restarted and has forgotten what it spent. With
/// [`joining`](Self::joining) it waits for the next window instead, and starts
/// with empty buckets; so does whoever is told its share by a watch that
/// starts with [`Share::none`].
///
/// # Holding back
///
/// Instances do not talk, nor about what a provider asks for
/// ([`hold_back`](crate::RateLimiter::cool_down)): each hears that by its own
/// responses.
///
/// # What callers see
///
/// The `limit` of a decision is the policy's, that of the whole fleet;
/// `remaining`, `reset` and `retry_after` are this instance's own.
/// `retry_after` is exact: with a share that takes turns, it is the window in
/// which it has one. By weights a turn is looked for in the next 8,191 windows;
/// where none of them has one, no `retry_after` is told.
#[derive(Debug)]
pub struct Split {
    engine: Arc<Engine<Arc<ShareMachines>>>,
}

impl Split {
    /// The share stays the same.
    #[must_use]
    pub fn new(share: Share) -> Self {
        Self::with(Arc::new(ShareMachines::new(share, None)), MAX_KEYS)
    }

    fn with(machines: Arc<ShareMachines>, max_keys: usize) -> Self {
        Self { engine: Arc::new(Engine::new(max_keys, machines)) }
    }

    /// The share is always the latest that was sent. When the sender is gone,
    /// the last one stays.
    ///
    /// ```
    /// use tokio::sync::watch;
    /// use tower_ratelimit::backend::{Share, Split};
    ///
    /// let (sender, receiver) = watch::channel(Share::new(3, 96)?);
    /// let backend = Split::watch(receiver);
    /// sender.send_replace(Share::new(3, 80)?);
    /// assert_eq!(backend.share().count(), 80);
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    #[must_use]
    pub fn watch(shares: watch::Receiver<Share>) -> Self {
        let share = shares.borrow().clone();
        Self::with(Arc::new(ShareMachines::new(share, Some(shares))), MAX_KEYS)
    }

    /// Begins without a share, and has its own from the next window on, for
    /// what has windows; buckets are empty at first. So an instance that comes
    /// while others are at work, or is restarted, adds nothing to what they
    /// may have spent already. "Next" is after the first decision.
    #[must_use]
    pub fn joining(self) -> Self {
        self.engine.source().join();
        self
    }

    /// The most counters that are held, as for [`Local`]: 1,000,000 unless
    /// set.
    #[must_use]
    pub fn max_keys(self, max_keys: usize) -> Self {
        Self::with(Arc::clone(self.engine.source()), max_keys)
    }

    /// The share in force.
    #[must_use]
    pub fn share(&self) -> Share {
        self.engine.source().current()
    }
}

impl Backend for Split {
    forward_backend!(self => self.engine);

    fn in_process(&self) -> Option<InProcess> {
        Some(InProcess::shares(&self.engine))
    }
}
