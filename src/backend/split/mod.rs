//! One limit for a fleet without a store: [`Split`], and the sources of its [`Share`].
//!
//! It only picks the machine of the instance's share; the memory engine decides.
//! Invariant: while shares sum to one, the fleet admits what the table at
//! [`Split`] says.

#[cfg(any(feature = "gossip", test))]
mod by_demand;
#[cfg(any(feature = "gossip", test))]
#[cfg_attr(not(feature = "gossip"), allow(dead_code, reason = "only gossip counts it"))]
mod demand;
#[cfg(feature = "gossip")]
mod gossip;
pub(super) mod machines;
mod rule_shares;
mod share;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use tokio::sync::watch;

#[cfg(feature = "gossip")]
pub use self::gossip::Gossip;
use self::machines::ShareMachines;
pub use self::share::{Dns, Share};
use super::{
    contract::{Extension, InProcess, forward_backend},
    memory::{MAX_KEYS, engine::Engine},
};

/// Decides in this process, on this instance's share of every limit.
///
/// There is no store, no round trip, and nothing that can fail: N instances that
/// know their [`Share`] keep one limit together. With the feature `gossip`,
/// `split::Gossip` makes one whose shares follow demand; what follows is about shares
/// that do not. It decides like
/// [`Local`](super::Local), and as fast. A policy states the limit of the whole
/// fleet.
///
/// ```
/// use tower_ratelimit::{Algorithm, Quota, RateLimiter, backend::{Share, Split}};
///
/// // Instance 3 of 96: ten a second for the whole fleet.
/// let limiter = RateLimiter::builder()
///     .policy(Quota::per_second(10).algorithm(Algorithm::FixedWindow))
///     .backend(Split::new(Share::new(3, 96)?))
///     .build()?;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
///
/// # What the fleet admits
///
/// For a limit L, a window W, a burst B, and N instances with different indexes
/// of the same count:
///
/// | algorithm | an instance has | the fleet admits |
/// |---|---|---|
/// | `FixedWindow` | its share of each window | exactly L in each window |
/// | `TokenBucket` | exactly the rate L/N, and its share of B, at least 1 | max(B, N) + L·t/W in any time t |
/// | `LeakyBucket` | departures N·W/L apart, and its share of the queue, at least 1 | L·t/W + N in any time t |
/// | `AnchoredWindow` | a fixed share of L | L in windows that each instance anchors itself; so up to 2L in some W |
/// | `SlidingWindow` | a fixed share of L | L, with the previous window weighted, as one instance would |
/// | `SlidingLog` | a fixed share of L | exactly L in any W |
/// | `Concurrency` | a fixed share of L | L at once |
///
/// **Shares of windows sum to exactly L** in every window, also if N does not
/// divide L, and if L is less than N. From N on, an instance has the same share of
/// every window, and the remainder belongs to the lowest indexes. A limit below N
/// rotates: the window's number and the instance's index determine which instance
/// has a unit, so instances agree without communication. In any N windows, each
/// instance has a unit equally often, spread as evenly as possible.
///
/// **Weighted shares** of windows rotate at every limit: constant ones would leave
/// small weights with nothing. In each window, a share differs from its weighted
/// part by less than four units, and with two instances by less than one. In the
/// long run each instance has its weighted part, but not exactly so in any number
/// of windows: over 10,000 windows, no test found a difference of more than 100
/// units. Equal weights are equal shares.
///
/// **Shares are monotone.** Raising a limit never reduces an instance's share of
/// a window, also by weights. So a window in which a policy's limit changes
/// holds at most the larger limit, in whatever order instances notice.
///
/// **Fixed shares** sum to L as well. The remainder of equal shares belongs to
/// the lowest indexes, and a weighted share differs from its weighted part by
/// less than two units. If such a limit is below N, some instances have no share
/// and reject everything, always. Use a `FixedWindow` or another backend there.
///
/// **A request that costs more than an instance's share** never fits, although
/// one process with the whole limit could admit it. The largest cost is L/N,
/// rounded up for the lowest indexes; by weights, the most that any window holds.
///
/// **Uneven load leaves quota unused**: no instance can spend what another has
/// left.
///
/// # Clocks
///
/// Windows are aligned to the wall clock, so all instances open and close them
/// together, as far as their clocks agree. With a clock skew of up to D, windows
/// hold L by the clocks of the instances. A window of true time then overlaps
/// two windows of each instance whose clock differs. It holds at most L and one
/// more share of each of those instances: up to 2L, if all spend their shares
/// within D of the border. Under steady load it holds one share of each: L, give
/// or take a unit for each instance if N does not divide L.
/// [`Rule::smooth`](crate::Rule::smooth) makes load steady.
///
/// # When shares change
///
/// [`Split::watch`] follows a count that changes. A change takes effect with the
/// instance's next decision:
///
/// - In the window that is open then, an instance has the smaller of its shares
///   at the window's start and now: a smaller share counts at once, a larger one
///   from the next window on. So the fleet stays within the limit in every
///   window, whether all instances have noticed or not, and whatever instances
///   that left have spent, unless an instance misses a change (see below).
/// - Fixed shares are raised once a whole window has passed, those of sliding
///   windows after two. Until then, an instance without a share reports no
///   `retry_after`.
/// - A bucket keeps the tokens that it has, and fills at the new rate from there.
/// - Counters keep what was used, and reservations stay. Under a smaller share,
///   later windows are as full as they were reserved.
/// - In-flight units above a smaller share stay until they are released.
///
/// **An instance that decides nothing between two changes misses the first.** In
/// the window of the second change it has the smaller of the shares that it knew
/// and knows now, while others may have a still smaller one because of the
/// change that it missed. If the count changes from 80 to 96 and back, it has
/// 1/80 in a window that others hold by 1/96. The fleet may admit that
/// difference beyond the limit, once for each such instance. The next window
/// holds the limit. Fixed shares differ until those of the others are raised.
///
/// While instances disagree on the count, their shares do not sum to the limit.
/// They converge one window after the last instance has noticed the change.
///
/// **A new instance** has its share at once. In the window in which it starts,
/// the fleet may admit its share on top of what the others have spent by theirs.
/// The same holds for a restarted instance, which has lost what it had counted.
/// With [`joining`](Self::joining) it waits for the next window instead, and
/// starts with empty buckets. So does an instance whose watch starts with
/// [`Share::none`].
///
/// A clock that is set back by ten seconds or more has the effects that
/// [`Local`](super::Local) describes, for this instance's counters.
///
/// # Cooldowns
///
/// Instances do not communicate, so a cooldown
/// ([`RateLimiter::cool_down`](crate::RateLimiter::cool_down)) holds for the
/// instance that received the upstream's response.
///
/// # What callers see
///
/// The `limit` of a decision is the policy's, for the whole fleet; `remaining`,
/// `reset` and `retry_after` are this instance's. `retry_after` is exact: with a
/// share that rotates, it is the next window in which the instance has a unit.
/// By weights, the next 8,191 windows are searched; if it has no unit in any of
/// them, there is no `retry_after`.
#[derive(Debug)]
#[must_use]
pub struct Split {
    engine: Arc<Engine<Arc<ShareMachines>>>,
}

