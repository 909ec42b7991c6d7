//! Decides what becomes of a request or a receipt: an error while the circuit
//! breaker is open, a rejection that the bounded cache in this process knows, a coalesced
//! request, or operations of the lanes. It neither encodes nor sends.
//!
//! Invariant: at most one round trip for a decision in one hash slot.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::{BoxFuture, join_all};
use smallvec::SmallVec;

use super::{
    executor::{Completion, Operation},
    lanes::{Lanes, since},
    leased::pools::Pools,
    plan::{Change, ChargeSet, ReceiptOp},
    transport::{Link, task_runtime::late},
};
use crate::{
    backend::{Charge, Decide, Outcome, OutcomeKind, Receipt, Request, Settlement},
    error::BackendError,
    policy::Tier,
    time::{Timestamp, nanos},
};

/// How many rejections are cached at most.
const CACHED_REJECTIONS: usize = 65_536;

pub(super) struct Dispatcher {
    pub(super) link: Arc<Link>,
    lanes: Arc<Lanes>,
    /// Rejections, each decided at a time of the limiter.
    pub(super) rejections: RejectionCache<Arc<Outcome>>,
    pub(super) pools: Arc<Pools>,
    next_request_id: AtomicU64,
}

impl Dispatcher {
    pub(super) fn new(link: Arc<Link>) -> Arc<Self> {
        let settings = &link.settings;
        let pools = Pools::new(&settings.prefix, settings.uses_limiter_time, &link.report);
        let dispatcher = Arc::new(Self {
            lanes: Lanes::new(&link, &pools),
            rejections: RejectionCache::new(CACHED_REJECTIONS, settings.rejection_cache_ttl),
            pools,
            next_request_id: AtomicU64::new(1),
            link,
        });
        let weak = Arc::downgrade(&dispatcher);
        dispatcher.link.dataset.on_loss(move || {
            if let Some(dispatcher) = weak.upgrade() {
                dispatcher.rejections.clear();
                dispatcher.pools.forget();
            }
        });
        dispatcher
    }

    /// Decides a request by the store, unless it is decided here.
    pub(super) fn ask(self: &Arc<Self>, request: &Request<'_>, asking: Asking) -> Decide {
        if let Some(error) = self.link.rejection() {
            return Decide::Now(Err(error));
        }
        let now = request.now.as_nanos();
        let is_shared = asking != Asking::Peek && can_coalesce(request);
        let key = is_shared.then(|| coalesce_key(request.charges));
        let cache_key = key.filter(|_| is_final(request));
        if asking == Asking::Now
            && let Some(rejection) = cache_key.and_then(|key| self.rejections.get(key, now))
        {
            return Decide::Now(Ok(since(Outcome::clone(&rejection), now)));
        }
        let cache_key = cache_key.map(|key| (key, self.rejections.generation()));
        let caller = Caller { dispatcher: Arc::clone(self), cache_key, now };
        let context = &self.lanes.context;
        // By the limiter's clock, only requests of the same time are the same.
        let key = key.map(|key| if context.uses_limiter_time { key ^ u128::from(now) } else { key });
        if context.is_single_slot
            && asking == Asking::Now
            && let Some(coalesced) = key.and_then(|key| self.lanes.of(request.charges, "").coalesce(key))
        {
            return Decide::Later(Box::pin(async move { caller.outcome(coalesced.await) }));
        }
        let request_id = self.next_request_id.fetch_add(1, Ordering::Relaxed);
        let mut sets = match ChargeSet::split(context, request, request_id) {
            Ok(sets) => sets,
            Err(error) => return Decide::Now(Err(error)),
        };
        let is_partial = sets.len() > 1;
        sets.iter_mut().for_each(|set| (set.is_peek, set.is_partial) = (asking == Asking::Peek, is_partial));
        if let Some(set) = sets.pop_if(|_| !is_partial) {
            let lane = self.lanes.of(request.charges, &set.hash_tag);
            let completion = lane.submit(Operation::Charge(set), key);
            return Decide::Later(Box::pin(async move { caller.outcome(completion.await) }));
        }
        let (lanes, link) = (Arc::clone(&self.lanes), Arc::clone(&self.link));
        Decide::Later(Box::pin(async move {
            let charged = link.deadline.within(lanes.charge_all(sets, now)).await;
            charged.unwrap_or_else(|| Err(late()))
        }))
    }

