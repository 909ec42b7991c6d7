//! One request's attempt to be admitted: its charges and its options. Holds no
//! outcome but the leases of shadow rules.
//!
//! An [`Attempt`] borrows everything from the stack, so a request that is
//! decided at once allocates nothing. Only where a step has to await is it
//! kept by an [`Admission`](super::admission::Admission). Invariant:
//! it counts as a waiter at most once.

use std::{
    cell::{Cell, RefCell},
    time::Duration,
};

use super::{
    current::PolicySnapshot,
    lease::{Lease, is_kept_by},
    observe::{self, RuleAndPriority},
    state::{Grant, RateLimiter},
    wait::{WaiterGrant, fifo::QueueEntry, slots::LockedQueue},
};
use crate::{
    backend::{Caller, Charge, Request},
    decision::Decision,
    descriptor::Descriptor,
    observe::RequestResult,
    policy::CompiledPolicy,
    time::{Timestamp, nanos},
};

/// What the caller wants of the decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To send a request.
    #[default]
    Send,
    /// To send a request now, by a decision that needs no I/O.
    SendNow,
    /// As [`Self::Send`]. The caller bounds the wait itself where a rule sets no
    /// bound, and keeps a lease.
    Acquire,
    /// To know the decision: nothing is charged or counted.
    Peek,
}

/// The options under which a request is decided: the caller's, and what the
/// request has waited so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AttemptOptions {
    pub(super) purpose: Purpose,
    /// The longest wait that the caller accepts from now on.
    pub(super) max_wait: Duration,
    /// The caller reads the decision of an admitted request.
    pub(super) reads_decision: bool,
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
    pub(super) fn new(purpose: Purpose, max_wait: Duration) -> Self {
        Self { purpose, max_wait, reads_decision: true, ..Self::default() }
    }

    pub(super) fn acquires(self) -> bool {
        self.purpose == Purpose::Acquire
    }

    pub(super) fn peeks(self) -> bool {
        self.purpose == Purpose::Peek
    }

    /// Whether the request keeps a lease whatever its rules say.
    pub(super) fn needs_lease(self) -> bool {
        self.acquires() || self.keeps_lease
    }

    /// Within what the policy and the request itself allow to wait.
    pub(super) fn within(self, policy: &CompiledPolicy, descriptor: &Descriptor<'_>) -> Self {
        let max_wait = match self.acquires() || policy.lets_wait {
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

/// A request as it is decided.
pub(super) struct Attempt<'a> {
    pub(super) limiter: &'a RateLimiter,
    pub(super) snapshot: PolicySnapshot<'a>,
    /// The charges of enforced rules, decided together.
    pub(super) enforced: &'a [Charge<'a>],
    /// The charges of shadow rules, decided one by one after the request is
    /// admitted.
    pub(super) shadow: &'a [Charge<'a>],
    pub(super) options: AttemptOptions,
    /// The time of the request.
    pub(super) now: Timestamp,
    /// Its position in the queue in which it waits.
    pub(super) queued: Option<&'a QueueEntry>,
    pub(super) waiter: RefCell<WaiterGrant>,
    /// The request's path, which the log names where a shadow rule would have rejected it.
    pub(super) path: Option<&'a str>,
    /// Of shadow rules that have admitted the request.
    pub(super) leases: Vec<Lease>,
    /// While it is decided: the queue in which it is about to reserve a slot.
    pub(super) slots: Cell<Option<LockedQueue<'a, Grant>>>,
}

