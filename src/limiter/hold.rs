use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::{RateLimiter, decide::Terms, report};
use crate::{
    backend::{Answer, Backend, Charge, Outcome, OwnedCharge, Receipt, ReservationOwner, Settlement},
    policy::{CompiledPolicy, CompiledRule},
    time::Timestamp,
};

/// What a request that was admitted holds: what it was charged, and its units
/// of limits on what is in flight. Can be shared: whoever is done with the
/// request releases it, and others may settle even after that.
pub(crate) struct Lease {
    limiter: RateLimiter,
    decider: Decider,
    receipt: Box<Receipt>,
    /// What the limiter has counted of it that is to stand in for the backend.
    mirror: Option<Box<Receipt>>,
    /// What rules on trial count as in flight.
    shadows: Mutex<Vec<Shadow>>,
    /// What rules on trial have charged that are settled late: even once
    /// nothing is in flight any more.
    trials: Vec<Receipt>,
    /// Whether its request goes by now, rather than waits for its turn, and
    /// something is held meanwhile.
    goes: bool,
    /// Nothing is in flight any more.
    released: AtomicBool,
    /// Where it may take another turn.
    wait: Option<Wait>,
}

/// Whose a hold is that was charged once: for which tenant, and on what terms
/// it takes another turn.
#[derive(Debug)]
pub(super) struct Owner {
    bearer: Option<ReservationOwner>,
    wait: Option<Wait>,
}

/// On what terms a request was charged that may take another turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) terms: Terms,
    /// From when on it waits, by the timer: the clock may be set meanwhile.
    /// `None` for as long as it goes at once.
    pub(super) since: Option<Instant>,
    /// Its turn is behind all that is held back until then.
    pub(super) behind: Timestamp,
}

/// Who has charged it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decider {
    Backend,
    /// The limiter that stands in for a backend that fails.
    Fallback,
    /// Nobody: the same limiter has counted what the backend has charged.
    Mirror,
}

impl Lease {
    pub(super) fn new(limiter: &RateLimiter, decider: Decider, receipt: Receipt) -> Self {
        Self {
            limiter: limiter.clone(),
            decider,
            receipt: Box::new(receipt),
            mirror: None,
            shadows: Mutex::default(),
            trials: Vec::new(),
            goes: false,
            released: AtomicBool::new(false),
            wait: None,
        }
    }

    /// On these terms it may take another turn.
    pub(super) fn on(mut self, terms: Terms) -> Self {
        self.wait = Some(Wait { terms, since: None, behind: Timestamp::from_nanos(0) });
        self
    }

    /// From now on it waits for its turn, which is behind what is held back.
    pub(super) fn for_its_turn(mut self, now: Timestamp) -> Self {
        let until = self.limiter.inner.cooldowns.until(self.receipt.charges(), now);
        if let Some(wait) = &mut self.wait {
            wait.since = Some(Instant::now());
            wait.behind = until.filter(|until| *until <= self.receipt.at()).unwrap_or(wait.behind);
        }
        self
    }

    /// From now on it waits for something else, unless it has waited before.
    pub(super) fn waits(mut self) -> Self {
        if let Some(wait) = &mut self.wait {
            wait.since = wait.since.or_else(|| Some(Instant::now()));
        }
        self
    }

    pub(super) fn wait(&self) -> Option<Wait> {
        self.wait
    }

    /// What it has of the request that it was made for, and not of its place
    /// in the future.
    pub(super) fn owner(&self) -> Owner {
        Owner { bearer: self.receipt.kept().next().map(OwnedCharge::bearer), wait: self.wait }
    }

    /// From here on it is the request's that had another place before.
    pub(super) fn passed_to(mut self, owner: Owner) -> Self {
        self.wait = owner.wait;
        self.receipt.kept_mut().zip(owner.bearer).for_each(|(kept, bearer)| kept.pass_to(bearer));
        self
    }

