//! The contract of backends: [`Backend`], and what only those of this crate have.
//!
//! It decides nothing. Invariant: every decision of the limiter goes through
//! [`Backend::decide`], on every backend and from every caller.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use futures_util::future::{BoxFuture, ready};

use super::{
    cooldown::{CooldownListener, CooldownNotice},
    in_process::InProcess,
    outcome::ImmediateStates,
    peek::by_free_charge,
    receipt::{Receipt, Settlement},
    request::{Decide, Request, Usage},
};
use crate::{
    error::{BackendError, BackendErrorKind},
    policy::charge::Charge,
    time::Timestamp,
};

/// Decides charges: all of a request's, or none.
///
/// [`Backend::decide`] charges every tier of every charge, at one time, and
/// only if all conform; a rejection charges nothing. A backend that needs no I/O
/// answers with [`Decide::Now`]. Where the caller cannot await
/// ([`Request::is_immediate`]), one that would have to ask a store charges nothing.
///
/// A decorator sees every decision, whichever backend it decorates, [`Local`](super::Local)
/// included.
///
/// `examples/custom_backend.rs` is a whole one in 80 lines, and
/// `examples/logging_backend.rs` a decorator around any other. The conformance
/// suite in `testing` checks whether a backend keeps the contract.
///
/// ```
/// use tower_ratelimit::{
///     Quota, RateLimiter,
///     backend::{Backend, Decide, Local, Receipt, Request},
///     time::Timestamp,
/// };
///
/// /// Prints which rules each request is charged by.
/// #[derive(Debug)]
/// struct Printing<B>(B);
///
/// impl<B: Backend> Backend for Printing<B> {
///     fn decide(&self, request: &Request<'_>) -> Decide {
///         let rules: Vec<&str> = request.charges.iter().map(|charge| charge.rule()).collect();
///         println!("{rules:?}");
///         self.0.decide(request)
///     }
///
///     fn refund(&self, receipt: &Receipt, now: Timestamp) {
///         self.0.refund(receipt, now);
///     }
///
///     // It handles all other calls.
///     fn inner(&self) -> Option<&dyn Backend> {
///         Some(&self.0)
///     }
/// }
///
/// let limiter = RateLimiter::builder().policy(Quota::per_hour(1)).backend(Printing(Local::new())).build()?;
/// assert!(limiter.try_check(&tower_ratelimit::Descriptor::new("/")).unwrap().is_allowed());
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Decides the charges of one request. Must not block.
    fn decide(&self, request: &Request<'_>) -> Decide;

    /// Refunds what was charged, where that cannot admit more than the limits;
    /// else forfeits it. Best effort. Releases in-flight units as well.
    fn refund(&self, receipt: &Receipt, now: Timestamp);

    /// The backend that this one decorates. The methods below
    /// call it, unless the decorator has its own, and do what they say where there is
    /// none.
    fn inner(&self) -> Option<&dyn Backend> {
        None
    }

    /// Releases the in-flight units of the receipt, and nothing else: the work
    /// has ended. A second release does nothing. A backend without concurrency
    /// limits has nothing to do.
    fn release(&self, receipt: &Receipt, now: Timestamp) {
        if let Some(inner) = self.inner() {
            inner.release(receipt, now);
        }
    }

    /// Adjusts what was charged to a cost that is known afterwards. Best
    /// effort; but a refund must not admit more than the limits, and must not
    /// exceed what was charged. A backend that does nothing here
    /// charges the first estimate.
    fn settle(&self, receipt: &Receipt, settlement: Settlement, now: Timestamp) {
        if let Some(inner) = self.inner() {
            inner.settle(receipt, settlement, now);
        }
    }

    /// The answer that [`decide`](Self::decide) would give at once, charging and
    /// counting nothing. By default it charges a cost of 0, and compares the units
    /// that each tier then has left with the cost, so `retry_after` may be later
    /// than need be. Without tier states in its outcomes, a backend has to answer
    /// itself, or the default is an error of the kind `Unsupported`.
    fn peek(&self, request: &Request<'_>) -> Decide {
        match self.inner() {
            Some(inner) => inner.peek(request),
            None => by_free_charge(request, |free| self.decide(free)),
        }
    }

    /// Forgets what the keys of these charges have used: each tier is full again.
    /// Returns how many counters it forgot; a tier of a key that was never used has none.
    /// In-flight units stay, and so does what a key shares with others, such as an
    /// overflow counter. What is counted in this process is forgotten by the call, even
    /// if the future is dropped.
    ///
    /// # Errors
    ///
    /// If the store fails. By default always, with the kind `Unsupported`.
    fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> BoxFuture<'static, Result<u64, BackendError>> {
        if let Some(inner) = self.inner() {
            return inner.reset(charges, now);
        }
        let reason = "the backend cannot forget what a key has used";
        Box::pin(ready(Err(BackendError::new(BackendErrorKind::Unsupported, reason))))
    }

    /// Reports to the other instances that a key is cooling down: its upstream
    /// asked this instance to slow down. Best effort, in the background: must
    /// not block. The limiter calls it for every response that asks, so the
    /// backend should leave out what it has already reported. By default it
    /// shares nothing.
    fn share_cooldown(&self, notice: &CooldownNotice<'_>) {
        if let Some(inner) = self.inner() {
            inner.share_cooldown(notice);
        }
    }

    /// Calls `listener` with other instances' cooldowns from now on, and with those
    /// from before that are not over yet. It may be called with this instance's own,
    /// does not block, and never shortens a cooldown that lasts longer. It ignores a
    /// key that the limiter's policy does not have. No notice counts for more than an
    /// hour.
    ///
    /// A limiter calls this once, and only if it has an upstream: when a
    /// client's layer is made, or when a caller starts a cooldown or asks for
    /// one. Limiters of servers never do. Keep the listener weak: its limiter owns the
    /// backend.
    fn subscribe_cooldowns(&self, listener: Weak<CooldownListener>) {
        if let Some(inner) = self.inner() {
            inner.subscribe_cooldowns(listener);
        }
    }

    /// Gives back what it has reserved ahead, and reports what it has not
    /// reported yet: this instance is about to stop. By default there is nothing
    /// to do. Later requests are decided as before.
    fn drain(&self, now: Timestamp) -> BoxFuture<'static, ()> {
        match self.inner() {
            Some(inner) => inner.drain(now),
            None => Box::pin(std::future::ready(())),
        }
    }

    /// What it keeps in this process.
    fn usage(&self) -> Usage {
        self.inner().map_or_else(Usage::default, Backend::usage)
    }

    /// What only backends of this crate have; their decorators pass it on.
    fn extension(&self) -> Option<&dyn Extension> {
        self.inner()?.extension()
    }
}

