//! A slot in the future: [`Reservation`]. Knows when to look again, and awaits nothing.
//!
//! To wait is to reserve: a charge at a time in the future, which later requests
//! see in the state. The slot belongs to the queue of all that are charged the
//! same, which hands it on if the waiter leaves.
//!
//! Invariant: a reservation that is dropped hands its slot on, or refunds it.

use std::{
    hash::BuildHasher,
    mem,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use super::{
    attempt::{Attempt, longest_wait},
    lease::Lease,
    state::{Grant, RateLimiter},
    wait::slots::{Newcomer, SlotEntry, SlotOwner, SlotTime},
};
use crate::{
    backend::{Charge, OwnedCharge, ReservationOwner},
    fingerprint::{Fingerprint, Scope},
    time::Timestamp,
};

type Owners = SmallVec<[ReservationOwner; 1]>;

/// A slot in the future, for a request that is admitted. Dropped before it has left its
/// queue, it hands the slot on.
#[derive(Debug)]
pub(super) struct Reservation {
    limiter: RateLimiter,
    entry: SlotEntry,
    has_left: bool,
    /// The owners of the charges. They stay with the request, whichever slot it
    /// gets.
    owners: Owners,
    /// See [`Lease::is_kept`] and [`Lease::behind`].
    is_kept: bool,
    behind: Timestamp,
}

/// The limiter that has charged the slots.
struct Owner<'l> {
    limiter: &'l RateLimiter,
    now: Timestamp,
}

impl SlotOwner<Grant> for Owner<'_> {
    /// A refund is exact if nothing was charged after it, and may be forfeited
    /// otherwise. Only a backend in this process can tell.
    fn keeps(&self, grant: &Grant, are_too_many: bool) -> bool {
        let is_kept = match self.limiter.inner.engine.as_ref() {
            Some(engine) => !engine.0.is_last(&grant.receipt, self.now),
            None => !are_too_many,
        };
        is_kept && !grant.receipt.holds_in_flight()
    }

    fn refund(&self, grant: &Grant) {
        if self.limiter.inner.engine.is_some() {
            self.limiter.inner.backend.refund(&grant.receipt, self.now);
        }
    }

    /// What another backend has charged is refunded here: it is foreign code.
    fn refunded(&self, grant: Grant) {
        drop(Lease::new(self.limiter, grant));
    }
}

impl Attempt<'_> {
    /// Locks the queue in which it may reserve a slot, before it asks a backend that
    /// decides in this process: until the slot is entered, no other request may give a slot
    /// back.
    pub(super) fn lock_slots(&self, max_wait: Duration) {
        if self.limiter.inner.engine.is_some() && longest_wait(self.enforced, max_wait) > 0 {
            let queue = queue_of(self.enforced.iter().copied());
            self.slots.set(Some(self.limiter.inner.slots.lock(queue)));
        }
    }
}

/// Requests with the same queue are charged the same, by equal quotas. So a
/// reload that changes other rules splits no queue, nor does a cooldown.
fn queue_of<'a>(charges: impl Iterator<Item = Charge<'a>>) -> Fingerprint {
    const ODD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    let mut mixed = 0;
    for charge in charges {
        let tiers = charge.tiers().iter().map(|tier| (tier.salt, tier.quota));
        let tiers = FixedState::default().hash_one(tiers.collect::<SmallVec<[_; 4]>>());
        for word in [charge.key.to_u128(), u128::from(charge.cost), u128::from(tiers)] {
            mixed = (mixed ^ word).wrapping_mul(ODD).rotate_left(64);
        }
    }
    Fingerprint::from_u128(mixed)
}

/// A waiter in the queue of all that are charged the same, behind the cooldown of a key.
fn newcomer(attempt: &Attempt<'_>, charges: &[Charge<'_>], behind: Timestamp) -> Newcomer {
    let tenant = match charges {
        [charge] if charge.rule.options.fair => Some(Scope::new(&["fair"]).key(charge.tenant).hash()),
        _ => None,
    };
    let now = attempt.now.as_nanos();
    let deadline = now.saturating_add(attempt.shortest_bound(charges));
    Newcomer { tenant, now, usable_from: behind.as_nanos(), deadline }
}

