//! A policy, a backend and a clock: [`RateLimiter`]. Usable without tower.
//!
//! This file is the public face. A request walks `allow` (admitted at once) or
//! `admit` (all else, synchronous); one that has to wait becomes an `Admission`,
//! and `drive` is the only loop that awaits.

mod acquire;
mod adaptive;
mod admission;
mod admit;
mod allow;
mod attempt;
mod builder;
mod check;
mod conclude;
mod cooldown;
mod current;
mod drive;
mod fallback;
mod grant;
mod lease;
mod local;
mod messages;
mod mirror;
mod observe;
mod owned_attempt;
mod permit;
mod queue;
mod reservation;
mod shadow;
mod state;
mod stats;
mod step;
mod wait;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

pub use self::{
    acquire::Acquiring, adaptive::Adapted, builder::RateLimiterBuilder, check::Check, permit::Permit,
    state::RateLimiter, stats::Stats,
};
pub(crate) use self::{
    admission::Admission, allow::CallerNeeds, drive::Driving, lease::Lease, wait::timer::sleep_until,
};
use crate::{
    backend::Backend,
    descriptor::Descriptor,
    error::ConfigError,
    policy::{CompiledPolicy, Policy},
};

impl RateLimiter {
    /// A limiter in this process, on the system's clock.
    ///
    /// # Errors
    ///
    /// Where the policy cannot hold: names the rule, the key and the value.
    pub fn new(policy: impl Into<Policy>) -> Result<Self, ConfigError> {
        Self::builder().policy(policy).build()
    }

    /// A limiter with a backend or a clock of its own.
    pub fn builder() -> RateLimiterBuilder {
        RateLimiterBuilder::new()
    }

