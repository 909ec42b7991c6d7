//! The futures of [`RateLimiter::check`] and [`RateLimiter::acquire`]. Each
//! decides at its first poll.
//!
//! Written by hand rather than with `async`: they are small and nearly always
//! ready at their first poll, so moving and dropping them costs nothing.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{attempt::Purpose, drive::Driving, permit::Permit, state::RateLimiter};
use crate::{
    decision::{Decision, RateLimited},
    descriptor::Descriptor,
};

/// The future of [`RateLimiter::check`]. Nothing is decided or charged before
/// it is polled.
#[must_use = "nothing is decided until it is polled"]
pub struct Check<'a> {
    pub(super) limiter: &'a RateLimiter,
    pub(super) descriptor: &'a Descriptor<'a>,
    /// Set once the backend has to be waited for.
    pub(super) driving: Option<Driving>,
}

impl Future for Check<'_> {
    type Output = Decision;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        if self.driving.is_none() {
            let mut decision = Decision::unlimited();
            match self.limiter.decide(self.descriptor, Duration::ZERO, &mut decision) {
                None => return Poll::Ready(decision),
                Some(admission) => self.driving = Some(admission.drive(decision)),
            }
        }
        let Some(driving) = &mut self.driving else { return Poll::Pending };
        let (decision, admission) = ready!(driving.as_mut().poll(cx));
        // What was charged stays charged, and in-flight units come back.
        drop(admission.take_lease());
        Poll::Ready(decision)
    }
}

impl fmt::Debug for Check<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").field("descriptor", self.descriptor).finish_non_exhaustive()
    }
}

/// The future of [`RateLimiter::acquire`]. Nothing is decided or charged before
/// it is polled. Dropped while it waits, it hands its slot to the next waiter.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Descriptor, Quota, RateLimiter};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let limiter = RateLimiter::new(Quota::per_hour(1)).unwrap();
/// let job = Descriptor::new("/jobs").tenant("acme");
/// let _first = limiter.acquire(&job, Duration::ZERO).await.unwrap();
///
/// let second = limiter.acquire(&job, Duration::MAX);
/// // Dropped before its hour is over, it keeps nothing.
/// assert!(tokio::time::timeout(Duration::from_millis(1), second).await.is_err());
/// # }
/// ```
#[must_use = "nothing is decided until it is polled"]
pub struct Acquiring<'a> {
    pub(super) limiter: &'a RateLimiter,
    pub(super) descriptor: &'a Descriptor<'a>,
    pub(super) max_wait: Duration,
    /// Set once the request has to wait.
    pub(super) driving: Option<Driving>,
}

impl Future for Acquiring<'_> {
    type Output = Result<Permit, RateLimited>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.driving.is_none() {
            let mut decision = Decision::unlimited();
            match self.limiter.decide_for(Purpose::Acquire, self.descriptor, self.max_wait, &mut decision) {
                None => return Poll::Ready(Permit::new(decision, None)),
                Some(admission) if !admission.is_done() => match admission.drive_here(decision) {
                    Ok(driving) => self.driving = Some(driving),
                    Err(decision) => return Poll::Ready(Permit::new(decision, None)),
                },
                Some(admission) => return Poll::Ready(Permit::new(decision, admission.take_lease())),
            }
        }
        match &mut self.driving {
            Some(driving) => {
                driving.as_mut().poll(cx).map(|(decision, admission)| Permit::new(decision, admission.take_lease()))
            }
            None => Poll::Pending,
        }
    }
}

impl fmt::Debug for Acquiring<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquiring")
            .field("descriptor", self.descriptor)
            .field("max_wait", &self.max_wait)
            .finish_non_exhaustive()
    }
}
