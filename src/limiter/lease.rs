//! What an admitted request keeps: its receipts, to be settled, released or
//! refunded. Decides nothing.
//!
//! Invariant: in-flight units are released exactly once, by the first of
//! [`Lease::release`], [`Lease::refund`] and drop. Settling stays possible
//! afterwards. A lease that is dropped before [`Lease::send`] is refunded.

use std::{
    fmt, iter,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{
    observe,
    state::{Decider, Grant, RateLimiter},
    upstream::Postponement,
};
use crate::{
    backend::{Backend, Charge, Receipt, Settlement},
    decision::RateLimited,
    policy::{CompiledRule, charge::Charges},
    sync::lock,
    time::Timestamp,
};

/// What an admitted request keeps: what it was charged, and its in-flight
/// units. Can be shared: one party releases it, others may settle even after
/// that.
pub(crate) struct Lease {
    pub(super) limiter: RateLimiter,
    pub(super) grant: Grant,
    /// Of shadow rules: each was charged separately.
    pub(super) shadows: Vec<Self>,
    changes: Mutex<Changes>,
    /// Whether a rule follows what becomes of the request: by far most do not, and are not
    /// asked.
    pub(super) is_followed_up: bool,
    /// The request was sent, and it is counted among the limiter's permits.
    pub(super) is_sent: bool,
    is_released: AtomicBool,
    /// Whether the request keeps it once it is sent.
    pub(super) is_kept: bool,
    /// The resume schedule of a key has put the request off.
    pub(super) put_off: Option<Postponement>,
    /// The end of the cooldown after which its slot was reserved; the epoch without one.
    pub(super) behind: Timestamp,
}

/// What became of a request's cost while it was under way.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) added: Vec<Added>,
    /// What it is charged by now, in each unit that its handler has settled.
    pub(super) settled: Vec<(String, u64)>,
}

/// Units that were added to a request, in units of its own cost.
#[derive(Debug)]
pub(super) struct Added {
    pub(super) lease: Arc<Lease>,
    pub(super) units: u64,
}

impl Lease {
    pub(super) fn new(limiter: &RateLimiter, grant: Grant) -> Self {
        let is_followed_up = grant.receipt.rules().any(CompiledRule::follows_up);
        Self {
            limiter: limiter.clone(),
            grant,
            shadows: Vec::new(),
            changes: Mutex::default(),
            is_followed_up,
            is_sent: false,
            is_released: AtomicBool::new(false),
            is_kept: false,
            put_off: None,
            behind: Timestamp::UNIX_EPOCH,
        }
    }

    /// The lease of a request for which only shadow rules keep one.
    fn of_nothing(limiter: &RateLimiter) -> Self {
        Self::new(limiter, Grant::new(Decider::Backend, Receipt::nothing(limiter.now())))
    }

    /// The request is sent: the lease counts as a permit until it is released.
    pub(super) fn count(&mut self) {
        self.is_sent = true;
        self.limiter.inner.permits.add();
    }

    pub(super) fn receipt(&self) -> &Receipt {
        &self.grant.receipt
    }

