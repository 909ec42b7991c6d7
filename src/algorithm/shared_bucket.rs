//! [`SharedBucket`]: a bucket whose share of the rate and of the burst changes.
//!
//! It has no state of its own: it converts the state of a [`Bucket`] from one
//! share to the next. The invariant: a change never adds tokens. What was left
//! when the share changed is what is left afterwards, and the bucket fills from
//! there at the new rate. An instance whose share grows finds the difference
//! empty.

use super::{
    share_history::{ShareHistory, SharePeriod},
    share_tag::ShareTag,
    state_machine::{Claim, QuotaStatus, StateMachine},
};

/// A bucket whose state can be converted when its share changes.
pub(crate) trait Bucket: StateMachine<State: Copy> {
    /// The same bucket for a share: `rate` is so many units in so many
    /// nanoseconds. Without any, the bucket holds nothing.
    fn for_share(&self, rate: (u64, u64), burst: u64, tag: ShareTag) -> Self;

    /// Under which share a state was written.
    fn tag(state: &Self::State) -> ShareTag;

    /// The time at which all units are back, rounded up.
    fn full_at(state: &Self::State) -> u64;

    /// The units missing at `at`, in a state that this bucket wrote.
    fn backlog(&self, state: &Self::State, at: u64) -> u64;

    /// The state in which `units` are missing at `at`.
    fn with_backlog(&self, state: &Self::State, at: u64, units: u64) -> Self::State;

    /// The most units that may be missing for `cost` to conform; `None` if it
    /// never conforms.
    fn backlog_allowed_for(&self, cost: u64) -> Option<u64>;

    /// The most units that can be spent at once.
    fn tokens(&self) -> u64;
}

/// The bucket of an instance's share, and those of its earlier shares.
#[derive(Clone, Debug)]
pub(crate) struct SharedBucket<M: Bucket> {
    bucket: M,
    tag: ShareTag,
    /// The state of a new key, if there were earlier shares.
    fresh: Option<M::State>,
    /// The window of the whole quota, which the rates in tags refer to.
    window: u64,
    past: Box<[PastBucket<M>]>,
}

#[derive(Clone, Debug)]
struct PastBucket<M> {
    bucket: M,
    tag: ShareTag,
    until: u64,
}

impl<M: Bucket> SharedBucket<M> {
    /// The share's bucket of a whole quota, whose own bucket is `whole`.
    pub(super) fn new(whole: &M, (limit, window, burst): (u64, u64, u64), history: &ShareHistory) -> Self {
        let bucket = |period: &SharePeriod| {
            let share = &period.share;
            let tag = ShareTag::new(limit, share, period.epoch);
            (whole.for_share(share.rate(limit, window), share.stable(burst).max(1), tag), tag)
        };
        let ends = history.past().iter().skip(1).map(|period| period.since).chain([history.current().since]);
        let past = history.past().iter().zip(ends).map(|(period, until)| {
            let (bucket, tag) = bucket(period);
            PastBucket { bucket, tag, until }
        });
        let past = past.collect();
        let (bucket, tag) = bucket(history.current());
        let mut shared = Self { bucket, tag, fresh: None, window, past };
        shared.fresh = (!shared.past.is_empty()).then(|| shared.carry_over(&M::State::default(), 0));
        shared
    }

    pub(super) fn bucket(&self) -> &M {
        &self.bucket
    }

    /// The state in terms of the current share.
    #[inline]
    fn converted(&self, state: &M::State, now: u64) -> M::State {
        if M::tag(state) == self.tag { *state } else { self.convert(state, now) }
    }

