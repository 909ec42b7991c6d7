//! Publishes the cooldowns of this instance, in batches. It does not receive
//! any.
//!
//! Invariant: an error that retrying cannot fix is logged once, until
//! publishing works again.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, Once, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use foldhash::fast::RandomState;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::message::{MAX_KEYS, key_of, message};
use crate::{
    backend::{
        CooldownNotice,
        redis::{
            sync::lock,
            transport::link::Link,
            wire::{Call, PUBLISH_COOLDOWNS},
        },
    },
    error::{BackendError, BackendErrorKind},
    observe::log_cooldown_sharing,
};

/// Longer cooldowns are shared as this one.
const MAX_COOLDOWN: Duration = Duration::from_secs(3_600);

/// The time in which cooldowns are collected into one message.
const BATCH_INTERVAL: Duration = Duration::from_millis(20);

const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Any lane's connection would do.
pub(super) const LANE: usize = 0;

pub(crate) struct Publisher {
    link: Arc<Link>,
    /// The sorted set of cooldowns, and the channel.
    key: String,
    outbox: Mutex<Outbox>,
    due: Arc<Notify>,
    started: Once,
    has_failed: AtomicBool,
}

impl Publisher {
    pub(crate) fn new(link: &Arc<Link>) -> Self {
        Self {
            link: Arc::clone(link),
            key: format!("{}:cooldowns", link.settings.prefix),
            outbox: Mutex::default(),
            due: Arc::default(),
            started: Once::new(),
            has_failed: AtomicBool::new(false),
        }
    }

    /// Publishes a cooldown soon, unless the other instances know it.
    pub(crate) fn put(self: &Arc<Self>, notice: &CooldownNotice<'_>) {
        let Some(key) = key_of(notice) else { return };
        let now = Instant::now();
        if lock(&self.outbox).put(key, now + notice.time.min(MAX_COOLDOWN), now) {
            self.due.notify_one();
            let (weak, due) = (Arc::downgrade(self), Arc::clone(&self.due));
            self.started.call_once(|| self.link.runtime.keep(run(weak, due)));
        }
    }

    /// Publishes a batch. Returns when to look again; `None` if nothing is
    /// pending.
    async fn publish(&self) -> Option<Duration> {
        let batch = lock(&self.outbox).take(MAX_KEYS, Instant::now());
        if batch.is_empty() {
            return None;
        }
        let (now, settings) = (Instant::now(), &self.link.settings);
        let left = batch.iter().map(|(key, end)| (&**key, end.saturating_duration_since(now)));
        let message = message(settings.database(), left);
        let reply = self.link.call(LANE, &Call::new(&PUBLISH_COOLDOWNS, [&*self.key], 1, message.as_bytes())).await;
        let error = match reply {
            Ok(error) => match redis::from_redis_value::<String>(error) {
                Ok(error) if !error.is_empty() => Some(BackendError::misconfigured(error)),
                _ => None,
            },
            Err(error) if is_permanent(&error) => Some(error),
            // Publishing it twice does no harm.
            Err(_) => {
                lock(&self.outbox).put_back(batch);
                return Some(RETRY_INTERVAL);
            }
        };
        if self.has_failed.swap(error.is_some(), Ordering::AcqRel) != error.is_some() {
            log_cooldown_sharing(&settings.servers, error.as_ref());
        }
        Some(BATCH_INTERVAL)
    }
}

/// Whether retrying cannot fix the error.
pub(super) fn is_permanent(error: &BackendError) -> bool {
    matches!(error.kind(), BackendErrorKind::Misconfigured | BackendErrorKind::Unsupported)
}

/// Publishes what is queued, for as long as the publisher exists.
async fn run(publisher: Weak<Publisher>, due: Arc<Notify>) {
    loop {
        due.notified().await;
        while let Some(strong) = publisher.upgrade() {
            let Some(pause) = strong.publish().await else { break };
            drop(strong);
            sleep_until(Instant::now() + pause).await;
        }
    }
}

/// The most keys. Those that were published are forgotten first.
const MAX_KNOWN: usize = 4_096;

/// A cooldown that is longer by at most this is not published again.
const TOLERANCE: Duration = Duration::from_millis(1);

/// When the cooldown of each key ends, and whether it was published.
#[derive(Debug, Default)]
struct Outbox(HashMap<Arc<str>, (Instant, bool), RandomState>);

impl Outbox {
    /// Whether the cooldown is to be published: not if one as long is known, and not
    /// if too many are pending.
    fn put(&mut self, key: String, end: Instant, now: Instant) -> bool {
        let key: Arc<str> = key.into();
        let known = self.0.get(&key).map(|(end, _)| *end);
        if known.is_some_and(|known| end <= known + TOLERANCE) {
            return false;
        }
        if known.is_none() && self.0.len() >= MAX_KNOWN {
            self.0.retain(|_, (end, is_published)| *end > now && !*is_published);
        }
        let has_space = known.is_some() || self.0.len() < MAX_KNOWN;
        if has_space {
            self.0.insert(key, (end, false));
        }
        has_space
    }

    /// Takes up to `most` of those that are pending, and forgets all that have ended.
    fn take(&mut self, most: usize, now: Instant) -> Vec<(Arc<str>, Instant)> {
        self.0.retain(|_, (end, _)| *end > now);
        let pending = self.0.iter_mut().filter(|(_, (_, is_published))| !is_published).take(most);
        let take = |(key, (end, is_published)): (&Arc<str>, &mut (Instant, bool))| {
            *is_published = true;
            (Arc::clone(key), *end)
        };
        pending.map(take).collect()
    }

    /// What was taken could not be published.
    fn put_back(&mut self, batch: Vec<(Arc<str>, Instant)>) {
        for (key, _) in batch {
            if let Some((_, is_published)) = self.0.get_mut(&key) {
                *is_published = false;
            }
        }
    }
}

#[cfg(test)]
mod tests;
