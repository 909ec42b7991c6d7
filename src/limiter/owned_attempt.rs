//! An attempt that outlives its call, while something is awaited: its charges,
//! what is left of its wait, and its position in a queue. Decides nothing.
//!
//! Invariant: it holds nothing that its enforced rules have charged.

use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    attempt::{Attempt, AttemptOptions, Charges},
    current::PolicySnapshot,
    lease::Lease,
    queue::{is_of, longest_in_queue, rate_queues},
    state::RateLimiter,
    step::QueueTimes,
    wait::{capacity::WaiterGrant, fifo::QueueEntry},
};
use crate::{
    backend::{Charge, InProcess, OwnedCharge},
    fingerprint::Fingerprint,
    time::{Timestamp, nanos},
};

/// The first request of a queue is decided again at least this often: a store
/// may release a unit, or this instance's share may grow, unnoticed.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// An attempt that outlives its call.
pub(super) struct OwnedAttempt {
    pub(super) options: AttemptOptions,
    /// When the waits in `options` and in the charges began; `None` where it
    /// does not wait. On the timer's clock, since the limiter's may be set.
    since: Option<Instant>,
    /// `None` where it is decided: the charges are in its receipt. Boxed, since
    /// most waiters are decided.
    undecided: Option<Box<Undecided>>,
}

/// What is still to be charged.
#[derive(Default)]
struct Undecided {
    enforced: Vec<OwnedCharge>,
    shadow: Vec<OwnedCharge>,
    /// Leases of shadow rules, while the request reserves another slot.
    leases: Vec<Lease>,
    entry: Option<QueueEntry>,
    /// When its queue last called it.
    called: Option<Instant>,
}

impl OwnedAttempt {
    /// What is left of the wait, and all charges.
    pub(super) fn new(attempt: &Attempt<'_>) -> Self {
        let keep = |charges| OwnedCharge::all(charges, attempt.snapshot.policy);
        let undecided =
            Undecided { enforced: keep(attempt.enforced), shadow: keep(attempt.shadow), ..Undecided::default() };
        Self { undecided: Some(Box::new(undecided)), ..Self::decided(attempt.options) }
    }

    /// Of a request that is decided, whose charges are in its receipt.
    pub(super) fn decided(options: AttemptOptions) -> Self {
        Self { options, since: None, undecided: None }
    }

    /// Has it decided again: these charges were given back.
    pub(super) fn restart(&mut self, enforced: Vec<OwnedCharge>, leases: Vec<Lease>) {
        self.undecided = Some(Box::new(Undecided { enforced, leases, ..Undecided::default() }));
    }

    /// The leases of shadow rules, which are charged once.
    pub(super) fn take_leases(&mut self) -> Vec<Lease> {
        self.undecided.as_mut().map(|undecided| mem::take(&mut undecided.leases)).unwrap_or_default()
    }

    /// The key of the queue in which it waits.
    pub(super) fn queue(&self) -> Option<Fingerprint> {
        Some(self.undecided.as_ref()?.entry.as_ref()?.key())
    }

    /// From now on it waits.
    pub(super) fn waits(&mut self) {
        self.since = Some(Instant::now());
    }

