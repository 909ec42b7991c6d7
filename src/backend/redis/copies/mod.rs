//! This process's copies of counters in the store: the level `eventual` decides by
//! them. A copy counts by the machines that count for `Local`. It also says what of it
//! is not reported to the store yet, and how much may be charged until it is. It sends
//! nothing.
//!
//! The machines run on the store's time, so that windows end at the same time
//! everywhere.
//!
//! Invariant: the number of copies is capped, and none with units to report is
//! dropped. A key without a copy is decided by the store.

mod budget;
mod copy;
mod counts;
mod decide;
mod offset;
mod streams;
#[cfg(test)]
mod tests;
mod timed_units;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{sync::Notify, time::Instant};

pub(crate) use self::streams::{StreamId, stream_of};
use self::{
    budget::SHORTEST,
    copy::{LocalCopy, on_store},
    offset::Offset,
    streams::{Next, Streams},
};
use super::{
    instances::Instances,
    limiter_time::LimiterTime,
    plan::{Counters, KeyReport, PlanContext, SentAt, SharedCounters, SyncBatch, micros},
    shared::Shared,
    sync::lock,
    wire::decode::SyncReply,
};
use crate::{
    backend::{Charge, Outcome},
    fingerprint::Fingerprint,
    store::ShardedTable,
    time::nanos,
};

/// The most counters in a batch: each has two keys.
const MAX_COUNTERS: usize = 990;

/// For how many nanoseconds an instance counts that has reported: at least this, and
/// at least two intervals.
const LATELY: u64 = 1_000_000_000;

pub(crate) struct Copies {
    /// Boxed, since they are large and some of the table is free.
    table: ShardedTable<Option<Box<LocalCopy>>>,
    shared: Mutex<Shared<SharedCounters>>,
    /// How far the store's clock is ahead, for each lane.
    offsets: Box<[Offset]>,
    streams: Mutex<Streams>,
    /// Notified when something is due, and when a batch has ended.
    pub(crate) changed: Notify,
    pub(crate) replied: Notify,
    time: LimiterTime,
    /// The start of the intervals.
    origin: Instant,
    /// Names this process in the store.
    instance: u64,
    instances: Arc<Instances>,
    /// For how many nanoseconds what is known rejects requests: others give units back.
    rejections_last: u64,
}

/// Which copies a request was charged to, with the units and the store's time.
pub(crate) type Charged = SmallVec<[(Fingerprint, u64, u64); 2]>;

/// What the copies make of a request.
#[allow(clippy::large_enum_variant, reason = "returned at once; a box would allocate on each decision")]
pub(crate) enum Take {
    Decided(Outcome, Charged),
    /// The store has to decide.
    Ask,
}

/// What a batch has made known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Exchange {
    pub(crate) keys: usize,
    pub(crate) units: u64,
    /// Units beyond the limits, of all keys.
    pub(crate) excess: u64,
    /// For how long the oldest of the copies was not renewed.
    pub(crate) staleness: Duration,
}

impl Copies {
    pub(crate) fn new(
        lanes: usize,
        (instance, instances): (u64, &Arc<Instances>),
        uses_limiter_time: bool,
        rejections_last: Duration,
    ) -> Self {
        Self {
            table: ShardedTable::new(),
            shared: Mutex::default(),
            offsets: (0..lanes).map(|_| Offset::default()).collect(),
            streams: Mutex::default(),
            changed: Notify::new(),
            replied: Notify::new(),
            time: LimiterTime::new(uses_limiter_time),
            origin: Instant::now(),
            instance,
            instances: Arc::clone(instances),
            rejections_last: nanos(rejections_last),
        }
    }

    /// Runs `with` on the copy of a key, if there is one.
    #[inline]
    fn with<R>(&self, key: Fingerprint, with: impl FnOnce(&mut LocalCopy) -> R) -> Option<R> {
        self.table.with(key, |copy| copy.as_deref_mut().map(with)).flatten()
    }

    fn for_each(&self, mut with: impl FnMut(&mut LocalCopy)) {
        self.table.for_each(|_, copy| copy.iter_mut().for_each(|copy| with(copy)));
    }

    /// The store has lost its data: what is known of it is void.
    pub(crate) fn forget(&self) {
        self.for_each(LocalCopy::invalidate);
    }

