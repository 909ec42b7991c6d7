//! Buckets whose share of the rate and of the burst changes.

use super::{
    Claim, CompactState, Portion, QuotaStatus, StateMachine, WideState,
    timeline::{Entry, Timeline},
};

/// What a bucket is adopted by, when its state was written under another
/// share.
pub(crate) trait Bucket: StateMachine<State: Copy> {
    /// What says under which share a state was written; zero for a new one.
    fn tag(state: &Self::State) -> u32;

    /// The time at which all is back, rounded up.
    fn arrival(&self, state: &Self::State) -> u64;

    /// Units owed at `at`, of a state that this machine wrote.
    fn owed(&self, state: &Self::State, at: u64) -> u64;

    /// The state that owes so many at `at`.
    fn owing(&self, state: &Self::State, at: u64, units: u64) -> Self::State;

    /// How many units may be owed for `cost` to pass; `None` where it never
    /// does.
    fn slack(&self, cost: u64) -> Option<u64>;

    /// The most that may be owed.
    fn capacity(&self) -> u64;
}

/// A bucket that finds its way from one share to the next: what was left in
/// it when the share changed is what is left in it then, and it fills from
/// there on at the new rate.
///
/// So the tokens of all instances together never grow by a change: whoever is
/// to have more finds it empty to that extent.
#[derive(Clone, Debug)]
pub(crate) struct Adopting<M: Bucket> {
    inner: M,
    tag: u32,
    /// A new key's state, where there were others before.
    fresh: Option<M::State>,
    /// Of the whole quota: rates in tags are by it.
    window: u64,
    past: Box<[Past<M>]>,
}

#[derive(Clone, Debug)]
struct Past<M> {
    machine: M,
    tag: u32,
    until: u64,
}

impl<M: Bucket> Adopting<M> {
    /// `make` makes a machine: of so many units in so much time, of a burst,
    /// and of a tag.
    pub(super) fn new(
        (limit, window, burst): (u64, u64, u64),
        timeline: &Timeline,
        make: impl Fn((u64, u64), u64, u32) -> M,
    ) -> Self {
        let machine = |entry: &Entry| {
            let tag = tag(limit, &entry.portion, entry.epoch);
            let some = limit > 0 && burst > 0 && !entry.portion.is_none();
            let burst = if some { entry.portion.fixed(burst).max(1) } else { 0 };
            (make(entry.portion.rate(limit, window), burst, tag), tag)
        };
        let ends = timeline.past().iter().skip(1).map(|entry| entry.since).chain([timeline.current().since]);
        let past = timeline.past().iter().zip(ends).map(|(entry, until)| {
            let (machine, tag) = machine(entry);
            Past { machine, tag, until }
        });
        let (inner, tag) = machine(timeline.current());
        let mut bucket = Self { inner, tag, fresh: None, window, past: past.collect() };
        bucket.fresh = (!bucket.past.is_empty()).then(|| bucket.carry_over(&M::State::default(), 0));
        bucket
    }

    pub(super) fn inner(&self) -> &M {
        &self.inner
    }

    #[inline]
    fn adopt(&self, state: &M::State, now: u64) -> M::State {
        if M::tag(state) == self.tag { *state } else { self.adopt_other(state, now) }
    }

    #[cold]
    fn adopt_other(&self, state: &M::State, now: u64) -> M::State {
        let tag = M::tag(state);
        let Some(last) = self.past.last() else {
            return self.inner.owing(state, now, self.rated_units(state, now));
        };
        if let Some(fresh) = self.fresh.filter(|_| tag == 0) {
            return fresh;
        }
        let Some(place) = self.past.iter().position(|past| epoch(past.tag) == epoch(tag)) else {
            if epoch(tag) == epoch(self.tag) {
                // The limit is another, the share is not.
                return self.inner.owing(state, now, self.rated_units(state, now));
            }
            // Nobody knows: it starts empty.
            let units = self.rated_units(state, last.until).max(self.inner.capacity());
            return self.inner.owing(state, last.until, units);
        };
        self.carry_over(state, place)
    }

