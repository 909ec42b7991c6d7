//! [`Permit`]: what a caller of `acquire` keeps of its charge. It decides nothing.
//!
//! Most permits are only dropped. A lease allocates, and takes several times what the
//! decision does, so it is made where it is asked for: see [`Charged`]. Invariant: a
//! permit is counted until it, or the lease made of it, is dropped.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use http::StatusCode;
use smallvec::SmallVec;

use super::{
    lease::Lease,
    state::{Decider, Grant, RateLimiter},
    upstream::Feedback,
};
use crate::{
    backend::{Charge, Receipt, Settlement, TierState},
    decision::{Decision, RateLimited},
    policy::{ChargedRule, CompiledPolicy, charge::Charges},
    unit::REQUESTS,
};

/// Permission to proceed, from [`RateLimiter::acquire`](crate::RateLimiter::acquire).
///
/// Keep it while the work lasts: a concurrency limit
/// ([`Quota::concurrent`](crate::Quota::concurrent)) counts it until it is
/// dropped. What rates have charged stays charged. [`refund`](Self::refund) is
/// for work that was not done, [`add`](Self::add) and
/// [`give_back`](Self::give_back) are for costs that are known afterwards.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Descriptor, Quota, RateLimiter};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let limiter = RateLimiter::new(Quota::per_minute(1)).unwrap();
/// let job = Descriptor::new("/jobs").tenant("acme");
///
/// let permit = limiter.acquire(&job, Duration::ZERO).await.unwrap();
/// assert_eq!(permit.decision().remaining(), Some(0));
/// // There was nothing to do.
/// permit.refund();
/// assert!(limiter.acquire(&job, Duration::ZERO).await.is_ok());
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the work is in flight until this is dropped"]
pub struct Permit {
    decision: Decision,
    /// What was charged at once, where nothing is left to do.
    charged: Option<Charged>,
    lease: Option<Arc<Lease>>,
}

impl Permit {
    pub(super) fn new(
        decision: Decision,
        charged: Option<Charged>,
        lease: Option<Arc<Lease>>,
    ) -> Result<Self, RateLimited> {
        match decision.is_allowed() {
            true => Ok(Self { decision, charged, lease }),
            false => Err(RateLimited::new(decision)),
        }
    }

    fn lease(&self) -> Option<&Lease> {
        self.lease.as_deref().or_else(|| Some(self.charged.as_ref()?.lease(&self.decision)))
    }

    /// Passes on its lease, unless no rule applied to the request.
    fn with_lease(&self, act: impl FnOnce(&Lease)) {
        if let Some(lease) = self.lease() {
            act(lease);
        }
    }

    /// The decision. [`Decision::wait`] is how long the request waited.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Charges more, in units of the request's own cost, for the rules that
    /// settle afterwards ([`Rule::settle`](crate::Rule::settle)). Never rejects,
    /// as the units are spent: a key may go into debt, and is not admitted
    /// before the debt is paid.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Descriptor, Policy, Quota, RateLimiter, Rule};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let tokens = Rule::new("tokens").tier(Quota::per_hour(1_000)).settle(true);
    /// let limiter = RateLimiter::new(Policy::new().rule(tokens)).unwrap();
    /// let prompt = Descriptor::new("/v1/chat").tenant("acme").cost(200);
    ///
    /// let permit = limiter.acquire(&prompt, Duration::ZERO).await.unwrap();
    /// permit.add(800);
    /// drop(permit);
    /// assert!(limiter.acquire(&prompt, Duration::ZERO).await.is_err());
    /// # }
    /// ```
    pub fn add(&self, units: u64) {
        self.add_in(REQUESTS, units);
    }

    /// Charges more, as [`add`](Self::add) does, but only if every such rule admits
    /// it now: all or nothing, and never beyond a limit. Waits for no slot. What a
    /// backend admits after the future was dropped is given back.
    ///
    /// # Errors
    ///
    /// The rejection, which charged nothing.
    pub async fn try_add(&self, units: u64) -> Result<(), RateLimited> {
        self.try_add_in(REQUESTS, units).await
    }

    /// Gives back some of what was charged, in units of the request's own
    /// cost, for the rules that settle afterwards. In all at most what was
    /// charged, and only where that cannot break a limit's bound.
    pub fn give_back(&self, units: u64) {
        self.give_back_in(REQUESTS, units);
    }

    /// As [`add`](Self::add), for the rules of another [unit](crate::Rule::unit).
    pub fn add_in(&self, unit: &str, units: u64) {
        self.with_lease(|lease| lease.settle(unit, Settlement::Add(units)));
    }

    /// As [`give_back`](Self::give_back), for the rules of another
    /// [unit](crate::Rule::unit).
    pub fn give_back_in(&self, unit: &str, units: u64) {
        self.with_lease(|lease| lease.settle(unit, Settlement::GiveBack(units)));
    }

