//! The future of [`RateLimiter::check`]. Never waits for a slot.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{drive::Driving, state::RateLimiter};
use crate::{decision::Decision, descriptor::Descriptor};

/// The future of [`RateLimiter::check`]. Nothing is decided or charged before
/// it is polled.
///
/// Written by hand rather than with `async`: it is small and nearly always ready
/// at its first poll, so moving and dropping it costs nothing.
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
