//! What a client does about its upstream's responses: [`UpstreamFeedback`].
//!
//! Feedback only slows a client down. It never admits a request earlier than
//! the rules do.

use std::{error::Error, time::Duration};

use http::Response;

use super::{AdmissionContext, Answer, InFlightGuard, RejectionContext};
use crate::{headers::parse::Parser, limiter::UpstreamAnswer};

/// Follows the rate limit headers of an upstream, on a client. A rejection is
/// [`RateLimited`](crate::RateLimited) as the error, and responses pass
/// unchanged.
///
/// These responses put the request's keys on a cooldown until the time that
/// the upstream names: a 429, a 503 with `Retry-After`, a 403 with a signal, a
/// rejected gRPC call, and any response that reports nothing remaining. The
/// cooldown applies to all tasks and all clones of the client, as with
/// [`RateLimiter::cool_down`](crate::RateLimiter::cool_down), and to all
/// instances on a backend that they share. [`headers::parse`] defines which
/// fields count, and what their times mean. Rules with an
/// [adaptive rate](crate::Rule::adapt) also slow down from then on.
///
/// Feedback needs a rule that applies to the request. Without one, nothing is
/// counted, and there is no key to cool down.
///
/// [`headers::parse`]: crate::headers::parse
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{
///     Quota, RateLimitLayer, RateLimiter, headers::parse::{Dialect, Parser}, middleware::UpstreamFeedback,
/// };
///
/// let limiter = RateLimiter::new(Quota::per_hour(5_000))?;
/// let feedback = UpstreamFeedback::new().parser(Parser::new().dialect(Dialect::GitHub).cap(Duration::from_secs(3_600)));
/// let layer = RateLimitLayer::client(limiter).feedback(feedback);
/// # let _ = layer;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct UpstreamFeedback {
    parser: Parser,
    default_cooldown: Duration,
}

impl UpstreamFeedback {
    /// Reads every dialect. A cooldown is at most ten minutes, and one second
    /// after a rejection without a time.
    pub const fn new() -> Self {
        Self { parser: Parser::new(), default_cooldown: Duration::from_secs(1) }
    }

    /// How to read the upstream's headers: which dialect, and with which cap.
    pub const fn parser(mut self, parser: Parser) -> Self {
        self.parser = parser;
        self
    }

    /// The cooldown after a rejection without a time; one second by default.
    /// Zero: none.
    pub const fn default_cooldown(mut self, time: Duration) -> Self {
        self.default_cooldown = time;
        self
    }

    pub(super) fn read<B>(&self, response: &Response<B>, guard: &InFlightGuard) {
        let signal = self.parser.read(response.status(), response.headers(), guard.now());
        // Nothing remaining also means that the rate is too high, although
        // nothing has been rejected yet.
        guard.report_answer(match signal.is_rejection() || signal.cooldown().is_some() {
            true => UpstreamAnswer::Rejection,
            false => UpstreamAnswer::Success,
        });
        let default_cooldown = signal.is_rejection().then_some(self.default_cooldown);
        if let Some(time) = signal.cooldown().or(default_cooldown) {
            guard.cool_down(time);
        }
    }
}

impl Default for UpstreamFeedback {
    fn default() -> Self {
        Self::new()
    }
}

impl<B, Err> Answer<Response<B>, Err> for UpstreamFeedback
where
    Err: Into<Box<dyn Error + Send + Sync>>,
{
    type Response = Response<B>;
    type Error = Box<dyn Error + Send + Sync>;

    fn needs_decision(&self) -> bool {
        false
    }

    fn needs_guard(&self) -> bool {
        true
    }

    fn unready(&self, error: Err) -> Self::Error {
        error.into()
    }

    fn admitted(
        &self,
        result: Result<Response<B>, Err>,
        admission: AdmissionContext<'_>,
    ) -> Result<Response<B>, Self::Error> {
        if let (Some(guard), Ok(response)) = (admission.guard(), &result) {
            guard.report_status(response.status());
            self.read(response, guard);
        }
        result.map_err(Into::into)
    }

    fn rejected(&self, rejection: RejectionContext) -> Result<Response<B>, Self::Error> {
        Err(rejection.error.into())
    }
}