impl Reservation {
    /// A slot in the future, which the request brings to its queue.
    pub(super) fn later(attempt: &Attempt<'_>, charges: &[Charge<'_>], grant: Grant, is_kept: bool) -> Self {
        let (limiter, now, receipt) = (attempt.limiter, attempt.now, &grant.receipt);
        let until = limiter.inner.cooldowns.until(receipt.charges(), now);
        let behind = until.filter(|until| *until <= receipt.at()).unwrap_or(Timestamp::UNIX_EPOCH);
        let owners = receipt.kept().map(OwnedCharge::owner).collect();
        let slots = attempt.slots.take().unwrap_or_else(|| limiter.inner.slots.lock(queue_of(receipt.charges())));
        let newcomer = newcomer(attempt, charges, behind);
        let entry = slots.enter(newcomer, (receipt.at(), grant), &Owner { limiter, now });
        Self { limiter: limiter.clone(), entry, has_left: false, owners, is_kept, behind }
    }

    /// A slot that the queue of these charges keeps free, where there is one in
    /// time: others may have reserved all later ones. Under a fair rule, a slot of a
    /// tenant that has more waiters.
    pub(super) fn free(attempt: &Attempt<'_>, charges: &[Charge<'_>]) -> Option<Self> {
        let (limiter, now) = (attempt.limiter, attempt.now);
        if limiter.inner.waiters.waiting() == 0 || attempt.shortest_bound(charges) == 0 {
            return None;
        }
        let behind = limiter.inner.cooldowns.until(charges, now).unwrap_or(Timestamp::UNIX_EPOCH);
        let newcomer = newcomer(attempt, charges, behind);
        let queue = queue_of(charges.iter().copied());
        let (entry, is_taken) = limiter.inner.slots.enter_free(queue, newcomer, &Owner { limiter, now })?;
        let owner = |charge| OwnedCharge::new(charge, attempt.snapshot.policy).owner();
        let (owners, is_kept) = (charges.iter().map(owner).collect(), attempt.keeps_lease(charges));
        let reservation = Self { limiter: limiter.clone(), entry, has_left: false, owners, is_kept, behind };
        if !attempt.enter() {
            if !is_taken {
                return None;
            }
            // In the place of the waiter that has lost its slot, which leaves as soon as it
            // is polled.
            attempt.waiter.replace(limiter.inner.waiters.replace(charges.iter().map(|charge| charge.key)));
        }
        Some(reservation)
    }

    /// The time of the slot, as far as it is known: others may move it.
    pub(super) fn at(&self) -> Timestamp {
        self.entry.at()
    }

    /// Ready once the slot was moved up: the timer has to be set again.
    pub(super) fn poll_called(&self, cx: &Context<'_>) -> Poll<()> {
        self.limiter.inner.slots.poll_called(&self.entry, cx)
    }

    /// The slot as it stands at `now`.
    pub(super) fn look(&mut self, now: Timestamp) -> SlotTime<Arc<Lease>> {
        let Self { limiter, entry, .. } = self;
        let time = limiter.inner.slots.look(entry, now, &Owner { limiter, now });
        self.has_left = !matches!(time, SlotTime::Later(_));
        match time {
            SlotTime::Later(at) => SlotTime::Later(at),
            SlotTime::Now(at, grant) => SlotTime::Now(at, self.lease(grant)),
            SlotTime::Lost => SlotTime::Lost,
        }
    }

    /// The slot has come, whichever request reserved it.
    fn lease(&mut self, mut grant: Grant) -> Arc<Lease> {
        grant.receipt.kept_mut().zip(mem::take(&mut self.owners)).for_each(|(kept, owner)| kept.assign_to(owner));
        let mut lease = Lease::new(&self.limiter, grant);
        (lease.is_kept, lease.behind) = (self.is_kept, self.behind);
        Arc::new(lease)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.has_left {
            let (limiter, now) = (&self.limiter, self.limiter.now());
            limiter.inner.slots.leave(&self.entry, now, &Owner { limiter, now });
        }
    }
}
