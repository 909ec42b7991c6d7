//! Hot reload: [`RateLimiter::watch`] keeps a limiter's policy equal to what a
//! source holds.
//!
//! A source reports documents, which may be invalid. It neither parses them nor puts them in
//! force, and it does not retry: the watch does all three.
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

mod file;
mod http;
#[cfg(feature = "redis")]
mod redis;
mod watch;

use std::{error::Error, fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;

#[cfg(feature = "redis")]
pub use self::redis::RedisSource;
pub use self::{
    file::FileSource,
    http::HttpSource,
    watch::{Watch, WatchHandle, WatchStatus},
};
#[allow(unused_imports, reason = "documentation names it")]
use crate::limiter::RateLimiter;
use crate::{
    error::ConfigError,
    policy::{Policy, check_instances},
};

/// Where a policy comes from.
///
/// ```
/// use tower_ratelimit::{
///     BoxFuture, Policy, Quota, RateLimiter,
///     policy_source::{Document, PolicySource, SourceError},
/// };
///
/// /// Reports one document and never changes.
/// struct Once(Option<Document>);
///
/// impl PolicySource for Once {
///     fn name(&self) -> String {
///         "once".into()
///     }
///
///     fn next(&mut self) -> BoxFuture<'_, Result<Option<Document>, SourceError>> {
///         Box::pin(async {
///             match self.0.take() {
///                 Some(document) => Ok(Some(document)),
///                 None => std::future::pending().await,
///             }
///         })
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_ratelimit::ConfigError> {
/// let limiter = RateLimiter::new(Quota::per_second(10))?;
/// let source = Once(Some(Document::policy(Policy::from(Quota::per_second(20)))));
/// let mut watch = limiter.watch(source)?;
/// watch.wait_for(|status| status.is_current()).await;
/// assert_eq!(*limiter.policy(), Policy::from(Quota::per_second(20)));
/// # Ok(())
/// # }
/// ```
pub trait PolicySource: Send + 'static {
    /// The name that operators see in logs, such as a path. It must hold no
    /// secret.
    fn name(&self) -> String;

    /// What the source holds; `None` if that is what it reported last. The first call, and each call after an error,
    /// answers at once; every other call answers as soon as the source may have
    /// changed.
    ///
    /// A source may answer without a change: a document equal to the last one is
    /// not put in force again. The watch task calls this at most 100 times a
    /// second, and waits after an error: see [`Watch::retry`].
    /// It drops the future when the watch ends, and otherwise polls it to
    /// completion.
    ///
    /// # Errors
    ///
    /// If the source does not answer, or holds no document: the last good policy stays
    /// in force.
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Document>, SourceError>>;
}

/// A source does not answer, or holds no document.
///
/// ```
/// use tower_ratelimit::policy_source::SourceError;
///
/// assert_eq!(SourceError::new("connection refused").to_string(), "connection refused");
/// ```
#[derive(Debug)]
pub struct SourceError(Box<dyn Error + Send + Sync>);

impl SourceError {
    /// An error with its reason.
    pub fn new(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(reason.into())
    }
}

/// Includes all causes: libraries often put the informative one last.
impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)?;
        let causes = std::iter::successors(self.0.source(), |&error| error.source());
        causes.take(8).try_for_each(|cause| write!(f, ": {cause}"))
    }
}

impl Error for SourceError {}

/// What a source holds: a policy, and optionally the number of instances that
/// share its limits.
///
/// ```
/// use tower_ratelimit::policy_source::Document;
///
/// let document = Document::yaml("rules: [{ id: all, tiers: [{ limit: 10, window: 1s }] }]");
/// assert_eq!(document.clone().instances(96), document.clone().instances(96));
/// assert_ne!(document.clone().instances(80), document);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Document {
    content: Content,
    instances: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
enum Content {
    Yaml(Arc<str>),
    Policy(Box<Policy>),
    Invalid(Arc<str>),
}

impl Document {
    /// A policy in YAML, with or without the key `instances`.
    pub fn yaml(text: impl Into<Arc<str>>) -> Self {
        Self { content: Content::Yaml(text.into()), instances: None }
    }

    /// A policy that the source has built itself.
    pub fn policy(policy: impl Into<Policy>) -> Self {
        Self { content: Content::Policy(Box::new(policy.into())), instances: None }
    }

    /// Content that cannot be a policy, such as one that is too large. It is
    /// rejected for this reason, as an invalid policy is.
    pub fn invalid(reason: impl Into<Arc<str>>) -> Self {
        Self { content: Content::Invalid(reason.into()), instances: None }
    }

    /// The number of instances that share the limits. Overrides the policy's own.
    pub fn instances(mut self, count: u64) -> Self {
        self.instances = Some(count);
        self
    }

    /// YAML of at most `max_bytes` bytes.
    fn from_bytes(bytes: &[u8], max_bytes: usize) -> Self {
        match str::from_utf8(bytes) {
            _ if bytes.len() > max_bytes => Self::too_large(max_bytes),
            Ok(text) => Self::yaml(text),
            Err(error) => Self::invalid(format!("is not UTF-8 at byte {}", error.valid_up_to())),
        }
    }

    fn too_large(max_bytes: usize) -> Self {
        Self::invalid(format!("has more than {max_bytes} bytes"))
    }

    /// The policy, and the number of instances if the document has one.
    fn parse(&self) -> Result<(Policy, Option<u64>), ConfigError> {
        let policy = match &self.content {
            Content::Yaml(text) => Policy::from_yaml(text)?,
            Content::Policy(policy) => Policy::clone(policy),
            Content::Invalid(reason) => return Err(ConfigError::new("", format!("the policy {reason}"))),
        };
        let instances = self.instances.or(policy.instances);
        instances.map_or(Ok(()), check_instances)?;
        Ok((policy, instances))
    }
}

/// The answer of a remote source, or an error once `limit` has passed.
async fn within<T, E>(limit: Duration, answer: impl Future<Output = Result<T, E>>) -> Result<T, SourceError>
where
    E: Into<Box<dyn Error + Send + Sync>>,
{
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer.map_err(SourceError::new),
        Err(_) => Err(SourceError::new(format!("no answer within {limit:?}"))),
    }
}

/// The lower bound of every poll interval that polls something local or cheap.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The longest delay: timers do not reach as far as some durations do.
const MAX_DELAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The default of every source's `max_bytes`.
const DEFAULT_MAX_BYTES: usize = 1 << 20;