    /// Decides a request, and charges it where all rules that apply let it
    /// pass. Never waits for a turn.
    ///
    /// Without a backend that has to be asked over a network, the answer is
    /// there at the first poll. What is limited in flight is free again at
    /// once: whoever wants to hold it calls [`acquire`](Self::acquire), with a
    /// wait of zero if need be.
    #[inline]
    pub fn check<'a>(&'a self, descriptor: &'a Descriptor<'_>) -> Check<'a> {
        Check { limiter: self, descriptor, driving: None }
    }

    /// Waits until all rules that apply let a request pass, and charges it;
    /// or rejects it at once, where that would take longer than `max_wait`.
    ///
    /// Its turn is a reservation, made at the first poll, at the exact time at
    /// which every tier of every rule agrees. So callers go in the order in
    /// which they came, and each sleeps once: nothing is polled, nothing wakes
    /// for nothing, and the whole rate is used. Hundreds of tasks may call it
    /// in a loop. It needs a Tokio runtime with its timer enabled.
    ///
    /// **How long it may wait**: up to `max_wait`, less where
    /// [`Descriptor::max_wait`] says less, and less where a rule that applies
    /// has a [`max_wait`](crate::Rule::max_wait) of its own. Zero is legal (go
    /// now, or not at all), and so is [`Duration::MAX`]: such waiters are
    /// still bounded in number, see [`RateLimiterBuilder::max_waiters`].
    ///
    /// **When it goes**: never before its time on the limiter's clock, and
    /// after it by no more than the timer's millisecond. A clock that is set
    /// *ahead* meanwhile does not hurry those who wait; one that is set *back*
    /// holds them up by no more than a quarter of what they were to wait.
    ///
    /// **In flight**: where a limit on what is in flight
    /// ([`Quota::concurrent`](crate::Quota::concurrent)) is full, it stands in
    /// line, first come, first served, for as long as the same bounds allow, and
    /// is woken when a unit comes back. It holds nothing of the other tiers
    /// meanwhile; where a rate then makes it wait, the unit is held while it
    /// does. A request that needs units of several keys never holds one while
    /// it waits for another. Who stands in line is decided by the policy in
    /// force when it goes, see [`set_policy`](Self::set_policy); how long it
    /// may wait is settled when it comes.
    ///
    /// **Asking a backend** over a network takes time as well. While one is asked,
    /// its own deadline is the bound for whoever may not wait; and for others it
    /// counts as failed once they may wait no longer, though not within a
    /// second. What is left of a wait in line is less by as much. A turn is at
    /// a time that the answer says, which counts from when it was there where
    /// the backend has a clock of its own; so that the whole may take longer
    /// than `max_wait` by what the answer took. A turn that is charged is not
    /// thrown away for it.
    ///
    /// **Dropped** while it waits, it gives its turn back wherever that cannot
    /// break the bound, and no other waiter is affected.
    ///
    /// # Errors
    ///
    /// `QuotaExceeded` with the exact [`retry_after`](crate::RateLimited::retry_after)
    /// where the wait would be too long (a guess of one second where a limit on
    /// what is in flight is full: nobody knows), `NeverFits` where no wait would do,
    /// `QueueFull` where too many wait; and `MissingTenant` and
    /// `BackendUnavailable` as for any request.
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
    ///     let permit = limiter.acquire(&Descriptor::new("/jobs"), Duration::from_secs(5)).await.unwrap();
    ///     // The work; then, or at once where nothing is limited in flight:
    ///     drop(permit);
    /// }
    /// assert_eq!(start.elapsed(), Duration::from_millis(1_500));
    /// # }
    /// ```
    pub fn acquire<'a>(&'a self, descriptor: &'a Descriptor<'_>, max_wait: Duration) -> Acquiring<'a> {
        Acquiring { limiter: self, descriptor, max_wait, driving: None }
    }

    /// Puts another policy in force, at once and for all clones.
    ///
    /// Each key keeps what it has *used* of the tiers whose rule, algorithm
    /// and window stay; limits, bursts and all else may change. A rule's id is
    /// kept for as long as the process lives: change what is in a rule, not its
    /// name.
    ///
    /// A rate that was found ([`Rule::adapt`](crate::Rule::adapt)) stays as it
    /// is, as far as the new bounds allow.
    ///
    /// Some buckets are kept in another form, and a change to or from it starts
    /// every key of theirs anew, with a full quota: those of rules that are
    /// settled late ([`settle`](crate::Rule::settle),
    /// [`charge_on`](crate::Rule::charge_on),
    /// [`refund_on`](crate::Rule::refund_on)), those whose exact rate needs
    /// more than 32 bits, and those whose burst takes more than four centuries.
    ///
    /// What was charged before is settled and given back by the policy that it
    /// was charged under.
    ///
    /// Who stands in line for what is in flight is asked anew, in order, and
    /// by the new limits, where every rule that it waits under stays: enabled,
    /// on trial or not, with the same paths, routes and methods, counted per
    /// the same, and with plans and tenants of the same names. Else it goes by
    /// the limits under which it came. Nobody overtakes it meanwhile. The same
    /// holds for who asks once more because its key was
    /// [held back](Self::cool_down), when that is over.
    ///
    /// # Errors
    ///
    /// Where the policy cannot hold; then the old one stays in force.
    pub fn set_policy(&self, policy: impl Into<Policy>) -> Result<(), ConfigError> {
        self.inner.current.set(CompiledPolicy::new(policy.into())?);
        self.inner.queues.call_all();
        Ok(())
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.inner.current.policy().policy)
    }

    /// What was decided since the limiter was made, and what is held. Sums up
    /// what every thread has counted: for a page of figures, not for a hot
    /// path. With the feature `metrics`, sets the gauge `rate_limiting.keys`
    /// as well.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let fallback = self.inner.fallback.get().map(Backend::usage).unwrap_or_default();
        let stats = Stats {
            waiting: self.inner.waiters.waiting(),
            permits: self.inner.permits.value(),
            fallback,
            ..Stats::new(&self.inner.current.totals(), self.inner.backend.get().usage())
        };
        #[cfg(feature = "metrics")]
        #[allow(clippy::cast_precision_loss, reason = "a gauge")]
        metrics::gauge!("rate_limiting.keys").set(stats.keys() as f64);
        stats
    }
}
