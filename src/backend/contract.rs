//! The contract of backends: [`Backend`], and what only those of this crate have
//! ([`Extension`], [`InProcess`]).
//!
//! It decides nothing. Invariant: every decision of the limiter goes through
//! [`Backend::decide`], on every backend and from every caller.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::future::{BoxFuture, ready};
use smallvec::SmallVec;

use super::{
    receipt::{Receipt, Settlement},
    request::{Decide, ImmediateStates, Outcome, OutcomeKind, Request, Versioned, tiers},
};
use crate::{
    descriptor::TenantId,
    error::{BackendError, BackendErrorKind},
    fingerprint::Fingerprint,
    policy::{Tier, charge::Charge},
    quota::{Algorithm, Quota},
    time::{Timestamp, nanos},
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

/// What a backend keeps in this process.
///
/// ```
/// use tower_ratelimit::{Descriptor, Quota, RateLimiter};
///
/// let limiter = RateLimiter::new(Quota::per_minute(10))?;
/// let _ = limiter.try_check(&Descriptor::new("/").tenant("acme"));
/// assert_eq!(limiter.stats().backend.keys, 1);
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Counters in this process: one for each tier of a key.
    pub keys: usize,
    /// Decisions that shared an overflow counter, because the cap on keys was
    /// reached and no counter could be displaced.
    pub overflowed: u64,
    /// Counters in use that new keys displaced, because the cap on keys was
    /// reached.
    pub displaced: u64,
}

/// A key that cools down because its upstream asked for it, as text, which
/// means the same to all instances.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{backend::CooldownNotice, descriptor::TenantId};
///
/// let mut notice = CooldownNotice::new("api", Duration::from_secs(2));
/// notice.per_tenant = true;
/// notice.tenant = Some(TenantId::Name("api.example.com"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(hidden)]
pub struct CooldownNotice<'a> {
    /// The rule's id.
    pub rule: &'a str,
    /// Whether the rule has a counter for each tenant.
    pub per_tenant: bool,
    /// The tenant. `None` is the anonymous tenant where the rule counts per
    /// tenant, and all tenants where it does not.
    pub tenant: Option<TenantId<'a>>,
    /// The path pattern; empty where the rule does not count per endpoint.
    pub endpoint: &'a str,
    /// The method; empty where the rule does not count per method, and for
    /// methods without a counter of their own.
    pub method: &'a str,
    /// The time left from now on, without jitter: each instance adds its own.
    pub time: Duration,
}

impl<'a> CooldownNotice<'a> {
    /// For the one key of a rule that all requests share. The other fields may
    /// be set.
    #[must_use]
    pub fn new(rule: &'a str, time: Duration) -> Self {
        Self { rule, per_tenant: false, tenant: None, endpoint: "", method: "", time }
    }

    pub(crate) fn of(charge: &Charge<'a>, time: Duration) -> Self {
        Self {
            rule: charge.rule(),
            per_tenant: charge.rule.is_per_tenant(),
            tenant: charge.tenant(),
            endpoint: charge.endpoint(),
            method: charge.method(),
            time,
        }
    }
}

