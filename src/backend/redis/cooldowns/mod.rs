//! Shares cooldowns between instances through the store. Sharing is best
//! effort and in the background: no request waits for it.
//!
//! A cooldown is published for the instances that listen, and kept in a sorted
//! set for those that come later. Instances that listen have a connection of
//! their own for it.
//!
//! Invariant: a shared cooldown only slows down. It never ends one early.

mod inbox;
mod message;
mod outbox;
mod publisher;
mod subscription;

use std::sync::{Arc, Weak};

use self::{inbox::Inbox, publisher::Publisher};
use super::{sync::Tasks, transport::link::Link};
use crate::backend::{CooldownListener, CooldownNotice};

/// Both directions. Dropping it ends the background tasks.
pub(super) struct CooldownSharing {
    publisher: Arc<Publisher>,
    inbox: Arc<Inbox>,
    tasks: Tasks,
}

impl CooldownSharing {
    pub(super) fn new(link: &Arc<Link>) -> Self {
        let key: Arc<str> = format!("{}:cooldowns", link.settings().prefix).into();
        Self {
            publisher: Arc::new(Publisher::new(Arc::clone(link), Arc::clone(&key))),
            inbox: Arc::new(Inbox::new(Arc::clone(link), key)),
            tasks: Tasks::new(link.runtime().clone()),
        }
    }

    /// Publishes a cooldown soon, unless the other instances know it.
    pub(super) fn share(&self, notice: &CooldownNotice<'_>) {
        if self.publisher.put(notice) {
            self.tasks.spawn(publisher::run(Arc::downgrade(&self.publisher)));
        }
    }

    /// Notifies a limiter of the cooldowns of other instances.
    pub(super) fn subscribe(&self, listener: Weak<dyn CooldownListener>) {
        if self.inbox.add(listener) {
            self.tasks.spawn(subscription::run(Arc::downgrade(&self.inbox)));
        }
    }
}
