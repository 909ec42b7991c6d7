//! Policies that are changed while everything runs: [`RateLimiter::watch`] and
//! where the policy comes from.
//!
//! | source | it is | changes are seen |
//! |---|---|---|
//! | [`FileSource`] | a YAML file, also one behind links that are swapped | at once (inotify and its like), and by looking every second |
//! | `HttpSource` | what a URL answers (feature `watch-http`) | at once where the server holds requests back until there is a change, else by asking every five seconds |
//! | `Redis` | a key (feature `redis`) | at once by keyspace notifications or a channel, and by asking every five seconds |
//! | `EtcdSource` | a key (feature `etcd`) | at once, and by asking every five seconds |
//! | [`PolicySource`] | anything | as it says |
//!
//! # What is guaranteed
//!
//! - **The last good policy stays** where the source is away, holds nothing, or
//!   holds what cannot be put in force. Why is said once, as an event of
//!   `tracing`, counted (`rate_limiting.policy.reloads` by `result`:
//!   `applied`, `rejected`, `unavailable`), and is in [`WatchStatus`].
//! - **It recovers by itself.** A source that fails is asked again after
//!   delays with jitter that double up to half a second, see [`Watch::retry`].
//! - **Nothing is lost.** A policy is put in force as by
//!   [`RateLimiter::set_policy`]: what was used stays used.
//! - **Memory is bounded.** What is larger than a mebibyte, unless set, is
//!   rejected without being read. Ids of rules are kept, see
//!   [`RateLimiter::set_policy`].
//!
//! What somebody else puts in force meanwhile, by `set_policy` or by watching
//! another source, stays until this source says something else.
//!
//! # The document
//!
//! A policy in YAML, as for [`Policy::from_yaml`], and at its top, if it is to
//! be said, over how many instances its limits are split: `instances: 96`. See
//! [`Watch::share`]; a watch that was given no share to tell says so, and puts the
//! policy in force ([`WatchStatus::ignored_instances`]). Only sources know that
//! key; `Policy::from_yaml` rejects it as it does all that it does not know.

mod document;
mod file;
mod folders;
mod retry;
mod watch;
mod watching;

#[cfg(feature = "watch-http")]
mod client;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "watch-http")]
mod http;
#[cfg(feature = "redis")]
mod redis;

use std::{error::Error, fmt, future::Future, pin::Pin, time::Duration};

#[cfg(feature = "etcd")]
pub use self::etcd::EtcdSource;
#[cfg(feature = "watch-http")]
pub use self::http::HttpSource;
#[cfg(feature = "redis")]
pub use self::redis::RedisSource;
pub use self::{
    document::Document,
    file::FileSource,
    watch::Watch,
    watching::{WatchStatus, Watching},
};
#[allow(unused_imports, reason = "documentation names them")]
use crate::{limiter::RateLimiter, policy::Policy};

/// Where a policy comes from.
///
/// ```
/// use tower_ratelimit::{
///     Policy, Quota, RateLimiter,
///     policy_source::{Document, Next, PolicySource, Update},
/// };
///
/// /// Says one thing, and then never another.
/// struct Once(Option<Document>);
///
/// impl PolicySource for Once {
///     fn name(&self) -> String {
///         "once".into()
///     }
///
///     fn next(&mut self) -> Next<'_> {
///         Box::pin(async {
///             match self.0.take() {
///                 Some(document) => Ok(Update::Changed(document)),
///                 None => std::future::pending().await,
///             }
///         })
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_ratelimit::ConfigError> {
/// let limiter = RateLimiter::new(Quota::per_second(10))?;
/// let source = Once(Some(Document::policy(Policy::from(Quota::per_second(20)))));
/// let mut watching = limiter.watch(source)?;
/// watching.wait_for(|status| status.is_current()).await;
/// assert_eq!(*limiter.policy(), Policy::from(Quota::per_second(20)));
/// # Ok(())
/// # }
/// ```
pub trait PolicySource: Send + 'static {
    /// By what name operators know it, such as a path. Nothing secret.
    fn name(&self) -> String;

    /// What the source holds: at once where it has not been told yet or the
    /// last answer was an error, and else as soon as it may have changed.
    ///
    /// It may answer without there being a change; what is the same as before
    /// is not put in force again. It is not asked more than a hundred times a
    /// second. After an error it is asked again with a delay. The future is
    /// dropped when nobody watches any more, and otherwise runs to its end.
    fn next(&mut self) -> Next<'_>;
}

/// A source's answer, on its way.
pub type Next<'a> = Pin<Box<dyn Future<Output = Result<Update, SourceError>> + Send + 'a>>;

/// What a source answers.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Update {
    /// What it holds, which may be what it held before.
    Changed(Document),
    /// It holds what it last said.
    Unchanged,
}

/// A source does not answer, or holds nothing.
///
/// ```
/// use tower_ratelimit::policy_source::SourceError;
///
/// assert_eq!(SourceError::new("connection refused").to_string(), "connection refused");
/// ```
pub struct SourceError(Box<dyn Error + Send + Sync>);

impl SourceError {
    /// An error that says why.
    pub fn new(why: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(why.into())
    }
}

/// With all its causes: libraries keep the interesting one for themselves.
impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)?;
        let causes = std::iter::successors(self.0.source(), |&error| error.source());
        causes.take(8).try_for_each(|cause| write!(f, ": {cause}"))
    }
}

impl fmt::Debug for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SourceError").field(&self.0).finish()
    }
}

impl Error for SourceError {}

/// The most bytes that a document may have, unless set.
const MOST_BYTES: usize = 1 << 20;

/// What is looked at directly is not looked at more often, whatever is set.
const SHORTEST_LOOK: Duration = Duration::from_millis(10);
