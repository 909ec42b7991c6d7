//! What a client does about its upstream's responses: [`UpstreamFeedback`].
//!
//! It only reports: the limiter cools down. The invariant: feedback never admits a
//! request earlier than the rules do. Only the rate of an adaptive rule grows by it.

use std::{fmt, sync::Arc, time::Duration};

use http::{Extensions, HeaderMap, Response, StatusCode};
use smallvec::SmallVec;

use super::InFlightGuard;
use crate::{
    headers::parse::{Parser, Signal},
    limiter::{Feedback, Pause},
    policy::Statuses,
    unit::Unit,
};

/// Follows the rate limit headers of an upstream, on a client. A rejection is
/// [`RateLimited`](crate::RateLimited) as the error, and responses pass
/// unchanged.
///
/// | response | the request's keys | their [adaptive](crate::Rule::adaptive_rate) rates |
/// |---|---|---|
/// | a 503 without rate limit fields, with a time | only its endpoint cools down, in this instance: see [`on_unavailable`](Self::on_unavailable) | slow down |
/// | any other rejection with a time: 429, a 403 with a signal, gRPC's RESOURCE_EXHAUSTED | cool down for that time, and then resume one by one; see below for `Retry-After: 1` | slow down |
/// | a rejection without a time: 429 or 503, see [`rejection_statuses`](Self::rejection_statuses) | pause for the rule's own interval, twice as long for each in a row, up to 10 s; not those of adaptive rules, whose rate is lowered instead | slow down |
/// | no rejection, but nothing remains | resume one by one when the upstream has more at the earliest | stay; grow if nothing ever remains, as with a burst of 1 |
/// | any other 5xx | | |
/// | any other | | grow |
///
/// The *interval* of a rule is the time in which its fastest tier admits one
/// more request, and at most a second. *One by one* means as from an empty bucket: requests are an
/// interval apart, and wait in order.
///
/// Servers round times up to whole seconds. The time of a response that is no
/// rejection is an upper bound: the keys cool down for a second less (three, if
/// it is a point in time), plus one interval. A rejection's time is obeyed as it
/// is, except for exactly one second, `Retry-After: 1`: no field in whole seconds
/// can name a shorter time, so it says only that the wait is at most that.
///
/// 1. The keys pause for the rule's own interval. If it is the first response of
///    this kind in a while, the pause is longer by what the rule's burst may have
///    run ahead of its rate. If a finer field fits (`retry-after-ms`, a reset with
///    decimals), its time is the pause. Rules whose pause is not shorter than a
///    second cool down for the second at once.
/// 2. One request is sent as a probe. Others follow one by one, when the probe can
///    have been answered.
/// 3. If it is rejected too, a second probe follows after twice that pause. If that
///    is rejected as well, the upstream means the second: the keys cool down for
///    it, and so they do after each rejection of the next 15 s.
///
/// So an upstream with the same quota as the client is used nearly fully, and one
/// that means a second is asked at most twice too early in 15 s. A rule with an
/// adaptive rate sends no probes, since each that is rejected would lower the rate.
///
/// A cooldown applies to all tasks and all clones of the client, as with
/// [`RateLimiter::cool_down`](crate::RateLimiter::cool_down), and to all
/// instances on a backend that they share. [`headers::parse`] defines which
/// fields count, and what their times mean. A pause of less than a second
/// delays requests and is not shared.
///
/// An upstream may report limits in several units, such as `requests` and `tokens`. Each
/// concerns the rules of its [unit](crate::Rule::unit); one that no rule of the request
/// counts, and one without a unit, concerns all. A rejection is by the limits that have less
/// left than the request stated, or else by one that concerns all.
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
#[derive(Clone)]
#[must_use]
pub struct UpstreamFeedback {
    parser: Parser,
    reader: Option<Arc<Reader>>,
    default_cooldown: Option<Duration>,
    unavailable: CooldownScope,
}

