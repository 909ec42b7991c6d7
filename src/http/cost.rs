//! Cost extractors: how many units a request costs.
//!
//! | extractor | units |
//! |---|---|
//! | a number | always that number |
//! | [`header`] | the value of a header, set by a gateway |
//! | [`content_length`] | the bytes of the request's body |
//! | [`from_fn`] | the result of a closure |
//! | [`estimated`] | the same, or what such requests usually turn out to cost |
//!
//! Each rule multiplies the units by its own cost. To settle a cost that is
//! known only afterwards, see [`ChargeHandle`](crate::ChargeHandle).

use std::sync::Arc;

use http::{HeaderName, header::CONTENT_LENGTH};

use super::{RequestHead, header_name};

/// Determines the cost of a request in units.
///
/// ```
/// use http::Method;
/// use tower_ratelimit::{RequestHead, cost::CostExtractor};
///
/// /// Writing costs as much as five times reading.
/// struct Writes;
///
/// impl CostExtractor for Writes {
///     fn cost(&self, request: &RequestHead<'_>) -> u64 {
///         if request.method().is_safe() { 1 } else { 5 }
///     }
/// }
/// # assert_eq!(Writes.cost(&RequestHead::new(&http::Request::put("/").body(()).unwrap())), 5);
/// ```
#[doc(hidden)]
pub trait CostExtractor: Send + Sync + 'static {
    /// The cost; 0 charges nothing.
    fn cost(&self, request: &RequestHead<'_>) -> u64;

    /// The cost if it is known. If not, [`cost`](Self::cost) is the most that it can be: see
    /// [`estimated`].
    fn known(&self, request: &RequestHead<'_>) -> Option<u64> {
        Some(self.cost(request))
    }
}

impl<E: CostExtractor + ?Sized> CostExtractor for Arc<E> {
    fn cost(&self, request: &RequestHead<'_>) -> u64 {
        (**self).cost(request)
    }

    fn known(&self, request: &RequestHead<'_>) -> Option<u64> {
        (**self).known(request)
    }
}

/// The same cost for every request.
impl CostExtractor for u64 {
    fn cost(&self, _: &RequestHead<'_>) -> u64 {
        *self
    }
}

/// The number in the header `name`.
///
/// The sender of the header decides the cost. Use a header that your gateway
/// sets, and removes from callers' requests. The cost is 1 if the header is
/// missing, repeated, no number, or 0. A number above the largest u64 is cut to
/// it.
///
/// # Panics
///
/// If the name is not a valid header name.
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{RequestHead, cost::{self, CostExtractor}};
///
/// let by_weight = cost::header("x-weight");
/// let request = Request::get("/").header("x-weight", "12").body(()).unwrap();
/// assert_eq!(by_weight.cost(&RequestHead::new(&request)), 12);
/// ```
#[track_caller]
pub fn header(name: impl TryInto<HeaderName>) -> impl CostExtractor + Clone {
    units_in(header_name("cost::header", name))
}

/// The bytes of the request's body, for a rule of the [unit](crate::Rule::unit)
/// `content-bytes`: its `Content-Length`. The cost is 1 where that is missing, as of a
/// streamed body, and where it is 0. Settle a streamed body by what was read.
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{RequestHead, cost::{self, CostExtractor}};
///
/// let upload = Request::put("/").header("content-length", "2048").body(()).unwrap();
/// assert_eq!(cost::content_length().cost(&RequestHead::new(&upload)), 2_048);
/// ```
#[must_use]
pub fn content_length() -> impl CostExtractor + Clone {
    units_in(CONTENT_LENGTH)
}

fn units_in(name: HeaderName) -> CostFn<impl Fn(&RequestHead<'_>) -> Option<u64> + Clone + Send + Sync> {
    let units = move |request: &RequestHead<'_>| request.single_header(&name).and_then(number);
    CostFn { most: 1, find: move |request: &RequestHead<'_>| Some(units(request).map_or(1, |units| units.max(1))) }
}

/// Digits only, cut to the largest u64.
fn number(text: &[u8]) -> Option<u64> {
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
    text.iter().try_fold(0u64, |sum, byte| Some(sum.saturating_mul(10).saturating_add(digit(byte)?)))
}

/// The result of `count`.
///
/// ```
/// use http::Request;
/// use tower_ratelimit::{RequestHead, cost::{self, CostExtractor}};
///
/// let by_page = cost::from_fn(|request: &RequestHead<'_>| match request.uri().query() {
///     Some(query) if query.contains("page_size=1000") => 10,
///     _ => 1,
/// });
/// let request = Request::get("/list?page_size=1000").body(()).unwrap();
/// assert_eq!(by_page.cost(&RequestHead::new(&request)), 10);
/// ```
pub fn from_fn<F>(count: F) -> impl CostExtractor
where
    F: Fn(&RequestHead<'_>) -> u64 + Send + Sync + 'static,
{
    CostFn { most: 1, find: move |request: &RequestHead<'_>| Some(count(request)) }
}

/// The result of `estimate`, or where there is none what such requests usually turn out to
/// cost, and at most `most`. For rules that [settle](crate::Rule::settle) in a
/// [unit](crate::Rule::unit) of their own: with
/// [`cost_in`](crate::RateLimitLayer::cost_in). In `requests` it is `most`.
///
/// Usual is what 95 of 100 cost at most, of the latest 64 requests that a handler has
/// settled: of those with the same key under the first rule of the unit that applies. Keys
/// share 64 classes by their hash, which take up to 36 KB for such a rule. Before 20 requests of
/// a class are settled, it is `most`.
///
/// ```
/// use tower_ratelimit::{Policy, Quota, RateLimitLayer, RateLimiter, RequestHead, Rule, cost};
///
/// /// What a caller allows the answer to take.
/// fn max_tokens(head: &RequestHead<'_>) -> Option<u64> {
///     head.headers().get("x-max-tokens")?.to_str().ok()?.parse().ok()
/// }
///
/// let tokens = Rule::new("tokens").unit("tokens").tier(Quota::per_minute(10_000)).settle(true);
/// let limiter = RateLimiter::new(Policy::new().rule(tokens))?;
/// let layer = RateLimitLayer::new(limiter).cost_in("tokens", cost::estimated(4_096, max_tokens));
/// # let _ = layer;
/// # Ok::<_, tower_ratelimit::ConfigError>(())
/// ```
pub fn estimated<F>(most: u64, estimate: F) -> impl CostExtractor
where
    F: Fn(&RequestHead<'_>) -> Option<u64> + Send + Sync + 'static,
{
    CostFn { most, find: estimate }
}

/// The cost that a closure finds, and at most that much where it finds none.
#[derive(Clone)]
struct CostFn<F> {
    most: u64,
    find: F,
}

impl<F: Fn(&RequestHead<'_>) -> Option<u64> + Send + Sync + 'static> CostExtractor for CostFn<F> {
    fn cost(&self, request: &RequestHead<'_>) -> u64 {
        self.known(request).unwrap_or(self.most)
    }

    fn known(&self, request: &RequestHead<'_>) -> Option<u64> {
        (self.find)(request)
    }
}

#[cfg(test)]
mod tests;
