//! Rate limiting for any [Tower] service: per tenant, endpoint and method,
//! from one policy, decided all-or-nothing.
//!
//! A [`Policy`] is a set of [`Rule`]s: which requests, which [`Quota`]s, how
//! to behave. A [`RateLimiter`] decides by a policy, and can be asked by
//! itself. [`RateLimitLayer`] puts it in front of a service: an axum server,
//! an HTTP client, or anything else that tower can call.
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
//!   charged at one time, under one set of locks; a refusal charges nothing.
//!   N threads never admit N+1.
//! - **Exact rates.** 3 a second is 3, 600 million a second is 600 million.
//!   Each [`Algorithm`] states its bound. No limit, window, cost or clock makes
//!   the arithmetic panic or wrap.
//! - **Honest answers.** [`Decision::retry_after`] is the time at which the
//!   same request passes, if nobody else comes first.
//! - **Bounded memory.** [`backend::Local`] holds at most so many counters,
//!   whatever is invented to fill it.
//! - **Nothing is lost.** A policy that cannot hold is refused, and says why;
//!   one that can keeps what was used.
//!
//! # Features
//!
//! None is on by default.
//!
//! | feature | adds |
//! |---|---|
//! | `axum` | axum's `MatchedPath`, `OriginalUri` and `ConnectInfo` are understood |
//! | `governor` | `backend::Governor`: an existing keyed `governor::RateLimiter` decides |
//! | `metrics` | counters through the `metrics` facade |
//! | `serde` | `Policy: Serialize + Deserialize` |
//! | `test-util` | `testing`: clocks, a backend that fails, the conformance suite |
//! | `tracing` | an event for refusals, at most one a second a rule; a debug event for each decision |
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
mod quota;
mod store;
#[cfg(feature = "test-util")]
pub mod testing;
pub mod time;

pub use self::{
    backoff::Backoff,
    decision::{Decision, RateLimited, RateLimitedKind, TierStatus, Verdict},
    descriptor::{Descriptor, MissingTenant, Tenant},
    error::{BackendError, BackendErrorKind, ConfigError},
    headers::Headers,
    limiter::{Acquiring, Check, Permit, RateLimiter, RateLimiterBuilder, Stats},
    middleware::{Charge, RateLimit, RateLimitLayer},
    policy::{Dimension, FailureMode, Policy, Rule},
    quota::{Algorithm, Quota, UnknownAlgorithm},
};

#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../README.md")]
struct Readme;
