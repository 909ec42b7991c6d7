//! [`Permit`]: the caller's hold on what its request was charged.

use http::StatusCode;

use super::lease::Lease;
use crate::{
    backend::Settlement,
    decision::{Decision, RateLimited},
};

/// Leave to go, from [`RateLimiter::acquire`](crate::RateLimiter::acquire).
///
/// Hold it for as long as the work takes: a limit on what is in flight
/// ([`Quota::concurrent`](crate::Quota::concurrent)) counts it until it is
/// dropped. What rates have charged is spent then;
/// [`refund`](Self::refund) is for work that was not done after all, and
/// [`add`](Self::add) and [`give_back`](Self::give_back) are for work whose
/// cost is known late.
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
/// assert_eq!(permit.decision().remaining(), 0);
/// // There was nothing to do after all.
/// permit.refund();
/// assert!(limiter.acquire(&job, Duration::ZERO).await.is_ok());
/// # }
/// ```
#[derive(Debug)]
#[must_use = "it is for as long as it is held that the work is in flight"]
pub struct Permit {
    decision: Decision,
    /// `None` where nothing was charged.
    lease: Option<Lease>,
}

impl Permit {
    pub(super) fn new(decision: Decision, lease: Option<Lease>) -> Result<Self, RateLimited> {
        match decision.is_allowed() {
            true => Ok(Self { decision, lease }),
            false => Err(RateLimited::new(decision)),
        }
    }

    /// How it was decided. [`Decision::wait`] is how long it had to wait.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Charges more, in units of the request's own cost, to the rules that are
    /// settled late ([`Rule::settle`](crate::Rule::settle)): whatever the
    /// limits say, for it has been spent. A key may so go into debt, which is
    /// paid back before it is admitted again.
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
        if let Some(lease) = &self.lease {
            lease.settle(Settlement::Add(units));
        }
    }

    /// Gives back some of what was charged, in units of the request's own
    /// cost, from the rules that are settled late: in all never more than was
    /// charged, and only where that cannot break a limit's bound.
    pub fn give_back(&self, units: u64) {
        if let Some(lease) = &self.lease {
            lease.settle(Settlement::GiveBack(units));
        }
    }

    /// The work has ended with such a response: rules that do not count it
    /// ([`Rule::charge_on`](crate::Rule::charge_on),
    /// [`Rule::refund_on`](crate::Rule::refund_on)) give back what they have
    /// charged.
    pub fn finish(self, status: StatusCode) {
        if let Some(lease) = self.lease {
            lease.finish(status);
        }
    }

    /// Tells rules that adapt ([`Rule::adapt`](crate::Rule::adapt)) that the
    /// work was answered, and not rejected for going too fast: any other answer
    /// counts as this one, an error too. Where there was none, tell nothing.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Adapt, Descriptor, Policy, Quota, RateLimiter, Rule};
    ///
    /// # async fn send() -> Result<(), u16> { Ok(()) }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let adapt = Adapt::between(Quota::per_second(1), Quota::per_second(1_000));
    /// let limiter = RateLimiter::new(Policy::new().rule(Rule::new("provider").adapt(adapt))).unwrap();
    ///
    /// let permit = limiter.acquire(&Descriptor::new("/v1/items"), Duration::from_secs(60)).await.unwrap();
    /// match send().await {
    ///     Err(429) => permit.report_rejection(),
    ///     _ => permit.report_success(),
    /// }
    /// # }
    /// ```
    pub fn report_success(&self) {
        if let Some(lease) = &self.lease {
            lease.succeeded();
        }
    }

    /// Tells rules that adapt that the work was rejected for going too fast, by
    /// whom it was sent to.
    pub fn report_rejection(&self) {
        if let Some(lease) = &self.lease {
            lease.rejected();
        }
    }

    /// Gives back all that was charged, where that cannot break a limit's
    /// bound; what others have built upon since is forfeited.
    pub fn refund(self) {
        if let Some(lease) = self.lease {
            lease.refund();
        }
    }
}
