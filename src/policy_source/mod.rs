//! Hot reload: [`RateLimiter::watch`] keeps a limiter's policy equal to what a
//! source holds.
//!
//! | source | holds the policy in | changes are seen |
//! |---|---|---|
//! | [`FileSource`] | a YAML file, also behind links that are swapped | at once by file system events (inotify and its like), and by polling every second |
//! | `HttpSource` | the response of a URL | at once where the server supports long polling, else by polling every five seconds |
//! | `RedisSource` | a key (feature `redis`) | at once by keyspace notifications or a channel, and by polling every five seconds |
//! | [`PolicySource`] | anything | as the implementation reports them; the example `etcd_source` follows a key of etcd |
//!
//! # Guarantees
//!
//! - **The last good policy stays in force** while the source is unavailable,
//!   empty, or holds an invalid policy. The reason is logged once (`tracing`),
//!   counted (`rate_limiting.policy.reloads` by `result`: `applied`, `rejected`,
//!   `unavailable`), and shown in [`WatchStatus`].
//! - **Recovery is automatic.** A failed source is asked again after jittered
//!   delays that double up to half a second: see [`Watch::retry`].
//! - **No count is lost.** A reload is a [`RateLimiter::set_policy`]: what was
//!   used stays used.
//! - **Memory is bounded.** A document above `max_bytes` (1 MiB by default) is
//!   rejected without being read whole. Rule ids are kept for the life of the
//!   process: see [`RateLimiter::set_policy`].
//!
//! A policy that the application sets meanwhile, with `set_policy` or by
//! watching another source, stays in force until this source changes.
//!
//! # The document
//!
//! A policy in YAML, as for [`Policy::from_yaml`]. Its key `instances: 96`, the number
//! of instances that share the limits, sets the share of a
//! [`Split`](crate::backend::Split): see [`Watch::share`]. Without a share to set, the
//! watch ignores the key, logs that, and reports it in
//! [`WatchStatus::ignored_instances`].

mod document;
mod file;
mod http;
#[cfg(feature = "redis")]
mod redis;
mod source;
mod task;
mod watch;

#[cfg(feature = "redis")]
pub use self::redis::RedisSource;
pub use self::{
    document::Document,
    file::FileSource,
    http::HttpSource,
    source::{PolicySource, SourceError},
    task::WatchStatus,
    watch::{Watch, WatchHandle},
};
#[allow(unused_imports, reason = "documentation names them")]
use crate::{limiter::RateLimiter, policy::Policy};