/// A function of [`UpstreamFeedback::read_with`].
type Reader = dyn Fn(&ResponseHead<'_>) -> Option<Signal> + Send + Sync;

/// What a 503 that says nothing about a limit pauses: see
/// [`UpstreamFeedback::on_unavailable`].
///
/// ```
/// use tower_ratelimit::middleware::{CooldownScope, UpstreamFeedback};
///
/// // This upstream rejects by a 503 with `Retry-After`, for all of its endpoints.
/// let feedback = UpstreamFeedback::new().on_unavailable(CooldownScope::Keys);
/// # let _ = feedback;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CooldownScope {
    /// The path that was called, on this host, by this instance.
    #[default]
    Endpoint,
    /// All that the request's rules count by: usually the whole host, for all
    /// instances. As after a 429.
    Keys,
}

impl UpstreamFeedback {
    /// Reads every dialect. A cooldown is at most ten minutes. 429 and 503 are
    /// rejections, and without a time cause a pause of the rule's own interval.
    pub const fn new() -> Self {
        Self { parser: Parser::new(), reader: None, default_cooldown: None, unavailable: CooldownScope::Endpoint }
    }

    /// How to read the upstream's headers: which dialect, and with which cap. The
    /// statuses that were named before stay, unless the parser names its own.
    pub const fn parser(mut self, parser: Parser) -> Self {
        self.parser = parser.or_rejections_of(&self.parser);
        self
    }

