//! How a link checks the store's dataset, in a call of its own or in one that is sent in
//! any case, and what follows from it.
//!
//! Invariant: the listener is called before any reply that shows the loss is used.

use std::{collections::BTreeMap, future::Future, sync::atomic::Ordering};

use redis::{RedisResult, Value};
use tokio::time::timeout;

use super::Link;
use crate::backend::redis::{
    sync::lock,
    transport::{
        connect::Connections,
        dataset::{self, DatasetId},
        failure::Failure,
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

    pub(super) async fn read_dataset(&self, connections: &Connections) -> Result<DatasetId, Failure> {
        let DatasetCheck { key, id } = self.new_check();
        let call = Call::new(&CHECK_DATASET, [&*key], 1, id.as_bytes());
        let reply = self.within(connections.evaluate(0, &call)).await;
        let text = reply
            .and_then(|reply| redis::from_redis_value::<String>(reply).map_err(|error| self.classify(&error.into())));
        let id = match text {
            Ok(text) => dataset::parse(&text).unwrap_or_default(),
            // The node that has the key is not the whole cluster.
            Err(failure) if failure.effect.is_some() => {
                self.within(connections.any_evaluates()).await.map_err(|_| failure)?;
                DatasetId { latest: self.latest_time(), ..DatasetId::default() }
            }
            Err(failure) => return Err(failure),
        };
        // The key is on one node of a cluster, so the processes of all nodes
        // identify the rest. A node that is emptied while it runs goes
        // unnoticed, unless it has the key.
        let processes = match self.settings.is_cluster() {
            true => self.within(async { Ok(connections.processes().await) }).await.unwrap_or_default(),
            false => BTreeMap::new(),
        };
        Ok(DatasetId { processes, ..id })
    }

    pub(super) async fn within<T>(&self, call: impl Future<Output = RedisResult<T>>) -> Result<T, Failure> {
        let limit = self.settings.connect_timeout;
        match timeout(limit, call).await {
            Ok(reply) => reply.map_err(|error| self.classify(&error)),
            Err(_) => Err(Failure::timeout(format!("no answer within {limit:?}"))),
        }
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
