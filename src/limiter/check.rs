use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{Deciding, RateLimiter, Unfinished};
use crate::{decision::Decision, descriptor::Descriptor};

/// The answer to [`RateLimiter::check`]. Nothing is decided, or charged,
/// before it is polled.
///
/// Written by hand: small, and ready at the first poll, it costs nothing to
/// move or to drop.
#[must_use = "nothing is decided until it is polled"]
pub struct Check<'a> {
    pub(super) limiter: &'a RateLimiter,
    pub(super) descriptor: &'a Descriptor<'a>,
    /// The rest of the way, where a backend has to be waited for.
    pub(super) deciding: Option<Deciding>,
}

impl Future for Check<'_> {
    type Output = Decision;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Decision> {
        if self.deciding.is_none() {
            let mut decision = Decision::unlimited();
            match self.limiter.decide(self.descriptor, Duration::ZERO, &mut decision) {
                None => return Poll::Ready(decision),
                Some(unfinished) => match *unfinished {
                    Unfinished::Pending(deciding) => self.deciding = Some(deciding),
                    Unfinished::Held(_) | Unfinished::Reserved(_) => return Poll::Ready(decision),
                },
            }
        }
        while let Some(deciding) = &mut self.deciding {
            let (decision, decided) = ready!(deciding.as_mut().poll(cx));
            match decided.map(|unfinished| *unfinished) {
                Some(Unfinished::Pending(deciding)) => self.deciding = Some(deciding),
                _ => return Poll::Ready(decision),
            }
        }
        Poll::Pending
    }
}

impl fmt::Debug for Check<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").field("descriptor", self.descriptor).finish_non_exhaustive()
    }
}