    /// What was counted of it elsewhere goes the same way.
    pub(super) fn mirrored(mut self, mirror: Option<Box<Receipt>>) -> Self {
        self.mirror = mirror;
        self
    }

    /// It is about these as well, of which nothing was charged.
    pub(super) fn add_uncharged(&mut self, receipt: Receipt) {
        self.receipt.append(receipt);
    }

    /// The request goes.
    pub(super) fn goes(mut self) -> Self {
        if !std::mem::replace(&mut self.goes, true) {
            self.limiter.inner.holds.fetch_add(1, Ordering::Relaxed);
            report::holds(&self.limiter.inner.gauges, 1.0);
        }
        self
    }

    /// Whether anything is left to be done about it once its request goes.
    pub(crate) fn is_kept(&self) -> bool {
        self.goes
    }

    /// Holds these as well.
    pub(super) fn with(mut self, shadows: Vec<Shadow>) -> Self {
        self.trials
            .extend(shadows.iter().map(|shadow| &shadow.receipt).filter(|receipt| settled_late(receipt)).cloned());
        self.shadows.get_mut().unwrap_or_else(PoisonError::into_inner).extend(shadows);
        self
    }

    /// What rules on trial have charged goes on without it.
    pub(super) fn take_shadows(&mut self) -> Vec<Shadow> {
        self.trials.clear();
        std::mem::take(self.shadows.get_mut().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn limiter(&self) -> &RateLimiter {
        &self.limiter
    }

    pub(super) fn decider(&self) -> Decider {
        self.decider
    }

    pub(super) fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    fn backend_of(&self, decider: Decider) -> &dyn Backend {
        match decider {
            Decider::Backend => self.limiter.inner.backend.get(),
            Decider::Fallback | Decider::Mirror => self.limiter.fallback(),
        }
    }

    /// Whether a rule lets whoever handles the request settle it.
    pub(crate) fn is_settled_by_handler(&self) -> bool {
        self.receipts().any(|(receipt, _)| receipt.charges().any(|charge| charge.applied.rule.settle))
    }

    /// All that can be settled, with who has charged it.
    fn receipts(&self) -> impl Iterator<Item = (&Receipt, Decider)> {
        let trials = self.trials.iter().map(|receipt| (receipt, Decider::Backend));
        let mirror = self.mirror.iter().map(|receipt| (&**receipt, Decider::Mirror));
        std::iter::once((&*self.receipt, self.decider)).chain(mirror).chain(trials)
    }

    /// Charges more, or gives some back, in units of the request's own cost:
    /// to the rules that let whoever handles the request do so.
    pub(crate) fn settle(&self, settlement: Settlement) {
        self.settle_where(|rule| rule.settle, settlement);
    }

    /// The response is known: rules that do not count such ones give back
    /// what they charged.
    pub(crate) fn finish(&self, status: StatusCode) {
        self.settle_where(|rule| !rule.keeps(status), Settlement::GiveBack(u64::MAX));
    }

    /// It was answered, and not rejected: rules that adapt may grow.
    pub(crate) fn succeeded(&self) {
        self.limiter.succeeded(&self.receipt);
    }

    /// It was rejected for going too fast: rules that adapt go slower.
    pub(crate) fn rejected(&self) {
        self.limiter.rejected(&self.receipt);
    }

    fn settle_where(&self, which: impl Fn(&CompiledRule) -> bool, settlement: Settlement) {
        for (receipt, decider) in self.receipts() {
            if !receipt.charges().any(|charge| which(charge.applied.rule)) {
                continue;
            }
            // What is left to give back is shared with the whole.
            if let Some(receipt) = receipt.clone().only(|charge| which(charge.applied.rule)) {
                let now = self.limiter.now();
                match (decider, settlement) {
                    (Decider::Mirror, Settlement::Add(more)) => self.limiter.fallback().count_more(&receipt, more, now),
                    _ => self.backend_of(decider).settle(&receipt, settlement, now),
                }
                if let Settlement::GiveBack(_) = settlement {
                    self.limiter.gave_back(&receipt);
                }
            }
        }
    }

    /// The provider asks to be left alone for so long: the keys of the request
    /// are.
    pub(crate) fn cool_down(&self, time: Duration) {
        let charges: SmallVec<[_; 2]> = self.receipt.charges().collect();
        self.limiter.cool_down_all(&charges, time);
    }

    /// The time on the limiter's clock.
    pub(crate) fn now(&self) -> Timestamp {
        self.limiter.now()
    }

    /// Nothing is in flight any more. What was charged otherwise stays so.
    pub(crate) fn release(&self) {
        if self.let_go() {
            if let Some(mirror) = self.mirror.as_ref().filter(|mirror| mirror.holds_in_flight()) {
                self.limiter.fallback().release(mirror, self.limiter.now());
            }
            free(&self.limiter, self.backend_of(self.decider), &self.receipt);
        }
    }

    /// Gives all back, where that cannot break a bound.
    pub(crate) fn refund(&self) {
        if self.let_go() {
            for (receipt, decider) in self.receipts() {
                self.backend_of(decider).refund(receipt, self.limiter.now());
            }
            self.limiter.gave_back(&self.receipt);
            if self.receipt.holds_in_flight() {
                call_next(&self.limiter, &self.receipt);
            }
        }
    }

    /// Whether it has not been before.
    fn let_go(&self) -> bool {
        let first = !self.released.swap(true, Ordering::AcqRel);
        // The backend is told once no lock is held: it may be anything.
        let shadows = std::mem::take(&mut *self.shadows.lock().unwrap_or_else(PoisonError::into_inner));
        drop(shadows);
        if first && self.goes {
            self.limiter.inner.holds.fetch_sub(1, Ordering::Relaxed);
            report::holds(&self.limiter.inner.gauges, -1.0);
        }
        first
    }
}

/// What a receipt holds in flight comes back.
fn free(limiter: &RateLimiter, backend: &dyn Backend, receipt: &Receipt) {
    if receipt.holds_in_flight() {
        backend.release(receipt, limiter.now());
        call_next(limiter, receipt);
    }
}

/// Units have come back: those who wait for them have their turn.
#[cold]
fn call_next(limiter: &RateLimiter, receipt: &Receipt) {
    let lines = &limiter.inner.lines;
    if lines.are_empty() {
        return;
    }
    for charge in receipt.charges() {
        for tier in charge.tiers().iter().filter(|tier| tier.is_in_flight()) {
            lines.call(charge.applied.key.tier(tier.salt));
            // It may have been charged to what its rule's keys share.
            lines.call(charge.applied.rule.overflow.tier(tier.salt));
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.release();
    }
}

fn settled_late(receipt: &Receipt) -> bool {
    receipt.charges().any(|charge| charge.applied.rule.is_settled_late())
}

/// What a rule on trial has charged that is not over once its request goes:
/// what it counts as in flight, until this is dropped, and what is settled
/// late.
#[derive(Debug)]
pub(super) struct Shadow {
    limiter: RateLimiter,
    receipt: Receipt,
}

impl Shadow {
    /// `None` where nothing is held, and nothing can be settled.
    pub(super) fn new(
        limiter: &RateLimiter,
        policy: &Arc<CompiledPolicy>,
        charge: &Charge<'_>,
        now: Timestamp,
        outcome: &Outcome,
    ) -> Option<Self> {
        let Answer::Admitted { .. } = outcome.answer else { return None };
        let receipt = Receipt::new(policy, std::slice::from_ref(charge), now, outcome);
        (receipt.holds_in_flight() || settled_late(&receipt)).then(|| Self { limiter: limiter.clone(), receipt })
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        // Its rule may be enforced by now, and others wait.
        free(&self.limiter, self.limiter.inner.backend.get(), &self.receipt);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("receipt", &self.receipt).finish_non_exhaustive()
    }
}
