//! One request's attempt to be admitted: its charges and its options. Holds no
//! outcome; [`admit`](super::admit::admit) decides it.
//!
//! An [`Attempt`] borrows everything from the stack, so a request that is
//! decided at once allocates nothing. Only where a step has to await is it
//! turned into an [`OwnedAttempt`](super::owned_attempt::OwnedAttempt).

use std::time::Duration;

use smallvec::SmallVec;

use super::{current::PolicySnapshot, state::RateLimiter, wait::capacity::WaiterGrant};
use crate::{
    backend::Charge,
    descriptor::Descriptor,
    fingerprint::Fingerprint,
    policy::{CompiledPolicy, CompiledRule},
    time::{Timestamp, nanos},
};

pub(super) type Charges<'a> = SmallVec<[Charge<'a>; 2]>;

/// The options under which a request is decided: the caller's, and what the
/// request has waited so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AttemptOptions {
    /// The longest wait that the caller accepts from now on.
    pub(super) max_wait: Duration,
    /// The caller acquires: it waits where a rule sets no bound, and keeps a
    /// lease.
    pub(super) acquires: bool,
    /// The caller keeps a lease, to report upstream feedback or to give the charge
    /// back.
    pub(super) keeps_lease: bool,
    /// Nanoseconds that the request has waited so far.
    pub(super) waited: u64,
    /// The request was counted as delayed before, and is not counted again.
    pub(super) counted: bool,
    /// Until when the request's endpoint cools down.
    pub(super) endpoint_until: Option<Timestamp>,
}

impl AttemptOptions {
    /// Whether the request keeps a lease whatever its rules say.
    pub(super) fn needs_lease(self) -> bool {
        self.acquires || self.keeps_lease
    }

    /// Within what the policy and the request itself allow to wait.
    #[inline]
    pub(super) fn within(self, policy: &CompiledPolicy, descriptor: &Descriptor<'_>) -> Self {
        let max_wait = match self.acquires || policy.lets_wait {
            true => self.max_wait.min(descriptor.longest_wait()),
            false => Duration::ZERO,
        };
        Self { max_wait, ..self }
    }

    pub(super) fn after(self, waited: u64) -> Self {
        let max_wait = self.max_wait.saturating_sub(Duration::from_nanos(waited));
        Self { max_wait, waited: self.waited.saturating_add(waited), ..self }
    }
}

/// A request as [`admit`](super::admit::admit) sees it.
pub(super) struct Attempt<'a> {
    pub(super) snapshot: PolicySnapshot<'a>,
    /// The charges of enforced rules, decided together.
    pub(super) enforced: &'a [Charge<'a>],
    /// The charges of shadow rules, decided one by one after the request is
    /// admitted.
    pub(super) shadow: &'a [Charge<'a>],
    pub(super) options: AttemptOptions,
    /// The time of the request. Moves on where the backend is asked again.
    pub(super) now: Timestamp,
    /// The queue in which it waits, and its number there.
    pub(super) queued: Option<(Fingerprint, u64)>,
    pub(super) waiter: WaiterGrant,
}

impl<'a> Attempt<'a> {
    pub(super) fn new(
        snapshot: PolicySnapshot<'a>,
        (enforced, shadow): (&'a [Charge<'a>], &'a [Charge<'a>]),
        now: Timestamp,
        options: AttemptOptions,
    ) -> Self {
        Self { snapshot, enforced, shadow, options, now, queued: None, waiter: WaiterGrant::NotRequested }
    }

    /// Counts the request as a waiter in the place of one that has lost its slot,
    /// and leaves as soon as it is polled.
    pub(super) fn replace_waiter(&mut self, limiter: &RateLimiter) {
        self.waiter = limiter.inner.waiters.replace(self.enforced.iter().map(|charge| charge.key));
    }

    /// Counts the request as a waiter, unless it is one; `false` where a limit
    /// of waiters is reached.
    pub(super) fn enter(&mut self, limiter: &RateLimiter) -> bool {
        if let WaiterGrant::NotRequested = self.waiter {
            self.waiter = limiter.inner.waiters.enter(self.enforced.iter().map(|charge| charge.key));
        }
        matches!(self.waiter, WaiterGrant::Granted(_))
    }
}

pub(super) fn rules<'a>(charges: &[Charge<'a>]) -> impl Iterator<Item = &'a CompiledRule> + Clone {
    charges.iter().map(|charge| charge.rule)
}

/// The longest wait in nanoseconds that any of the charges could be granted.
/// For a longer one the backend need not be asked.
pub(super) fn longest_wait(charges: &[Charge<'_>], max_wait: Duration) -> u64 {
    let of_charge = |charge: &Charge<'_>| {
        let queue = charge.tiers().iter().map(|tier| tier.machine.longest_wait()).max();
        charge.max_wait.min(queue.unwrap_or(0))
    };
    charges.iter().map(of_charge).max().unwrap_or(0).min(nanos(max_wait))
}
