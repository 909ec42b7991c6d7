//! The interface of a policy source: [`PolicySource`] with its answers and errors.
//!
//! A source reports documents. It neither parses them nor puts them in force,
//! and it does not retry: the watch task does all three.

use std::{error::Error, fmt, time::Duration};

use futures_util::future::BoxFuture;

use super::document::Document;

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
    /// second, and waits after an error: see [`Watch::retry`](super::Watch::retry).
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

/// The answer of a remote source, or an error once `limit` has passed.
pub(super) async fn within<T, E>(limit: Duration, answer: impl Future<Output = Result<T, E>>) -> Result<T, SourceError>
where
    E: Into<Box<dyn Error + Send + Sync>>,
{
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer.map_err(SourceError::new),
        Err(_) => Err(SourceError::new(format!("no answer within {limit:?}"))),
    }
}

/// The lower bound of every poll interval that polls something local or cheap.
pub(super) const MIN_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The longest delay: timers do not reach as far as some durations do.
pub(super) const MAX_DELAY: Duration = Duration::from_secs(24 * 60 * 60);