    /// As [`try_add`](Self::try_add), for the rules of another [unit](crate::Rule::unit).
    ///
    /// # Errors
    ///
    /// The rejection, which charged nothing.
    pub async fn try_add_in(&self, unit: &str, units: u64) -> Result<(), RateLimited> {
        match self.lease() {
            Some(lease) => lease.try_add(unit, units).await,
            None => Ok(()),
        }
    }

    /// Settles what the request has cost in all in this [unit](crate::Rule::unit): see
    /// [`ChargeHandle::settle_in`](crate::ChargeHandle::settle_in).
    pub fn settle_in(&self, unit: &str, actual: u64) {
        self.with_lease(|lease| lease.settle_to(unit, actual));
    }

    /// Reports the status that the work ended with. Rules that do not charge it
    /// ([`Rule::charge_on`](crate::Rule::charge_on),
    /// [`Rule::refund_on`](crate::Rule::refund_on)) give back what they
    /// charged.
    pub fn finish(self, status: StatusCode) {
        self.with_lease(|lease| {
            lease.finish(status);
            lease.measure(Some(status));
            lease.release();
        });
    }

    /// Reports to adaptive rates ([`Rule::adaptive_rate`](crate::Rule::adaptive_rate)) that the
    /// upstream answered, and did not reject the request for its rate. Any other
    /// answer counts as a success, also an error. Without an answer, report
    /// nothing.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{AdaptiveRate, Descriptor, Policy, Quota, RateLimiter, Rule};
    ///
    /// # async fn send() -> Result<(), u16> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let adapt = AdaptiveRate::between(Quota::per_second(1), Quota::per_second(1_000));
    /// let limiter = RateLimiter::new(Policy::new().rule(Rule::new("upstream").adaptive_rate(adapt))).unwrap();
    ///
    /// let permit = limiter.acquire(&Descriptor::new("/v1/items"), Duration::from_secs(60)).await.unwrap();
    /// match send().await {
    ///     Err(429) => permit.report_rejection(),
    ///     _ => permit.report_success(),
    /// }
    /// # }
    /// ```
    pub fn report_success(&self) {
        self.with_lease(|lease| lease.report_answer(Feedback::Success, |_| true));
    }

    /// Reports to adaptive rates that the upstream rejected the request for its
    /// rate.
    pub fn report_rejection(&self) {
        self.with_lease(|lease| lease.report_answer(Feedback::Rejected, |_| true));
    }

    /// Gives back all that was charged, where that cannot break a limit's
    /// bound. What later reservations build upon is forfeited.
    pub fn refund(self) {
        self.with_lease(Lease::refund);
    }
}

/// The work has ended: adaptive concurrency limits learn how long it took.
impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(lease) = &self.lease {
            lease.measure(None);
        }
    }
}

/// What was charged at once, in this process, and is kept until a lease is made of it.
pub(super) struct Charged {
    limiter: RateLimiter,
    policy: Arc<CompiledPolicy>,
    rules: SmallVec<[ChargedRule; 1]>,
    /// The version of each tier's state, after the charge.
    versions: SmallVec<[u64; 1]>,
    lease: OnceLock<Box<Lease>>,
}

impl Charged {
    pub(super) fn new(
        limiter: &RateLimiter,
        policy: &Arc<CompiledPolicy>,
        charges: &[Charge<'_>],
        states: &[TierState],
    ) -> Self {
        limiter.inner.permits.add();
        let (mut rules, mut versions) = (SmallVec::new(), SmallVec::new());
        charges.iter().for_each(|charge| rules.push(ChargedRule::new(charge)));
        states.iter().for_each(|state| versions.push(state.mark));
        Self { limiter: limiter.clone(), policy: Arc::clone(policy), rules, versions, lease: OnceLock::new() }
    }

    /// The lease of the request that was admitted with this decision.
    fn lease(&self, decision: &Decision) -> &Lease {
        self.lease.get_or_init(|| {
            let at = decision.decided_at();
            let charges: Charges<'_> = self.rules.iter().map(|rule| rule.charge(&self.policy)).collect();
            let resets = decision.tiers().iter().map(|status| status.reset);
            let receipt = Receipt::immediate(&self.policy, &charges, at, resets.zip(self.versions.iter().copied()));
            let mut lease = Lease::new(&self.limiter, Grant::new(Decider::Backend, receipt));
            // It counts as a permit already.
            lease.is_sent = true;
            Box::new(lease)
        })
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        // Otherwise the lease does.
        if self.lease.get().is_none() {
            self.limiter.inner.permits.subtract();
        }
    }
}

impl fmt::Debug for Charged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charged").field("rules", &self.rules).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[cfg(feature = "test-util")]
mod tests;
