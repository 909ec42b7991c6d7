//! The interface of a policy source: [`PolicySource`] and its answers.
//!
//! A source reports documents. It neither parses them nor puts them in force,
//! and it does not retry: the watch task does all three.

use std::{pin::Pin, time::Duration};

use super::{document::Document, error::SourceError};

/// Where a policy comes from.
///
/// ```
/// use tower_ratelimit::{
///     Policy, Quota, RateLimiter,
///     policy_source::{Document, NextUpdate, PolicySource, Update},
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
///     fn next(&mut self) -> NextUpdate<'_> {
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

    /// What the source holds. The first call, and each call after an error,
    /// answers at once; every other call answers as soon as the source may have
    /// changed.
    ///
    /// A source may answer without a change: a document equal to the last one is
    /// not put in force again. The watch task calls this at most 100 times a
    /// second, and waits after an error: see [`Watch::retry`](super::Watch::retry).
    /// It drops the future when the watch ends, and otherwise polls it to
    /// completion.
    fn next(&mut self) -> NextUpdate<'_>;
}

/// The future that [`PolicySource::next`] returns.
pub type NextUpdate<'a> = Pin<Box<dyn Future<Output = Result<Update, SourceError>> + Send + 'a>>;

/// What a source answers.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Update {
    /// The document that the source holds now; it may equal the last one.
    Changed(Document),
    /// The source still holds the document that it reported last.
    Unchanged,
}

/// The lower bound of every poll interval that polls something local or cheap.
pub(super) const MIN_POLL_INTERVAL: Duration = Duration::from_millis(10);
