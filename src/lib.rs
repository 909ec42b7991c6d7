//! Rate limiting for any [Tower] service: per tenant, endpoint and method, from
//! one policy, decided all-or-nothing.
//!
//! A [`Policy`] is a set of [`Rule`]s: which requests a rule applies to, which
//! [`Quota`]s limit them, and how the rule behaves. A [`RateLimiter`] decides by
//! a policy, and works without Tower. [`RateLimitLayer`] puts it in front of a
//! service: an axum server, an HTTP client, or anything else that Tower can
//! call.
//!
//! A backend counts usage: in this process ([`backend::Local`]), in this process
//! against the instance's share of a fleet's limit ([`backend::Split`]), or on a
//! Redis or Valkey server for all instances (`backend::Redis`, feature `redis`).
//!
//! ```
//! use axum::{Router, routing::get};
//! use tower_ratelimit::{Policy, Quota, RateLimitLayer, RateLimiter, Rule, tenant};
//!
//! let policy = Policy::new()
//!     // Both tiers pass, or neither is charged.
//!     .rule(Rule::new("search").path("/search").tier(Quota::per_second(2)).tier(Quota::per_hour(500)))
//!     .rule(Rule::new("everything-else").fallback(true).tier(Quota::per_minute(100).burst(20)));
//! let limiter = RateLimiter::new(policy)?;
//! let app: Router = Router::new()
//!     .route("/search", get(|| async { "found" }))
//!     .layer(RateLimitLayer::new(limiter.clone()).tenant(tenant::header("x-api-key").or(tenant::peer_ip())));
//!
//! // Hot reload: a key keeps what it has used of a rule whose id stays.
//! limiter.set_policy(Policy::new().rule(Rule::new("search").path("/search").tier(Quota::per_second(50))))?;
//! # Ok::<_, tower_ratelimit::ConfigError>(())
//! ```
//!
//! The [`guide`] has a page for each task; start with
//! [`guide::quickstart`].
//!
//! # Guarantees
//!
//! - **All or nothing.** Every tier of every rule that applies is decided and
//!   charged together: under one set of locks, or in one Redis script. A
//!   rejection charges nothing. Concurrent threads, and instances that share a
//!   Redis server, together admit at most the limit.
//! - **Exact rates.** 3 a second is 3, 600 million a second is 600 million. Each
//!   [`Algorithm`] states its bound. No limit, window, cost or clock makes the
//!   arithmetic panic or wrap.
//! - **Exact retry times.** [`Decision::retry_after`] is the time after which
//!   the same request is admitted, if no other request comes first. For a full
//!   concurrency limit it is a guess of one second.
//! - **Bounded memory.** [`backend::Local`] holds at most a configured number of
//!   counters, whatever keys clients invent.
//! - **Safe reloads.** An invalid policy is rejected with a reason, and the
//!   previous one stays in force. A valid one keeps each key's usage.
//!
//! # Features
//!
//! All are off by default.
//!
//! | feature | adds |
//! |---|---|
//! | `admin` | `admin::Admin`: a page for operators, and its JSON |
//! | `axum` | reads axum's `MatchedPath`, `OriginalUri` and `ConnectInfo` |
//! | `cli` | the binary `tower-ratelimit`, which checks and explains policies, and replays access logs under them |
//! | `gossip` | `backend::split::Gossip`: shares that follow demand, without a store; builds zstd, which is C |
//! | `governor` | `backend::Governor`: decides by an existing keyed `governor::RateLimiter` |
//! | `metrics` | metrics through the `metrics` facade |
//! | `redis` | `backend::Redis`: one limit for a whole fleet, on Redis or Valkey |
//! | `retry` | `RetryPolicy`: a policy for tower's `RetryLayer`, which retries rejected requests |
//! | `serde` | `Policy::from_yaml`; `Policy: Serialize + Deserialize` |
//! | `test-util` | `testing`: clocks that tests step, jitter that repeats, a backend that fails on demand, the conformance suite for backends |
//! | `tls` | `redis` over TLS (`rediss://`); `tonic` over TLS, and with it `tenant::client_certificate` |
//! | `tonic` | `RateLimited::to_status`; the peer address from tonic's connection info |
//! | `tracing` | events for rejections and backend failures, at most one a second and rule; a debug event for each decision |
//! | `watch` | [`RateLimiter`]`::watch`: hot reload from a source: `policy_source::FileSource`, `HttpSource`, and with `redis` `RedisSource`; enables `serde` |
//! | `full` | all of these except `cli`, `gossip` and `test-util` |
//!
//! [Tower]: https://docs.rs/tower

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "admin")]
pub mod admin;
mod algorithm;
pub mod backend;
mod backoff;
pub mod decision;
pub mod descriptor;
pub mod error;
mod fingerprint;
pub mod guide;
pub mod headers;
#[doc(hidden)] // So that `http::tenant` is a path too. All in it is shown where it is exported again.
pub mod http;
mod jitter;
pub mod limiter;
pub mod middleware;
mod names;
mod observe;
pub mod overload;
pub mod policy;
#[cfg(feature = "watch")]
pub mod policy_source;
pub mod quota;
#[cfg(feature = "retry")]
pub mod retry;
mod store;
mod sync;
#[cfg(feature = "test-util")]
pub mod testing;
pub mod time;
mod unit;

pub use futures_util::future::BoxFuture;

#[cfg(feature = "retry")]
pub use self::retry::RetryPolicy;
pub use self::{
    backoff::Backoff,
    decision::{RateLimited, RateLimitedKind, TierStatus, Verdict},
    descriptor::{Descriptor, MissingTenant, Priority},
    error::{BackendError, ConfigError},
    headers::Headers,
    http::{RequestHead, cost, priority, tenant},
    limiter::{AdaptiveLimitStatus, AdaptiveRateStatus, Permit, RateLimiter, TopTenant},
    middleware::ChargeHandle,
    names::UnknownName,
    policy::{AdaptiveRate, Consistency, Dimension, FailureMode},
    quota::{Algorithm, Quota},
};
#[doc(inline)]
pub use self::{
    decision::Decision,
    descriptor::Tenant,
    middleware::RateLimitLayer,
    policy::{Policy, Rule},
};

#[cfg(all(doctest, feature = "axum", feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;
