//! Shares cooldowns between instances through the store: [`Cooldowns`]. Sharing is best
//! effort and in the background: no request waits for it. The background tasks
//! start when they are first used.
//!
//! A cooldown is published for the instances that listen, and kept in a sorted
//! set for those that come later. Instances that listen have a connection of
//! their own for it.
//!
//! Invariant: a shared cooldown only slows down. It never ends one early. The sorted set is
//! read after each subscribing and for each new listener, so that nothing published before
//! is missed.

mod message;
mod outbox;

use std::{
    future::Future,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::{PushInfo, PushKind, Value};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};

use self::{
    message::{MAX_KEYS, key_of, lines, message, read},
    outbox::Outbox,
};
use super::{
    sync::lock,
    transport::{
        breaker::BreakerSettings,
        connect::{Subscription, subscribe, within},
        link::Link,
        task_runtime::TaskRuntime,
    },
    wire::{Call, PUBLISH_COOLDOWNS, READ_COOLDOWNS},
};
use crate::{
    backend::{CooldownListener, CooldownNotice},
    error::{BackendError, BackendErrorKind},
    jitter::{doubled, shorten},
    observe::{log_cooldown_sharing, log_cooldown_subscription},
};

/// Longer cooldowns are shared as this one.
const MAX_COOLDOWN: Duration = Duration::from_secs(3_600);

/// The time in which cooldowns are collected into one message.
const BATCH_INTERVAL: Duration = Duration::from_millis(20);

const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Any lane's connection would do.
const LANE: usize = 0;

/// How often the subscription looks for listeners.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Every so many looks without a message it pings the server, which does not
/// say when it hangs.
const LOOKS_PER_PING: u32 = 5;

/// Every so many it reads the sorted set: a node that left its cluster has no
/// messages, and does not say so.
const LOOKS_PER_READ: u32 = 10;

/// The cooldowns of this instance and of the others.
pub(super) struct Cooldowns {
    link: Arc<Link>,
    /// The sorted set of cooldowns, and the channel.
    key: String,
    outbox: Mutex<Outbox>,
    listeners: Mutex<Vec<Weak<CooldownListener>>>,
    publishing: Task,
    receiving: Task,
}

/// A background task.
#[derive(Default)]
struct Task {
    started: OnceLock<()>,
    /// Notified when there is something to do.
    due: Arc<Notify>,
    has_failed: AtomicBool,
}

impl Task {
    /// Notifies the task, which is started if it was not.
    fn wake<F>(&self, runtime: &TaskRuntime, run: impl FnOnce(Arc<Notify>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.due.notify_one();
        self.started.get_or_init(|| runtime.keep(run(Arc::clone(&self.due))));
    }

    /// Whether to log this result: each failure is logged once, until it works again.
    fn logs(&self, error: Option<&BackendError>) -> bool {
        self.has_failed.swap(error.is_some(), Ordering::AcqRel) != error.is_some()
    }
}

impl Cooldowns {
    pub(super) fn new(link: &Arc<Link>) -> Arc<Self> {
        Arc::new(Self {
            link: Arc::clone(link),
            key: format!("{}:cooldowns", link.settings.prefix),
            outbox: Mutex::default(),
            listeners: Mutex::default(),
            publishing: Task::default(),
            receiving: Task::default(),
        })
    }

    /// Publishes a cooldown soon, unless the other instances know it.
    pub(super) fn publish(self: &Arc<Self>, notice: &CooldownNotice<'_>) {
        let Some(key) = key_of(notice) else { return };
        let now = Instant::now();
        if lock(&self.outbox).put(key, now + notice.time.min(MAX_COOLDOWN), now) {
            self.publishing.wake(&self.link.runtime, |due| publish_all(Arc::downgrade(self), due));
        }
    }

    /// Notifies a limiter of cooldowns from now on.
    pub(super) fn subscribe(self: &Arc<Self>, listener: Weak<CooldownListener>) {
        lock(&self.listeners).push(listener);
        if self.receiving.started.get().is_some() {
            let own = Arc::clone(self);
            self.link.runtime.spawn(async move { own.read().await });
        }
        self.receiving.wake(&self.link.runtime, |due| receive_all(Arc::downgrade(self), due));
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
        if self.publishing.logs(error.as_ref()) {
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

    /// Reads the sorted set. `false` if that is to be tried again.
    async fn read(&self) -> bool {
        match self.link.call(LANE, &Call::new(&READ_COOLDOWNS, [&*self.key], 1, b"")).await {
            Ok(lines) => {
                // Else the key holds something else, or may not be read.
                if let Ok(lines) = redis::from_redis_value::<Vec<u8>>(lines) {
                    self.pass_on(&String::from_utf8_lossy(&lines)).await;
                }
                true
            }
            Err(error) if is_permanent(&error) => {
                self.report_receiving(Some(&error));
                true
            }
            Err(_) => false,
        }
    }

    fn report_receiving(&self, error: Option<&BackendError>) {
        if self.receiving.logs(error) {
            log_cooldown_subscription(&self.link.settings.servers, error);
        }
    }
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

/// Keeps a subscription open while there are listeners.
async fn receive_all(cooldowns: Weak<Cooldowns>, added: Arc<Notify>) {
    let mut failures = 0_u32;
    while let Some(own) = cooldowns.upgrade() {
        if !own.has_listeners() {
            drop(own);
            added.notified().await;
            continue;
        }
        let BreakerSettings { shortest, longest, .. } = own.link.settings.breaker;
        let limit = own.link.settings.connect_timeout;
        let opened = subscribe(&own.link.settings, own.link.nodes(), &own.key).await;
        own.report_receiving(opened.as_ref().err().map(|failure| &failure.error));
        drop(own);
        if let Ok(subscription) = opened {
            failures = 0;
            receive(&cooldowns, subscription, limit).await;
        }
        // As between the breaker's probes.
        sleep_until(Instant::now() + shorten(doubled(shortest, failures, longest))).await;
        failures += 1;
    }
}

/// Returns when the connection is lost, does not reply within `limit`, or no listener is left.
async fn receive(cooldowns: &Weak<Cooldowns>, (mut connection, mut pushes): Subscription, limit: Duration) {
    let (mut looks, mut is_read) = (0_u32, false);
    while let Some(own) = cooldowns.upgrade().filter(|own| own.has_listeners()) {
        is_read = is_read || own.read().await;
        drop(own);
        match timeout(LOOK_INTERVAL, pushes.recv()).await {
            Ok(Some(PushInfo { kind: PushKind::Message, data })) => {
                // The channel, and the message.
                if let (Some(own), Some(Value::BulkString(message))) = (cooldowns.upgrade(), data.get(1))
                    && let Some(lines) = lines(message, own.link.settings.database())
                {
                    own.pass_on(lines).await;
                }
            }
            Ok(None | Some(PushInfo { kind: PushKind::Disconnection, .. })) => return,
            Ok(Some(_)) => {}
            Err(_) => {
                looks = looks.wrapping_add(1);
                is_read &= !looks.is_multiple_of(LOOKS_PER_READ);
                let ping = redis::cmd("PING");
                if looks.is_multiple_of(LOOKS_PER_PING)
                    && within(limit, ping.query_async::<Value>(&mut connection)).await.is_err()
                {
                    return;
                }
            }
        }
    }
}
