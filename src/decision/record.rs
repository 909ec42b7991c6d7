//! [`Record`]: the content of a [`Decision`](super::Decision), and the pool
//! that each thread reuses records from.
//!
//! The invariant: a record that is taken from the pool describes no request.

use std::cell::Cell;

use super::{
    tier_status::{Naming, TierStatus},
    verdict::RateLimitedKind,
};
use crate::{error::BackendError, quota::Quota, time::Timestamp};

/// The content of a decision.
pub(super) struct Record {
    pub(super) rejection: Option<RateLimitedKind>,
    /// Nanoseconds until the request is admitted, or until the same one could
    /// be; the end of time if it never could.
    pub(super) time: u64,
    pub(super) decided_at: Timestamp,
    pub(super) error: Option<Box<BackendError>>,
    /// How many of `few` are set; all, if there are more tiers.
    len: usize,
    /// Nearly always there are few tiers, which are written in place, field by field.
    few: [TierStatus; MAX_INLINE],
    /// All tiers, if there are more than [`MAX_INLINE`].
    many: Vec<TierStatus>,
}

/// The most tiers that are kept in place: as many as are charged at once, by
/// `MAX_IMMEDIATE` in `src/backend/memory/ops.rs`.
const MAX_INLINE: usize = 4;

const NO_TIER: TierStatus = TierStatus {
    rule: &"",
    quota: Quota::per_second(0),
    remaining: 0,
    reset: 0,
    naming: Naming::Alone,
    violated: false,
};

impl Record {
    const EMPTY: Self = Self {
        rejection: None,
        time: 0,
        decided_at: Timestamp::UNIX_EPOCH,
        error: None,
        len: 0,
        few: [NO_TIER; MAX_INLINE],
        many: Vec::new(),
    };

    #[inline]
    pub(super) fn add_tier_with(&mut self, tier: impl FnOnce() -> TierStatus) {
        let Some(place) = self.few.get_mut(self.len) else { return self.add_more(tier()) };
        self.len += 1;
        let tier = tier();
        // Field by field: copying a value that was just assembled would wait
        // for its parts.
        place.rule = tier.rule;
        place.quota = tier.quota;
        place.remaining = tier.remaining;
        place.reset = tier.reset;
        place.naming = tier.naming;
        place.violated = tier.violated;
    }

    #[cold]
    fn add_more(&mut self, tier: TierStatus) {
        if self.many.is_empty() {
            self.many.extend(self.few);
        }
        self.many.push(tier);
    }

    #[inline]
    pub(super) fn tiers(&self) -> &[TierStatus] {
        if self.many.is_empty() { self.few.get(..self.len).unwrap_or_default() } else { &self.many }
    }
}

/// How many records a thread keeps: in most servers as many as it has requests
/// in progress.
const MAX_POOLED: usize = 256;

#[allow(clippy::vec_box, reason = "a record is moved by its pointer")]
type Pool = Vec<Box<Record>>;

thread_local! {
    static SPARE: Cell<Option<Box<Record>>> = const { Cell::new(None) };
    static POOL: Cell<Pool> = const { Cell::new(Vec::new()) };
}

/// An empty record.
#[inline]
pub(super) fn take() -> Box<Record> {
    match SPARE.try_with(Cell::take) {
        Ok(Some(record)) => record,
        _ => take_from_pool(),
    }
}

#[cold]
fn take_from_pool() -> Box<Record> {
    let from_pool = |pool: &Cell<Pool>| {
        let mut records = pool.take();
        let record = records.pop();
        pool.set(records);
        record
    };
    // While the thread ends, its pool is gone.
    POOL.try_with(from_pool).ok().flatten().unwrap_or_else(|| Box::new(Record::EMPTY))
}

/// A copy of a record.
pub(super) fn copy(record: &Record) -> Box<Record> {
    let mut copy = take();
    let Record { rejection, time, decided_at, error, len: _, few: _, many: _ } = record;
    (copy.rejection, copy.time, copy.decided_at) = (*rejection, *time, *decided_at);
    copy.error.clone_from(error);
    record.tiers().iter().for_each(|tier| copy.add_tier_with(|| *tier));
    copy
}

/// Out of line: inlined into the drop of a decision, it makes those without a record slower.
#[inline(never)]
pub(super) fn recycle(mut record: Box<Record>) {
    record.len = 0;
    if record.rejection.is_some() || !record.many.is_empty() {
        clear(&mut record);
    }
    if let Ok(Some(displaced)) = SPARE.try_with(|spare| spare.replace(Some(record))) {
        return_to_pool(displaced);
    }
}

#[cold]
fn clear(record: &mut Record) {
    record.rejection = None;
    record.error = None;
    record.many.clear();
}

#[cold]
fn return_to_pool(record: Box<Record>) {
    let _ = POOL.try_with(|pool| {
        let mut records = pool.take();
        if records.len() < MAX_POOLED {
            records.push(record);
        }
        pool.set(records);
    });
}
