//! Why a source has no document: [`SourceError`].
//!
//! Not for documents that are invalid: those are rejected with a `ConfigError`.

use std::{error::Error, fmt};

/// A source does not answer, or holds no document.
///
/// ```
/// use tower_ratelimit::policy_source::SourceError;
///
/// assert_eq!(SourceError::new("connection refused").to_string(), "connection refused");
/// ```
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

impl fmt::Debug for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SourceError").field(&self.0).finish()
    }
}

impl Error for SourceError {}

/// The answer of a remote source, or an error once `limit` has passed.
#[cfg(any(feature = "redis", feature = "watch-http"))]
pub(super) async fn within<T, E>(
    limit: std::time::Duration,
    answer: impl Future<Output = Result<T, E>>,
) -> Result<T, SourceError>
where
    E: Into<Box<dyn Error + Send + Sync>>,
{
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer.map_err(SourceError::new),
        Err(_) => Err(SourceError::new(format!("no answer within {limit:?}"))),
    }
}
