//! Whether the store still has the data that it had: a dataset id and a
//! last-seen time, which `rl:epoch` stores without a TTL. A change of either
//! reveals that data was lost. Also whether its clock was set back. It does no I/O.
//!
//! Invariant: a failover to a replica that has everything is no loss. The listener is called
//! before any reply that shows a loss is used.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::Value;
use tokio::time::Instant;

use crate::{
    backend::redis::{settings::Settings, wire::DatasetCheck},
    jitter::draw,
    observe::StoreReport,
    sync::lock,
};

/// What identifies a store's dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DatasetId {
    /// The id that the dataset contains.
    pub(crate) id: Option<String>,
    /// When it was last seen before this check, and the time of this check: in
    /// microseconds of the server's clock, as the dataset contains them.
    pub(crate) seen: Option<(u64, u64)>,
    /// The latest time that the server's clock has had, if it was set back since;
    /// else 0.
    pub(crate) latest: u64,
    /// The server process at each address. A restart or a failover changes it,
    /// and may have lost the last writes. Empty without a cluster, or without
    /// the right to run `INFO`.
    pub(crate) processes: BTreeMap<String, String>,
}

impl DatasetId {
    /// Takes the present one. Returns why data was lost, if it was.
    pub(crate) fn update(&mut self, now: Self) -> Option<&'static str> {
        let last_seen = self.seen.map_or(0, |(_, seen)| seen);
        if now.id == self.id && now.seen.is_some_and(|(_, seen)| seen < last_seen) {
            // Two checks at the same time, and this is the earlier one.
            return None;
        }
        let is_older = now.seen.is_some_and(|(before, _)| before < last_seen);
        let is_other =
            |(address, process): (&String, &String)| self.processes.get(address).is_some_and(|known| known != process);
        let has_restarted = now.processes.iter().any(is_other);
        let has_joined = |address: &String| !self.processes.contains_key(address);
        let has_newcomer = !self.processes.is_empty() && now.processes.keys().any(has_joined);
        let is_missing = self.processes.keys().any(|address| !now.processes.contains_key(address));
        let is_replaced = has_newcomer && is_missing;
        let lost = match (&self.id, &now.id) {
            (Some(then), Some(now)) if then != now => {
                Some("the dataset is another one: the store was emptied, or restarted without it")
            }
            _ if is_older => {
                Some("the dataset is an older one: restored from a snapshot, or from a replica that lagged")
            }
            _ if has_restarted => Some("a server was restarted, or another one took its address"),
            // A missing one alone may only be unreachable, and a newcomer alone
            // took over hash slots with their data.
            _ if is_replaced => Some("a server was replaced by another one"),
            _ => None,
        };
        if now.id.is_some() {
            (self.id, self.seen) = (now.id, now.seen);
        }
        if is_replaced {
            self.processes = now.processes;
        } else {
            self.processes.extend(now.processes);
        }
        lost
    }
}

/// The shortest time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// What is known of the dataset, and who is told of a loss.
pub(crate) struct DatasetWatch {
    /// The key that stores what identifies it.
    pub(super) key: String,
    id: Mutex<DatasetId>,
    latest_time: AtomicU64,
    losses: AtomicU64,
    listener: OnceLock<Box<dyn Fn() + Send + Sync>>,
    last_check: Mutex<Instant>,
    report: Arc<StoreReport>,
    uses_limiter_time: bool,
}

impl DatasetWatch {
    pub(super) fn new(settings: &Settings, report: &Arc<StoreReport>) -> Self {
        Self {
            key: format!("{}:epoch", settings.prefix),
            id: Mutex::default(),
            latest_time: AtomicU64::new(0),
            losses: AtomicU64::new(0),
            listener: OnceLock::new(),
            last_check: Mutex::new(Instant::now()),
            report: Arc::clone(report),
            uses_limiter_time: settings.uses_limiter_time,
        }
    }

    /// How often the store was found to have lost data.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }

    /// The latest time that the server's clock has had, in microseconds since the
    /// Unix epoch, if it was set back since; else 0.
    pub(crate) fn latest_time(&self) -> u64 {
        self.latest_time.load(Ordering::Relaxed)
    }

    /// Calls the one `listener` whenever the store has lost data. It must not
    /// block.
    pub(crate) fn on_loss(&self, listener: impl Fn() + Send + Sync + 'static) {
        let _ = self.listener.set(Box::new(listener));
    }

    /// A check for a call.
    pub(super) fn check(&self) -> DatasetCheck {
        DatasetCheck {
            key: self.key.clone(),
            id: format!("{:032x}", u128::from(draw(u64::MAX)) << 64 | u128::from(draw(u64::MAX))),
        }
    }

    /// Whether it is to be checked by the call that is about to be sent.
    pub(super) fn is_due(&self) -> bool {
        let mut last = lock(&self.last_check);
        let is_due = last.elapsed() >= CHECK_INTERVAL;
        if is_due {
            *last = Instant::now();
        }
        is_due
    }

    /// Takes what identifies the dataset now.
    pub(super) fn update(&self, now: DatasetId) {
        let latest = if self.uses_limiter_time { 0 } else { now.latest };
        if self.latest_time.swap(latest, Ordering::Relaxed) == 0 && latest > 0 {
            self.report.clock_set_back();
        }
        let Some(reason) = lock(&self.id).update(now) else { return };
        self.losses.fetch_add(1, Ordering::Relaxed);
        self.report.memory_lost(reason);
        if let Some(listener) = self.listener.get() {
            listener();
        }
    }
}

/// A clock that is behind its latest time by at most this, in microseconds, was not
/// set back.
const TOLERANCE: u64 = 1_000_000;

/// Takes what `dataset.lua` says off the reply of a call that has checked it. Returns that
/// and the rest.
pub(super) fn take_check(reply: Value) -> (Option<DatasetId>, Value) {
    let Value::Array(mut replies) = reply else { return (None, reply) };
    let check = replies.pop().and_then(|check| redis::from_redis_value::<String>(check).ok());
    (check.as_deref().and_then(parse), replies.pop().unwrap_or(Value::Nil))
}

fn parse(reply: &str) -> Option<DatasetId> {
    let (id, times) = reply.split_once(':')?;
    let times: Vec<u64> = times.split(':').map(|time| time.parse().ok()).collect::<Option<_>>()?;
    let [before, seen, now] = times[..] else { return None };
    let latest = if seen.saturating_sub(now) > TOLERANCE { seen } else { 0 };
    Some(DatasetId { id: Some(id.into()), seen: Some((before, seen)), latest, processes: BTreeMap::new() })
}

#[cfg(test)]
mod tests;
