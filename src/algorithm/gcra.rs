//! Token bucket and leaky bucket: the generic cell rate algorithm (ITU-T
//! I.371) in its virtual scheduling form, for a whole quota and for a share.
//!
//! It does not say how an arrival time is stored: see `arrival.rs`. The
//! invariant: neither a change of the limit nor one of the share adds tokens.
//! What a changed limit finds used stays used. What was left when the share
//! changed is what is left afterwards, and the bucket fills from there at the
//! new rate.
//!
//! What is reserved is not used yet: slots keep the limit that they were given
//! under. So a change counts from the first time at which no more units are missing
//! than the bucket holds.

use std::marker::PhantomData;

use super::{
    Claim, QuotaStatus, StateMachine,
    arrival::{Arrival, BucketState, FORFEITED, FRACTION_BITS, MOST_PARTS, Rate, Stamp},
    share::{Share, ShareHistory, SharePeriod},
};

/// A token bucket: at most B + L·t/W units in any time t. A request conforms if,
/// after it, at most B units are missing. They come back at the rate L/W.
///
/// Or a leaky bucket: departures at least W/L apart for each unit; at most B units
/// are queued. A request that comes before its departure time is rejected unless
/// it may wait. A wait longer than the time for B units is never reserved.
#[derive(Clone, Debug)]
pub(crate) struct Gcra<S> {
    current: SharedRate,
    /// Leaky: nothing is allowed ahead of its time.
    is_spaced: bool,
    /// The earlier shares, in order.
    past: Box<[SharedRate]>,
    /// The arrival time of a new key, which was not used under the first share.
    fresh: u128,
    /// What a state says beside whole nanoseconds, where units take whole nanoseconds.
    whole_nanos: Option<u64>,
    window: u64,
    state: PhantomData<fn() -> S>,
}

/// What a share has of the rate and of the burst.
#[derive(Clone, Debug)]
struct SharedRate {
    rate: Rate,
    capacity: u64,
    stamp: Stamp,
    share: Share,
    /// When it came into force.
    since: u64,
}

/// A quota's limit, window and burst.
#[derive(Clone, Copy, Debug)]
pub(super) struct BucketQuota {
    pub(super) limit: u64,
    pub(super) window: u64,
    pub(super) burst: u64,
    pub(super) is_spaced: bool,
}

/// The longest backlog that two words hold, added to the current time, until the
/// year 2116: some 438 years.
const LONGEST_BACKLOG: u64 = u64::MAX - (1 << 62);

impl SharedRate {
    fn new<S: BucketState>(quota: &BucketQuota, SharePeriod { share, since, epoch }: &SharePeriod) -> Self {
        let rate = share.rate(quota.limit, quota.window);
        Self {
            // A bucket of nothing tells when a unit would have come back in a window.
            rate: Rate::new(if rate.0 == 0 { (1, quota.window) } else { rate }),
            capacity: if rate.0 == 0 { 0 } else { share.units(quota.burst).max(1) },
            stamp: S::stamp(quota.limit, *epoch),
            share: share.clone(),
            since: *since,
        }
    }
}

impl<S: BucketState> Gcra<S> {
    pub(super) fn new(quota: BucketQuota, history: &ShareHistory) -> Self {
        let mut bucket = Self {
            current: SharedRate::new::<S>(&quota, history.current()),
            is_spaced: quota.is_spaced,
            past: history.recent().iter().map(|period| SharedRate::new::<S>(&quota, period)).collect(),
            fresh: 0,
            whole_nanos: None,
            window: quota.window,
            state: PhantomData,
        };
        if let Some(first) = bucket.past.first() {
            let unused = Arrival { stamp: first.stamp, nanos: 0, excess: 0, is_reserved: false };
            bucket.fresh = bucket.under_later_shares(unused, 0).1;
        }
        if bucket.current.rate.units == 1 && !bucket.is_spaced && bucket.is_compact() {
            bucket.whole_nanos = S::terms(bucket.current.stamp);
        }
        bucket
    }

    /// The nanoseconds for the whole burst, rounded up, as departure times are.
    fn full(&self) -> u64 {
        self.current.rate.nanos(self.current.rate.time_for(self.current.capacity))
    }

    /// Whether two words hold its states exactly. A bucket of nothing writes none,
    /// but keeps what a larger one wrote.
    pub(super) fn is_compact(&self) -> bool {
        let is_exact = self.current.rate.units >> FRACTION_BITS == 0;
        is_exact && self.current.capacity > 0 && self.full() <= LONGEST_BACKLOG
    }

    /// The longest wait, in nanoseconds, that may be reserved. A token bucket's
    /// queue has no bound.
    pub(super) fn longest_wait(&self) -> u64 {
        if self.is_spaced { self.full() } else { u64::MAX }
    }

