use std::cell::Cell;

use super::{Naming, RateLimitedKind, TierStatus};
use crate::{error::BackendError, quota::Quota, time::Timestamp};

/// What a [`Decision`](super::Decision) says. Goes back to its thread's shelf,
/// so that none is allocated where decisions come and go.
#[derive(Clone)]
pub(super) struct Record {
    pub(super) rejection: Option<RateLimitedKind>,
    /// Nanoseconds: until the request goes, or after which the same one could;
    /// `NEVER` where it never could.
    pub(super) time: u64,
    pub(super) decided_at: Timestamp,
    pub(super) error: Option<Box<BackendError>>,
    /// Whether `only` means anything. Nearly always there is one tier, which
    /// is written in place, field by field.
    any: bool,
    only: TierStatus,
    /// All of them, where there are several.
    several: Vec<TierStatus>,
}

const NOTHING: TierStatus = TierStatus {
    rule: &"",
    quota: Quota::per_second(0),
    remaining: 0,
    reset: 0,
    naming: Naming::Alone,
    violated: false,
};

impl Record {
    const NONE: Self = Self {
        rejection: None,
        time: 0,
        decided_at: Timestamp::UNIX_EPOCH,
        error: None,
        any: false,
        only: NOTHING,
        several: Vec::new(),
    };

    #[inline]
    pub(super) fn add_tier(&mut self, tier: TierStatus) {
        if self.any {
            return self.add_more(tier);
        }
        self.any = true;
        // Field by field: a copy of what was just put together has to wait for
        // its parts.
        self.only.rule = tier.rule;
        self.only.quota = tier.quota;
        self.only.remaining = tier.remaining;
        self.only.reset = tier.reset;
        self.only.naming = tier.naming;
        self.only.violated = tier.violated;
    }

    #[cold]
    fn add_more(&mut self, tier: TierStatus) {
        if self.several.is_empty() {
            self.several.push(self.only);
        }
        self.several.push(tier);
    }

    #[inline]
    pub(super) fn tiers(&self) -> &[TierStatus] {
        match &*self.several {
            [] if self.any => std::slice::from_ref(&self.only),
            several => several,
        }
    }
}

/// How many records a thread keeps: as many as it has requests under way, in
/// most servers.
const KEPT: usize = 256;

#[allow(clippy::vec_box, reason = "a record changes places by its pointer")]
type Shelf = Vec<Box<Record>>;

thread_local! {
    static SPARE: Cell<Option<Box<Record>>> = const { Cell::new(None) };
    static SHELF: Cell<Shelf> = const { Cell::new(Vec::new()) };
}

/// A record that says nothing yet.
#[inline]
pub(super) fn take() -> Box<Record> {
    match SPARE.try_with(Cell::take) {
        Ok(Some(record)) => record,
        _ => take_from_shelf(),
    }
}

#[cold]
fn take_from_shelf() -> Box<Record> {
    let from_shelf = |shelf: &Cell<Shelf>| {
        let mut records = shelf.take();
        let record = records.pop();
        shelf.set(records);
        record
    };
    // While the thread ends there is no shelf left.
    SHELF.try_with(from_shelf).ok().flatten().unwrap_or_else(|| Box::new(Record::NONE))
}

#[inline]
pub(super) fn recycle(mut record: Box<Record>) {
    record.any = false;
    if record.rejection.is_some() || !record.several.is_empty() {
        clear(&mut record);
    }
    if let Ok(Some(displaced)) = SPARE.try_with(|spare| spare.replace(Some(record))) {
        put_on_shelf(displaced);
    }
}

#[cold]
fn clear(record: &mut Record) {
    record.rejection = None;
    record.error = None;
    record.several.clear();
}

#[cold]
fn put_on_shelf(record: Box<Record>) {
    let _ = SHELF.try_with(|shelf| {
        let mut records = shelf.take();
        if records.len() < KEPT {
            records.push(record);
        }
        shelf.set(records);
    });
}