    pub(super) fn since_asked(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Nanoseconds since it began to wait.
    pub(super) fn elapsed(&self) -> u64 {
        nanos(self.since_asked())
    }

    /// Borrows it for a decision, with what is left of the wait after `waited`
    /// nanoseconds. `None` where it has no charges.
    pub(super) fn with<R>(
        &self,
        limiter: &RateLimiter,
        (now, waited): (Timestamp, u64),
        waiter: WaiterGrant,
        decide: impl FnOnce(Attempt<'_>) -> R,
    ) -> Option<R> {
        let undecided = self.undecided.as_ref()?;
        let policy = undecided.enforced.first()?.policy();
        let enforced: Charges<'_> = undecided.enforced.iter().map(|kept| kept.charge().after_waiting(waited)).collect();
        let shadow: Charges<'_> = undecided.shadow.iter().map(OwnedCharge::charge).collect();
        Some(limiter.inner.current.with(|in_force| {
            let (snapshot, options) = (PolicySnapshot { policy, ..in_force }, self.options.after(waited));
            let mut attempt = Attempt::new(limiter, snapshot, (&enforced, &shadow), now, options);
            attempt.queued = undecided.entry.as_ref().map(|entry| (entry.key(), entry.number()));
            attempt.waiter.set(waiter);
            decide(attempt)
        }))
    }

    /// From here on its waits are what is left of them after `waited`
    /// nanoseconds.
    pub(super) fn spend(&mut self, waited: u64) {
        self.options = self.options.after(waited);
        if let Some(undecided) = &mut self.undecided {
            undecided.enforced.iter_mut().for_each(|kept| kept.spend_wait(waited));
        }
        self.waits();
    }

    /// From here on it is decided by the policy in force, if that has a
    /// counter for each of its enforced charges, and at the current adaptive
    /// rates. A receipt is by one policy, so it is all or nothing.
    pub(super) fn refresh(&mut self, limiter: &RateLimiter) {
        let Some(undecided) = &mut self.undecided else { return };
        let Undecided { enforced, shadow, .. } = &mut **undecided;
        let policy = limiter.inner.current.policy();
        if enforced.first().is_some_and(|first| !Arc::ptr_eq(first.policy(), &policy)) {
            let moved: Option<Vec<_>> = enforced.iter().map(|kept| kept.under(&policy)).collect();
            if let Some(moved) = moved {
                *shadow = shadow.iter().filter_map(|kept| kept.under(&policy)).collect();
                *enforced = moved;
            }
        }
        let now = limiter.now();
        for kept in enforced.iter_mut().chain(shadow) {
            let selection = limiter.at_current_rate(kept.charge(), now).selection;
            kept.select(selection);
        }
    }

    /// Joins the queue of `key`, or moves there. From here on its position is
    /// kept, whether it is polled or not.
    pub(super) fn enter(&mut self, limiter: &RateLimiter, key: Fingerprint) {
        let Some(undecided) = &mut self.undecided else { return };
        match &mut undecided.entry {
            Some(entry) => entry.move_to(key),
            None => (undecided.entry, undecided.called) = (Some(limiter.inner.queues.join(key)), None),
        }
    }

    /// Ready when its queue calls it.
    pub(super) fn poll_called(&self, cx: &mut Context<'_>) -> Poll<()> {
        let entry = self.undecided.as_ref().and_then(|undecided| undecided.entry.as_ref());
        entry.map_or(Poll::Ready(()), |entry| entry.poll_called(cx))
    }

    /// How long it waits for a call, if the first of the queue need not be
    /// decided again within `pause`.
    pub(super) fn queue_times(&self, limiter: &RateLimiter, pause: Option<Duration>) -> QueueTimes {
        let Some(Undecided { enforced, entry: Some(entry), .. }) = self.undecided.as_deref() else {
            return QueueTimes { nap: Duration::ZERO, left: Duration::ZERO };
        };
        let enforced: Charges<'_> = enforced.iter().map(OwnedCharge::charge).collect();
        let longest = Duration::from_nanos(longest_in_queue(&enforced, entry.key(), self.options.max_wait));
        let left = longest.saturating_sub(self.since_asked());
        // Until then its slot is no sooner, at the current rate.
        let is_first = entry.is_first();
        let nap = pause.filter(|_| is_first).unwrap_or(left).min(left);
        let is_unnoticed = limiter.inner.engine.as_ref().is_none_or(InProcess::may_release_unnoticed);
        QueueTimes { nap: if is_unnoticed && is_first { nap.min(ASK_AGAIN) } else { nap }, left }
    }

    /// The time since its queue last called it counts towards the bound of the
    /// rule whose rate it waited for, and of no other. A wait for in-flight
    /// units counts towards all.
    pub(super) fn credit_queue_time(&mut self) {
        let (Some(key), Some(undecided)) = (self.queue(), &mut self.undecided) else { return };
        let called = undecided.called.replace(Instant::now()).or(self.since);
        let time = called.map_or(0, |called| nanos(called.elapsed()));
        let charges: Charges<'_> = undecided.enforced.iter().map(OwnedCharge::charge).collect();
        let waits_for_rate = rate_queues(&charges).any(|keys| keys.contains(&key));
        drop(charges);
        if waits_for_rate {
            let others = undecided.enforced.iter_mut().filter(|kept| !is_of(key, &kept.charge()));
            others.for_each(|kept| kept.extend_wait(time));
        }
    }

    /// Its enforced charges, where it is undecided.
    pub(super) fn charges(&self) -> impl Iterator<Item = Charge<'_>> {
        self.undecided.iter().flat_map(|undecided| undecided.enforced.iter().map(OwnedCharge::charge))
    }

    /// Leaves its queue, whose next request is called.
    pub(super) fn leave_queue(&mut self) {
        if let Some(undecided) = &mut self.undecided {
            undecided.entry = None;
        }
    }
}
