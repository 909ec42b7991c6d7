//! `Retry-After`, and `retry-after-ms` beside it, which some servers add because
//! whole seconds are too coarse for them.

use std::time::Duration;

use http::HeaderMap;

use super::{
    form::{Form, counts},
    limit::Reset,
};
use crate::time::Timestamp;

const SECOND: Duration = Duration::from_secs(1);

/// What a response asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RetryAfter {
    /// The longest of both fields. Zero: now.
    pub(super) after: Option<Duration>,
    millis: Option<Duration>,
}

impl RetryAfter {
    pub(super) fn read(headers: &HeaderMap, from: Timestamp) -> Self {
        let seconds = Form::Any.times(headers, "retry-after", from).map(|when| when.after(from)).max();
        let millis = counts(headers, "retry-after-ms").map(Duration::from_millis).max();
        Self { after: seconds.max(millis), millis }
    }
}

/// The least time that a rejection's `after` can stand for. A whole second is
/// the shortest time that the field can name, and says only that it is less,
/// unless another field is finer. From two seconds on, it is what was asked for.
pub(super) fn least(after: Duration, retry_after: RetryAfter, reset: Option<Reset>) -> Duration {
    if after.subsec_nanos() != 0 {
        return after;
    }
    let reset = reset.filter(|reset| reset.rounding().is_zero()).map(|reset| reset.after);
    let is_finer = |finer: &Duration| *finer < after && finer.saturating_add(SECOND) > after;
    let finer = [retry_after.millis, reset].into_iter().flatten().filter(is_finer).max();
    finer.unwrap_or(if after == SECOND { Duration::ZERO } else { after })
}

#[cfg(test)]
mod tests;
