//! Whether the store still has the data that it had: a dataset id and a
//! last-seen time, which `rl:epoch` stores without a TTL. A change of either
//! reveals that data was lost. It does no I/O.
//!
//! Invariant: a failover to a replica that has everything is no loss.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::backend::redis::{sync::lock, wire::Call};

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

/// The shortest time between two checks in calls of their own.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// What is known of the dataset.
#[derive(Default)]
pub(crate) struct DatasetWatch {
    pub(super) id: Mutex<DatasetId>,
    pub(super) latest_time: AtomicU64,
    pub(super) losses: AtomicU64,
    pub(super) listener: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// When it was checked last, and whether in a call that was sent in any case: while
    /// those check it, it needs none of its own.
    last_check: Mutex<Option<(Instant, bool)>>,
    /// Whether a call was made since then.
    pub(super) is_used: AtomicBool,
    pub(super) used: Arc<Notify>,
}

impl DatasetWatch {
    /// A call is made. It is a reason for a check, unless it is one.
    pub(super) fn called(&self, call: &Call) {
        if call.checks_dataset() {
            self.is_used.store(false, Ordering::Relaxed);
        } else if !self.is_used.swap(true, Ordering::Relaxed) {
            self.used.notify_one();
        }
    }

    pub(super) fn checked(&self, with_call: bool) {
        *lock(&self.last_check) = Some((Instant::now(), with_call));
    }

    fn last_check(&self) -> (Instant, bool) {
        *lock(&self.last_check).get_or_insert_with(|| (Instant::now(), false))
    }

    /// Whether a call that is sent in any case is to check it.
    pub(super) fn is_due_soon(&self) -> bool {
        self.last_check().0.elapsed() >= CHECK_INTERVAL / 2
    }

    /// When the next check of its own is due: later if another call may do it before.
    pub(super) fn due(&self) -> Instant {
        let (last, with_call) = self.last_check();
        last + if with_call { CHECK_INTERVAL * 3 / 2 } else { CHECK_INTERVAL }
    }
}

/// A clock that is behind its latest time by at most this, in microseconds, was not
/// set back.
const TOLERANCE: u64 = 1_000_000;

/// Reads the reply of `check_dataset` in `dataset.lua`.
pub(crate) fn parse(reply: &str) -> Option<DatasetId> {
    let (id, times) = reply.split_once(':')?;
    let times: Vec<u64> = times.split(':').map(|time| time.parse().ok()).collect::<Option<_>>()?;
    let [before, seen, now] = times[..] else { return None };
    let latest = if seen.saturating_sub(now) > TOLERANCE { seen } else { 0 };
    Some(DatasetId { id: Some(id.into()), seen: Some((before, seen)), latest, processes: BTreeMap::new() })
}

/// An id for a dataset that has none.
pub(crate) fn random_id() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

/// The id of the server process, from the reply of `INFO server`.
pub(crate) fn run_id(info: &str) -> Option<&str> {
    info.lines().find_map(|line| line.strip_prefix("run_id:")).map(str::trim).filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests;
