//! A request that is admitted but not yet sent: its slot is now or in the
//! future. Knows when to look again, and awaits nothing.
//!
//! To wait is to reserve: a charge at a time in the future, which later requests
//! see in the state. The slot belongs to the queue of all that are charged the
//! same, which hands it on if the waiter leaves.
//!
//! Invariant: a reservation that is dropped before [`Reservation::take`] refunds
//! what was charged, or hands it on.

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
    attempt::{Attempt, Charges, LockedSlots, longest_wait},
    grant::{Decider, Grant},
    lease::Lease,
    state::RateLimiter,
    upstream::Postponement,
    wait::slots::{Newcomer, SlotEntry, SlotOwner, SlotTime},
};
use crate::{
    backend::{Charge, OwnedCharge, Receipt, ReservationOwner},
    fingerprint::Fingerprint,
    policy::CompiledPolicy,
    time::Timestamp,
};

/// An admitted request's claim to be sent at its slot.
#[derive(Debug)]
pub(crate) struct Reservation {
    /// `None` once it was taken or refunded.
    slot: Option<Slot>,
    /// Leases of shadow rules.
    shadows: Vec<Lease>,
    /// Whether the request keeps a lease once it is sent.
    keeps_lease: bool,
    /// The end of the cooldown after which the slot was reserved. Zero without
    /// one.
    behind: Timestamp,
    /// Whether the resume schedule of a key has put the slot off, and until when.
    put_off: Option<Box<Postponement>>,
}

#[derive(Debug)]
enum Slot {
    /// Its time has come.
    Due(Arc<Lease>),
    /// In the future. In a box, so that one that is due takes little.
    Queued(Box<QueuedSlot>),
}

#[derive(Debug)]
struct QueuedSlot {
    limiter: RateLimiter,
    entry: SlotEntry,
    /// The owners of the charges. They stay with the request, whichever slot it
    /// gets.
    owners: SmallVec<[ReservationOwner; 1]>,
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
        Lease::new(self.limiter, grant).refund();
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

impl Reservation {
    /// The reservation of a request that can be sent now.
    pub(super) fn now(lease: Lease, keeps_lease: bool) -> Self {
        let behind = Timestamp::from_nanos(0);
        Self { slot: Some(Slot::Due(Arc::new(lease))), shadows: Vec::new(), keeps_lease, behind, put_off: None }
    }

    /// The reservation of a request for which only shadow rules keep a lease.
    pub(super) fn of_shadows(limiter: &RateLimiter) -> Self {
        Self::now(Lease::new(limiter, Grant::new(Decider::Backend, Receipt::nothing(limiter.now()))), true)
    }

    /// A slot in the future, which the newcomer brings to its queue.
    pub(super) fn later(
        limiter: &RateLimiter,
        grant: Grant,
        keeps_lease: bool,
        newcomer: Newcomer,
        slots: Option<LockedSlots<'_>>,
    ) -> Self {
        let (at, now) = (grant.receipt.at(), Timestamp::from_nanos(newcomer.now));
        let until = limiter.inner.cooldowns.until(grant.receipt.charges(), now);
        let behind = until.filter(|until| *until <= at).unwrap_or(Timestamp::from_nanos(0));
        let owners = grant.receipt.kept().map(OwnedCharge::owner).collect();
        let newcomer = Newcomer { earliest: behind.as_nanos(), ..newcomer };
        let slots = slots.unwrap_or_else(|| limiter.inner.slots.lock(queue_of(grant.receipt.charges())));
        let entry = slots.enter(newcomer, (at, grant), &Owner { limiter, now });
        Self::queued(QueuedSlot { limiter: limiter.clone(), entry, owners }, keeps_lease, behind)
    }

