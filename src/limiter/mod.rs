//! A policy, a backend and a clock: [`RateLimiter`]. Usable without tower.
//!
//! This file is the public face of decisions. `decide` decides every request, synchronously;
//! one that has to wait becomes an `Admission`, and `drive` is the only loop that awaits.
//! `state` builds the limiter, `replace` replaces its policy, and `inspect` shows what it does.

mod adaptive_limit;
mod admission;
mod ask;
mod attempt;
mod conclude;
mod current;
mod decide;
mod drive;
mod first_requests;
mod inspect;
mod lease;
mod observe;
mod permit;
mod queue;
mod replace;
mod reservation;
mod settle;
mod state;
mod upstream;
mod wait;

#[cfg(test)]
mod tests;

use std::time::Duration;

use futures_util::future::ready;

#[cfg(feature = "admin")]
pub(crate) use self::inspect::words;
pub use self::{
    adaptive_limit::AdaptiveLimitStatus,
    inspect::{Explanation, Stats},
    permit::Permit,
    state::{RateLimiter, RateLimiterBuilder},
    upstream::AdaptiveRateStatus,
};
use self::{admission::Decided, attempt::Purpose, conclude::at_local_share};
pub(crate) use self::{
    admission::{Admission, Next},
    decide::CallerNeeds,
    drive::{Driving, sleep_until},
    lease::Lease,
    upstream::{Feedback, Pause},
};
pub use crate::observe::TopTenant;
#[cfg(feature = "metrics")]
pub use crate::observe::describe_metrics;
use crate::{
    backend::Backend,
    decision::{Decision, RateLimited, RateLimitedKind},
    descriptor::Descriptor,
    error::{BackendError, BackendErrorKind},
    policy::Resolved,
};

impl RateLimiter {
    /// Decides a request, and charges it if all rules that apply admit it.
    /// Never waits for a slot.
    ///
    /// Unless the backend is asked over a network, the future is ready at its
    /// first poll. It releases in-flight units at once. To keep them, call
    /// [`acquire`](Self::acquire), with a wait of zero if need be.
    pub async fn check(&self, descriptor: &Descriptor<'_>) -> Decision {
        let mut decision = Decision::unlimited();
        // What was charged stays charged, and in-flight units come back.
        let Next::Wait(admission) = self.decide(descriptor, Duration::ZERO, &mut decision) else { return decision };
        let (decision, admission) = admission.drive(decision).await;
        drop(admission.take_lease());
        decision
    }

    /// [`check`](Self::check) of a request of which only the tenant is known.
    ///
    /// ```
    /// use tower_ratelimit::{Quota, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let limiter = RateLimiter::new(Quota::per_minute(1)).unwrap();
    /// assert!(limiter.check_key("acme").await.is_allowed());
    /// assert!(!limiter.check_key("acme").await.is_allowed());
    /// assert!(limiter.check_key("initech").await.is_allowed());
    /// # }
    /// ```
    pub async fn check_key(&self, tenant: &str) -> Decision {
        self.check(&Descriptor::new("/").tenant(tenant)).await
    }

    /// As [`check`](Self::check), without a future: for code that is not `async`.
    /// `None`, and nothing is charged, if the backend would have to be asked over a
    /// network.
    ///
    /// ```
    /// use tower_ratelimit::{Descriptor, Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(Quota::per_minute(1)).unwrap();
    /// let caller = Descriptor::new("/").tenant("acme");
    /// assert!(limiter.try_check(&caller).is_some_and(|decision| decision.is_allowed()));
    /// assert!(limiter.try_check(&caller).is_some_and(|decision| !decision.is_allowed()));
    /// ```
    #[must_use]
    pub fn try_check(&self, descriptor: &Descriptor<'_>) -> Option<Decision> {
        let mut decision = Decision::unlimited();
        match self.decide_for(Purpose::SendNow, descriptor, Duration::ZERO, &mut Decided::new(&mut decision)) {
            Next::Done(_) => Some(decision),
            Next::Wait(_) => None,
        }
    }

