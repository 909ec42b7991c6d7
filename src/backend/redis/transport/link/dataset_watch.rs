//! Notices that the store has lost its data, or that its clock was set back: checks what
//! identifies the dataset, in a call of a batch that is sent in any case, or else beside one.
//!
//! Invariant: the listener is called before any reply that shows the loss is used.

use std::sync::{Arc, atomic::Ordering};

use redis::{RedisError, Value};

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
    /// How often the store was found to have lost data.
    pub(crate) fn memory_lost(&self) -> u64 {
        self.dataset.losses.load(Ordering::Relaxed)
    }

    /// The latest time that the server's clock has had, in microseconds since the
    /// Unix epoch, if it was set back since; else 0.
    pub(crate) fn latest_time(&self) -> u64 {
        self.dataset.latest_time.load(Ordering::Relaxed)
    }

    /// Calls the one `listener` whenever the store has lost data. It must not
    /// block.
    pub(crate) fn on_memory_lost(&self, listener: impl Fn() + Send + Sync + 'static) {
        let _ = self.dataset.listener.set(Box::new(listener));
    }

    /// A check for a batch that is about to be sent; `None` where it is not due, or in a
    /// cluster, where the key is in a hash slot of its own.
    pub(crate) fn dataset_check(&self) -> Option<DatasetCheck> {
        (!self.settings.is_cluster() && self.dataset.starts_check()).then(|| self.new_check())
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
        if self.dataset.latest_time.swap(latest, Ordering::Relaxed) == 0 && latest > 0 {
            self.report.clock_set_back();
        }
        let Some(reason) = lock(&self.dataset.id).update(now) else { return };
        self.dataset.losses.fetch_add(1, Ordering::Relaxed);
        self.report.memory_lost(reason, self.log_time());
        if let Some(listener) = self.dataset.listener.get() {
            listener();
        }
    }

    /// Checks the dataset in a call of its own, if that is due and its server can be called.
    pub(super) fn check_dataset(self: &Arc<Self>) {
        if !self.dataset.starts_check() {
            return;
        }
        let link = Arc::clone(self);
        self.runtime.spawn(async move {
            let Ok(server) = link.owner(|| slot_of(&link.new_check().key)) else { return };
            if server.breaker.rejection().is_none()
                && let Some(connection) = server.first_connection()
                && let Ok(dataset) = link.read_dataset(&connection).await
            {
                link.update_dataset(DatasetId { processes: link.topology.load().processes(), ..dataset });
            }
        });
    }
}
