//! Recognizes rejections in results, ours and the upstream's.

use std::{any::Any, error::Error, time::Duration};

use http::{HeaderMap, Response, StatusCode};

use crate::{
    decision::{RateLimited, RateLimitedKind},
    headers::parse::Parser,
    policy::Statuses,
    time::Clock,
};

type BoxError = Box<dyn Error + Send + Sync>;

/// A rejection that may be retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rejection {
    /// The time that was asked for.
    pub(super) asked: Option<Duration>,
    /// Whether the request has reached the upstream, which may have acted.
    pub(super) sent: bool,
}

impl Rejection {
    /// `None` for a result that is no rejection, or a final one. `statuses` are those of
    /// the upstream that are retried, if they are set.
    pub(super) fn of<R, E: 'static>(
        result: &Result<Response<R>, E>,
        parser: &Parser,
        statuses: Option<Statuses>,
        clock: &dyn Clock,
    ) -> Option<Self> {
        match result {
            Err(error) => Self::by_us(find(error)?),
            Ok(response) => match response.extensions().get::<RateLimited>() {
                Some(rejected) => Self::by_us(rejected),
                None => Self::by_upstream(response.status(), response.headers(), parser, statuses, clock),
            },
        }
    }

    fn by_us(rejected: &RateLimited) -> Option<Self> {
        let kind = rejected.kind();
        let is_temporary =
            kind.is_limit() && kind != RateLimitedKind::NeverFits || kind.status() == StatusCode::SERVICE_UNAVAILABLE;
        is_temporary.then(|| Self { asked: rejected.retry_after(), sent: false })
    }

    fn by_upstream(
        status: StatusCode,
        headers: &HeaderMap,
        parser: &Parser,
        statuses: Option<Statuses>,
        clock: &dyn Clock,
    ) -> Option<Self> {
        let parser = statuses.map_or(*parser, |statuses| parser.rejection_statuses(statuses));
        let is_error = status.is_client_error() || status.is_server_error();
        // Most responses need no parsing.
        let is_listed = parser.lists(status);
        if !is_error && !is_listed && !headers.contains_key("grpc-status") {
            return None;
        }
        let signal = parser.read(status, headers, clock.now());
        // Of an error, a list of statuses decides alone. gRPC's statuses are none of HTTP's.
        let is_unlisted = is_error && statuses.is_some() && !is_listed;
        let again = (is_listed || signal.is_rejection()) && !is_unlisted && !signal.no_retry();
        again.then(|| Self { asked: signal.cooldown(), sent: true })
    }
}

/// The rejection in an error or among its sources.
fn find<E: 'static>(error: &E) -> Option<&RateLimited> {
    let error: &dyn Any = error;
    match error.downcast_ref::<BoxError>() {
        Some(boxed) => RateLimited::find(&**boxed),
        None => error.downcast_ref(),
    }
}
