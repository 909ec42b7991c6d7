use std::{error::Error, time::Duration};

use http::{Response, StatusCode};

use super::{Answer, Holding};
use crate::{
    decision::{Decision, RateLimited},
    headers::parse::Parser,
};

/// Does what a provider says of its limits, on a client; a refusal is
/// [`RateLimited`] as the error, and responses pass as they are.
///
/// A 429, a 503 with `Retry-After`, a 403 with a signal, a gRPC call that is
/// refused, and any answer that says that nothing remains, hold the request's
/// keys back until the time that is given: for all tasks and all clones of the
/// client, as [`RateLimiter::hold_back`](crate::RateLimiter::hold_back) does,
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
///     Quota, RateLimitLayer, RateLimiter, headers::parse::{Dialect, Parser}, middleware::Heed,
/// };
///
/// let limiter = RateLimiter::new(Quota::per_hour(5_000))?;
/// let heed = Heed::new().parser(Parser::new().dialect(Dialect::GitHub).cap(Duration::from_secs(3_600)));
/// let layer = RateLimitLayer::client(limiter).heeding(heed);
/// # let _ = layer;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Heed {
    parser: Parser,
    unasked: Duration,
}

impl Heed {
    /// Reads every dialect, and waits for ten minutes at most, for whatever is
    /// asked; where a refusal names no time, for a second.
    #[must_use]
    pub const fn new() -> Self {
        Self { parser: Parser::new(), unasked: Duration::from_secs(1) }
    }

    /// How what the provider says is read: which dialect, and up to what time.
    #[must_use]
    pub const fn parser(mut self, parser: Parser) -> Self {
        self.parser = parser;
        self
    }

    /// For how long a refusal holds back that names no time; a second unless
    /// set. Zero: not at all.
    #[must_use]
    pub const fn unasked(mut self, time: Duration) -> Self {
        self.unasked = time;
        self
    }

    pub(super) fn read<B>(&self, response: &Response<B>, holding: &Holding) {
        let signal = self.parser.read(response.status(), response.headers(), holding.now());
        // Who hears that nothing remains goes too fast as well, though nothing
        // is refused yet.
        holding.answered(signal.is_refusal() || signal.hold_back().is_some());
        let unasked = signal.is_refusal().then_some(self.unasked);
        if let Some(time) = signal.hold_back().or(unasked) {
            holding.hold_back(time);
        }
    }
}

impl Default for Heed {
    fn default() -> Self {
        Self::new()
    }
}

impl<B, Err> Answer<Response<B>, Err> for Heed
where
    Err: Into<Box<dyn Error + Send + Sync>>,
{
    type Response = Response<B>;
    type Error = Box<dyn Error + Send + Sync>;

    fn uses_decision(&self) -> bool {
        false
    }

    fn heeds(&self) -> bool {
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
        holding: Holding,
    ) -> Result<Response<B>, Self::Error> {
        if let Ok(response) = &result {
            self.read(response, &holding);
        }
        drop(holding);
        self.admitted(result, decision)
    }

    fn refused(&self, refusal: RateLimited) -> Result<Response<B>, Self::Error> {
        Err(refusal.into())
    }
}
