//! Receives the cooldowns of other instances over a connection of its own, and
//! reads those that the store keeps. It does not publish any.
//!
//! Invariant: the sorted set is read after each subscribing and for each new
//! listener, so that nothing published before is missed.

use std::{
    sync::{
        Arc, Mutex, Once, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::{
    PushInfo, PushKind, Value,
    aio::{MultiplexedConnection, SendError},
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};

use super::{
    message::{MAX_KEYS, lines, read},
    publisher::{LANE, is_permanent},
};
use crate::{
    backend::{
        CooldownListener, CooldownNotice,
        redis::{
            sync::lock,
            transport::{breaker::BreakerSettings, connect::open_subscriber, failure::Failure, link::Link},
            wire::{Call, READ_COOLDOWNS},
        },
    },
    error::BackendError,
    jitter::shorten,
    observe::log_cooldown_subscription,
};

/// How often the subscription looks for listeners.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Every so many looks without a message it pings the server, which does not
/// say when it hangs.
const LOOKS_PER_PING: u32 = 5;

/// Every so many it reads the sorted set: a node that left its cluster has no
/// messages, and does not say so.
const LOOKS_PER_READ: u32 = 10;

pub(crate) struct Subscriber {
    link: Arc<Link>,
    /// The sorted set of cooldowns, and the channel.
    key: String,
    listeners: Mutex<Vec<Weak<dyn CooldownListener>>>,
    started: Once,
    /// Wakes the task.
    wake: Arc<Notify>,
    /// Whether the sorted set is to be read.
    is_unread: AtomicBool,
    has_failed: AtomicBool,
}

impl Subscriber {
    pub(crate) fn new(link: &Arc<Link>) -> Self {
        Self {
            link: Arc::clone(link),
            key: format!("{}:cooldowns", link.settings.prefix),
            listeners: Mutex::default(),
            started: Once::new(),
            wake: Arc::default(),
            is_unread: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
        }
    }

    /// Notifies a limiter of cooldowns from now on.
    pub(crate) fn add(self: &Arc<Self>, listener: Weak<dyn CooldownListener>) {
        lock(&self.listeners).push(listener);
        self.is_unread.store(true, Ordering::Release);
        self.wake.notify_one();
        let (weak, wake) = (Arc::downgrade(self), Arc::clone(&self.wake));
        self.started.call_once(|| self.link.runtime.keep(run(weak, wake)));
    }

    fn has_listeners(&self) -> bool {
        let mut listeners = lock(&self.listeners);
        listeners.retain(|listener| listener.strong_count() > 0);
        !listeners.is_empty()
    }

    /// Passes on the cooldowns of a message.
    fn receive(&self, message: &[u8]) {
        if let Some(lines) = lines(message, self.link.settings.database()) {
            let listeners = lock(&self.listeners).clone();
            lines.split('\n').for_each(|line| _ = read(line, |notice| notify(&listeners, notice)));
        }
    }

    /// Reads the sorted set if it is unread. Without a reply it stays unread.
    async fn read(&self) {
        if !self.is_unread.swap(false, Ordering::AcqRel) {
            return;
        }
        let reply = self.link.call(LANE, &Call::new(&READ_COOLDOWNS, [&*self.key], 1, b"")).await;
        let lines = match reply.map(redis::from_redis_value::<Vec<u8>>) {
            Ok(Ok(lines)) => lines,
            // The key holds something else, or may not be read.
            Ok(Err(_)) => return,
            Err(error) if is_permanent(&error) => return self.report(Some(&error)),
            Err(_) => return self.is_unread.store(true, Ordering::Release),
        };
        let listeners = lock(&self.listeners).clone();
        for (index, line) in String::from_utf8_lossy(&lines).split('\n').enumerate() {
            let _ = read(line, |notice| notify(&listeners, notice));
            if index % MAX_KEYS == MAX_KEYS - 1 {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Logs that receiving has failed, or works again: each once.
    fn report(&self, error: Option<&BackendError>) {
        if self.has_failed.swap(error.is_some(), Ordering::AcqRel) != error.is_some() {
            log_cooldown_subscription(&self.link.settings.servers, error);
        }
    }
}

fn notify(listeners: &[Weak<dyn CooldownListener>], notice: &CooldownNotice<'_>) {
    listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener.on_cooldown(notice));
}

/// Keeps a subscription open while there are listeners.
async fn run(subscriber: Weak<Subscriber>, wake: Arc<Notify>) {
    let mut failures = 0_u32;
    while let Some(strong) = subscriber.upgrade() {
        if !strong.has_listeners() {
            drop(strong);
            wake.notified().await;
            continue;
        }
        match Subscription::open(&strong).await {
            Ok(subscription) => {
                failures = 0;
                strong.report(None);
                drop(strong);
                subscription.run(&subscriber, &wake).await;
            }
            Err(failure) => {
                strong.report(Some(&failure.error));
                drop(strong);
            }
        }
        let Some(strong) = subscriber.upgrade().filter(|subscriber| subscriber.has_listeners()) else { continue };
        let BreakerSettings { shortest, longest, .. } = strong.link.settings.breaker;
        drop(strong);
        // As between the breaker's probes.
        let delay = shorten(shortest.saturating_mul(1 << failures).min(longest));
        failures = (failures + 1).min(16);
        sleep_until(Instant::now() + delay).await;
    }
}

/// An open connection that has subscribed.
struct Subscription {
    connection: MultiplexedConnection,
    is_lost: Arc<AtomicBool>,
    timeout: Duration,
}

impl Subscription {
    async fn open(subscriber: &Arc<Subscriber>) -> Result<Self, Failure> {
        let settings = &subscriber.link.settings;
        let limit = settings.connect_timeout;
        let is_lost = Arc::<AtomicBool>::default();
        // The connection's task owns the closure, so it must not own the
        // subscriber.
        let (receiver, wake, lost) = (Arc::downgrade(subscriber), Arc::clone(&subscriber.wake), Arc::clone(&is_lost));
        let push = move |push: PushInfo| {
            match push.kind {
                // The channel, and the message.
                PushKind::Message => {
                    if let (Some(receiver), Some(Value::BulkString(message))) = (receiver.upgrade(), push.data.get(1)) {
                        receiver.receive(message);
                    }
                }
                PushKind::Disconnection => {
                    lost.store(true, Ordering::Release);
                    wake.notify_one();
                }
                _ => {}
            }
            Ok::<_, SendError>(())
        };
        let mut connection = open_subscriber(settings, subscriber.link.nodes(), push).await?;
        let subscribed = timeout(limit, connection.subscribe(&*subscriber.key)).await;
        let late = |_| Failure::timeout(format!("not subscribed within {limit:?}"));
        subscribed.map_err(late)?.map_err(|error| Failure::of(&error))?;
        subscriber.is_unread.store(true, Ordering::Release);
        subscriber.wake.notify_one();
        Ok(Self { connection, is_lost, timeout: limit })
    }

    /// Returns when the connection is lost, or no listener is left.
    async fn run(mut self, subscriber: &Weak<Subscriber>, wake: &Notify) {
        let mut looks = 0_u32;
        loop {
            let is_quiet = timeout(LOOK_INTERVAL, wake.notified()).await.is_err();
            let Some(strong) = subscriber.upgrade().filter(|subscriber| subscriber.has_listeners()) else { return };
            if self.is_lost.load(Ordering::Acquire) {
                return;
            }
            looks = looks.wrapping_add(u32::from(is_quiet));
            if is_quiet && looks.is_multiple_of(LOOKS_PER_READ) {
                strong.is_unread.store(true, Ordering::Release);
            }
            strong.read().await;
            drop(strong);
            if is_quiet && looks.is_multiple_of(LOOKS_PER_PING) {
                let ping = redis::cmd("PING");
                if !matches!(timeout(self.timeout, ping.query_async::<Value>(&mut self.connection)).await, Ok(Ok(_))) {
                    return;
                }
            }
        }
    }
}