    #[cold]
    fn convert(&self, state: &M::State, now: u64) -> M::State {
        let tag = M::tag(state);
        let Some(last) = self.past.last() else {
            return self.bucket.with_backlog(state, now, self.tagged_backlog(state, now));
        };
        if let Some(fresh) = self.fresh.filter(|_| tag == ShareTag::NEW) {
            return fresh;
        }
        let Some(index) = self.past.iter().position(|past| past.tag.has_epoch_of(tag)) else {
            if tag.has_epoch_of(self.tag) {
                // The limit has changed, the share has not.
                return self.bucket.with_backlog(state, now, self.tagged_backlog(state, now));
            }
            // The share is forgotten: the bucket starts empty.
            let units = self.tagged_backlog(state, last.until).max(self.bucket.tokens());
            return self.bucket.with_backlog(state, last.until, units);
        };
        self.carry_over(state, index)
    }

    /// Converts from the past share at `index` through each that followed.
    fn carry_over(&self, state: &M::State, index: usize) -> M::State {
        let mut state = *state;
        for (index, past) in self.past.iter().enumerate().skip(index) {
            let units = match M::tag(&state) {
                tag if tag == past.tag => past.bucket.backlog(&state, past.until),
                _ => self.tagged_backlog(&state, past.until),
            };
            let next = self.past.get(index + 1).map_or(&self.bucket, |past| &past.bucket);
            // The tokens that are left stay, whatever the bucket can hold.
            let units = units.saturating_add(next.tokens()).saturating_sub(past.bucket.tokens());
            state = next.with_backlog(&state, past.until, units);
        }
        state
    }

    /// The units missing at `at`, by the rate in the state's tag.
    fn tagged_backlog(&self, state: &M::State, at: u64) -> u64 {
        M::tag(state).units_in(M::full_at(state).saturating_sub(at), self.window)
    }
}

impl<M: Bucket> StateMachine for SharedBucket<M> {
    type State = M::State;

    #[inline]
    fn earliest(&self, state: &M::State, now: u64, cost: u64) -> Option<u64> {
        let tag = M::tag(state);
        if tag == self.tag {
            return self.bucket.earliest(state, now, cost);
        }
        let at = self.bucket.earliest(&self.convert(state, now), now, cost)?;
        if tag == ShareTag::NEW || !tag.has_epoch_of(self.tag) || at == now {
            return Some(at);
        }
        // Written under another limit, whose rate holds until the next commit.
        let length = tag.time_for(self.bucket.backlog_allowed_for(cost)?, self.window);
        Some(M::full_at(state).saturating_sub(length).max(now))
    }

    fn commit(&self, state: &mut M::State, now: u64, at: u64, cost: u64) {
        *state = self.converted(state, now);
        self.bucket.commit(state, now, at, cost);
    }

    #[inline]
    fn charge(&self, state: &mut M::State, now: u64, cost: u64) -> Option<QuotaStatus> {
        if M::tag(state) == self.tag {
            return self.bucket.charge(state, now, cost);
        }
        let mut converted = self.convert(state, now);
        let status = self.bucket.charge(&mut converted, now, cost)?;
        *state = converted;
        Some(status)
    }

    fn version(&self, state: &M::State) -> u64 {
        self.bucket.version(state)
    }

    fn charge_debt(&self, state: &mut M::State, now: u64, units: u64, claim: &mut Claim) {
        *state = self.converted(state, now);
        self.bucket.charge_debt(state, now, units, claim);
    }

    fn is_last(&self, state: &M::State, now: u64, claim: &Claim) -> bool {
        self.bucket.is_last(&self.converted(state, now), now, claim)
    }

    fn refund(&self, state: &mut M::State, now: u64, units: u64, claim: &mut Claim) {
        *state = self.converted(state, now);
        self.bucket.refund(state, now, units, claim);
    }

    fn move_back(&self, state: &mut M::State, now: u64, latest: u64) {
        *state = self.converted(state, now);
        self.bucket.move_back(state, now, latest);
    }

    fn span(&self) -> u64 {
        self.bucket.span()
    }

    #[inline]
    fn status_of(&self, state: &M::State, now: u64) -> QuotaStatus {
        self.bucket.status_of(&self.converted(state, now), now)
    }
}
