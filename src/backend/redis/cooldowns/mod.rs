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
        Arc, Mutex, Once, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::select;
use redis::{PushInfo, PushKind, Value};
use tokio::{
    sync::{Notify, broadcast},
    time::{Instant, sleep_until, timeout_at},
};

use self::{
    message::{MAX_KEYS, key_of, lines, message, read},
    outbox::Outbox,
};
use super::{
    transport::Link,
    wire::{Call, PUBLISH_COOLDOWNS, READ_COOLDOWNS},
};
use crate::{
    backend::{CooldownListener, CooldownNotice},
    error::{BackendError, BackendErrorKind},
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

/// When the sorted set is read after messages were lost because there were too many.
const LAG_INTERVAL: Duration = Duration::from_secs(1);

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
    /// Each task starts when it is needed.
    publishing: Once,
    receiving: Once,
}

impl Cooldowns {
    pub(super) fn new(link: &Arc<Link>) -> Arc<Self> {
        Arc::new(Self {
            link: Arc::clone(link),
            key: format!("{}:cooldowns", link.settings.prefix),
            outbox: Mutex::default(),
            listeners: Mutex::default(),
            pending: Arc::default(),
            added: Arc::default(),
            publishing_failed: AtomicBool::new(false),
            publishing: Once::new(),
            receiving: Once::new(),
        })
    }

    /// Publishes a cooldown soon, unless the other instances know it.
    pub(super) fn publish(self: &Arc<Self>, notice: &CooldownNotice<'_>) {
        let Some(key) = key_of(notice) else { return };
        let now = Instant::now();
        if lock(&self.outbox).put(key, now + notice.time.min(MAX_COOLDOWN), now) {
            self.pending.notify_one();
            let publish = || publish_all(Arc::downgrade(self), Arc::clone(&self.pending));
            self.publishing.call_once(|| self.link.runtime.keep(publish()));
        }
    }

    /// Notifies a limiter of cooldowns from now on.
    pub(super) fn subscribe(self: &Arc<Self>, listener: Weak<CooldownListener>) {
        lock(&self.listeners).push(listener);
        self.added.notify_one();
        self.receiving.call_once(|| self.link.runtime.keep(receive_all(Arc::downgrade(self), Arc::clone(&self.added))));
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
            // Retrying cannot fix it.
            Err(error) if matches!(error.kind(), BackendErrorKind::Misconfigured | BackendErrorKind::Unsupported) => {
                Some(error)
            }
            // Publishing it twice does no harm.
            Err(_) => {
                lock(&self.outbox).put_back(batch);
                return Some(RETRY_INTERVAL);
            }
        };
        // Each failure is logged once, until it works again.
        if self.publishing_failed.swap(error.is_some(), Ordering::AcqRel) != error.is_some() {
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

    /// Subscribes, and then reads the sorted set. Returns what is pushed meanwhile and later.
    async fn receive_known(&self) -> Result<broadcast::Receiver<PushInfo>, BackendError> {
        let pushes = self.link.subscribe(&self.key).await?;
        let lines = self.link.call(LANE, &Call::new(&READ_COOLDOWNS, [&*self.key], 1, [&b""[..]])).await?;
        // Else the key holds something else, or may not be read.
        if let Ok(lines) = redis::from_redis_value::<Vec<u8>>(lines) {
            self.pass_on(&String::from_utf8_lossy(&lines)).await;
        }
        Ok(pushes)
    }
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

/// Receives cooldowns while there are listeners. A single failure is not logged: a backend that
/// connects in the background fails until it has.
async fn receive_all(cooldowns: Weak<Cooldowns>, added: Arc<Notify>) {
    let mut failures = 0_u32;
    added.notified().await;
    while let Some(own) = cooldowns.upgrade() {
        if !own.has_listeners() {
            drop(own);
            added.notified().await;
            continue;
        }
        let (received, settings) = (own.receive_known().await, &own.link.settings);
        let (all, pause) = if received.is_ok() { (0, READ_INTERVAL) } else { (failures + 1, settings.breaker.longest) };
        if (all > 1) != (failures > 1) {
            log_cooldown_subscription(&settings.servers, received.as_ref().err());
        }
        failures = all;
        let pushes = received.unwrap_or_else(|_| own.link.pushes.subscribe());
        drop(own);
        let received = pin!(receive(&cooldowns, pushes, pause));
        // While it fails, a new listener is no reason to try again.
        match all {
            0 => _ = select(received, pin!(added.notified())).await,
            _ => received.await,
        }
    }
}

/// Passes on messages for so long. Returns earlier when one was lost: soon after there were too
/// many, and at once when connections end or others take their place.
async fn receive(cooldowns: &Weak<Cooldowns>, mut pushes: broadcast::Receiver<PushInfo>, pause: Duration) {
    let mut end = Instant::now() + pause;
    while Instant::now() < end {
        match timeout_at(end, pushes.recv()).await {
            // The channel, and the message.
            Ok(Ok(PushInfo { kind: PushKind::Message, data })) => {
                if let (Some(Value::BulkString(message)), Some(own)) = (data.get(1), cooldowns.upgrade())
                    && let Some(lines) = lines(message, own.link.settings.database())
                {
                    own.pass_on(lines).await;
                }
            }
            Ok(Ok(PushInfo { kind, .. })) if kind != PushKind::Disconnection => {}
            Ok(Err(broadcast::error::RecvError::Lagged(_))) => end = end.min(Instant::now() + LAG_INTERVAL),
            _ => return,
        }
    }
}