    /// From the share at `place` to each that came after it.
    fn carry_over(&self, state: &M::State, place: usize) -> M::State {
        let mut state = *state;
        for (index, past) in self.past.iter().enumerate().skip(place) {
            let units = match M::tag(&state) {
                0 => 0,
                tag if tag == past.tag => past.machine.owed(&state, past.until),
                _ => self.rated_units(&state, past.until),
            };
            let next = self.past.get(index + 1).map_or(&self.inner, |past| &past.machine);
            // What is left stays, whatever there is room for.
            let units = units.saturating_add(next.capacity()).saturating_sub(past.machine.capacity());
            state = next.owing(&state, past.until, units);
        }
        state
    }

    /// Units owed at `at`, by the rate that the tag tells.
    fn rated_units(&self, state: &M::State, at: u64) -> u64 {
        let (rate, exponent) = rate(M::tag(state));
        let length = u128::from(self.inner.arrival(state).saturating_sub(at));
        let (units, window) = scaled(length * u128::from(rate), u128::from(self.window), exponent);
        u64::try_from(units.div_ceil(window)).unwrap_or(u64::MAX)
    }

    /// When no more than `units` are owed by the rate that the tag tells: a
    /// state that was written under another limit has it until it is written
    /// anew.
    fn when_rated(&self, state: &M::State, units: u64) -> u64 {
        let (rate, exponent) = rate(M::tag(state));
        let (rate, window) = scaled(u128::from(rate), u128::from(self.window), exponent);
        let length = u128::from(units).saturating_mul(window) / rate.max(1);
        self.inner.arrival(state).saturating_sub(u64::try_from(length).unwrap_or(u64::MAX))
    }
}

impl<M: Bucket> StateMachine for Adopting<M> {
    type State = M::State;

    #[inline]
    fn earliest(&self, state: &M::State, now: u64, cost: u64) -> Option<u64> {
        let tag = M::tag(state);
        if tag == self.tag {
            return self.inner.earliest(state, now, cost);
        }
        let at = self.inner.earliest(&self.adopt_other(state, now), now, cost)?;
        if tag == 0 || epoch(tag) != epoch(self.tag) || at == now {
            return Some(at);
        }
        Some(self.when_rated(state, self.inner.slack(cost)?).max(now))
    }

    fn commit(&self, state: &mut M::State, now: u64, at: u64, cost: u64) {
        *state = self.adopt(state, now);
        self.inner.commit(state, now, at, cost);
    }

    #[inline]
    fn charge(&self, state: &mut M::State, now: u64, cost: u64) -> Option<QuotaStatus> {
        if M::tag(state) == self.tag {
            return self.inner.charge(state, now, cost);
        }
        let mut adopted = self.adopt_other(state, now);
        let status_of = self.inner.charge(&mut adopted, now, cost)?;
        *state = adopted;
        Some(status_of)
    }

    fn version(&self, state: &M::State) -> u64 {
        self.inner.version(state)
    }

    fn charge_debt(&self, state: &mut M::State, now: u64, units: u64, claim: &mut Claim) {
        *state = self.adopt(state, now);
        self.inner.charge_debt(state, now, units, claim);
    }

    fn refund(&self, state: &mut M::State, now: u64, units: u64, claim: &mut Claim) {
        *state = self.adopt(state, now);
        self.inner.refund(state, now, units, claim);
    }

    #[inline]
    fn status_of(&self, state: &M::State, now: u64) -> QuotaStatus {
        self.inner.status_of(&self.adopt(state, now), now)
    }
}

/// How many changes are told apart in a tag.
const EPOCH_BITS: u32 = 6;

/// Of the rate in a tag: exact up to a limit of 262,144, else, and where a
/// share is a fraction, rounded up by less than one part in 131,000.
const MANTISSA_BITS: u32 = 18;

const EXPONENT_BIAS: i32 = 128;

fn epoch(tag: u32) -> u32 {
    tag & ((1 << EPOCH_BITS) - 1)
}