    /// Waits until all rules that apply admit a request, and charges it. Rejects
    /// it at once if that would take longer than `max_wait`.
    ///
    /// The first poll reserves a slot: the exact time at which every tier of
    /// every rule admits the request. So callers are admitted in order of arrival,
    /// and each sleeps once. Waiting needs a Tokio runtime with its timer enabled.
    ///
    /// The longest wait is `max_wait`, or less if [`Descriptor::max_wait`] or the
    /// [`max_wait`](crate::Rule::max_wait) of a rule that applies says less. Zero is
    /// legal: admit now, or reject. Dropping the future hands its slot to the next
    /// waiter; what a backend over a network then admits at once stays charged, as if
    /// the request had been served. [The guide](crate::guide::waiting#how-a-wait-works) has the details.
    ///
    /// # Errors
    ///
    /// - `QuotaExceeded`: the wait would be too long. Has the exact
    ///   [`retry_after`](crate::RateLimited::retry_after), except for a full
    ///   concurrency limit, where it is a guess of one second.
    /// - `NeverFits`: no wait would be long enough. `QueueFull`: too many wait.
    /// - `NoRuntime`: it would have to wait, and there is no Tokio runtime.
    /// - `MissingTenant` and `BackendUnavailable`, as for any request.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Descriptor, Quota, RateLimiter, testing::TokioClock};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// let limiter = RateLimiter::builder().policy(Quota::per_second(2).burst(1)).clock(TokioClock::default());
    /// let limiter = limiter.build().unwrap();
    /// let start = tokio::time::Instant::now();
    /// for _ in 0..4 {
    ///     let _permit = limiter.acquire(&Descriptor::new("/jobs"), Duration::from_secs(5)).await.unwrap();
    /// }
    /// assert_eq!(start.elapsed(), Duration::from_millis(1_500));
    /// # }
    /// ```
    pub async fn acquire(&self, descriptor: &Descriptor<'_>, max_wait: Duration) -> Result<Permit, RateLimited> {
        let mut decision = Decision::unlimited();
        let mut decided = Decided::new(&mut decision);
        let driving = match (self.decide_for(Purpose::Acquire, descriptor, max_wait, &mut decided), decided.charged) {
            (Next::Done(lease), charged) => return Permit::new(decision, charged, lease),
            (Next::Wait(admission), _) => admission.drive_here(decision).map_err(RateLimited::new)?,
        };
        let (decision, admission) = driving.await;
        Permit::new(decision, None, admission.take_lease())
    }

    /// The decision that [`check`](Self::check) would make now. Charges nothing,
    /// waits for nothing, and is counted by no metric: for a status page, or to
    /// hide a button. `remaining` is what is left before the request. Rules in shadow mode
    /// are in [`Decision::shadows`], whatever the others say.
    ///
    /// It is no promise: the next request may find less. Over a network it takes
    /// one call, and a backend failure is answered by the rules' failure modes. At
    /// the cap of counters, a new key may be rejected all the same by an overflow
    /// counter. Some backends report a later `retry_after` than the exact one, see
    /// [`Backend::peek`](crate::backend::Backend::peek).
    ///
    /// If the descriptor [names a rule](Descriptor::rule) that the policy does not have,
    /// the decision is a rejection of the kind
    /// [`Misconfigured`](crate::RateLimitedKind::Misconfigured).
    ///
    /// ```
    /// use tower_ratelimit::{Descriptor, Quota, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let limiter = RateLimiter::new(Quota::per_hour(1)).unwrap();
    /// let caller = Descriptor::new("/export").tenant("acme");
    ///
    /// assert_eq!(limiter.peek(&caller).await.remaining(), Some(1));
    /// assert!(limiter.check(&caller).await.is_allowed());
    /// assert!(!limiter.peek(&caller).await.is_allowed());
    /// # }
    /// ```
    pub async fn peek(&self, descriptor: &Descriptor<'_>) -> Decision {
        let mut decision = Decision::unlimited();
        if self.unknown_rule(descriptor).is_some() {
            decision.reject(RateLimitedKind::Misconfigured, self.now(), None);
            return decision;
        }
        match self.decide_for(Purpose::Peek, descriptor, Duration::ZERO, &mut Decided::new(&mut decision)) {
            Next::Wait(admission) => admission.drive(decision).await.0,
            Next::Done(_) => decision,
        }
    }

