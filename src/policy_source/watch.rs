use std::{fmt, sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    sync::watch,
    task::spawn_blocking,
    time::{Instant, sleep_until},
};

use super::{Document, PolicySource, Update, WatchStatus, Watching, retry::Retry};
use crate::{
    backend::Share,
    error::ConfigError,
    limiter::RateLimiter,
    observe::{self, Reload},
    policy::CompiledPolicy,
};

/// A source, and how it is watched.
///
/// ```
/// use tokio::sync::watch;
/// use tower_ratelimit::{
///     Quota, RateLimiter,
///     backend::{Share, Split},
///     policy_source::{FileSource, Watch},
/// };
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_ratelimit::ConfigError> {
/// // Instance 3; of how many, the file says.
/// let (sender, shares) = watch::channel(Share::none());
/// let limiter = RateLimiter::builder().policy(Quota::per_second(960)).backend(Split::watch(shares)).build()?;
/// let watching = limiter.watch(Watch::new(FileSource::new("/etc/limits/policy.yaml")).share(3, sender))?;
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct Watch {
    source: Box<dyn PolicySource>,
    sharing: Option<Sharing>,
    retry: Retry,
}

struct Sharing {
    index: u64,
    sender: watch::Sender<Share>,
}

impl Watch {
    /// Watches `source`.
    pub fn new(source: impl PolicySource) -> Self {
        Self { source: Box::new(source), sharing: None, retry: Retry::default() }
    }

    /// Tells a [`Split`](crate::backend::Split) its share: that of the instance
    /// `index` of as many as the document says. Where it does not say, the
    /// share stays as it was.
    ///
    /// An instance whose index is not below the number of instances is one
    /// that has to go: it has no share any more, and admits nothing.
    ///
    /// Where limits and the number of instances change at once, this instance
    /// admits meanwhile no more than by the larger of what it had before and
    /// has after.
    pub fn share(mut self, index: u64, sender: watch::Sender<Share>) -> Self {
        self.sharing = Some(Sharing { index, sender });
        self
    }

    /// How long a source that does not answer is left alone: for `shortest` at
    /// first, 100 ms unless set, then for twice as long each time, up to
    /// `longest`, 500 ms unless set. Each delay is cut at random, to between
    /// half of it and all of it. From a millisecond to a day.
    pub fn retry(mut self, shortest: Duration, longest: Duration) -> Self {
        self.retry = Retry::new(shortest, longest);
        self
    }
}

impl<S: PolicySource> From<S> for Watch {
    fn from(source: S) -> Self {
        Self::new(source)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, sharing, retry } = self;
        let index = sharing.as_ref().map(|sharing| sharing.index);
        f.debug_struct("Watch").field("source", &source.name()).field("index", &index).field("retry", retry).finish()
    }
}

impl RateLimiter {
    /// Keeps the policy in force what a source says, for as long as what is
    /// returned is held. Until the source has answered, the policy is the one
    /// that the limiter was built with.
    ///
    /// A task on the current Tokio runtime, which needs its timer, and for
    /// sources on a network its I/O enabled. What can go wrong there is in
    /// [`policy_source`](crate::policy_source).
    ///
    /// ```no_run
    /// use tower_ratelimit::{Quota, RateLimiter, policy_source::FileSource};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_ratelimit::ConfigError> {
    /// let limiter = RateLimiter::new(Quota::per_second(10))?;
    /// let mut watching = limiter.watch(FileSource::new("/etc/limits/policy.yaml"))?;
    /// // Serves only once the file was read:
    /// watching.wait_for(|status| status.is_current()).await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Where there is no Tokio runtime.
    pub fn watch(&self, source: impl Into<Watch>) -> Result<Watching, ConfigError> {
        let Watch { source, sharing, retry } = source.into();
        let runtime = Handle::try_current().map_err(|_| ConfigError::new("watch", "needs a Tokio runtime"))?;
        let (sender, status) = watch::channel(WatchStatus::default());
        let target = Arc::new(Target { limiter: self.clone(), sharing, name: source.name() });
        let task = runtime.spawn(Watcher { target, status: sender, last: None, away: false }.run(source, retry));
        Ok(Watching::new(task.abort_handle(), status))
    }
}

/// Where a document goes.
struct Target {
    limiter: RateLimiter,
    sharing: Option<Sharing>,
    name: String,
}