    /// The most units that can be spent at once. A leaky bucket stores none, but
    /// an instance without a share starts with a departure that is yet to come.
    fn tokens(&self, of: &SharedRate) -> u64 {
        if self.is_spaced { of.capacity.min(1) } else { of.capacity }
    }

    /// The arrival time, and the rate at which units come back until the next
    /// charge.
    fn in_force(&self, written: Arrival) -> (Rate, u128) {
        let own = &self.current;
        if written.stamp == own.stamp {
            return (own.rate, own.rate.parts(written.nanos).saturating_add(written.excess));
        }
        if written.stamp.is_new() { (own.rate, self.fresh) } else { self.under_other_terms(written) }
    }

    fn under_other_terms(&self, written: Arrival) -> (Rate, u128) {
        let own = &self.current;
        match self.past.iter().position(|period| written.stamp.epoch == period.stamp.epoch) {
            Some(index) => self.under_later_shares(written, index),
            None if written.stamp.epoch == own.stamp.epoch => self.under_old_limit(written, own),
            // The share is forgotten: the bucket was empty when the last one ended.
            None => {
                let empty = own.rate.parts(own.since).saturating_add(own.rate.time_for(self.tokens(own)));
                (own.rate, empty.max(own.rate.parts(written.nanos)))
            }
        }
    }

    /// The rate that a share had of the limit that the state was written under,
    /// and the arrival time in its parts.
    fn under_old_limit(&self, written: Arrival, period: &SharedRate) -> (Rate, u128) {
        if written.stamp == period.stamp {
            return (period.rate, period.rate.parts(written.nanos).saturating_add(written.excess));
        }
        let rate = Rate::new(period.share.rate(written.stamp.limit, self.window));
        if written.is_reserved && rate.is_slower_than(period.rate) {
            return (period.rate, period.rate.parts(written.end()));
        }
        // The fraction's denominator is lost if the limit was rounded.
        let is_exact = S::IS_WIDE || written.stamp.is_exact_in_two_words();
        let excess = if is_exact { written.excess } else { rate.units.into() };
        (rate, rate.parts(written.nanos).saturating_add(excess))
    }

    /// From the past share at `index` on, through each that followed.
    fn under_later_shares(&self, written: Arrival, index: usize) -> (Rate, u128) {
        let (mut rate, mut arrival) = self.under_old_limit(written, &self.past[index]);
        for (index, period) in self.past.iter().enumerate().skip(index) {
            let next = self.past.get(index + 1).unwrap_or(&self.current);
            let since = unreserved((rate, arrival), self.tokens(period), next.since);
            let missing = rate.units_in(arrival.saturating_sub(rate.parts(since)));
            // The tokens that are left stay, whatever the bucket can hold.
            let missing = missing.saturating_add(self.tokens(next)).saturating_sub(self.tokens(period));
            rate = next.rate;
            arrival = rate.parts(since).saturating_add(rate.time_for(missing));
        }
        (rate, arrival)
    }

    /// The arrival time under the current terms: the units that are missing by now, or
    /// once no slot is reserved any more, stay missing.
    fn in_own_terms(&self, (rate, arrival): (Rate, u128), now: u64) -> u128 {
        let own = self.current.rate;
        // A limit of nothing only borrows a rate, so it is no other limit's.
        if rate == own && self.current.stamp.limit > 0 {
            return arrival;
        }
        let at = unreserved((rate, arrival), self.most_used(), now);
        let missing = rate.units_in(arrival.saturating_sub(rate.parts(at)));
        own.parts(at).saturating_add(own.time_for(missing))
    }

    /// The most units that are missing without a reservation. A leaky bucket has only
    /// the next departure.
    fn most_used(&self) -> u64 {
        if self.is_spaced { 0 } else { self.current.capacity }
    }
}

/// The first time from `now` on at which at most so many units are missing.
fn unreserved((rate, arrival): (Rate, u128), most_used: u64, now: u64) -> u64 {
    rate.nanos(arrival.saturating_sub(rate.time_for(most_used))).max(now)
}

impl<S: BucketState> Gcra<S> {
    /// The arrival time and the time for a unit, where both are whole nanoseconds and the
    /// state was written under the present terms. Nearly all are: a quarter of the
    /// instructions.
    fn whole_nanos(&self, state: &S) -> Option<(u64, u64)> {
        Some((state.whole_nanos(self.whole_nanos?)?, self.current.rate.period))
    }

    /// Charges a state in parts of a nanosecond, if it admits the cost at `now`. Out of line:
    /// inlined, it keeps the charge of whole nanoseconds from being inlined.
    #[inline(never)]
    fn charge_parts(&self, state: &mut S, now: u64, cost: u64) -> Option<QuotaStatus> {
        self.earliest(state, now, cost).filter(|at| *at == now)?;
        self.commit(state, now, now, cost);
        Some(self.status_of(state, now))
    }

