use std::{error::Error, time::Duration};

use http::{Response, StatusCode};

use super::{Answer, InFlightGuard};
use crate::{
    decision::{Decision, RateLimited},
    headers::parse::Parser,
};

/// Does what a provider says of its limits, on a client; a rejection is
/// [`RateLimited`] as the error, and responses pass as they are.
///
/// A 429, a 503 with `Retry-After`, a 403 with a signal, a gRPC call that is
/// rejected, and any answer that says that nothing remains, hold the request's
/// keys back until the time that is given: for all tasks and all clones of the
/// client, as [`RateLimiter::cool_down`](crate::RateLimiter::cool_down) does,
/// and on a backend that instances share for all of them.
/// What counts as a signal, and what its time is, is
/// [`headers::parse`](crate::headers::parse)'s to say. A signal only slows:
/// nobody goes earlier for one than the rules let it. Rules that
/// [adapt](crate::Rule::adapt) go slower from then on as well.
///
/// It needs a rule that applies to the request: where there is none, nothing
/// is counted, and nothing is held back.
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
pub struct UpstreamFeedback {
    parser: Parser,
    default_cooldown: Duration,
}

impl UpstreamFeedback {
    /// Reads every dialect, and waits for ten minutes at most, for whatever is
    /// asked; where a rejection names no time, for a second.
    #[must_use]
    pub const fn new() -> Self {
        Self { parser: Parser::new(), default_cooldown: Duration::from_secs(1) }
    }

    /// How what the provider says is read: which dialect, and up to what time.
    #[must_use]
    pub const fn parser(mut self, parser: Parser) -> Self {
        self.parser = parser;
        self
    }

    /// For how long a rejection holds back that names no time; a second unless
    /// set. Zero: not at all.
    #[must_use]
    pub const fn default_cooldown(mut self, time: Duration) -> Self {
        self.default_cooldown = time;
        self
    }

    pub(super) fn read<B>(&self, response: &Response<B>, holding: &InFlightGuard) {
        let signal = self.parser.read(response.status(), response.headers(), holding.now());
        // Who hears that nothing remains goes too fast as well, though nothing
        // is rejected yet.
        holding.answered(signal.is_rejection() || signal.cooldown().is_some());
        let default_cooldown = signal.is_rejection().then_some(self.default_cooldown);
        if let Some(time) = signal.cooldown().or(default_cooldown) {
            holding.cool_down(time);
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

    fn uses_decision(&self) -> bool {
        false
    }

    fn needs_feedback(&self) -> bool {
        true
    }

    fn unready(&self, error: Err) -> Self::Error {
        error.into()
    }

    fn admitted(&self, result: Result<Response<B>, Err>, _: &Decision) -> Result<Response<B>, Self::Error> {
        result.map_err(Into::into)
    }

    fn status(&self, result: &Result<Response<B>, Err>) -> Option<StatusCode> {
        result.as_ref().ok().map(Response::status)
    }

    fn admitted_holding(
        &self,
        result: Result<Response<B>, Err>,
        decision: &Decision,
        holding: InFlightGuard,
    ) -> Result<Response<B>, Self::Error> {
        if let Ok(response) = &result {
            self.read(response, &holding);
        }
        drop(holding);
        self.admitted(result, decision)
    }

    fn rejected(&self, rejection: RateLimited) -> Result<Response<B>, Self::Error> {
        Err(rejection.into())
    }
}