impl<'a> Attempt<'a> {
    pub(super) fn new(
        limiter: &'a RateLimiter,
        snapshot: PolicySnapshot<'a>,
        (enforced, shadow): (&'a [Charge<'a>], &'a [Charge<'a>]),
        now: Timestamp,
        options: AttemptOptions,
    ) -> Self {
        let (queued, waiter, path, slots) = (None, RefCell::default(), None, Cell::default());
        Self { limiter, snapshot, enforced, shadow, options, now, queued, waiter, path, leases: Vec::new(), slots }
    }

    /// The question to a backend about these charges. It may reserve a time within
    /// `max_wait`, behind the cooldown of a key.
    pub(super) fn request<'c>(&'c self, charges: &'c [Charge<'c>], max_wait: Duration) -> Request<'c> {
        let inner = &self.limiter.inner;
        let caller: &dyn Caller = self;
        Request {
            not_before: inner.cooldowns.until(charges, self.now).unwrap_or(Timestamp::UNIX_EPOCH),
            is_immediate: self.options.purpose == Purpose::SendNow,
            caller: inner.engine.is_some().then_some(caller),
            policy: Some(self.snapshot.policy),
            ..Request::new(charges, self.now, max_wait)
        }
    }

    /// Counts the request as a waiter, unless it is one; `false` where a limit
    /// of waiters is reached.
    pub(super) fn enter(&self) -> bool {
        let mut waiter = self.waiter.borrow_mut();
        if let WaiterGrant::NotRequested = *waiter {
            *waiter = self.limiter.inner.waiters.enter(self.enforced.iter().map(|charge| charge.key));
        }
        matches!(*waiter, WaiterGrant::Granted(_))
    }

    /// Whether it would wait, but a limit of waiters is reached.
    pub(super) fn is_shut_out(&self) -> bool {
        matches!(*self.waiter.borrow(), WaiterGrant::Full)
    }

    /// Whether the request keeps a lease after it is sent.
    pub(super) fn keeps_lease(&self, charges: &[Charge<'_>]) -> bool {
        self.options.needs_lease() && !charges.is_empty()
            || self.snapshot.policy.keeps_receipts() && charges.iter().any(is_kept_by)
    }

    /// The longest that the request may wait for all of these rules, in nanoseconds.
    pub(super) fn shortest_bound(&self, charges: &[Charge<'_>]) -> u64 {
        let of_rules = charges.iter().map(|charge| charge.max_wait).min().unwrap_or(0);
        of_rules.min(nanos(self.options.max_wait))
    }

    /// Counts and reports that these charges are rejected, unless it is a peek.
    pub(super) fn record_rejection(&self, charges: &[Charge<'_>], decision: &Decision) {
        self.record(rules(charges), RequestResult::Rejected, decision);
        if !self.options.peeks() {
            observe::count_rejection(self.limiter.inner.top.as_deref(), charges, decision, self.now);
        }
    }

    /// Counts and reports a decision, unless it is a peek.
    pub(super) fn record<'r>(
        &self,
        rules: impl IntoIterator<Item = RuleAndPriority<'r>> + Clone,
        result: RequestResult,
        decision: &Decision,
    ) {
        if !self.options.peeks() {
            observe::record(self.snapshot.counters, rules, result, decision, self.now);
        }
    }
}

impl Caller for Attempt<'_> {
    fn try_enter_queue(&self) -> bool {
        self.enter()
    }

    fn now(&self) -> Timestamp {
        // A clock may use the limiter.
        let queue = self.slots.take().map(|slots| slots.queue());
        let now = self.limiter.now();
        self.slots.set(queue.map(|queue| self.limiter.inner.slots.lock(queue)));
        now
    }
}

/// The rules of charges, and how much the request matters under each.
pub(super) fn rules<'a>(charges: &[Charge<'a>]) -> impl Iterator<Item = RuleAndPriority<'a>> + Clone {
    charges.iter().map(|charge| (charge.rule, charge.priority))
}

/// The longest wait in nanoseconds that any of the charges could be granted.
/// For a longer one the backend need not be asked.
pub(super) fn longest_wait(charges: &[Charge<'_>], max_wait: Duration) -> u64 {
    if max_wait.is_zero() {
        return 0;
    }
    let of_charge = |charge: &Charge<'_>| {
        let queue = charge.tiers().iter().map(|tier| tier.machine.longest_wait()).max();
        charge.max_wait.min(queue.unwrap_or(0))
    };
    charges.iter().map(of_charge).max().unwrap_or(0).min(nanos(max_wait))
}