    fn arrival(&self, state: &S, now: u64) -> u128 {
        self.in_own_terms(self.in_force(state.arrival()), now)
    }

    fn store(&self, state: &mut S, arrival: u128, is_reserved: bool) {
        let (nanos, excess) = self.current.rate.split(arrival);
        state.set_arrival(Arrival { stamp: self.current.stamp, nanos, excess, is_reserved });
    }

    fn charge_at(&self, state: &mut S, now: u64, at: u64, units: u64) {
        let (rate, written) = (self.current.rate, state.arrival());
        let found = self.in_force(written);
        let arrival = self.in_own_terms(found, now).max(rate.parts(at)).saturating_add(rate.time_for(units));
        let is_reserved = (written.is_reserved || rate.is_slower_than(found.0))
            && arrival > rate.parts(now).saturating_add(rate.time_for(self.most_used()));
        self.store(state, arrival, is_reserved);
        if let Some(mut ledger) = state.ledger() {
            if written.stamp != self.current.stamp && !written.stamp.is_new() {
                ledger.forfeit();
            }
            ledger.latest = ledger.latest.max(at);
            state.set_ledger(ledger);
        }
    }

    /// Where the claimed units end by now: earlier units may have been refunded
    /// meanwhile, at most all that was. `None` if it cannot be known any more.
    fn end_of(&self, state: &S, claim: &Claim) -> Option<u64> {
        let Arrival { stamp, nanos, .. } = state.arrival();
        let refunded = state.ledger().map_or(0, |ledger| ledger.refunded.wrapping_sub(claim.detail));
        let is_known = stamp == self.current.stamp && nanos < u64::MAX && refunded < FORFEITED;
        is_known.then(|| claim.until.saturating_sub(refunded))
    }

    /// An end that was found by rounding may be later than it is known to be.
    /// It is moved earlier by enough that it cannot equal the arrival time.
    fn short_of(&self, end: u64) -> u64 {
        if self.current.rate.units > 1 { end.saturating_sub(2) } else { end }
    }
}

/// Whether an arrival time equals the one of a claim, both rounded up.
///
/// A reservation is for a whole nanosecond, so a refund of it leaves an
/// arrival time that is up to one nanosecond later. No charge may hide in that
/// nanosecond.
pub(super) fn is_same_arrival(arrival: u64, claimed: u64, shortest_interval: u64) -> bool {
    shortest_interval > 0 && arrival.checked_sub(claimed).is_some_and(|later| later <= u64::from(shortest_interval > 1))
}

impl<S: BucketState> StateMachine for Gcra<S> {
    type State = S;

    fn earliest(&self, state: &S, now: u64, cost: u64) -> Option<u64> {
        if let Some((arrival, period)) = self.whole_nanos(state) {
            let slack = self.current.capacity.checked_sub(cost)? * period;
            let at = arrival.saturating_sub(slack).max(now);
            let end = arrival.max(now).checked_add(cost * period)?;
            return (end < u64::MAX).then_some(at);
        }
        let (own, capacity) = (self.current.rate, self.current.capacity);
        // How many units ahead of its time the cost is allowed.
        let slack = capacity.checked_sub(cost).filter(|_| capacity > 0)?;
        let slack = if self.is_spaced { 0 } else { slack };
        let (rate, arrival) = self.in_force(state.arrival());
        // Under another limit, units come back at its rate until the next commit.
        let at = rate.nanos(arrival.saturating_sub(rate.time_for(slack))).max(now);
        let start = self.in_own_terms((rate, arrival), now).max(own.parts(now));
        let end = start.checked_add(own.time_for(cost))?;
        // What ends later than a state can say would equal any other.
        let latest = own.parts(u64::MAX).saturating_add(if S::IS_WIDE { MOST_PARTS } else { 0 });
        (at < u64::MAX && end < latest).then_some(at)
    }

    /// In one pass: asked, committed and read one by one, a decision took 43 instructions
    /// more.
    #[inline]
    fn charge(&self, state: &mut S, now: u64, cost: u64) -> Option<QuotaStatus> {
        let Some((arrival, period)) = self.whole_nanos(state) else { return self.charge_parts(state, now, cost) };
        let capacity = self.current.capacity;
        let slack = capacity.checked_sub(cost)? * period;
        let end = arrival.max(now).checked_add(cost * period).filter(|end| *end < u64::MAX)?;
        if arrival > now.saturating_add(slack) {
            return None;
        }
        state.set_whole_nanos(end);
        Some(QuotaStatus { remaining: capacity - (end - now).div_ceil(period), reset: end - now })
    }