    /// Forgets what these charges have used, in every hash slot. Returns how many counters
    /// there were.
    pub(super) fn reset(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> BoxFuture<'static, Result<u64, BackendError>> {
        let request = Request::new(charges, now, Duration::ZERO);
        let rejection = self.link.rejection();
        let split = rejection.map_or_else(|| ChargeSet::split(&self.lanes.context, &request, 0), Err);
        let forget = |set: &ChargeSet| {
            let lane = self.lanes.of(charges, &set.hash_tag);
            lane.submit(Operation::Change(Change::forget(set)), None)
        };
        let submitted = split.map(|sets| sets.iter().map(forget).collect::<Vec<_>>());
        let dispatcher = Arc::clone(self);
        Box::pin(async move {
            let results = join_all(submitted?).await;
            // After the replies: a rejection that was decided before is void.
            dispatcher.rejections.clear();
            let forgotten = |result| if let Completion::Changed(count) = result { count } else { 0 };
            results.into_iter().map(|result| result.map(forgotten)).sum()
        })
    }

    /// Refunds, releases or settles what a receipt says. No caller waits for it.
    pub(super) fn change(&self, receipt: &Receipt, op: ReceiptOp, now: Timestamp) {
        let Some(first) = receipt.charges().next() else { return };
        // Rejections are not cached for rules that are settled late.
        if let ReceiptOp::Refund | ReceiptOp::Settle(Settlement::GiveBack(_)) = op
            && receipt.charges().any(|charge| !charge.rule.is_settled_late())
        {
            self.rejections.clear();
        }
        let context = &self.lanes.context;
        let mut tags: SmallVec<[String; 2]> = receipt.charges().map(|charge| context.hash_tag(&charge)).collect();
        tags.sort_unstable();
        tags.dedup();
        for tag in tags {
            let lane = self.lanes.of(std::slice::from_ref(&first), &tag);
            if let Some(receipt) = receipt.clone().only(|charge| context.hash_tag(charge) == tag) {
                lane.push(Operation::ChangeReceipt { receipt, op, now });
            }
        }
    }

    /// Whether a rejection of the request is cached.
    pub(super) fn is_rejected(&self, request: &Request<'_>) -> bool {
        let is_cached = |key| self.rejections.get(key, request.now.as_nanos()).is_some();
        can_coalesce(request) && is_final(request) && is_cached(coalesce_key(request.charges))
    }

    /// What one request is charged, and the index of its lane. `None` if its charges are in
    /// several hash slots.
    pub(super) fn charge_set(&self, request: &Request<'_>) -> Option<(usize, ChargeSet)> {
        let mut sets = ChargeSet::split(&self.lanes.context, request, 0).ok()?;
        let set = sets.pop().filter(|_| sets.is_empty())?;
        Some((self.lanes.index_of(request.charges, &set.hash_tag), set))
    }

    /// Sends operations that no caller waits for, those of one lane together.
    pub(super) fn push_all(&self, operations: impl Iterator<Item = (usize, Operation)>) {
        let mut by_lane = BTreeMap::<_, Vec<_>>::new();
        operations.for_each(|(lane, operation)| by_lane.entry(lane).or_default().push(operation));
        by_lane.into_iter().for_each(|(lane, own)| self.lanes.all[lane].push_all(own));
    }

    /// Sends operations, and waits until they are done or have failed.
    pub(super) async fn submit_all(&self, operations: impl Iterator<Item = (usize, Operation)>) {
        join_all(operations.map(|(lane, operation)| self.lanes.all[lane].submit(operation, None))).await;
    }
}

/// How a request is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Asking {
    /// It may be decided by what is cached, or together with a queued one.
    Now,
    /// Once the future is polled, and not by what was decided before.
    Later,
    /// Without charging anything. Neither coalesced nor cached.
    Peek,
}

/// A caller that waits for a decision.
struct Caller {
    dispatcher: Arc<Dispatcher>,
    /// The key that a rejection is cached under, and the cache's generation.
    cache_key: Option<(u128, u64)>,
    now: u64,
}

