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

use redis::{PushInfo, PushKind, Value, aio::MultiplexedConnection};
use tokio::{
    sync::{Notify, mpsc::UnboundedReceiver},
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
    jitter::{doubled, shorten},
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
    listeners: Mutex<Vec<Weak<CooldownListener>>>,
    started: Once,
    /// Notified when there is a listener again.
    added: Arc<Notify>,
    has_failed: AtomicBool,
}

impl Subscriber {
    pub(crate) fn new(link: &Arc<Link>) -> Self {
        Self {
            link: Arc::clone(link),
            key: format!("{}:cooldowns", link.settings.prefix),
            listeners: Mutex::default(),
            started: Once::new(),
            added: Arc::default(),
            has_failed: AtomicBool::new(false),
        }
    }

    /// Notifies a limiter of cooldowns from now on.
    pub(crate) fn add(self: &Arc<Self>, listener: Weak<CooldownListener>) {
        lock(&self.listeners).push(listener);
        self.added.notify_one();
        if self.started.is_completed() {
            let subscriber = Arc::clone(self);
            self.link.runtime.spawn(async move { subscriber.read().await });
        }
        let (weak, added) = (Arc::downgrade(self), Arc::clone(&self.added));
        self.started.call_once(|| self.link.runtime.keep(run(weak, added)));
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

    /// Reads the sorted set. `false` if that is to be tried again.
    async fn read(&self) -> bool {
        let reply = self.link.call(LANE, &Call::new(&READ_COOLDOWNS, [&*self.key], 1, b"")).await;
        let lines = match reply.map(redis::from_redis_value::<Vec<u8>>) {
            Ok(Ok(lines)) => lines,
            // The key holds something else, or may not be read.
            Ok(Err(_)) => return true,
            Err(error) => {
                let is_permanent = is_permanent(&error);
                if is_permanent {
                    self.report(Some(&error));
                }
                return is_permanent;
            }
        };
        let listeners = lock(&self.listeners).clone();
        for (index, line) in String::from_utf8_lossy(&lines).split('\n').enumerate() {
            let _ = read(line, |notice| notify(&listeners, notice));
            if index % MAX_KEYS == MAX_KEYS - 1 {
                tokio::task::yield_now().await;
            }
        }
        true
    }

    /// Logs that receiving has failed, or works again: each once.
    fn report(&self, error: Option<&BackendError>) {
        if self.has_failed.swap(error.is_some(), Ordering::AcqRel) != error.is_some() {
            log_cooldown_subscription(&self.link.settings.servers, error);
        }
    }

    /// Opens a connection that has subscribed.
    async fn subscribe(&self) -> Result<Subscription, Failure> {
        let settings = &self.link.settings;
        let limit = settings.connect_timeout;
        let (mut connection, pushes) = open_subscriber(settings, self.link.nodes()).await?;
        let subscribed = timeout(limit, connection.subscribe(&*self.key)).await;
        let late = |_| Failure::timeout(format!("not subscribed within {limit:?}"));
        subscribed.map_err(late)?.map_err(|error| Failure::of(&error))?;
        Ok(Subscription { connection, pushes, timeout: limit })
    }
}

fn notify(listeners: &[Weak<CooldownListener>], notice: &CooldownNotice<'_>) {
    listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener(notice));
}

/// Keeps a subscription open while there are listeners.
async fn run(subscriber: Weak<Subscriber>, added: Arc<Notify>) {
    let mut failures = 0_u32;
    while let Some(strong) = subscriber.upgrade() {
        if !strong.has_listeners() {
            drop(strong);
            added.notified().await;
            continue;
        }
        let BreakerSettings { shortest, longest, .. } = strong.link.settings.breaker;
        let opened = strong.subscribe().await;
        strong.report(opened.as_ref().err().map(|failure| &failure.error));
        drop(strong);
        if let Ok(subscription) = opened {
            failures = 0;
            subscription.receive(&subscriber).await;
        }
        // As between the breaker's probes.
        sleep_until(Instant::now() + shorten(doubled(shortest, failures, longest))).await;
        failures += 1;
    }
}

/// An open connection that has subscribed.
struct Subscription {
    connection: MultiplexedConnection,
    pushes: UnboundedReceiver<PushInfo>,
    timeout: Duration,
}

impl Subscription {
    /// Returns when the connection is lost, or no listener is left.
    async fn receive(mut self, subscriber: &Weak<Subscriber>) {
        let (mut looks, mut is_read) = (0_u32, false);
        while let Some(strong) = subscriber.upgrade().filter(|subscriber| subscriber.has_listeners()) {
            is_read = is_read || strong.read().await;
            drop(strong);
            match timeout(LOOK_INTERVAL, self.pushes.recv()).await {
                Ok(Some(PushInfo { kind: PushKind::Message, data })) => {
                    // The channel, and the message.
                    if let (Some(receiver), Some(Value::BulkString(message))) = (subscriber.upgrade(), data.get(1)) {
                        receiver.receive(message);
                    }
                }
                Ok(None | Some(PushInfo { kind: PushKind::Disconnection, .. })) => return,
                Ok(Some(_)) => {}
                Err(_) => {
                    looks = looks.wrapping_add(1);
                    is_read &= !looks.is_multiple_of(LOOKS_PER_READ);
                    if looks.is_multiple_of(LOOKS_PER_PING) && !self.replies().await {
                        return;
                    }
                }
            }
        }
    }

    async fn replies(&mut self) -> bool {
        let ping = redis::cmd("PING");
        matches!(timeout(self.timeout, ping.query_async::<Value>(&mut self.connection)).await, Ok(Ok(_)))
    }
}