    /// What was changed, while it is locked.
    pub(super) fn changes(&self) -> MutexGuard<'_, Changes> {
        lock(&self.changes)
    }

    pub(super) fn backend_of(&self, decider: Decider) -> &dyn Backend {
        match decider {
            Decider::Backend => &*self.limiter.inner.backend,
            Decider::Fallback | Decider::Mirror => self.limiter.fallback(),
        }
    }

    /// Whether a rule that follows the request up is such a rule.
    pub(super) fn follows_up(&self, which: impl Fn(&CompiledRule) -> bool) -> bool {
        self.is_followed_up && self.is_charged_by(which)
    }

    /// Whether such a rule charged it.
    pub(super) fn is_charged_by(&self, which: impl Fn(&CompiledRule) -> bool) -> bool {
        self.receipts().any(|(receipt, _)| receipt.rules().any(&which))
    }

    /// All that can be settled, and the limiter that charged it.
    pub(super) fn receipts(&self) -> impl Iterator<Item = (&Receipt, Decider)> {
        self.own_receipts().chain(self.shadows.iter().flat_map(Self::own_receipts))
    }

    /// Those of the enforced rules.
    fn own_receipts(&self) -> impl Iterator<Item = (&Receipt, Decider)> {
        let mirror = self.grant.mirror.iter().map(|mirror| (&**mirror, Decider::Mirror));
        iter::once((self.receipt(), self.grant.decider)).chain(mirror)
    }

    /// When the request was sent.
    pub(super) fn sent(&self) -> Timestamp {
        self.put_off.map_or(self.receipt().at(), |put_off| put_off.at)
    }

    /// Another layer has rejected the request, after this one's limiter admitted
    /// it. Gives the charge back if that layer is of the same limiter; returns
    /// whether it is.
    pub(crate) fn refund_if_rejected(&self, rejection: &RateLimited) -> bool {
        let is_own = rejection.is_by_layer(self.limiter.id());
        if is_own {
            self.refund();
        }
        is_own
    }

    /// Whether anything is left to do for the request once its response is there.
    pub(crate) fn outlives_response(&self) -> bool {
        self.is_followed_up || self.holds_in_flight()
    }

    /// Whether a concurrency limit counts the request.
    pub(crate) fn holds_in_flight(&self) -> bool {
        self.receipts().any(|(receipt, _)| receipt.holds_in_flight())
    }

    /// The response upgrades its connection, which outlives the response and so
    /// leaves its concurrency limits.
    pub(crate) fn upgrades(&self) {
        if let Some(charge) = self.receipt().charges().find(Charge::is_in_flight) {
            observe::upgraded(charge.rule);
        }
    }

    /// Starts a cooldown of the request's keys: the upstream asked for it.
    pub(crate) fn cool_down(&self, time: Duration) {
        let charges: Charges<'_> = self.receipt().charges().collect();
        self.limiter.cool_down_all(&charges, time);
    }

    /// The time on the limiter's clock.
    pub(crate) fn now(&self) -> Timestamp {
        self.limiter.now()
    }

    /// The request has ended: its in-flight units come back. All else that was
    /// charged stays charged.
    pub(crate) fn release(&self) {
        if self.is_first_release() {
            for (receipt, decider) in self.own_receipts().filter(|(receipt, _)| receipt.holds_in_flight()) {
                self.backend_of(decider).release(receipt, self.limiter.now());
            }
            self.limiter.call_next(self.receipt());
        }
    }

    /// Gives back all that was charged, what was added too, where that cannot break
    /// a bound. What a shadow rule charged stays, unless it is settled late.
    pub(crate) fn refund(&self) {
        if self.receipt().rules().any(|rule| rule.options.shadow && !rule.is_settled_late()) {
            return self.release();
        }
        for Added { lease, units } in self.changes().added.drain(..) {
            lease.settle_where(|_| true, Settlement::GiveBack(units));
        }
        self.shadows.iter().for_each(Self::refund);
        if self.is_first_release() {
            for (receipt, decider) in self.own_receipts() {
                self.backend_of(decider).refund(receipt, self.limiter.now());
            }
            self.limiter.gave_back(self.receipt());
            self.limiter.call_next(self.receipt());
        }
    }

    /// Whether the request has ended.
    pub(super) fn is_released(&self) -> bool {
        self.is_released.load(Ordering::Acquire)
    }

    fn is_first_release(&self) -> bool {
        let is_first = !self.is_released.swap(true, Ordering::AcqRel);
        if is_first {
            self.shadows.iter().for_each(Self::release);
            if self.is_sent {
                self.limiter.inner.permits.subtract();
            }
        }
        is_first
    }
}

/// A request that is admitted, but not sent yet: nothing else holds its lease.
impl Lease {
    /// The request is sent. Returns what it keeps, with these leases of shadow rules: a
    /// permit until it is released.
    pub(super) fn send(lease: Option<Arc<Self>>, shadows: Vec<Self>) -> Option<Arc<Self>> {
        let mut lease = lease.or_else(|| Some(Arc::new(Self::of_nothing(&shadows.first()?.limiter))))?;
        if let Some(own) = Arc::get_mut(&mut lease) {
            own.is_kept |= !shadows.is_empty();
            own.is_followed_up |= shadows.iter().any(|shadow| shadow.is_followed_up);
            own.shadows = shadows;
            if own.is_kept {
                own.count();
                return Some(lease);
            }
        }
        lease.release();
        None
    }

    /// It concerns these charges too, which were not charged.
    pub(super) fn add_uncharged(self: &mut Arc<Self>, receipt: Receipt) {
        if let Some(own) = Arc::get_mut(self) {
            own.is_followed_up |= receipt.rules().any(CompiledRule::follows_up);
            own.grant.receipt.append(receipt);
        }
    }

    /// The slot has come at `now`. Returns whether the resume schedule of a key puts
    /// it off.
    pub(super) fn is_put_off(self: &mut Arc<Self>, now: Timestamp) -> bool {
        let Some(own) = Arc::get_mut(self) else { return false };
        // A request that was put off is sent now, however late its timer is.
        let now = if own.put_off.is_some() { own.limiter.now().max(now) } else { now };
        let put_off = {
            let charges: Charges<'_> = own.receipt().charges().collect();
            own.limiter.inner.cooldowns.claim(&charges, own.put_off.as_ref(), now)
        };
        own.put_off = put_off.or(own.put_off);
        put_off.is_some()
    }

    /// Whether a key of the request is cooling down, beyond the cooldown after
    /// which the slot was reserved.
    pub(super) fn is_cooling_down(&self) -> bool {
        let (receipt, cooldowns) = (self.receipt(), &self.limiter.inner.cooldowns);
        let Some(until) = cooldowns.until(receipt.charges(), self.limiter.now()) else { return false };
        let has_slept = until <= self.behind.min(receipt.at());
        if has_slept {
            cooldowns.slept_out(receipt.charges(), until);
        }
        !has_slept
    }
}

/// Whether anything is left to do for a charge after its request is sent.
pub(super) fn is_kept_by(charge: &Charge<'_>) -> bool {
    charge.rule.follows_up() || charge.is_in_flight()
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.is_sent {
            return self.refund();
        }
        let changes = self.changes.get_mut().unwrap_or_else(PoisonError::into_inner);
        let settled = std::mem::take(&mut changes.settled);
        self.learn_costs(&settled);
        self.refund_unsettled(&settled);
        self.release();
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("receipt", self.receipt()).finish_non_exhaustive()
    }
}
