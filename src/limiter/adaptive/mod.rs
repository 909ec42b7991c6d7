//! Adaptive rates (AIMD): one for each key of a rule that adapts. This file
//! reports upstream answers to them, and looks up the rate to decide by.

pub(super) mod law;
pub(super) mod queue;
pub(super) mod rates;

#[cfg(test)]
mod tests;

use self::{law::Times, queue::adaptive_queue};
use super::{attempt::Charges, observe, state::RateLimiter};
use crate::{
    backend::{Charge, Receipt},
    decision::Decision,
    descriptor::Descriptor,
    time::Timestamp,
};

/// Where a rate stands that a rule has found, or is about to find: see
/// [`RateLimiter::adapted`].
///
/// ```
/// use tower_ratelimit::{Adapt, Descriptor, Policy, Quota, RateLimiter, Rule};
///
/// let adapt = Adapt::between(Quota::per_second(5), Quota::per_second(500));
/// let limiter = RateLimiter::new(Policy::new().rule(Rule::new("provider").adapt(adapt)))?;
///
/// let found = limiter.adapted(&Descriptor::new("/v1/items").tenant("acme"));
/// assert_eq!((found[0].rule(), found[0].rate(), found[0].rejections()), ("provider", 5.0, 0));
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adapted {
    rule: &'static str,
    rate: f64,
    floor: f64,
    ceiling: f64,
    rejections: u64,
}

impl Adapted {
    /// The rule's id.
    #[must_use]
    pub fn rule(&self) -> &str {
        self.rule
    }

    /// The rate, in units per second. The tier's limit is the ladder's next
    /// one below it: less by up to 1.5 %, or by a unit.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// The rate that it never goes below, in units per second.
    #[must_use]
    pub fn floor(&self) -> f64 {
        self.floor
    }

    /// The rate that it never goes above, in units per second.
    #[must_use]
    pub fn ceiling(&self) -> f64 {
        self.ceiling
    }

    /// How often the key was rejected by whom it calls, since it is known.
    #[must_use]
    pub fn rejections(&self) -> u64 {
        self.rejections
    }
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answered {
    Success,
    Rejection,
}

impl RateLimiter {
    /// The rates of what rules that adapt ([`Rule::adapt`](crate::Rule::adapt))
    /// charge such a request, one for each rule; none where no such rule
    /// applies.
    #[must_use]
    pub fn adapted(&self, descriptor: &Descriptor<'_>) -> Vec<Adapted> {
        let now = self.now();
        let mut found = Vec::new();
        self.with_adapting(descriptor, |charges| {
            found.extend(charges.iter().filter_map(|charge| {
                let rule = charge.rule;
                let ladder = rule.ladder.as_ref()?;
                let (rate, rejections) = self.inner.rates.look(charge.fingerprint(), ladder, now);
                Some(Adapted { rule: rule.id, rate, floor: ladder.floor, ceiling: ladder.ceiling, rejections })
            }));
        });
        found
    }

    /// Tells rules that adapt that a request was answered and not rejected: for
    /// callers who are no HTTP clients and [`check`](Self::check). Who has a
    /// [`Permit`](crate::Permit) tells by [`Permit::report_success`](crate::Permit::report_success).
    ///
    /// `descriptor` and `decision` are those of the request. Any other answer
    /// than a rejection for going too fast is a success here, an error too; of
    /// what got no answer, tell nothing.
    ///
    /// ```
    /// use tower_ratelimit::{Adapt, Descriptor, Policy, Quota, RateLimiter, Rule};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let adapt = Adapt::between(Quota::per_second(10), Quota::per_second(500)).start(Quota::per_second(100));
    /// let limiter = RateLimiter::new(Policy::new().rule(Rule::new("provider").adapt(adapt))).unwrap();
    ///
    /// let request = Descriptor::new("/v1/items");
    /// let decision = limiter.check(&request).await;
    /// if decision.is_allowed() {
    ///     // It was sent, and the answer was "slow down".
    ///     limiter.report_rejection(&request, &decision);
    /// }
    /// assert!(limiter.adapted(&request)[0].rate() < 100.0);
    /// # }
    /// ```
    pub fn report_success(&self, descriptor: &Descriptor<'_>, decision: &Decision) {
        self.tell(descriptor, decision, Answered::Success);
    }

    /// Tells rules that adapt that a request was rejected for going too fast,
    /// by whom it was sent to: otherwise as [`report_success`](Self::report_success).
    pub fn report_rejection(&self, descriptor: &Descriptor<'_>, decision: &Decision) {
        self.tell(descriptor, decision, Answered::Rejection);
    }

    fn tell(&self, descriptor: &Descriptor<'_>, decision: &Decision, answered: Answered) {
        if !decision.is_allowed() {
            return;
        }
        let decided = decision.decided_at();
        let times = Times { decided, sent: decided.saturating_add(decision.wait()) };
        self.with_adapting(descriptor, |charges| self.learn(charges, times, answered));
    }

    /// What the receipt is for was answered, and not rejected.
    pub(crate) fn succeeded(&self, receipt: &Receipt) {
        self.learn_of(receipt, Answered::Success);
    }

    /// What the receipt is for was rejected for going too fast.
    pub(crate) fn rejected(&self, receipt: &Receipt) {
        self.learn_of(receipt, Answered::Rejection);
    }

    fn learn_of(&self, receipt: &Receipt, answered: Answered) {
        let charges: Charges<'_> = receipt.charges().filter(|charge| charge.rule.ladder.is_some()).collect();
        if !charges.is_empty() {
            self.learn(&charges, Times { decided: receipt.decided(), sent: receipt.at() }, answered);
        }
    }

    fn learn(&self, charges: &[Charge<'_>], times: Times, answered: Answered) {
        let now = self.now();
        for charge in charges {
            let rule = charge.rule;
            let Some(ladder) = &rule.ladder else { continue };
            let rates = &self.inner.rates;
            match answered {
                Answered::Success => {
                    if rates.succeeded(charge.fingerprint(), ladder, times, charge.cost, now) {
                        // A waiter may be admitted sooner.
                        adaptive_queue(charge).into_iter().flatten().for_each(|key| self.inner.queues.call(key));
                    }
                }
                Answered::Rejection => {
                    let rate = rates.rejected(charge.fingerprint(), ladder, times, now);
                    observe::upstream_rejected(rule, rate);
                }
            }
        }
    }

    /// By the step of the ladder that the key is at now, where the rule adapts.
    #[cold]
    pub(super) fn at_current_rate<'a>(&self, charge: Charge<'a>, now: Timestamp) -> Charge<'a> {
        let Some(ladder) = &charge.rule.ladder else { return charge };
        charge.at_step(self.inner.rates.step(charge.fingerprint(), ladder, now))
    }

    /// What rules that adapt, and are enforced, charge such a request.
    fn with_adapting(&self, descriptor: &Descriptor<'_>, with: impl FnOnce(&[Charge<'_>])) {
        self.with_charges(descriptor, |rule| rule.ladder.is_some(), with);
    }
}