impl Split {
    /// A backend whose share never changes.
    pub fn new(share: Share) -> Self {
        Self::with(Arc::new(ShareMachines::new(share, None)), MAX_KEYS)
    }

    fn with(machines: Arc<ShareMachines>, max_keys: usize) -> Self {
        Self { engine: Arc::new(Engine::new(max_keys, machines)) }
    }

    /// A backend whose share is the latest value of a channel. When the sender is
    /// dropped, the last share stays in force.
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
    pub fn watch(shares: watch::Receiver<Share>) -> Self {
        let share = shares.borrow().clone();
        Self::with(Arc::new(ShareMachines::new(share, Some(shares))), MAX_KEYS)
    }

    /// Starts without a share. Windows get the instance's share from the window
    /// after its first decision on, and buckets start empty. So an instance that
    /// joins a running fleet, or restarts, adds nothing to what the others may
    /// have spent already.
    pub fn joining(self) -> Self {
        self.engine.source.join();
        self
    }

    /// The most counters that are held, as for [`Local`](super::Local): 1,000,000
    /// unless set.
    pub fn max_keys(self, max_keys: usize) -> Self {
        Self::with(Arc::clone(&self.engine.source), max_keys)
    }

    /// The share in force.
    #[must_use]
    pub fn share(&self) -> Share {
        self.engine.source.current()
    }
}

forward_backend!([] Split, self => self.engine, Some(self));

impl Extension for Split {
    fn engine(&self) -> Option<InProcess> {
        Some(InProcess(Arc::clone(&self.engine) as _))
    }

    fn state(&self) -> Vec<(&'static str, String)> {
        vec![("share", format!("{:.4}", self.share().fraction()))]
    }
}
