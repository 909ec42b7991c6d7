//! Who decides: [`Backend`], and those that come with the crate.
//!
//! | | counts | feature |
//! |---|---|---|
//! | [`Local`] | in this process, exactly; the default | |
//! | `Redis` | for all instances together, exactly, on a Redis or Valkey server | `redis` |
//! | `Governor` | in a keyed `governor::RateLimiter` that exists | `governor` |
//!
//! What happens where a backend gives no answer is each rule's own to say:
//! [`FailureMode`](crate::FailureMode).

mod cooldown;
#[cfg(feature = "governor")]
mod governor;
mod local;
mod outcome;
mod receipt;
#[cfg(feature = "redis")]
mod redis;
pub mod split;

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Weak},
    time::Duration,
};

#[cfg(feature = "governor")]
pub use self::governor::{Governor, Passed};
#[cfg(feature = "redis")]
pub(crate) use self::receipt::Moving;
#[cfg(all(feature = "redis-tls", feature = "watch"))]
pub(crate) use self::redis::provide_cryptography;
#[cfg(feature = "redis")]
pub use self::redis::{Redis, RedisBuilder, RedisStats};
pub use self::{
    cooldown::{CooldownListener, CooldownNotice},
    local::{Local, LocalBuilder},
    outcome::Outcome,
    receipt::{Receipt, Settlement},
    split::{Share, Split},
};
pub(crate) use self::{
    local::LONGEST_RACE,
    outcome::{Answer, TierState},
    receipt::TierClaim,
};
pub use crate::policy::charge::Charge;
pub(crate) use crate::policy::{OwnedCharge, ReservationOwner};
use crate::{error::BackendError, time::Timestamp};

/// Decides charges: all of a request's, all or nothing.
///
/// [`Backend::acquire`] charges every tier of every charge, at one time, and
/// only if all conform; a rejection charges nothing. Whoever can answer at once
/// does, with [`Acquire::Ready`].
///
/// `examples/custom_backend.rs` is a whole one in under 100 lines; the
/// conformance suite in `testing` says whether it keeps the contract.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Decides the charges of one request. Must not block.
    fn acquire(&self, request: &AcquireRequest<'_>) -> Acquire;

    /// Gives back what was charged, where that cannot admit more than the
    /// limits; else forfeits it. Best effort. Frees what is held in flight as
    /// well.
    fn refund(&self, receipt: &Receipt, now: Timestamp);

    /// Frees what the receipt holds of tiers that limit what is in flight, and
    /// only that: the work has ended. Freeing it twice does nothing. A backend
    /// without such tiers has nothing to do.
    fn release(&self, receipt: &Receipt, now: Timestamp) {
        let _ = (receipt, now);
    }

    /// Changes what was charged, as its cost is known late. Best effort; but
    /// what is given back must not admit more than the limits, and must not be
    /// more than was charged. A backend that does nothing here charges what
    /// was known at first.
    fn settle(&self, receipt: &Receipt, settlement: Settlement, now: Timestamp) {
        let _ = (receipt, settlement, now);
    }

    /// Tells the other instances that a key is held back: its provider has
    /// asked this one to slow down. Best effort, in the background: must not
    /// block. It is called for every response that asks, so that who tells
    /// should leave out what was told already.
    ///
    /// A backend that shares nothing has nothing to do.
    fn share_cooldown(&self, notice: &CooldownNotice<'_>) {
        let _ = notice;
    }

    /// From now on `listener` is to be told what other instances have said by
    /// [`share_cooldown`](Self::share_cooldown), and what they said before that is not
    /// over yet. It may hear what it has told itself.
    ///
    /// A limiter calls this once, as soon as it has to do with a provider: a
    /// client's layer is made, or somebody holds a key back or asks whether
    /// one is. Limiters of servers never do. Keep the listener as it is, weak:
    /// it owns the backend.
    ///
    /// A backend that shares nothing has nothing to do.
    fn subscribe_cooldowns(&self, listener: Weak<dyn CooldownListener>) {
        let _ = listener;
    }

    /// What is held at present.
    fn usage(&self) -> Usage {
        Usage::default()
    }
}

impl<B: Backend + ?Sized> Backend for Arc<B> {
    fn acquire(&self, request: &AcquireRequest<'_>) -> Acquire {
        (**self).acquire(request)
    }

    fn refund(&self, receipt: &Receipt, now: Timestamp) {
        (**self).refund(receipt, now);
    }

    fn release(&self, receipt: &Receipt, now: Timestamp) {
        (**self).release(receipt, now);
    }

    fn settle(&self, receipt: &Receipt, settlement: Settlement, now: Timestamp) {
        (**self).settle(receipt, settlement, now);
    }

    fn share_cooldown(&self, notice: &CooldownNotice<'_>) {
        (**self).share_cooldown(notice);
    }

    fn subscribe_cooldowns(&self, listener: Weak<dyn CooldownListener>) {
        (**self).subscribe_cooldowns(listener);
    }

    fn usage(&self) -> Usage {
        (**self).usage()
    }
}

/// The charges of one request.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AcquireRequest<'a> {
    /// One for each rule that applies; their keys differ.
    pub charges: &'a [Charge<'a>],
    /// The time of the request. Backends with a clock of their own may use
    /// theirs.
    pub now: Timestamp,
    /// The longest wait that the caller accepts, for the whole; each charge
    /// has a bound of its own as well, see [`Charge::max_wait`].
    pub max_wait: Duration,
    /// The request does not go before: its key is held back until then. At
    /// `now` or earlier where it may go at once. The limiter asks only a
    /// [`Local`] for a later time; any other is asked once it has come.
    pub not_before: Timestamp,
}

impl<'a> AcquireRequest<'a> {
    pub(crate) fn new(charges: &'a [Charge<'a>], now: Timestamp, max_wait: Duration) -> Self {
        Self { charges, now, max_wait, not_before: Timestamp::from_nanos(0) }
    }

    pub(crate) fn not_before(self, not_before: Timestamp) -> Self {
        Self { not_before, ..self }
    }

    /// Nanoseconds until it may go, whatever its tiers say.
    fn cooldown_left(&self) -> u64 {
        self.not_before.as_nanos().saturating_sub(self.now.as_nanos())
    }
}

/// An answer, or the promise of one.
pub enum Acquire {
    /// Decided.
    Ready(Result<Outcome, BackendError>),
    /// To be decided by a store. Dropping the future may leave the charge
    /// counted. A backend that counts what is in flight has to see to it that
    /// such a unit comes back: by finishing what was begun, or by holding units
    /// for a time only.
    ///
    /// Bring a deadline of your own, and answer with an error once it is over:
    /// a request that may not wait is asked about for as long as it takes. One
    /// that may wait is given up when its wait is over, though not within a
    /// second, and then the rules' failure modes decide.
    Pending(Answering),
}

/// A store's answer, on its way.
pub type Answering = Pin<Box<dyn Future<Output = Result<Outcome, BackendError>> + Send>>;

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(result) => f.debug_tuple("Ready").field(result).finish(),
            Self::Pending(_) => f.write_str("Pending"),
        }
    }
}

/// What a backend holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Counters held in this process: one for each tier of a key.
    pub keys: usize,
    /// Decisions that had to share an overflow counter, because the cap on
    /// keys was reached.
    pub overflowed: u64,
}