    fn commit(&self, state: &mut S, now: u64, at: u64, cost: u64) {
        match self.whole_nanos(state) {
            Some((arrival, period)) => {
                state.set_whole_nanos(arrival.max(at).saturating_add(cost.saturating_mul(period)))
            }
            None => self.charge_at(state, now, at, cost),
        }
    }

    fn version(&self, state: &S) -> u64 {
        state.ledger().map_or(0, |ledger| ledger.refunded)
    }

    fn charge_debt(&self, state: &mut S, now: u64, units: u64, claim: &mut Claim) {
        let (latest, end) = (self.is_last(state, now, claim), self.end_of(state, claim));
        self.charge_at(state, now, now, units);
        // Other charges may lie in between. The claim then counts as if all its
        // units followed its first ones: never later than they do.
        let is_behind = |end: &u64| S::IS_WIDE && !latest && claim.units > 0 && *end > now;
        let behind = end.filter(is_behind);
        let rate = self.current.rate;
        claim.until = match behind {
            Some(end) => self.short_of(end.saturating_add(rate.split(rate.time_for(units)).0)),
            None => state.arrival().end(),
        };
        claim.extend(latest || behind.is_some(), units);
        if !latest && behind.is_none() {
            claim.at = now;
        }
        claim.detail = self.version(state);
    }

    fn is_last(&self, state: &S, _: u64, claim: &Claim) -> bool {
        let Rate { units, period } = self.current.rate;
        let is_last = |end| end > 0 && is_same_arrival(state.arrival().end(), end, period / units);
        self.end_of(state, claim).is_some_and(is_last)
    }

    /// Charges are consecutive, and units come back to the first of them. A
    /// later charge, perhaps for a future time, relies on what has come back by
    /// then. So a claim keeps only what lies beyond that time, and never less
    /// than if units had come back to it alone since its own time. A refund
    /// moves later charges up; to be safe, all charges count as moved.
    ///
    /// Two words say none of that. They refund the latest charge only.
    fn refund(&self, state: &mut S, now: u64, units: u64, claim: &mut Claim) {
        let Some(end) = self.end_of(state, claim) else { return };
        let (rate, written) = (self.current.rate, state.arrival());
        let arrival = self.in_force(written).1;
        let (all, ledger) = (rate.time_for(units), state.ledger());
        if self.is_last(state, now, claim) {
            // It ends no later than claimed, unless other charges have moved.
            let has_moved = ledger.is_some_and(|ledger| ledger.refunded != claim.detail);
            let arrival = if has_moved { arrival } else { arrival.min(rate.parts(end)) };
            self.store(state, arrival.saturating_sub(all), written.is_reserved);
            (claim.until, claim.detail) = (state.arrival().end(), self.version(state));
            return;
        }
        let Some(mut ledger) = ledger else { return };
        // What was rounded up may not be there.
        let end = if rate.units > 1 { end.saturating_sub(1) } else { end };
        let alone = claim.at.saturating_add(rate.split(rate.time_for(claim.units)).0);
        let refunded = all.min(rate.parts(end.max(alone).saturating_sub(ledger.latest)));
        self.store(state, arrival.saturating_sub(refunded), written.is_reserved);
        let refunded = rate.nanos(refunded);
        claim.until = self.short_of(end.saturating_sub(refunded));
        ledger.refunded = ledger.refunded.wrapping_add(refunded.min(FORFEITED));
        state.set_ledger(ledger);
        claim.detail = ledger.refunded;
    }

    fn move_back(&self, state: &mut S, latest: u64) {
        let arrival = state.arrival();
        let Some(by) = arrival.nanos.checked_sub(latest).filter(|by| *by > 0) else { return };
        state.set_arrival(Arrival { nanos: latest, ..arrival });
        if let Some(mut ledger) = state.ledger() {
            ledger.forfeit();
            ledger.latest = ledger.latest.saturating_sub(by);
            state.set_ledger(ledger);
        }
    }

    fn span(&self) -> u64 {
        self.full()
    }

    fn status_of(&self, state: &S, now: u64) -> QuotaStatus {
        if let Some((arrival, period)) = self.whole_nanos(state) {
            let reset = arrival.saturating_sub(now);
            return QuotaStatus { remaining: self.current.capacity.saturating_sub(reset.div_ceil(period)), reset };
        }
        let rate = self.current.rate;
        let backlog = self.arrival(state, now).saturating_sub(rate.parts(now));
        let remaining = match self.is_spaced {
            // One unit passes at once if none is queued.
            true => u64::from(backlog == 0 && self.current.capacity > 0),
            false => self.current.capacity.saturating_sub(rate.units_in(backlog)),
        };
        QuotaStatus { remaining, reset: rate.nanos(backlog) }
    }
}
