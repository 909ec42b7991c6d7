//! Retries rejected requests: [`RetryPolicy`], a policy for tower's
//! [`RetryLayer`](tower::retry::RetryLayer), for clients.
//!
//! 1. **What** is retried: a rejection by our own
//!    [`RateLimiter`](crate::RateLimiter), a 429, a 503 (or the
//!    [statuses](crate::headers::parse::Parser::rejection_statuses) that the parser is
//!    told of), and every other rejection according to
//!    [`Signal::is_rejection`](crate::headers::parse::Signal::is_rejection),
//!    such as a 403 with a signal or gRPC's RESOURCE_EXHAUSTED. Our own
//!    rejection is a [`RateLimited`](crate::RateLimited) as the error, among
//!    its sources, or in a response's extensions. Other failures, such as a
//!    failed connection, are not retried.
//! 2. **Not** if a retry cannot help: the request [can never
//!    pass](crate::RateLimitedKind::NeverFits), has no tenant, or was answered
//!    with the demand not to retry.
//! 3. **Which requests**: those that can be cloned. After our own rejection any
//!    method, since the request was never sent. After the upstream's rejection
//!    only idempotent methods (RFC 9110, section 9.2.2), or those in
//!    [`RetryPolicy::methods`].
//! 4. **When**: after the time that was asked for, never earlier. Our own
//!    limiter states it to the nanosecond; the upstream in any dialect that
//!    [`Parser`](crate::headers::parse::Parser) reads. A random time is added,
//!    so that a fleet does not return in one instant. If no time was asked for,
//!    after a random part of an exponentially growing time ("full jitter").
//! 5. **No longer than** [`RetryPolicy::max_wait`], and the time left until the
//!    request's [`Deadline`](crate::descriptor::Deadline) or in its
//!    `grpc-timeout`. A response that asks for more is returned to the caller.
//!    A repeated call carries the time that is left as its timeout.
//! 6. **How often**: [`RetryPolicy::max_retries`] times per request, and as often
//!    again after our own rejections. All requests together: as often as the
//!    [`RetryBudget`] permits, which all clones of a policy share. Retries of
//!    requests that were never sent are not charged to the budget, since they
//!    put no load on the upstream.
//!
//! # Order of layers
//!
//! Put it outside of [`RateLimitLayer::client`](crate::RateLimitLayer::client):
//! the limiter then counts each attempt, as the upstream does, and the policy
//! sees our own rejections. Inside of it, attempts would not be counted.
//!
//! To stay within a limit of one's own, prefer a rule that lets requests
//! [wait](crate::Rule::max_wait): waits are first come, first served, and
//! retries are a race.
//!
//! Waiting needs a Tokio runtime with its time enabled. Dropping the response
//! future cancels all retries.

mod budget;
mod policy;
mod rejection;
mod schedule;

#[cfg(test)]
mod tests;

pub use self::{
    budget::RetryBudget,
    policy::{RetryAttempt, RetryPolicy, clone_head},
};
// The machinery of the policy. It has names only where a type has to be written out.
#[doc(hidden)]
pub use self::policy::{CloneRequest, Cloned};