/// What only the backends of this crate can tell the limiter. Sealed: no other crate
/// can name it.
#[allow(unnameable_types, reason = "sealed")]
pub trait Extension {
    /// The engine in this process that decides, on the limiter's clock. The limiter
    /// asks it only where no decorator stands before it.
    fn engine(&self) -> Option<InProcess> {
        None
    }

    /// Charges a request by units that this process has leased from the store, if there are
    /// enough; else charges and counts nothing. No receipt is kept of it, so nothing that it
    /// takes may be in flight. The limiter asks only where no decorator stands before it.
    fn charge_leased(&self, _charges: &[Charge<'_>], _now: Timestamp, _states: &mut ImmediateStates) -> bool {
        false
    }

    /// Whether it honors [`Rule::consistency`](crate::Rule::consistency). The
    /// limiter logs once if a policy asks for a level that the backend ignores.
    fn honors_consistency(&self) -> bool {
        false
    }

    /// How many instances decide on the same counters, this one included, as far as it
    /// knows. Rules that are leased, fall back to the local limiter and set
    /// no [`local_share`](crate::Rule::local_share) divide their limits by it there.
    fn instances(&self) -> u64 {
        1
    }

    /// What operators should know of its state, each fact with its name.
    fn state(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

/// Implements [`Backend`] by another backend, to which the expression leads.
macro_rules! forward_backend {
    ([$($generics:tt)*] $type:ty, $this:ident => $inner:expr, $extension:expr) => {
        impl $($generics)* $crate::backend::Backend for $type {
            fn decide(&$this, request: &$crate::backend::Request<'_>) -> $crate::backend::Decide {
                $inner.decide(request)
            }

            fn refund(&$this, receipt: &$crate::backend::Receipt, now: $crate::time::Timestamp) {
                $inner.refund(receipt, now);
            }

            fn inner(&$this) -> Option<&dyn $crate::backend::Backend> {
                $inner.inner()
            }

            fn release(&$this, receipt: &$crate::backend::Receipt, now: $crate::time::Timestamp) {
                $inner.release(receipt, now);
            }

            fn settle(
                &$this,
                receipt: &$crate::backend::Receipt,
                settlement: $crate::backend::Settlement,
                now: $crate::time::Timestamp,
            ) {
                $inner.settle(receipt, settlement, now);
            }

            fn peek(&$this, request: &$crate::backend::Request<'_>) -> $crate::backend::Decide {
                $inner.peek(request)
            }

            fn reset(
                &$this,
                charges: &[$crate::backend::Charge<'_>],
                now: $crate::time::Timestamp,
            ) -> futures_util::future::BoxFuture<'static, Result<u64, $crate::error::BackendError>> {
                $inner.reset(charges, now)
            }

            fn share_cooldown(&$this, notice: &$crate::backend::CooldownNotice<'_>) {
                $inner.share_cooldown(notice);
            }

            fn subscribe_cooldowns(&$this, listener: std::sync::Weak<$crate::backend::CooldownListener>) {
                $inner.subscribe_cooldowns(listener);
            }

            fn drain(&$this, now: $crate::time::Timestamp) -> futures_util::future::BoxFuture<'static, ()> {
                $inner.drain(now)
            }

            fn usage(&$this) -> $crate::backend::Usage {
                $inner.usage()
            }

            fn extension(&$this) -> Option<&dyn $crate::backend::contract::Extension> {
                $extension
            }
        }
    };
}

pub(super) use forward_backend;

forward_backend!([<B: Backend + ?Sized>] Arc<B>, self => (**self), (**self).extension());
forward_backend!([<B: Backend + ?Sized>] Box<B>, self => (**self), (**self).extension());
