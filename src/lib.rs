//! Rate limiting for any [Tower] service: per tenant, endpoint and method,
//! from one policy, decided all-or-nothing.
//!
//! A [`Policy`] is a set of [`Rule`]s: which requests, which [`Quota`]s, how
//! to behave. A [`RateLimiter`] decides by a policy, and can be asked by
//! itself. [`RateLimitLayer`] puts it in front of a service: an axum server,
//! an HTTP client, or anything else that tower can call. It counts in this
//! process ([`backend::Local`]), by this instance's share of what a fleet may
//! do ([`backend::Split`]), or, with the feature `redis`, for all instances
//! together on a Redis or Valkey server (`backend::Redis`).
//!
//! ```
//! use axum::{Router, routing::get};
//! use tower_ratelimit::{Policy, Quota, RateLimitLayer, RateLimiter, Rule, http::tenant};
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
//! // Later, while it runs: what was used stays used.
//! limiter.set_policy(Quota::per_second(50))?;
//! # Ok::<_, tower_ratelimit::ConfigError>(())
//! ```
//!
//! # What is guaranteed
//!
//! - **All or nothing.** Every tier of every rule that applies is decided and
//!   charged at one time, under one set of locks, or in one script where
//!   instances share a Redis server; a rejection charges nothing. N threads
//!   never admit N+1, and nor do N instances that share one.
//! - **Exact rates.** 3 a second is 3, 600 million a second is 600 million.
//!   Each [`Algorithm`] states its bound. No limit, window, cost or clock makes
//!   the arithmetic panic or wrap.
//! - **Honest answers.** [`Decision::retry_after`] is the time at which the
//!   same request passes, if nobody else comes first.
//! - **Bounded memory.** [`backend::Local`] holds at most so many counters,
//!   whatever is invented to fill it.
//! - **Nothing is lost.** A policy that cannot hold is rejected, and says why;
//!   one that can keeps what was used.
//!
//! # Features
//!
//! None is on by default.
//!
//! | feature | adds |
//! |---|---|
//! | `axum` | axum's `MatchedPath`, `OriginalUri` and `ConnectInfo` are understood |
//! | `dns` | `backend::split::Dns::system`: shares by the addresses that the system's resolver finds |
//! | `etcd` | `policy_source::Etcd`: the policy is a key of etcd; brings `watch-http` |
//! | `governor` | `backend::Governor`: an existing keyed `governor::RateLimiter` decides |
//! | `metrics` | counters through the `metrics` facade |
//! | `redis` | `backend::Redis`: one limit for a whole fleet, on Redis or Valkey |
//! | `redis-tls` | the same over TLS (`rediss://`) |
//! | `retry` | `Retry`: a policy for tower's `RetryLayer`, which tries again what was rejected |
//! | `serde` | `Policy: Serialize + Deserialize` |
//! | `test-util` | `testing`: clocks, a backend that fails, the conformance suite |
//! | `tonic` | a rejection as a `tonic::Status`; tonic's connect info is understood |
//! | `tonic-tls` | the same for connections over TLS, and `http::tenant::client_certificate`; brings `tonic` |
//! | `tracing` | an event for rejections and for failures of the backend, at most one a second a rule; a debug event for each decision |
//! | `watch` | [`RateLimiter`]`::watch`: the policy is what a source says; `policy_source::File`, and with `redis` `policy_source::Redis`; brings `yaml` |
//! | `watch-http` | `policy_source::Http`: the policy is what a configuration server says; brings `watch` |
//! | `yaml` | `Policy::from_yaml` |
//!
//! [Tower]: https://docs.rs/tower

mod algorithm;
pub mod backend;
mod backoff;
pub mod decision;
pub mod descriptor;
mod error;
mod fingerprint;
pub mod headers;
pub mod http;
mod limiter;
pub mod middleware;
mod observe;
pub mod policy;
#[cfg(feature = "watch")]
pub mod policy_source;
mod quota;
#[cfg(feature = "retry")]
pub mod retry;
mod store;
#[cfg(feature = "test-util")]
pub mod testing;
pub mod time;

#[cfg(feature = "retry")]
pub use self::retry::Retry;
pub use self::{
    backoff::Backoff,
    decision::{Decision, RateLimited, RateLimitedKind, TierStatus, Verdict},
    descriptor::{Descriptor, MissingTenant, Tenant},
    error::{BackendError, BackendErrorKind, ConfigError},
    headers::Headers,
    limiter::{Acquiring, Adapted, Check, Permit, RateLimiter, RateLimiterBuilder, Stats},
    middleware::{ChargeHandle, RateLimit, RateLimitLayer},
    policy::{Adapt, Dimension, FailureMode, Policy, Rule},
    quota::{Algorithm, Quota, UnknownAlgorithm},
};

#[cfg(all(doctest, feature = "axum", feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;
