//! [`Record`]: the content of a [`Decision`](super::Decision), and the pool
//! that each thread reuses records from.
//!
//! The invariant: a record that is taken from the pool describes no request.

use std::cell::Cell;

use smallvec::SmallVec;

use super::{tier_status::TierStatus, verdict::RateLimitedKind};
use crate::{error::BackendError, time::Timestamp};

/// The content of a decision.
pub(super) struct Record {
    pub(super) rejection: Option<RateLimitedKind>,
    /// Nanoseconds until the request is admitted, or until the same one could
    /// be; the end of time if it never could.
    pub(super) time: u64,
    pub(super) decided_at: Timestamp,
    pub(super) error: Option<Box<BackendError>>,
    pub(super) tiers: SmallVec<[TierStatus; 4]>,
}

impl Record {
    const EMPTY: Self =
        Self { rejection: None, time: 0, decided_at: Timestamp::UNIX_EPOCH, error: None, tiers: SmallVec::new_const() };
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
    let Record { rejection, time, decided_at, error, tiers } = record;
    (copy.rejection, copy.time, copy.decided_at) = (*rejection, *time, *decided_at);
    copy.error.clone_from(error);
    copy.tiers.clone_from(tiers);
    copy
}

/// Returns a record to the pool.
pub(super) fn recycle(mut record: Box<Record>) {
    record.tiers.clear();
    (record.rejection, record.error) = (None, None);
    if let Ok(Some(displaced)) = SPARE.try_with(|spare| spare.replace(Some(record))) {
        return_to_pool(displaced);
    }
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