    /// Reads what the upstream says elsewhere than in the fields that [`Parser`] knows.
    /// The function gets the head of each response. Its signal stands in place of what the
    /// parser reads and of the response's status; with `None` those count. Times are cut to
    /// the parser's cap.
    ///
    /// The body is not part of a head. A layer further in that has read it can leave its
    /// findings in the response's extensions.
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::StatusCode;
    /// use tower_ratelimit::{headers::parse::Signal, middleware::UpstreamFeedback};
    ///
    /// // This upstream redirects those that call too often.
    /// let feedback = UpstreamFeedback::new().read_with(|response| {
    ///     let is_slow_down = response.headers().get("location").is_some_and(|to| to == "/slow-down");
    ///     let is_rejection = response.status() == StatusCode::FOUND && is_slow_down;
    ///     is_rejection.then(|| Signal::rejection().with_cooldown(Duration::from_secs(60)))
    /// });
    /// # let _ = feedback;
    /// ```
    pub fn read_with(mut self, reader: impl Fn(&ResponseHead<'_>) -> Option<Signal> + Send + Sync + 'static) -> Self {
        self.reader = Some(Arc::new(reader));
        self
    }

    /// The cooldown after a rejection without a time, in place of a pause of
    /// the rule's own interval. Zero: none.
    pub const fn default_cooldown(mut self, time: Duration) -> Self {
        self.default_cooldown = Some(time);
        self
    }

    /// The statuses that are rejections even without a time; 429 and 503 by
    /// default. nginx and HAProxy reject with a bare 503 unless configured
    /// otherwise. A response that [asks](Parser::read) for a cooldown, and a
    /// 429, is a rejection in any case. Another 5xx is a failure: it does not
    /// raise an adaptive rate. Sets
    /// [`Parser::rejection_statuses`]: a time in such a response is obeyed as that of a
    /// 429. Give `RetryPolicy` the same parser.
    ///
    /// ```
    /// use tower_ratelimit::middleware::UpstreamFeedback;
    ///
    /// // A 503 of this upstream is a failure, and says nothing about its limits.
    /// let feedback = UpstreamFeedback::new().rejection_statuses([429]);
    /// # let _ = feedback;
    /// ```
    pub fn rejection_statuses(mut self, statuses: impl Into<Statuses>) -> Self {
        self.parser = self.parser.rejection_statuses(statuses);
        self
    }

    /// What a 503 pauses that says nothing about a limit: it has no rate limit
    /// fields, and at most a `Retry-After`. By default the endpoint: one that is
    /// down or being deployed must not stop all calls of a fleet. A bare 503 then
    /// only slows this instance down, as nginx and HAProxy reject so.
    pub const fn on_unavailable(mut self, scope: CooldownScope) -> Self {
        self.unavailable = scope;
        self
    }

    /// Follows a response of the upstream.
    pub(super) fn read<B>(&self, response: &Response<B>, guard: &InFlightGuard) {
        let head = ResponseHead::new(response);
        let follow = |feedback, unit| guard.lease.follow(feedback, unit, guard.endpoint);
        if let Some(signal) = self.reader.as_ref().and_then(|reader| reader(&head)) {
            return follow(self.feedback(self.parser.cut(signal), head.status, true), None);
        }
        let read = |counts: &dyn Fn(Option<Unit>) -> bool| {
            self.parser.read_where(head.status, head.headers, guard.lease.now(), counts)
        };
        let feedback = self.feedback(read(&|_| true), head.status, false);
        let costs = guard.lease.stated_costs();
        if costs.len() < 2 {
            return follow(feedback, None);
        }
        let is_rejection = matches!(feedback, Feedback::Rejected | Feedback::RejectedFor(_));
        // A rejection is by the limits that have less left than the request states.
        let is_short = |(unit, cost): &(Unit, u64)| {
            let left = read(&|limit| limit == Some(*unit)).remaining();
            is_rejection && left.is_some_and(|left| left < *cost.max(&1))
        };
        let short: SmallVec<[_; 2]> = costs.iter().filter(|cost| is_short(cost)).collect();
        if is_rejection && short.is_empty() || matches!(feedback, Feedback::Unavailable(_)) {
            return follow(feedback, None);
        }
        for own in &costs {
            let is_of_others = |limit: Unit| limit != own.0 && costs.iter().any(|(unit, _)| *unit == limit);
            let feedback = match is_rejection && !short.contains(&own) {
                // It says nothing about this unit's limits.
                true => Feedback::Failure,
                false => self.feedback(read(&|limit| !limit.is_some_and(is_of_others)), head.status, false),
            };
            follow(feedback, Some(own.0));
        }
    }

    fn feedback(&self, signal: Signal, status: StatusCode, is_custom: bool) -> Feedback {
        let is_rejection = signal.is_rejection() || !is_custom && self.parser.lists(status);
        // A bare 503 is a rejection only here: one with its time as it is.
        let is_exact = is_rejection && !signal.is_rejection();
        let pause = signal.cooldown().zip(signal.least_cooldown());
        let pause = pause.map(|(most, least)| Pause { least: if is_exact { most } else { least }, most });
        // That of a rejection has a default.
        let rejected = pause.or(self.default_cooldown.map(Pause::exactly));
        let is_limit = signal.limit().is_some() || signal.remaining().is_some();
        let is_unavailable = status == StatusCode::SERVICE_UNAVAILABLE && is_rejection && !is_limit && !is_custom;
        if is_unavailable && self.unavailable == CooldownScope::Endpoint {
            Feedback::Unavailable(rejected)
        } else if is_rejection {
            rejected.map_or(Feedback::Rejected, Feedback::RejectedFor)
        } else if let Some(pause) = pause {
            Feedback::Exhausted(pause)
        } else if status.is_server_error() {
            Feedback::Failure
        } else {
            Feedback::Success
        }
    }
}

impl Default for UpstreamFeedback {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for UpstreamFeedback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamFeedback")
            .field("parser", &self.parser)
            .field("default_cooldown", &self.default_cooldown)
            .field("unavailable", &self.unavailable)
            .finish_non_exhaustive()
    }
}

/// A response without its body, as a function of [`UpstreamFeedback::read_with`] sees it.
///
/// ```
/// use tower_ratelimit::{headers::parse::Signal, middleware::{ResponseHead, UpstreamFeedback}};
///
/// fn read(response: &ResponseHead<'_>) -> Option<Signal> {
///     response.headers().contains_key("x-slow-down").then(Signal::rejection)
/// }
/// # let _ = UpstreamFeedback::new().read_with(read);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ResponseHead<'r> {
    status: StatusCode,
    headers: &'r HeaderMap,
    extensions: &'r Extensions,
}

impl<'r> ResponseHead<'r> {
    fn new<B>(response: &'r Response<B>) -> Self {
        Self { status: response.status(), headers: response.headers(), extensions: response.extensions() }
    }

    /// The response's status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The response's headers.
    #[must_use]
    pub fn headers(&self) -> &'r HeaderMap {
        self.headers
    }

    /// The extensions, which layers further in have set.
    #[must_use]
    pub fn extensions(&self) -> &'r Extensions {
        self.extensions
    }
}
