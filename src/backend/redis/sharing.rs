//! What instances tell each other through the server: which keys their
//! providers want to be left alone. Nothing of it is on a request's way, and
//! nothing waits for it.

mod message;
mod outbox;
mod subscription;

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    task::AbortHandle,
    time::{Instant, sleep_until},
};

use self::{message::MOST_KEYS, outbox::Outbox};
use super::{
    link::Link,
    script::{self, Call},
    settings::Settings,
};
use crate::{
    backend::{CooldownListener, CooldownNotice},
    error::{BackendError, BackendErrorKind},
    observe::{is_subscribed, shares_cooldowns},
};

/// No hold is shared for longer.
const LONGEST: Duration = Duration::from_secs(3_600);

/// What is to be told within that time goes out together.
const TOGETHER: Duration = Duration::from_millis(20);

/// When it is tried again to tell what could not be told.
const AGAIN: Duration = Duration::from_millis(250);

/// Whose connection is used; any would do.
const LANE: usize = 0;

type Listeners = Vec<Weak<dyn CooldownListener>>;

/// Tells other instances, and hears them. Dropped, it ends what it does in the
/// background.
pub(super) struct Sharing {
    settings: Settings,
    link: Arc<Link>,
    /// The sorted set of what is held back, and the channel.
    key: String,
    outbox: Mutex<Outbox>,
    due: Arc<Notify>,
    tells: AtomicBool,
    listening: Mutex<Listening>,
    /// Something has happened to the subscription.
    news: Arc<Notify>,
    /// What was told before is to be read.
    unread: AtomicBool,
    /// Whether it was said that it does not work.
    cannot_tell: AtomicBool,
    cannot_hear: AtomicBool,
    tasks: Mutex<Vec<AbortHandle>>,
}

#[derive(Default)]
struct Listening {
    listeners: Listeners,
    /// Whether a task hears for them.
    runs: bool,
}

impl Sharing {
    pub(super) fn new(settings: Settings, link: Arc<Link>) -> Arc<Self> {
        Arc::new(Self {
            key: format!("{}:held", settings.prefix),
            settings,
            link,
            outbox: Mutex::default(),
            due: Arc::default(),
            tells: AtomicBool::new(false),
            listening: Mutex::default(),
            news: Arc::default(),
            unread: AtomicBool::new(false),
            cannot_tell: AtomicBool::new(false),
            cannot_hear: AtomicBool::new(false),
            tasks: Mutex::default(),
        })
    }

    /// Tells others, soon, unless they know.
    pub(super) fn share(self: &Arc<Self>, notice: &CooldownNotice<'_>) {
        let Some(key) = message::key_of(notice) else { return };
        let now = Instant::now();
        if !self.outbox().put(key, now + notice.time.min(LONGEST), now) {
            return;
        }
        self.due.notify_one();
        if !self.tells.swap(true, Ordering::AcqRel) {
            self.spawn(tell(Arc::downgrade(self), Arc::clone(&self.due)));
        }
    }

    /// Tells a limiter too what is heard.
    pub(super) fn add(self: &Arc<Self>, listener: Weak<dyn CooldownListener>) {
        let mut listening = self.listening();
        listening.listeners.push(listener);
        if std::mem::replace(&mut listening.runs, true) {
            drop(listening);
            self.unread.store(true, Ordering::Release);
            self.news.notify_one();
        } else {
            drop(listening);
            self.spawn(subscription::listen(Arc::downgrade(self)));
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let handle = self.link.runtime().spawn(task).abort_handle();
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.retain(|task| !task.is_finished());
        tasks.push(handle);
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listening(&self) -> MutexGuard<'_, Listening> {
        self.listening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody wants to know; else whoever hears for them is to end.
    fn is_listened_to(&self) -> bool {
        let mut listening = self.listening();
        listening.listeners.retain(|listener| listener.strong_count() > 0);
        listening.runs = !listening.listeners.is_empty();
        listening.runs
    }

    /// A message has come.
    fn hear(&self, message: &[u8]) {
        if let Some(lines) = message::lines(message, self.settings.database()) {
            let listeners = self.listening().listeners.clone();
            message::told(lines).for_each(|told| tell_all(&listeners, &told.notice()));
        }
    }

    /// Reads what was told before somebody listened; once more, where there is
    /// no answer.
    async fn read(&self) {
        if !self.unread.swap(false, Ordering::AcqRel) {
            return;
        }
        let answer = self.link.call(LANE, &Call::new(&script::HELD, [&*self.key], 1, b"")).await;
        let lines = match answer.map(redis::from_redis_value::<Vec<u8>>) {
            Ok(Ok(lines)) => lines,
            // What is there is no such set, or may not be read.
            Ok(Err(_)) => return,
            Err(error) if is_final(&error) => return self.does_not_hear(&error),
            Err(_) => return self.unread.store(true, Ordering::Release),
        };
        let listeners = self.listening().listeners.clone();
        for (nth, told) in message::told(&String::from_utf8_lossy(&lines)).enumerate() {
            tell_all(&listeners, &told.notice());
            if nth % MOST_KEYS == MOST_KEYS - 1 {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Sends what waits; returns when to look again, or `None` where nothing
    /// does.
    async fn send(&self) -> Option<Duration> {
        let batch = self.outbox().take(MOST_KEYS, Instant::now());
        if batch.is_empty() {
            return None;
        }
        let now = Instant::now();
        let left = batch.iter().map(|(key, end)| (&**key, end.saturating_duration_since(now)));
        let message = message::message(self.settings.database(), left);
        let answer = self.link.call(LANE, &Call::new(&script::HOLD, [&*self.key], 1, message.as_bytes())).await;
        let error = match answer {
            Ok(said) => match redis::from_redis_value::<String>(said) {
                Ok(said) if !said.is_empty() => Some(BackendError::misconfigured(said)),
                _ => None,
            },
            Err(error) if is_final(&error) => Some(error),
            // Who reads it twice is told nothing new.
            Err(_) => {
                self.outbox().put_back(batch, Instant::now());
                return Some(AGAIN);
            }
        };
        self.outbox().told(batch, Instant::now());
        match error {
            Some(error) if !self.cannot_tell.swap(true, Ordering::AcqRel) => {
                shares_cooldowns(&self.settings.place, Some(&error));
            }
            None if self.cannot_tell.swap(false, Ordering::AcqRel) => shares_cooldowns(&self.settings.place, None),
            _ => {}
        }
        Some(TOGETHER)
    }

    fn hears(&self) {
        if self.cannot_hear.swap(false, Ordering::AcqRel) {
            is_subscribed(&self.settings.place, None);
        }
    }

    fn does_not_hear(&self, error: &BackendError) {
        if !self.cannot_hear.swap(true, Ordering::AcqRel) {
            is_subscribed(&self.settings.place, Some(error));
        }
    }
}

/// Whether to ask again would not help.
fn is_final(error: &BackendError) -> bool {
    matches!(error.kind(), BackendErrorKind::Misconfigured | BackendErrorKind::Unsupported)
}

fn tell_all(listeners: &Listeners, notice: &CooldownNotice<'_>) {
    listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener.on_cooldown(notice));
}

/// Tells what waits, some of it at a time.
async fn tell(sharing: Weak<Sharing>, due: Arc<Notify>) {
    loop {
        due.notified().await;
        while let Some(strong) = sharing.upgrade() {
            let Some(pause) = strong.send().await else { break };
            drop(strong);
            sleep_until(Instant::now() + pause).await;
        }
    }
}

impl fmt::Debug for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharing").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        let tasks = self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner);
        tasks.iter().for_each(AbortHandle::abort);
    }
}