/// What a limiter does with the cooldowns of other instances.
pub(crate) type CooldownListener = dyn Fn(&CooldownNotice<'_>) + Send + Sync;

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

/// An engine that decides in this process, and what it can tell the limiter beside what
/// every backend can. Opaque: only this crate makes one.
#[derive(Clone, Debug)]
#[allow(unnameable_types, reason = "sealed")]
pub struct InProcess(pub(crate) Arc<dyn InProcessEngine>);

pub(crate) trait InProcessEngine: fmt::Debug + Send + Sync {
    /// Charges one tier of a key, if its state exists and admits the cost at `now`; else
    /// charges nothing.
    fn charge_tier(&self, tier: &Tier, key: Fingerprint, cost: u64, now: Timestamp) -> Option<Versioned>;

    /// Charges a request, if the states of all its tiers exist and admit it at `now`; else
    /// charges nothing. Adds the status of each tier to `states`.
    fn charge_now(&self, charges: &[Charge<'_>], now: Timestamp, states: &mut ImmediateStates) -> bool;

    /// Whether a refund of the receipt admits at its time what it was charged
    /// for: nothing was charged after it.
    fn is_last(&self, receipt: &Receipt, now: Timestamp) -> bool;

    /// The overflow counters of in-flight units that such a request would be
    /// charged to, because its keys have no entry and get none. Charges
    /// nothing.
    fn overflow_in_flight(&self, request: &Request<'_>) -> SmallVec<[Fingerprint; 1]>;

    /// Whether it counts shares of the limits, which may change.
    fn counts_shares(&self) -> bool;
}

impl InProcess {
    /// Whether units may be released without the limiter that holds this noticing it: a
    /// share of the limit changes, or another limiter decides by the same engine.
    pub(crate) fn may_release_unnoticed(&self) -> bool {
        // The backend has the engine too.
        self.0.counts_shares() || Arc::strong_count(&self.0) > 2
    }
}

/// The default of [`Backend::peek`]: asks by a charge of nothing, and compares what it leaves
/// with the cost. It never says that more is left than the backend has reported.
fn by_free_charge(request: &Request<'_>, decide: impl FnOnce(&Request<'_>) -> Decide) -> Decide {
    let charges: SmallVec<[Charge<'_>; 2]> =
        request.charges.iter().map(|charge| Charge { cost: 0, ..*charge }).collect();
    let asked: SmallVec<[(u64, Quota); 2]> =
        tiers(request.charges).map(|(charge, tier)| (charge.cost, *tier.quota())).collect();
    let free = Request { not_before: request.not_before, ..Request::new(&charges, request.now, Duration::ZERO) };
    match decide(&free) {
        Decide::Now(result) => Decide::Now(result.and_then(|outcome| answer(outcome, &asked))),
        Decide::Later(reply) => Decide::later(async move { answer(reply.await?, &asked) }),
    }
}

/// The answer for the costs that were asked for, by the status of each tier.
fn answer(mut outcome: Outcome, asked: &[(u64, Quota)]) -> Result<Outcome, BackendError> {
    if outcome.tiers.len() != asked.len() {
        let reason = "the backend does not report what is left";
        return Err(BackendError::new(BackendErrorKind::Unsupported, reason));
    }
    if !outcome.is_admitted() {
        return Ok(outcome);
    }
    let mut wait = Some(0);
    for (tier, (cost, quota)) in outcome.tiers.iter_mut().zip(asked) {
        tier.violated = tier.remaining < *cost;
        if tier.violated {
            let can_pass = *cost <= quota.capacity() && quota.limit() > 0;
            let time = can_pass.then(|| longest_wait(cost - tier.remaining, quota, tier.reset));
            wait = wait.zip(time).map(|(wait, time): (u64, u64)| wait.max(time));
        }
    }
    if outcome.tiers.iter().any(|tier| tier.violated) {
        outcome.answer = OutcomeKind::Rejected { retry_after: wait };
    }
    Ok(outcome)
}

/// The longest that it takes, in nanoseconds, until so many more units are free.
fn longest_wait(missing: u64, quota: &Quota, reset: u64) -> u64 {
    match quota.counted_by() {
        Algorithm::Concurrency => GUESS,
        algorithm if algorithm.has_burst() => {
            let refill = u128::from(missing) * u128::from(nanos(quota.window())) / u128::from(quota.limit().max(1)) + 1;
            u64::try_from(refill).unwrap_or(u64::MAX).min(reset)
        }
        // The next window counts this one in part.
        Algorithm::SlidingWindow => reset.saturating_add(nanos(quota.window())),
        _ => reset,
    }
}

/// When to ask again, in nanoseconds, while a concurrency limit is full.
const GUESS: u64 = 1_000_000_000;

/// Implements [`Backend`] by another backend, to which the expression leads.
macro_rules! forward_backend {
    ([$($generics:tt)*] $type:ty, $this:ident => $inner:expr, $extension:expr) => {
        const _: () = {
            use std::sync::Weak;

            use futures_util::future::BoxFuture;
            use $crate::{
                backend::{
                    Backend, Charge, CooldownListener, CooldownNotice, Decide, Extension, Receipt, Request,
                    Settlement, Usage,
                },
                error::BackendError,
                time::Timestamp,
            };

            impl $($generics)* Backend for $type {
                fn decide(&$this, request: &Request<'_>) -> Decide {
                    $inner.decide(request)
                }

                fn refund(&$this, receipt: &Receipt, now: Timestamp) {
                    $inner.refund(receipt, now);
                }

                fn inner(&$this) -> Option<&dyn Backend> {
                    $inner.inner()
                }

                fn release(&$this, receipt: &Receipt, now: Timestamp) {
                    $inner.release(receipt, now);
                }

                fn settle(&$this, receipt: &Receipt, settlement: Settlement, now: Timestamp) {
                    $inner.settle(receipt, settlement, now);
                }

                fn peek(&$this, request: &Request<'_>) -> Decide {
                    $inner.peek(request)
                }

                fn reset(
                    &$this,
                    charges: &[Charge<'_>],
                    now: Timestamp,
                ) -> BoxFuture<'static, Result<u64, BackendError>> {
                    $inner.reset(charges, now)
                }

                fn share_cooldown(&$this, notice: &CooldownNotice<'_>) {
                    $inner.share_cooldown(notice);
                }

                fn subscribe_cooldowns(&$this, listener: Weak<CooldownListener>) {
                    $inner.subscribe_cooldowns(listener);
                }

                fn drain(&$this, now: Timestamp) -> BoxFuture<'static, ()> {
                    $inner.drain(now)
                }

                fn usage(&$this) -> Usage {
                    $inner.usage()
                }

                fn extension(&$this) -> Option<&dyn Extension> {
                    $extension
                }
            }
        };
    };
}

pub(super) use forward_backend;

forward_backend!([<B: Backend + ?Sized>] Arc<B>, self => (**self), (**self).extension());
forward_backend!([<B: Backend + ?Sized>] Box<B>, self => (**self), (**self).extension());