impl Target {
    /// Says which number of instances nobody heeds.
    fn apply(&self, document: &Document) -> Result<Option<u64>, ConfigError> {
        let (policy, instances) = document.read()?;
        let Some((sharing, count)) = self.sharing.as_ref().zip(instances) else {
            self.limiter.set_policy(policy)?;
            return Ok(instances);
        };
        let share = Share::new(sharing.index, count).unwrap_or_else(|error| {
            observe::share_source(&self.name, &format!("{error}; this instance has no share any more"));
            Share::none()
        });
        // Whichever of both lets less pass goes first.
        if share.fraction() < sharing.sender.borrow().fraction() {
            CompiledPolicy::new(policy.clone())?;
            sharing.tell(share);
            self.limiter.set_policy(policy)?;
        } else {
            self.limiter.set_policy(policy)?;
            sharing.tell(share);
        }
        Ok(None)
    }
}

impl Sharing {
    fn tell(&self, share: Share) {
        self.sender.send_if_modified(|current| {
            let changed = *current != share;
            *current = share;
            changed
        });
    }
}

/// Asks the source, and sees to what it says.
struct Watcher {
    target: Arc<Target>,
    status: watch::Sender<WatchStatus>,
    /// What the source last held, and what is wrong with it.
    last: Option<(Document, Option<Arc<str>>)>,
    /// The source did not answer when it was last asked.
    away: bool,
}

/// A source that never waits must not keep a thread to itself.
const SHORTEST_ROUND: Duration = Duration::from_millis(10);

impl Watcher {
    async fn run(mut self, mut source: Box<dyn PolicySource>, mut retry: Retry) {
        loop {
            let asked = Instant::now();
            let pause = match source.next().await {
                Ok(update) => {
                    retry.succeeded();
                    self.answered(update).await;
                    SHORTEST_ROUND.saturating_sub(asked.elapsed())
                }
                Err(error) => {
                    self.unanswered(&error.to_string());
                    retry.failed()
                }
            };
            sleep_until(Instant::now() + pause).await;
        }
    }

    fn unanswered(&mut self, why: &str) {
        Reload::Unavailable.count();
        if !self.away {
            Reload::Unavailable.say(&self.target.name, why);
        }
        self.away = true;
        self.status.send_modify(|status| {
            status.unavailable += 1;
            status.trouble = Some(why.into());
        });
    }

    async fn answered(&mut self, update: Update) {
        if std::mem::take(&mut self.away) {
            Reload::returned(&self.target.name);
        }
        let document = match (update, &self.last) {
            (Update::Changed(document), Some((last, _))) if document != *last => document,
            (Update::Changed(document), None) => document,
            (_, last) => {
                let trouble = last.as_ref().and_then(|(_, trouble)| trouble.clone());
                self.status.send_if_modified(|status| {
                    let changed = status.trouble != trouble;
                    status.trouble = trouble;
                    changed
                });
                return;
            }
        };
        let before = self.last.take().and_then(|(_, trouble)| trouble);
        let (ignored, trouble) = match self.apply(document.clone()).await {
            Ok(ignored) => (ignored, None),
            Err(trouble) => (None, Some(trouble)),
        };
        let result = if trouble.is_none() { Reload::Applied } else { Reload::Rejected };
        result.count();
        // A page that is another each time is wrong for the same reason.
        if trouble.is_none() || trouble != before {
            result.say(&self.target.name, trouble.as_deref().unwrap_or_default());
        }
        if ignored.is_some() && self.status.borrow().ignored_instances.is_none() {
            let trouble = "the policy says `instances`, and its watch has no share to tell of it";
            observe::share_source(&self.target.name, trouble);
        }
        self.last = Some((document, trouble.clone()));
        self.status.send_modify(|status| {
            match result {
                Reload::Applied => {
                    status.applied += 1;
                    status.ignored_instances = ignored;
                }
                _ => status.rejected += 1,
            }
            status.trouble = trouble;
        });
    }

    /// On a thread where it holds nobody up, however large the policy is; and
    /// where it takes nothing with it, whatever happens there.
    async fn apply(&self, document: Document) -> Result<Option<u64>, Arc<str>> {
        let target = Arc::clone(&self.target);
        match spawn_blocking(move || target.apply(&document)).await {
            Ok(applied) => applied.map_err(|error| error.to_string().into()),
            Err(error) => Err(format!("the policy could not be read: {error}").into()),
        }
    }
}
