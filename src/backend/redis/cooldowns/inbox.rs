//! The cooldowns of other instances: read from the store, or received as
//! messages, and passed to the listeners. It has no connection of its own: see
//! `subscription`.
//!
//! Invariant: what was published before a listener was added is read for it.

use std::sync::{
    Arc, Mutex, Weak,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::Notify;

use super::{
    message::{MAX_KEYS, cooldowns, lines},
    publisher::{LANE, is_permanent},
};
use crate::{
    backend::{
        CooldownListener, CooldownNotice,
        redis::{
            sync::lock,
            transport::link::Link,
            wire::{Call, READ_COOLDOWNS},
        },
    },
    error::BackendError,
    observe::log_cooldown_subscription,
};

pub(super) struct Inbox {
    pub(super) link: Arc<Link>,
    /// The sorted set of cooldowns, and the channel.
    pub(super) key: Arc<str>,
    listeners: Mutex<Listeners>,
    /// Wakes the subscription.
    pub(super) wake: Arc<Notify>,
    /// Whether the sorted set is to be read.
    is_unread: AtomicBool,
    has_failed: AtomicBool,
}

#[derive(Default)]
struct Listeners {
    all: Vec<Weak<dyn CooldownListener>>,
    /// Whether a subscription runs for them.
    are_subscribed: bool,
}

impl Inbox {
    pub(super) fn new(link: Arc<Link>, key: Arc<str>) -> Self {
        Self {
            link,
            key,
            listeners: Mutex::default(),
            wake: Arc::default(),
            is_unread: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
        }
    }

    /// Adds a listener. Whether a subscription has to be started for it.
    pub(super) fn add(&self, listener: Weak<dyn CooldownListener>) -> bool {
        let mut listeners = lock(&self.listeners);
        listeners.all.push(listener);
        let is_first = !std::mem::replace(&mut listeners.are_subscribed, true);
        drop(listeners);
        if !is_first {
            self.request_read();
        }
        is_first
    }

    /// Whether any listener is left. If none is, the subscription has to end.
    pub(super) fn has_listeners(&self) -> bool {
        let mut listeners = lock(&self.listeners);
        listeners.all.retain(|listener| listener.strong_count() > 0);
        listeners.are_subscribed = !listeners.all.is_empty();
        listeners.are_subscribed
    }

    /// Makes the subscription read the sorted set.
    pub(super) fn request_read(&self) {
        self.mark_unread();
        self.wake.notify_one();
    }

    pub(super) fn mark_unread(&self) {
        self.is_unread.store(true, Ordering::Release);
    }

    /// Passes on the cooldowns of a message.
    pub(super) fn receive(&self, message: &[u8]) {
        if let Some(lines) = lines(message, self.link.settings().database()) {
            let listeners = self.listeners();
            cooldowns(lines).for_each(|cooldown| notify(&listeners, &cooldown.notice()));
        }
    }

    /// Reads the sorted set if it is unread. Without a reply it stays unread.
    pub(super) async fn read(&self) {
        if !self.is_unread.swap(false, Ordering::AcqRel) {
            return;
        }
        let reply = self.link.call(LANE, &Call::new(&READ_COOLDOWNS, [&*self.key], 1, b"")).await;
        let lines = match reply.map(redis::from_redis_value::<Vec<u8>>) {
            Ok(Ok(lines)) => lines,
            // The key holds something else, or may not be read.
            Ok(Err(_)) => return,
            Err(error) if is_permanent(&error) => return self.report(Some(&error)),
            Err(_) => return self.mark_unread(),
        };
        let listeners = self.listeners();
        for (index, cooldown) in cooldowns(&String::from_utf8_lossy(&lines)).enumerate() {
            notify(&listeners, &cooldown.notice());
            if index % MAX_KEYS == MAX_KEYS - 1 {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Logs that receiving has failed, or works again: each once.
    pub(super) fn report(&self, error: Option<&BackendError>) {
        if self.has_failed.swap(error.is_some(), Ordering::AcqRel) != error.is_some() {
            log_cooldown_subscription(&self.link.settings().servers, error);
        }
    }

    fn listeners(&self) -> Vec<Weak<dyn CooldownListener>> {
        lock(&self.listeners).all.clone()
    }
}

fn notify(listeners: &[Weak<dyn CooldownListener>], notice: &CooldownNotice<'_>) {
    listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener.on_cooldown(notice));
}