    /// A free slot of the queue that these charges would join, or under a fair
    /// rule one of a greedier tenant, in time for the newcomer. Also returns
    /// whether it takes another waiter's place.
    pub(super) fn free(
        limiter: &RateLimiter,
        policy: &Arc<CompiledPolicy>,
        charges: &[Charge<'_>],
        keeps_lease: bool,
        newcomer: Newcomer,
    ) -> Option<(Self, bool)> {
        let now = Timestamp::from_nanos(newcomer.now);
        let until = limiter.inner.cooldowns.until(charges, now);
        let behind = until.unwrap_or(Timestamp::from_nanos(0));
        let newcomer = Newcomer { earliest: behind.as_nanos(), ..newcomer };
        let queue = queue_of(charges.iter().copied());
        let (entry, is_taken) = limiter.inner.slots.enter_free(queue, newcomer, &Owner { limiter, now })?;
        let owners = charges.iter().map(|charge| OwnedCharge::new(charge, policy).owner()).collect();
        let slot = QueuedSlot { limiter: limiter.clone(), entry, owners };
        Some((Self::queued(slot, keeps_lease, behind), is_taken))
    }

    fn queued(slot: QueuedSlot, keeps_lease: bool, behind: Timestamp) -> Self {
        Self { slot: Some(Slot::Queued(Box::new(slot))), shadows: Vec::new(), keeps_lease, behind, put_off: None }
    }

    /// The time of its slot, as far as it is known: others may move it.
    pub(super) fn at(&self) -> Timestamp {
        match &self.slot {
            Some(Slot::Due(lease)) => self.put_off.as_ref().map_or(lease.receipt().at(), |put_off| put_off.at),
            Some(Slot::Queued(queued)) => queued.entry.at(),
            None => Timestamp::from_nanos(0),
        }
    }

    /// Ready once its slot was moved up: the timer has to be set again.
    pub(super) fn poll_called(&self, cx: &Context<'_>) -> Poll<()> {
        match &self.slot {
            Some(Slot::Queued(queued)) => queued.limiter.inner.slots.poll_called(&queued.entry, cx),
            _ if self.put_off.is_some() => Poll::Pending,
            _ => Poll::Ready(()),
        }
    }

    /// Called when it is `now`. Returns the time of its slot, and whether that
    /// has come; `None` if another tenant's waiter has the slot.
    pub(super) fn look(&mut self, now: Timestamp) -> Option<(Timestamp, bool)> {
        let Some(Slot::Queued(queued)) = &mut self.slot else { return Some((self.at(), true)) };
        let QueuedSlot { limiter, entry, owners } = &mut **queued;
        let due = match limiter.inner.slots.look(entry, now, &Owner { limiter, now }) {
            SlotTime::Later(_) => return Some((entry.at(), false)),
            SlotTime::Now(_, mut grant) => {
                grant.receipt.kept_mut().zip(mem::take(owners)).for_each(|(kept, owner)| kept.assign_to(owner));
                Some((entry.at(), Slot::Due(Arc::new(Lease::new(limiter, grant)))))
            }
            SlotTime::Lost => None,
        };
        let (at, slot) = due.unzip();
        self.slot = slot;
        at.map(|at| (at, true))
    }

    /// Its slot is put off.
    pub(super) fn put_off(mut self, put_off: Option<Postponement>) -> Self {
        self.put_off = put_off.map(Box::new);
        self
    }

    /// Its slot has come at `now`. Returns whether the resume schedule of a key puts
    /// it off.
    pub(super) fn is_put_off(&mut self, now: Timestamp) -> bool {
        let Some(Slot::Due(lease)) = &self.slot else { return false };
        let charges: Charges<'_> = lease.receipt().charges().collect();
        // A request that was put off is sent now, however late its timer is.
        let now = if self.put_off.is_some() { lease.limiter.now().max(now) } else { now };
        let put_off = lease.limiter.inner.cooldowns.claim(&charges, self.put_off.as_deref(), now);
        let is_put_off = put_off.is_some();
        self.put_off = put_off.map(Box::new).or_else(|| self.put_off.take());
        is_put_off
    }

    /// Whether a key of the request is cooling down, beyond the cooldown after
    /// which the slot was reserved.
    pub(super) fn is_cooling_down(&self) -> bool {
        let Some(Slot::Due(lease)) = &self.slot else { return false };
        let receipt = lease.receipt();
        let cooldowns = &lease.limiter.inner.cooldowns;
        let Some(until) = cooldowns.until(receipt.charges(), lease.limiter.now()) else { return false };
        let has_slept = until <= self.behind.min(receipt.at());
        if has_slept {
            cooldowns.slept_out(receipt.charges(), until);
        }
        !has_slept
    }

    /// Refunds the slot, so that another can be reserved. Returns the charges to
    /// decide again, and the leases of shadow rules, which are charged once.
    pub(super) fn give_back(&mut self) -> (Vec<OwnedCharge>, Vec<Lease>) {
        let lease = self.lease();
        let charges = lease.iter().flat_map(|lease| lease.receipt().kept()).cloned().collect();
        if let Some(lease) = lease {
            lease.refund();
        }
        (charges, mem::take(&mut self.shadows))
    }

    /// Keeps these leases of shadow rules as well.
    pub(super) fn keep(&mut self, shadows: Vec<Lease>) {
        self.keeps_lease = true;
        self.shadows.extend(shadows);
    }

    /// The request is subject to these charges too, which were not charged.
    pub(super) fn add_uncharged(&mut self, receipt: Receipt) {
        if let Some(Slot::Due(lease)) = &mut self.slot
            && let Some(lease) = Arc::get_mut(lease)
        {
            lease.add_uncharged(receipt);
        }
    }

    /// Called when the request is sent. Returns the lease that it keeps.
    pub(crate) fn take(&mut self) -> Option<Arc<Lease>> {
        let mut lease = self.lease()?;
        let shadows = mem::take(&mut self.shadows);
        if !self.keeps_lease {
            return None;
        }
        // It has not been shared yet.
        Arc::get_mut(&mut lease)?.count(shadows, self.put_off.as_deref().copied());
        Some(lease)
    }

    /// Takes the lease, if its time has come.
    fn lease(&mut self) -> Option<Arc<Lease>> {
        match self.slot.take_if(|slot| matches!(slot, Slot::Due(_))) {
            Some(Slot::Due(lease)) => Some(lease),
            _ => None,
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shadows.iter().for_each(Lease::refund_shadow);
        match self.slot.take() {
            Some(Slot::Due(lease)) => lease.refund(),
            Some(Slot::Queued(queued)) => {
                let QueuedSlot { limiter, entry, .. } = *queued;
                let now = limiter.now();
                limiter.inner.slots.leave(&entry, now, &Owner { limiter: &limiter, now });
            }
            None => {}
        }
    }
}
