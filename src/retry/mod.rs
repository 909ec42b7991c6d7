//! Trying again what was rejected: [`Retry`], a policy for tower's
//! [`RetryLayer`](tower::retry::RetryLayer), for clients.
//!
//! 1. **What** is retried: a rejection of our own [`RateLimiter`](crate::RateLimiter)
//!    (a [`RateLimited`](crate::RateLimited) as the error, among its sources,
//!    or in a response's extensions), a 429, a 503, and what else
//!    [`Signal::is_rejection`](crate::headers::parse::Signal::is_rejection) calls
//!    one: a 403 for a limit's sake, and of gRPC's answers that are all
//!    trailers RESOURCE_EXHAUSTED, and UNAVAILABLE with a time. Nothing else: a
//!    connection that failed is not ours to judge.
//! 2. **Not** where it cannot help: a request that
//!    [can never pass](crate::RateLimitedKind::NeverFits), has no tenant, or
//!    was answered with the order not to come back.
//! 3. **Which requests**: those that can be cloned. After a rejection of our own
//!    any of them, since it was never sent. After the provider's only methods
//!    that are idempotent (RFC 9110, section 9.2.2), or those that
//!    [`Retry::methods`] names.
//! 4. **When**: after what was asked for, by us to the nanosecond or by the
//!    provider in any dialect that [`Parser`](crate::headers::parse::Parser)
//!    reads; never earlier, and later by a random time, so that a fleet does
//!    not return in one instant. Where nothing was asked for, after a random
//!    part of an exponentially growing time ("full jitter").
//! 5. **No longer than** [`Retry::max_wait`], and than what is left of the
//!    request's [`Deadline`](crate::descriptor::Deadline) or `grpc-timeout`: an
//!    answer that asks for more is the caller's. The timeout of a call that is
//!    sent again is what is left of it.
//! 6. **How often**: [`Retry::max_retries`] times a request (and as often
//!    where it is we who reject it), and in all as
//!    often as the [`RetryBudget`] has left, which all clones of a policy
//!    share. Retries of what was never sent take nothing from it: they put no
//!    load on the provider.
//!
//! # Where it stands
//!
//! Outside of [`RateLimitLayer::client`](crate::RateLimitLayer::client): then
//! each attempt is counted by the limiter, as the provider counts it, and our
//! own rejections are seen. Inside of it attempts would pass uncounted.
//!
//! A rule that lets requests [wait](crate::Rule::max_wait) is the better way to
//! stay within one's own limit: waits are turns, first come, first served, and
//! retries are a race.
//!
//! Waiting needs a Tokio runtime with its time enabled. Dropping the response
//! future ends everything.

mod budget;
mod clone;
mod deadline;
mod policy;
mod rejection;
mod schedule;

#[cfg(test)]
mod tests;

pub use self::{
    budget::RetryBudget,
    clone::{CloneRequest, Cloned, clone_head},
    policy::{Retry, RetryAttempt},
    schedule::RetryDelay,
};
