//! How a link checks the store's dataset, in a call of its own or in one that is sent in
//! any case, and what follows from it.
//!
//! Invariant: the listener is called before any reply that shows the loss is used.

use std::sync::{Arc, Weak, atomic::Ordering};

use redis::{RedisError, Value};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::Link;
use crate::backend::redis::{
    sync::lock,
    transport::{
        cluster::slot_of,
        connect::within,
        dataset::{self, DatasetId},
        failure::Failure,
        server::Connection,
    },
    wire::{CHECK_DATASET, Call, DatasetCheck},
};

impl Link {
    /// A check for a call that is sent in any case; `None` where it is not
    /// due, or in a cluster, where the key is in a hash slot of its own.
    pub(crate) fn dataset_check(&self) -> Option<DatasetCheck> {
        (!self.settings.is_cluster() && self.last_check.is_due()).then(|| self.new_check())
    }

    fn new_check(&self) -> DatasetCheck {
        DatasetCheck { key: format!("{}:epoch", self.settings.prefix), id: dataset::random_id() }
    }

    /// Takes the id from the reply of a call that has checked it. Returns the rest.
    pub(super) fn take_check(&self, reply: Value) -> Value {
        let Value::Array(mut replies) = reply else { return reply };
        if let Some(check) = replies.pop()
            && let Some(id) = redis::from_redis_value::<String>(check).ok().as_deref().and_then(dataset::parse)
        {
            self.last_check.checked(true);
            self.update_dataset(id);
        }
        replies.pop().unwrap_or(Value::Nil)
    }

    /// Reads what identifies the dataset, over a connection to the server that has its key.
    pub(super) async fn read_dataset(&self, connection: &Connection) -> Result<DatasetId, Failure> {
        let DatasetCheck { key, id } = self.new_check();
        let call = Call::new(&CHECK_DATASET, [&*key], 1, id.as_bytes());
        let read =
            async { redis::from_redis_value(connection.evaluate(&call, false).await?).map_err(RedisError::from) };
        let text: String = within(self.settings.connect_timeout, read).await?;
        Ok(dataset::parse(&text).unwrap_or_default())
    }

    pub(super) fn update_dataset(&self, now: DatasetId) {
        let latest = if self.settings.uses_limiter_time { 0 } else { now.latest };
        if self.latest_time.swap(latest, Ordering::Relaxed) == 0 && latest > 0 {
            self.report.clock_set_back();
        }
        let Some(reason) = lock(&self.dataset).update(now) else { return };
        self.memory_lost.fetch_add(1, Ordering::Relaxed);
        self.report.memory_lost(reason, self.log_time());
        if let Some(listener) = self.memory_lost_listener.get() {
            listener();
        }
    }
}

/// Checks the dataset once a second while the store is used, unless calls that are sent in
/// any case do.
pub(super) async fn watch_dataset(link: Weak<Link>, used: Arc<Notify>) {
    loop {
        used.notified().await;
        let mut due = link.upgrade().map(|link| link.last_check.next());
        while let Some(at) = due.filter(|at| *at > Instant::now()) {
            sleep_until(at).await;
            due = link.upgrade().map(|link| link.last_check.next());
        }
        let Some(link) = link.upgrade() else { return };
        if !link.is_used.swap(false, Ordering::Relaxed) {
            continue;
        }
        let key = link.new_check().key;
        let Ok(server) = link.owner(|| slot_of(&key)) else { continue };
        if server.breaker.rejection().is_none()
            && let Some(connection) = server.connections().and_then(|present| present.all.first().cloned())
        {
            link.last_check.checked(false);
            if let Ok(dataset) = link.read_dataset(&connection).await {
                link.update_dataset(DatasetId { processes: link.topology.load().processes(), ..dataset });
            }
        }
    }
}
