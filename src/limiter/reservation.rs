//! A request that is admitted but not yet sent: its slot is now or in the
//! future. Knows when to look again, and awaits nothing.
//!
//! To wait is to reserve: a charge at a time in the future needs no queue and no
//! wake-ups, since later requests see it in the state. A fair slot may still
//! move; the driver checks it each time that it has slept.
//!
//! Invariant: a reservation that is dropped before [`Reservation::take`] refunds
//! what was charged.

use super::{
    grant::{Decider, Grant},
    lease::Lease,
    state::RateLimiter,
    wait::fair::{FairEntry, Newcomer, SlotTime},
};
use crate::{
    backend::{OwnedCharge, Receipt, ReservationOwner},
    time::Timestamp,
};

/// An admitted request's claim to be sent at its slot.
#[derive(Debug)]
pub(crate) struct Reservation {
    /// `None` once it was taken or refunded.
    claim: Option<Claim>,
    /// Leases of shadow rules.
    shadows: Vec<Lease>,
    /// Whether the request keeps a lease once it is sent.
    keeps_lease: bool,
    /// The end of the cooldown after which the slot was reserved. Zero without
    /// one.
    behind: Timestamp,
}

#[derive(Debug)]
enum Claim {
    /// The slot at the time of the receipt.
    Own(Lease),
    /// A slot that tenants exchange until its time has come.
    Fair(Box<FairClaim>),
}

#[derive(Debug)]
struct FairClaim {
    limiter: RateLimiter,
    entry: FairEntry<Grant>,
    /// The slot's time so far.
    at: Timestamp,
    /// The owner of the charges. It stays with the request when slots are
    /// exchanged.
    owner: Option<ReservationOwner>,
}

impl FairClaim {
    fn lease(&mut self, mut grant: Grant) -> Lease {
        grant.receipt.kept_mut().zip(self.owner.take()).for_each(|(kept, owner)| kept.assign_to(owner));
        Lease::new(&self.limiter, grant)
    }
}

impl Reservation {
    /// The reservation of a request that can be sent now.
    pub(super) fn now(lease: Lease, keeps_lease: bool) -> Self {
        let behind = Timestamp::from_nanos(0);
        Self { claim: Some(Claim::Own(lease)), shadows: Vec::new(), keeps_lease, behind }
    }

    /// The reservation of a request for which only shadow rules keep a lease.
    pub(super) fn of_shadows(limiter: &RateLimiter) -> Self {
        Self::now(Lease::new(limiter, Grant::new(Decider::Backend, Receipt::nothing(limiter.now()))), true)
    }

    /// A slot in the future, reserved at `now`. A fair rule passes a
    /// `newcomer`, which exchanges slots with other tenants.
    pub(super) fn later(
        limiter: &RateLimiter,
        grant: Grant,
        keeps_lease: bool,
        now: Timestamp,
        newcomer: Option<Newcomer<'_>>,
    ) -> Self {
        let at = grant.receipt.at();
        let until = limiter.inner.cooldowns.until(grant.receipt.charges(), now);
        let behind = until.filter(|until| *until <= at).unwrap_or(Timestamp::from_nanos(0));
        let claim = match newcomer {
            None => Claim::Own(Lease::new(limiter, grant)),
            Some(newcomer) => {
                let owner = grant.receipt.kept().next().map(OwnedCharge::owner);
                let (entry, at) = FairEntry::enter(&limiter.inner.fair, newcomer, at, grant);
                Claim::Fair(Box::new(FairClaim { limiter: limiter.clone(), entry, at, owner }))
            }
        };
        Self { claim: Some(claim), shadows: Vec::new(), keeps_lease, behind }
    }

    /// The time of its slot. A fair slot may still be moved to a later time.
    pub(super) fn at(&self) -> Timestamp {
        match &self.claim {
            Some(Claim::Own(lease)) => lease.receipt().at(),
            Some(Claim::Fair(claim)) => claim.at,
            None => Timestamp::from_nanos(0),
        }
    }

    /// Called when the timer reaches `now`. Returns whether the slot's time has
    /// come: a fair slot may have been moved to a later time.
    pub(super) fn has_come(&mut self, now: Timestamp) -> bool {
        let Some(Claim::Fair(claim)) = &mut self.claim else { return self.at() <= now };
        match claim.entry.look(now) {
            Some(SlotTime::Later(at)) => {
                claim.at = Timestamp::from_nanos(at);
                false
            }
            Some(SlotTime::Now(grant)) => {
                self.claim = Some(Claim::Own(claim.lease(grant)));
                true
            }
            None => true,
        }
    }

    /// Whether a key of the request is cooling down, beyond the cooldown after
    /// which the slot was reserved.
    pub(super) fn is_cooling_down(&self) -> bool {
        let Some(Claim::Own(lease)) = &self.claim else { return false };
        let receipt = lease.receipt();
        let cooldowns = &lease.limiter.inner.cooldowns;
        let Some(until) = cooldowns.until(receipt.charges(), lease.limiter.now()) else { return false };
        // An exchanged slot may be before the end of its own cooldown.
        let has_slept = until <= self.behind.min(receipt.at());
        if has_slept {
            cooldowns.slept_out(receipt.charges(), until);
        }
        !has_slept
    }

    /// Refunds the slot, so that another can be reserved. Returns the charges to
    /// decide again, and the leases of shadow rules, which are charged once.
    pub(super) fn give_back(&mut self) -> (Vec<OwnedCharge>, Vec<Lease>) {
        let lease = self.leave();
        let charges = lease.iter().flat_map(|lease| lease.receipt().kept()).cloned().collect();
        if let Some(lease) = lease {
            lease.refund();
        }
        (charges, std::mem::take(&mut self.shadows))
    }

    /// Keeps these leases of shadow rules as well.
    pub(super) fn keep(&mut self, shadows: Vec<Lease>) {
        self.keeps_lease = true;
        self.shadows.extend(shadows);
    }

    pub(super) fn is_settled_by_handler(&self) -> bool {
        let own = matches!(&self.claim, Some(Claim::Own(lease)) if lease.is_settled_by_handler());
        own || self.shadows.iter().any(Lease::is_settled_by_handler)
    }

    /// The request is subject to these charges too, which were not charged.
    pub(super) fn add_uncharged(&mut self, receipt: Receipt) {
        if let Some(Claim::Own(lease)) = &mut self.claim {
            lease.add_uncharged(receipt);
        }
    }

    /// Called when the request is sent. Returns the lease that it keeps.
    pub(crate) fn take(mut self) -> Option<Lease> {
        let lease = self.leave()?;
        let shadows = std::mem::take(&mut self.shadows);
        self.keeps_lease.then(|| lease.counted(shadows))
    }

    fn leave(&mut self) -> Option<Lease> {
        match self.claim.take()? {
            Claim::Own(lease) => Some(lease),
            Claim::Fair(mut claim) => claim.entry.leave().map(|grant| claim.lease(grant)),
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(lease) = self.leave() {
            lease.refund_with(std::mem::take(&mut self.shadows));
        }
    }
}
