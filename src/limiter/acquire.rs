use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use super::{Finishing, Permit, RateLimiter};
use crate::{
    decision::{Decision, RateLimited},
    descriptor::Descriptor,
};

/// The answer to [`RateLimiter::acquire`]. Nothing is decided, or charged,
/// before it is polled; dropped while it waits, it gives its turn back.
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
/// // It is let go of before its hour is over, and takes nothing with it.
/// assert!(tokio::time::timeout(Duration::from_millis(1), second).await.is_err());
/// # }
/// ```
#[must_use = "nothing is decided until it is polled"]
pub struct Acquiring<'a> {
    pub(super) limiter: &'a RateLimiter,
    pub(super) descriptor: &'a Descriptor<'a>,
    pub(super) max_wait: Duration,
    /// The rest of the way, where there is one.
    pub(super) finishing: Option<Finishing>,
}

impl Future for Acquiring<'_> {
    type Output = Result<Permit, RateLimited>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.finishing.is_none() {
            let mut decision = Decision::unlimited();
            match self.limiter.claim(self.descriptor, self.max_wait, &mut decision) {
                None => return Poll::Ready(Permit::new(decision, None)),
                Some(unfinished) => self.finishing = Some(unfinished.finish(decision)),
            }
        }
        match &mut self.finishing {
            Some(finishing) => finishing.as_mut().poll(cx).map(|(decision, hold)| Permit::new(decision, hold)),
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