impl Caller {
    fn outcome(&self, completion: Result<Completion, BackendError>) -> Result<Outcome, BackendError> {
        let (outcome, guard) = self.dispatcher.lanes.outcome(completion, self.now)?;
        guard.disarm();
        if let Some((key, generation)) = self.cache_key
            && let OutcomeKind::Rejected { retry_after: Some(retry_after) } = outcome.answer
        {
            // Counted from before the call, so it never ends too late.
            let (at, until) = (self.now, self.now.saturating_add(retry_after));
            let rejection = Outcome { decided_at: Some(at), ..outcome.clone() };
            self.dispatcher.rejections.insert(key, (at, until), generation, Arc::new(rejection));
        }
        Ok(outcome)
    }
}

/// Equal for requests with identical charges under the same policy.
fn coalesce_key(charges: &[Charge<'_>]) -> u128 {
    charges.iter().fold(0, |key: u128, charge| {
        key.rotate_left(9) ^ charge.fingerprint() ^ charge.tiers_version() ^ u128::from(charge.cost).rotate_left(37)
    })
}

/// Whether requests with identical charges can be decided as one: none of them
/// can be delayed or hold units.
fn can_coalesce(request: &Request<'_>) -> bool {
    let longest = nanos(request.max_wait);
    let is_plain =
        |charge: &Charge<'_>| charge.max_wait.min(longest) == 0 && !charge.tiers().iter().any(Tier::is_in_flight);
    request.charges.iter().all(is_plain)
}

/// Whether a rejection holds until the time that it names: settling does not
/// usually refund units before.
fn is_final(request: &Request<'_>) -> bool {
    !request.charges.iter().any(|charge| charge.rule.is_settled_late())
}

/// Rejections by key. It decides nothing itself: no entry outlives the time that the
/// rejection names, the TTL, or the last [`RejectionCache::clear`].
///
/// A hash table without probing: a new entry replaces the one with the same
/// index. So it never grows, and a flood of keys only costs others a call.
#[derive(Debug)]
pub(super) struct RejectionCache<T> {
    /// Allocated at the first rejection.
    entries: OnceLock<Box<[CacheEntry<T>]>>,
    size: usize,
    /// Nanoseconds; 0 turns the cache off.
    ttl: u64,
    /// Counts the clearings; entries from before the last one are void.
    generation: AtomicU64,
}

type CacheEntry<T> = spin::Mutex<Option<Entry<T>>>;

#[derive(Debug)]
struct Entry<T> {
    key: u128,
    from: u64,
    until: u64,
    generation: u64,
    rejection: T,
}

impl<T: Clone> RejectionCache<T> {
    fn new(size: usize, ttl: Duration) -> Self {
        Self { entries: OnceLock::new(), size, ttl: nanos(ttl), generation: AtomicU64::new(0) }
    }

    /// The rejection of `key` in force at `now`. One from the future is not:
    /// the clock went back, by an unknown time.
    fn get(&self, key: u128, now: u64) -> Option<T> {
        let entry = self.entry(self.entries.get()?, key)?.lock();
        let entry = entry.as_ref().filter(|entry| entry.key == key && (entry.from..entry.until).contains(&now))?;
        (entry.generation == self.generation()).then(|| entry.rejection.clone())
    }

    /// To be read before the call whose rejection is inserted.
    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Caches that `key` is rejected from `now` until `until`, at most for the
    /// TTL. It is void if the cache was cleared since `generation` was read.
    fn insert(&self, key: u128, (now, until): (u64, u64), generation: u64, rejection: T) {
        let until = until.min(now.saturating_add(self.ttl));
        if until <= now {
            return;
        }
        let entries = self.entries.get_or_init(|| (0..self.size).map(|_| spin::Mutex::new(None)).collect());
        if let Some(entry) = self.entry(entries, key) {
            *entry.lock() = Some(Entry { key, from: now, until, generation, rejection });
        }
    }

    pub(super) fn clear(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    fn entry<'a, E>(&self, entries: &'a [E], key: u128) -> Option<&'a E> {
        // Keys are hashes already; both halves count, evenly over the entries.
        let hash = (key as u64) ^ ((key >> 64) as u64).rotate_left(32);
        entries.get(((u128::from(hash) * entries.len() as u128) >> 64) as usize)
    }
}

#[cfg(test)]
mod tests;