    /// Forgets what was used under every rule that applies to the request, in
    /// shadow mode too: its keys are as new. For a tenant who has paid, or a user
    /// who has solved a captcha.
    ///
    /// Returns how many counters it forgot: one for each tier that these keys have used,
    /// as long as it is kept. If it forgot none, perhaps the descriptor lacks a key by
    /// which the layer counts: [`RateLimitLayer::describe`](crate::RateLimitLayer::describe)
    /// makes one that has them.
    ///
    /// What belongs to requests stays: units in flight, and the slots of waiters.
    /// A request that was charged before and is settled afterwards may give its
    /// units back once more. Cooldowns and adaptive rates stay, as does what a key
    /// shares with others: an overflow counter. With `Redis`, other instances may
    /// reject from their cache for up to
    /// [`rejection_cache_ttl`](crate::backend::RedisBuilder::rejection_cache_ttl).
    ///
    /// # Errors
    ///
    /// If the backend fails, or cannot forget (`Unsupported`), as `Governor`. If the
    /// descriptor [names a rule](Descriptor::rule) that the policy does not have
    /// (`UnknownRule`).
    ///
    /// ```
    /// use tower_ratelimit::{Descriptor, Quota, RateLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// let limiter = RateLimiter::new(Quota::per_hour(1)).unwrap();
    /// let caller = Descriptor::new("/export").tenant("acme");
    ///
    /// assert!(limiter.check(&caller).await.is_allowed());
    /// assert_eq!(limiter.reset(&caller).await.unwrap(), 1);
    /// assert!(limiter.check(&caller).await.is_allowed());
    /// # }
    /// ```
    pub async fn reset(&self, descriptor: &Descriptor<'_>) -> Result<u64, BackendError> {
        if let Some(rule) = self.unknown_rule(descriptor) {
            return Err(BackendError::new(BackendErrorKind::UnknownRule, format!("the policy has no rule `{rule}`")));
        }
        let now = self.now();
        let reset = self.inner.current.with(|snapshot| {
            snapshot.policy.resolve(descriptor, |Resolved { enforced: charges, shadows, .. }| {
                charges.append(shadows);
                if snapshot.policy.adapts {
                    charges.iter_mut().for_each(|charge| drop(self.adapt(charge, now)));
                }
                if let Some(fallback) = self.inner.fallback.get() {
                    let local = at_local_share(charges, |_| true);
                    drop(fallback.reset(&local, now));
                }
                match charges.is_empty() {
                    true => Box::pin(ready(Ok(0))),
                    false => self.inner.backend.reset(charges, now),
                }
            })
        });
        let forgotten = reset.await?;
        // Requests that wait for an adaptive rate may pass now.
        self.inner.queues.call_all();
        Ok(forgotten)
    }

    /// Gives back what the backend has reserved ahead for this instance, and
    /// reports what it has not reported yet. Call it before the process stops, once
    /// no more requests arrive: what it would have reserved is then free for other
    /// instances at once, instead of when its lease ends. Requests that arrive later
    /// are decided as before.
    ///
    /// Only a backend that decides on units reserved ahead has anything to do: see
    /// [`Rule::consistency`](crate::Rule::consistency). And one whose shares follow
    /// demand (`split::Gossip`) leaves its fleet: it admits nothing more, so that others
    /// can.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let limiter = tower_ratelimit::RateLimiter::new(tower_ratelimit::Quota::per_second(10)).unwrap();
    /// // After the server has shut down gracefully:
    /// limiter.drain().await;
    /// # }
    /// ```
    pub async fn drain(&self) {
        self.inner.backend.drain(self.now()).await;
    }
}