    /// The counters of a charge, which are to be reported and read at once. `None`
    /// if there is no room for a copy.
    pub(crate) fn want(
        &self,
        context: &PlanContext,
        charge: &Charge<'_>,
        lane: impl FnOnce(&str) -> usize,
        now: u64,
    ) -> Option<Arc<Counters>> {
        self.time.observe(now);
        let version = charge.local_version();
        let is_own = |copy: &LocalCopy| copy.counters.as_ref().filter(|own| own.shared.version == version).cloned();
        let known = self.with(charge.key, |copy| is_own(copy)).flatten();
        let counters = known.unwrap_or_else(|| {
            let lane = lane(&context.hash_tag(charge));
            Arc::new(Counters::new(&self.shared, context, charge, version, lane))
        });
        let (counters, earlier, is_due) = self.table.with_new(charge.key, now, |copy| {
            let copy = copy.get_or_insert_default();
            let own = is_own(copy);
            let earlier = if own.is_none() { copy.replace(&counters) } else { None };
            copy.ask(charge.cost, now);
            (own.unwrap_or(counters), earlier, copy.make_due())
        })?;
        let mut streams = lock(&self.streams);
        if let Some(earlier) = earlier {
            streams.add_ready(earlier);
        }
        if is_due {
            streams.add_due(Arc::clone(&counters));
        }
        Some(counters)
    }

    /// What a copy knows of the store is void: something else changes its counters
    /// there.
    pub(crate) fn invalidate(&self, key: Fingerprint) {
        self.with(key, LocalCopy::invalidate);
    }

    /// Whether a charge has a copy.
    pub(crate) fn has(&self, key: Fingerprint) -> bool {
        self.with(key, |copy| copy.counters.is_some()) == Some(true)
    }

    /// The store has decided what it was asked for by [`Self::want`], or never will.
    pub(crate) fn decided(&self, key: Fingerprint, cost: u64) {
        self.with(key, |copy| copy.on_decided(cost));
    }

    /// Whether a key has something to report that is not on its way, also under an
    /// earlier policy.
    pub(crate) fn is_unsent(&self, counters: &Counters) -> bool {
        self.with(counters.key, |copy| copy.has_reports()) == Some(true) || lock(&self.streams).has_ready(counters)
    }

    /// The number of the call that carries a batch.
    pub(crate) fn call_of(&self, batch: &SyncBatch) -> u64 {
        lock(&self.streams).call_of(batch)
    }

    /// The number of the last call with a batch.
    pub(crate) fn last_number(&self) -> u64 {
        lock(&self.streams).last_number()
    }

    /// Reports a key after `wait` nanoseconds, together with others.
    #[cold]
    fn schedule(&self, counters: Arc<Counters>, wait: u64, now: u64) {
        self.time.observe(now);
        if self.time.decides {
            self.make_due([counters]);
            return self.changed.notify_one();
        }
        // All reports of an interval leave at the same time.
        let step = if wait >= counters.shared.interval { counters.shared.interval } else { SHORTEST };
        let passed = nanos(self.origin.elapsed()).saturating_add(wait.saturating_sub(step));
        let at = self.origin + Duration::from_nanos((passed / step.max(1) + 1).saturating_mul(step.max(1)));
        let mut streams = lock(&self.streams);
        let is_first = streams.next_due().is_none_or(|first| at < first);
        streams.schedule(at, counters);
        drop(streams);
        if is_first {
            self.changed.notify_one();
        }
    }

    fn make_due(&self, counters: impl IntoIterator<Item = Arc<Counters>>) {
        for counters in counters {
            let make_due = |copy: &mut LocalCopy| copy.is_of(&counters) && copy.is_scheduled() && copy.make_due();
            let is_due = self.with(counters.key, make_due);
            if is_due == Some(true) {
                lock(&self.streams).add_due(counters);
            }
        }
    }

    /// Tries all batches without a reply again, and sends what is due.
    pub(crate) fn waiting(&self, now: Instant) -> Vec<StreamId> {
        let due = lock(&self.streams).take_due(now);
        self.make_due(due);
        lock(&self.streams).waiting()
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        lock(&self.streams).next_due()
    }

    /// Whether nothing is due, and no batch is without a reply.
    pub(crate) fn is_idle(&self) -> bool {
        lock(&self.streams).is_idle()
    }

    /// All that is not reported is due now. Returns how many keys that are.
    pub(crate) fn make_all_due(&self) -> usize {
        let mut all = Vec::new();
        self.for_each(|copy| {
            if copy.has_reports() && copy.make_due() {
                all.extend(copy.counters.clone());
            }
        });
        let count = all.len();
        let mut streams = lock(&self.streams);
        all.into_iter().for_each(|counters| streams.add_due(counters));
        count
    }

    /// Units that were charged here and that the store is not known to have.
    pub(crate) fn unreported(&self) -> u64 {
        let mut units = lock(&self.streams).unreported();
        self.for_each(|copy| units = units.saturating_add(copy.unreported()));
        units
    }

