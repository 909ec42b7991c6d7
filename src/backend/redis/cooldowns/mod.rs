//! Shares cooldowns between instances through the store: [`Cooldowns`]. Sharing is best
//! effort and in the background: no request waits for it.
//!
//! A cooldown is published for the instances that listen, and kept in a sorted
//! set for those that come later. Messages come over a connection that also carries
//! decisions.
//!
//! Invariant: a shared cooldown only slows down. It never ends one early. The sorted set is
//! read after each subscribing and for each new listener, so that nothing published before
//! is missed.

mod message;
mod outbox;

use std::{
    pin::pin,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::select;
use redis::{PushInfo, PushKind, Value};
use tokio::{
    sync::{Notify, broadcast},
    time::{Instant, sleep_until, timeout},
};

use self::{
    message::{MAX_KEYS, key_of, lines, message, read},
    outbox::Outbox,
};
use super::{
    transport::{breaker::BreakerSettings, link::Link},
    wire::{Call, PUBLISH_COOLDOWNS, READ_COOLDOWNS},
};
use crate::{
    backend::{CooldownListener, CooldownNotice},
    error::{BackendError, BackendErrorKind},
    jitter::{doubled, shorten},
    observe::{log_cooldown_sharing, log_cooldown_subscription},
    sync::lock,
};

/// Longer cooldowns are shared as this one.
const MAX_COOLDOWN: Duration = Duration::from_secs(3_600);

/// The time in which cooldowns are collected into one message.
const BATCH_INTERVAL: Duration = Duration::from_millis(20);

const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Any lane's connection would do.
const LANE: usize = 0;

/// How often the subscription is renewed and the sorted set is read, in case that a message was
/// lost: a server that hangs, or a node that left its cluster, does not say so.
const READ_INTERVAL: Duration = Duration::from_secs(10);

/// The cooldowns of this instance and of the others.
pub(super) struct Cooldowns {
    link: Arc<Link>,
    /// The sorted set of cooldowns, and the channel.
    key: String,
    outbox: Mutex<Outbox>,
    listeners: Mutex<Vec<Weak<CooldownListener>>>,
    /// Notified when a cooldown is to be published.
    pending: Arc<Notify>,
    /// Notified when a listener was added.
    added: Arc<Notify>,
    publishing_failed: AtomicBool,
    receiving_failed: AtomicBool,
}

impl Cooldowns {
    pub(super) fn new(link: &Arc<Link>) -> Arc<Self> {
        let own = Arc::new(Self {
            link: Arc::clone(link),
            key: format!("{}:cooldowns", link.settings.prefix),
            outbox: Mutex::default(),
            listeners: Mutex::default(),
            pending: Arc::default(),
            added: Arc::default(),
            publishing_failed: AtomicBool::new(false),
            receiving_failed: AtomicBool::new(false),
        });
        link.runtime.keep(publish_all(Arc::downgrade(&own), Arc::clone(&own.pending)));
        link.runtime.keep(receive_all(Arc::downgrade(&own), Arc::clone(&own.added)));
        own
    }

    /// Publishes a cooldown soon, unless the other instances know it.
    pub(super) fn publish(&self, notice: &CooldownNotice<'_>) {
        let Some(key) = key_of(notice) else { return };
        let now = Instant::now();
        if lock(&self.outbox).put(key, now + notice.time.min(MAX_COOLDOWN), now) {
            self.pending.notify_one();
        }
    }

    /// Notifies a limiter of cooldowns from now on.
    pub(super) fn subscribe(&self, listener: Weak<CooldownListener>) {
        lock(&self.listeners).push(listener);
        self.added.notify_one();
    }

    /// Publishes a batch. Returns when to look again; `None` if nothing is
    /// pending.
    async fn publish_batch(&self) -> Option<Duration> {
        let batch = lock(&self.outbox).take(MAX_KEYS, Instant::now());
        if batch.is_empty() {
            return None;
        }
        let (now, settings) = (Instant::now(), &self.link.settings);
        let left = batch.iter().map(|(key, end)| (&**key, end.saturating_duration_since(now)));
        let message = message(settings.database(), left);
        let reply = self.link.call(LANE, &Call::new(&PUBLISH_COOLDOWNS, [&*self.key], 1, [message.as_bytes()])).await;
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
        if is_news(&self.publishing_failed, error.as_ref()) {
            log_cooldown_sharing(&settings.servers, error.as_ref());
        }
        Some(BATCH_INTERVAL)
    }

    fn has_listeners(&self) -> bool {
        let mut listeners = lock(&self.listeners);
        listeners.retain(|listener| listener.strong_count() > 0);
        !listeners.is_empty()
    }

    /// Passes on the cooldowns of these lines.
    async fn pass_on(&self, lines: &str) {
        let listeners = lock(&self.listeners).clone();
        let notify = |notice: &CooldownNotice<'_>| {
            listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener(notice))
        };
        for (index, line) in lines.split('\n').enumerate() {
            let _ = read(line, notify);
            if index % MAX_KEYS == MAX_KEYS - 1 {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Subscribes, and then reads the sorted set.
    async fn receive_known(&self) -> Result<(), BackendError> {
        self.link.subscribe(&self.key).await?;
        let lines = self.link.call(LANE, &Call::new(&READ_COOLDOWNS, [&*self.key], 1, [&b""[..]])).await?;
        // Else the key holds something else, or may not be read.
        if let Ok(lines) = redis::from_redis_value::<Vec<u8>>(lines) {
            self.pass_on(&String::from_utf8_lossy(&lines)).await;
        }
        Ok(())
    }
}

/// Whether to log this result: each failure is logged once, until it works again.
fn is_news(has_failed: &AtomicBool, error: Option<&BackendError>) -> bool {
    has_failed.swap(error.is_some(), Ordering::AcqRel) != error.is_some()
}

/// Whether retrying cannot fix the error.
fn is_permanent(error: &BackendError) -> bool {
    matches!(error.kind(), BackendErrorKind::Misconfigured | BackendErrorKind::Unsupported)
}

/// Publishes what is queued, for as long as `cooldowns` exist.
async fn publish_all(cooldowns: Weak<Cooldowns>, due: Arc<Notify>) {
    loop {
        due.notified().await;
        while let Some(own) = cooldowns.upgrade() {
            let Some(pause) = own.publish_batch().await else { break };
            drop(own);
            sleep_until(Instant::now() + pause).await;
        }
    }
}

/// Receives cooldowns while there are listeners.
async fn receive_all(cooldowns: Weak<Cooldowns>, added: Arc<Notify>) {
    let mut failures = 0_u32;
    while let Some(own) = cooldowns.upgrade() {
        if !own.has_listeners() {
            drop(own);
            added.notified().await;
            continue;
        }
        let mut pushes = own.link.pushes.subscribe();
        let (received, BreakerSettings { shortest, longest, .. }) =
            (own.receive_known().await, own.link.settings.breaker);
        if is_news(&own.receiving_failed, received.as_ref().err()) {
            log_cooldown_subscription(&own.link.settings.servers, received.as_ref().err());
        }
        drop(own);
        // After a failure, as between the breaker's probes.
        let next = if received.is_ok() { READ_INTERVAL } else { shorten(doubled(shortest, failures, longest)) };
        failures = if received.is_ok() { 0 } else { failures + 1 };
        let until_lost = pin!(receive(&cooldowns, &mut pushes));
        let _ = timeout(next, select(until_lost, pin!(added.notified()))).await;
    }
}

/// Passes on messages. Returns when one was lost, as all are when a connection ends.
async fn receive(cooldowns: &Weak<Cooldowns>, pushes: &mut broadcast::Receiver<PushInfo>) {
    while let Ok(PushInfo { kind, data }) = pushes.recv().await {
        if kind == PushKind::Disconnection {
            return;
        }
        // The channel, and the message.
        if let (PushKind::Message, Some(Value::BulkString(message))) = (kind, data.get(1))
            && let Some(own) = cooldowns.upgrade()
            && let Some(lines) = lines(message, own.link.settings.database())
        {
            own.pass_on(lines).await;
        }
    }
}