/// The share's units in a window, as mantissa and exponent, and its epoch.
/// Never zero.
#[allow(clippy::cast_possible_truncation, reason = "18 and 6 bits")]
fn tag(limit: u64, portion: &Portion, epoch: u64) -> u32 {
    let (units, parts) = portion.of(limit);
    let epoch = (epoch & ((1 << EPOCH_BITS) - 1)) as u32;
    if units == 0 {
        return 1 << EPOCH_BITS | epoch;
    }
    let bits = |value: u128| (u128::BITS - value.leading_zeros()) as i32;
    let mut exponent = bits(units) - bits(parts) - MANTISSA_BITS as i32;
    loop {
        let (scaled_units, scaled_parts) = scaled(units, parts, -exponent);
        let mantissa = scaled_units.div_ceil(scaled_parts);
        if mantissa >> MANTISSA_BITS == 0 {
            let exponent = (exponent + EXPONENT_BIAS).clamp(0, 255) as u32;
            return exponent << (EPOCH_BITS + MANTISSA_BITS) | (mantissa as u32) << EPOCH_BITS | epoch;
        }
        exponent += 1;
    }
}

/// Mantissa and exponent.
fn rate(tag: u32) -> (u32, i32) {
    let mantissa = tag >> EPOCH_BITS & ((1 << MANTISSA_BITS) - 1);
    let exponent = (tag >> (EPOCH_BITS + MANTISSA_BITS)).cast_signed() - EXPONENT_BIAS;
    (mantissa, exponent)
}

/// A fraction times a power of two; saturates.
fn scaled(numerator: u128, denominator: u128, exponent: i32) -> (u128, u128) {
    let shift = |value: u128, by: u32| if by < value.leading_zeros() { value << by } else { u128::MAX };
    match exponent {
        0.. => (shift(numerator, exponent.unsigned_abs()), denominator.max(1)),
        _ => (numerator, shift(denominator.max(1), exponent.unsigned_abs())),
    }
}

impl Bucket for super::TokenBucket {
    fn tag(state: &CompactState) -> u32 {
        tag_of(state)
    }

    fn arrival(&self, state: &CompactState) -> u64 {
        super::gcra::ends_at(state)
    }

    fn owed(&self, state: &CompactState, at: u64) -> u64 {
        self.gcra().owed(state, at)
    }

    fn owing(&self, _: &CompactState, at: u64, units: u64) -> CompactState {
        self.gcra().owing(at, units)
    }

    fn slack(&self, cost: u64) -> Option<u64> {
        self.capacity().checked_sub(cost)
    }

    fn capacity(&self) -> u64 {
        self.gcra().capacity
    }
}

impl Bucket for super::LeakyBucket {
    fn tag(state: &CompactState) -> u32 {
        tag_of(state)
    }

    fn arrival(&self, state: &CompactState) -> u64 {
        super::gcra::ends_at(state)
    }

    fn owed(&self, state: &CompactState, at: u64) -> u64 {
        self.gcra().owed(state, at)
    }

    fn owing(&self, _: &CompactState, at: u64, units: u64) -> CompactState {
        self.gcra().owing(at, units)
    }

    fn slack(&self, cost: u64) -> Option<u64> {
        self.capacity().checked_sub(cost).map(|_| 0)
    }

    /// None: what may queue is no store of tokens. But who has no share at
    /// all begins with a turn that is yet to come.
    fn capacity(&self) -> u64 {
        u64::from(self.gcra().capacity > 0)
    }
}

#[inline]
fn tag_of(state: &CompactState) -> u32 {
    #[allow(clippy::cast_possible_truncation, reason = "the upper half of a word")]
    let tag = (state[1] >> 32) as u32;
    tag
}

impl Bucket for super::WideGcra {
    #[allow(clippy::cast_possible_truncation, reason = "written from 32 bits")]
    fn tag(state: &WideState) -> u32 {
        state[3] as u32
    }

    fn arrival(&self, state: &WideState) -> u64 {
        state[0]
    }

    fn owed(&self, state: &WideState, at: u64) -> u64 {
        self.owed_at(state, at)
    }

    fn owing(&self, state: &WideState, at: u64, units: u64) -> WideState {
        self.owing_at(state, at, units)
    }

    fn slack(&self, cost: u64) -> Option<u64> {
        self.slack_for(cost)
    }

    fn capacity(&self) -> u64 {
        self.tokens()
    }
}