    /// The next batch of a stream, if none is on its way.
    pub(crate) fn next_batch(&self, stream: &StreamId, prefix: &str) -> Option<Arc<SyncBatch>> {
        let mut streams = lock(&self.streams);
        let (number, ready, due) = match streams.next(stream, MAX_COUNTERS) {
            Next::Nothing => return None,
            Next::Again(batch, call) => {
                let again = |copy: &mut LocalCopy, key: &KeyReport| {
                    if copy.is_of(&key.counters) {
                        copy.on_sent(call)
                    }
                };
                batch.keys.iter().for_each(|key| _ = self.with(key.counters.key, |copy| again(copy, key)));
                return Some(batch);
            }
            Next::New { number, ready, due } => (number, ready, due),
        };
        let (lane, hash_tag) = (stream.0, Arc::clone(&stream.1));
        let now = self.limiter_now();
        let store_now = on_store(now, self.ahead(lane));
        let report = |counters: Arc<Counters>| {
            let own = |copy: &mut LocalCopy| {
                if copy.is_of(&counters) { copy.report(store_now, number) } else { None }
            };
            self.with(counters.key, own).flatten()
        };
        let keys: Vec<KeyReport> = ready.into_iter().chain(due.into_iter().filter_map(report)).collect();
        if keys.is_empty() {
            return None;
        }
        let longest = keys.iter().map(|key| key.counters.shared.interval).max().unwrap_or(0);
        let lately = micros(LATELY.max(longest.saturating_mul(2)));
        let marker = format!("{prefix}:sync:{{{hash_tag}}}:{}:{lane}", self.instance);
        let now = self.time.decides.then(|| micros(now));
        let batch = Arc::new(SyncBatch { lane, hash_tag, marker, number, lately, now, keys });
        streams.send(stream, &batch);
        Some(batch)
    }

    /// The limiter's time, by the last one that is known.
    pub(crate) fn limiter_now(&self) -> u64 {
        self.time.now().unwrap_or(0)
    }

    /// The store has taken a batch that was sent at `sent`.
    pub(crate) fn synced(&self, batch: &SyncBatch, sent: SentAt, reply: &SyncReply) -> Exchange {
        let took = nanos(sent.1.elapsed());
        let store_now = reply.now.saturating_mul(1_000);
        if !self.time.decides
            && let Some(offset) = self.offsets.get(batch.lane)
        {
            offset.observe(store_now, sent.0.saturating_add(took / 2), took);
        }
        let call = self.call_of(batch);
        let mut exchange = Exchange { keys: batch.keys.len(), units: batch.units(), ..Exchange::default() };
        let mut replies = &reply.counters[..];
        for key in &batch.keys {
            let count = key.counters.tiers().len();
            let Some((own, rest)) = replies.split_at_checked(count * key.reports.len()) else { break };
            replies = rest;
            let own = &own[own.len() - count..];
            let renewed = self.with(key.counters.key, |copy| self.renew(copy, key, own, (store_now, call)));
            let (age, excess) = renewed.unwrap_or_default();
            exchange.staleness = exchange.staleness.max(Duration::from_nanos(age));
            exchange.excess = exchange.excess.saturating_add(excess);
        }
        self.ended(batch, true);
        exchange
    }

    /// Takes the store's counts as the new base, and adds what they lack: each at its time,
    /// since a reply can be late.
    fn renew(
        &self,
        copy: &mut LocalCopy,
        key: &KeyReport,
        replies: &[super::wire::decode::SyncedCounter],
        (store_now, call): (u64, u64),
    ) -> (u64, u64) {
        let instances = replies.iter().map(|reply| reply.instances).max().unwrap_or(0);
        self.instances.observe(instances);
        if !copy.on_reply(key) || replies.iter().any(|reply| reply.instances == 0) {
            return (0, 0);
        }
        let age = if copy.budget.at() > 0 { copy.age(store_now) } else { 0 };
        let tiers = || key.counters.tiers().iter().zip(replies);
        let levels = || tiers().map(|(tier, reply)| (tier, tier.copied(reply.numbers, store_now)));
        let marks = tiers().map(|(tier, reply)| tier.mark(reply.numbers));
        let own = levels().zip(marks).map(|((tier, copied), mark)| (&tier.tier, copied, mark));
        copy.counts.restore(own);
        let missing = copy.missing_from_reply(store_now, self.ahead(key.counters.shared.lane));
        for &(at, units) in &missing {
            copy.counts.add(counts::tiers_of(&key.counters), units, at);
        }
        let own = std::mem::take(&mut copy.own);
        let excess = copy.budget.renew(levels(), (own, instances), store_now, key.counters.shared.interval);
        missing.into_iter().for_each(|(at, units)| copy.budget.deduct(units, at));
        copy.budget.deduct(copy.asked(), store_now);
        copy.know(call);
        (age, excess)
    }

    /// A batch has no reply: it is sent again.
    pub(crate) fn failed(&self, batch: &SyncBatch) {
        self.ended(batch, false);
    }

    fn ended(&self, batch: &SyncBatch, is_taken: bool) {
        lock(&self.streams).on_reply(batch, is_taken);
        self.replied.notify_waiters();
        if is_taken {
            self.changed.notify_one();
        }
    }

    fn ahead(&self, lane: usize) -> i64 {
        self.offsets.get(lane).map_or(0, Offset::ahead)
    }
}
