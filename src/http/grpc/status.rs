//! A rejection as a `tonic::Status`, with the same code, message and details as
//! the layer's response.

use tonic::Status;
use tonic_types::{ErrorDetails, QuotaViolation, StatusExt};

use super::{
    details::{Details, Violation, code},
    response::message,
};
use crate::{decision::RateLimited, headers::delay};

impl RateLimited {
    /// The rejection as a gRPC status, as the layer answers it. For handlers
    /// that ask a [`RateLimiter`](crate::RateLimiter) themselves.
    ///
    /// | reason | code |
    /// |---|---|
    /// | a quota | `RESOURCE_EXHAUSTED` |
    /// | a failed backend, or a [`Backoff`](crate::Backoff) | `UNAVAILABLE` |
    /// | a missing tenant | `UNAUTHENTICATED` |
    /// | an ambiguous tenant | `INVALID_ARGUMENT` |
    ///
    /// Its details are `google.rpc.RetryInfo`, unless a retry can never pass,
    /// and `google.rpc.QuotaFailure` with the names of the tiers that rejected.
    ///
    /// ```
    /// use tonic::{Request, Response, Status};
    /// use tower_ratelimit::{Descriptor, RateLimiter};
    ///
    /// async fn export(limiter: &RateLimiter, request: Request<()>) -> Result<Response<()>, Status> {
    ///     let export = Descriptor::new("/shop.v1.Products/Export").tenant("acme").cost(50);
    ///     let _permit = limiter.acquire(&export, std::time::Duration::ZERO).await?;
    ///     Ok(Response::new(()))
    /// }
    /// ```
    #[must_use]
    pub fn to_status(&self) -> Status {
        let code = tonic::Code::from(i32::from(code(self.kind())));
        let Details { retry_after, violations } = Details::of(self, delay(self));
        if retry_after.is_none() && violations.is_empty() {
            return Status::new(code, message(self));
        }
        let mut details = ErrorDetails::new();
        if retry_after.is_some() {
            details.set_retry_info(retry_after);
        }
        if !violations.is_empty() {
            let violation = |violation: Violation| QuotaViolation::new(violation.subject, violation.description);
            details.set_quota_failure(violations.into_iter().map(violation).collect::<Vec<_>>());
        }
        Status::with_error_details(code, message(self), details)
    }
}

/// See [`RateLimited::to_status`].
impl From<RateLimited> for Status {
    fn from(rejection: RateLimited) -> Self {
        rejection.to_status()
    }
}
