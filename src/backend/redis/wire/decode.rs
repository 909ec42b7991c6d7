//! Replies of the scripts as outcomes and claim updates. It does not send
//! anything.
//!
//! Invariant: a reply that cannot be read is an error for every request that it
//! answers; no request is admitted by default.

use smallvec::SmallVec;

use super::scripts::Call;
use crate::{
    algorithm::{Claim, QuotaStatus},
    backend::{
        Outcome, OutcomeKind, TierState, TierStates,
        redis::plan::{Change, ChargeSet, Definition, Span},
    },
    error::{BackendError, BackendErrorKind},
    quota::Algorithm,
};

/// What was replied to one call: where the claim is after each change, and what was replied
/// about each charge set.
#[derive(Debug)]
pub(crate) struct Replies {
    pub(crate) claims: Vec<Result<Claim, BackendError>>,
    pub(crate) sets: Vec<Result<ChargeReply, BackendError>>,
}

/// The replies to changes and charge sets, in their order.
pub(crate) fn replies<'s>(
    changes: impl Iterator<Item = &'s Change>,
    sets: impl Iterator<Item = &'s ChargeSet>,
    bytes: &[u8],
    call: &Call,
) -> Result<Replies, BackendError> {
    let mut reader = Reader::new(bytes)?;
    let now = reader.unsigned()?;
    let claims = changes.map(|change| reader.claim(change)).collect::<Result<_, _>>()?;
    let sets = sets.map(|set| {
        let admitted = reader.signed()?;
        if admitted < 0 {
            let key = reader.unsigned()?;
            return Ok(Err(foreign_key(call.key(key))));
        }
        let (when, delaying) = (reader.signed()?, reader.unsigned()?);
        let mut tiers = SmallVec::new();
        for _ in &set.tiers {
            tiers.push([reader.unsigned()?, reader.unsigned()?, reader.unsigned()?]);
        }
        Ok(Ok(ChargeReply { now, admitted: admitted.unsigned_abs(), when, delaying, tiers }))
    });
    let sets = sets.collect::<Result<_, BackendError>>()?;
    Ok(Replies { claims, sets })
}

/// Reads a MessagePack array of integers.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn new(mut bytes: &'a [u8]) -> Result<Self, BackendError> {
        rmp::decode::read_array_len(&mut bytes).map_err(|_| malformed_reply())?;
        Ok(Self(bytes))
    }

    /// Where the claim is after a change, if that was made.
    fn claim(&mut self, change: &Change) -> Result<Result<Claim, BackendError>, BackendError> {
        let is_done = self.unsigned()? == 1;
        let numbers = [self.unsigned()?, self.unsigned()?, self.unsigned()?, self.unsigned()?];
        Ok(if is_done { Ok(change.claim_after(numbers)) } else { Err(foreign_key(Some(&change.charge.key))) })
    }

    fn signed(&mut self) -> Result<i64, BackendError> {
        rmp::decode::read_int(&mut self.0).map_err(|_| malformed_reply())
    }

    fn unsigned(&mut self) -> Result<u64, BackendError> {
        rmp::decode::read_int(&mut self.0).map_err(|_| malformed_reply())
    }
}

pub(crate) fn malformed_reply() -> BackendError {
    BackendError::unavailable("the store's reply is malformed")
}

/// A key under the prefix that no version of this crate wrote, or another one.
pub(crate) fn foreign_key(key: Option<&str>) -> BackendError {
    // The tenant may be a secret.
    let key = key.unwrap_or_default();
    let tenant = key.find('{').and_then(|start| Some((start + 1, start + key[start..].find("}:")?)));
    let key = tenant.map_or_else(|| key.to_owned(), |(from, to)| format!("{}…{}", &key[..from], &key[to..]));
    let reason = format!("the key `{}` holds something that is no counter of this version", key.escape_debug());
    BackendError::new(BackendErrorKind::Misconfigured, reason)
}

/// What a script replied about one charge set.
#[derive(Clone, Debug)]
pub(crate) struct ChargeReply {
    /// Microseconds since the Unix epoch.
    pub(crate) now: u64,
    /// How many of the coalesced requests are admitted. Of a lease: its units.
    pub(crate) admitted: u64,
    /// Microseconds from now, or a negative number that says why there are
    /// none. Of a lease: the instances that have asked lately.
    pub(crate) when: i64,
    /// The tiers that delay the request, as bits.
    pub(crate) delaying: u64,
    /// Three numbers for each tier, as `standing` in `state.lua` has them.
    pub(crate) tiers: SmallVec<[[u64; 3]; 2]>,
}

impl ChargeReply {
    /// The outcome of the request at `index`, of `count` that were coalesced.
    pub(crate) fn outcome(&self, set: &ChargeSet, index: u64, count: usize) -> Outcome {
        let is_admitted = index < self.admitted;
        let admitted_later = if is_admitted { self.admitted - 1 - index } else { 0 };
        let has_time = !is_admitted || count == 1;
        let (when, delaying) = if has_time { (self.when, self.delaying) } else { (0, 0) };
        let definitions = set.tiers.iter().map(|tier| &tier.definition);
        let tiers = definitions.zip(self.tiers.iter().copied());
        let mut tiers: TierStates = statuses(tiers, admitted_later, set.request_id + index).collect();
        tiers.iter_mut().enumerate().for_each(|(index, status)| status.violated = delaying >> index & 1 == 1);
        let nanos = |micros: i64| micros.unsigned_abs().saturating_mul(1_000);
        let answer = match when {
            _ if is_admitted => OutcomeKind::Admitted { wait: nanos(when) },
            0.. => OutcomeKind::Rejected { retry_after: Some(nanos(when)) },
            -1 => OutcomeKind::Rejected { retry_after: None },
            _ => {
                let index = usize::try_from(-2 - when).unwrap_or(usize::MAX);
                let full = set.tiers.get(index);
                full.map_or(OutcomeKind::Rejected { retry_after: None }, |tier| OutcomeKind::Busy { key: tier.counter })
            }
        };
        Outcome { answer, tiers, decided_at: Some(self.now.saturating_mul(1_000)), later: 0 }
    }
}

/// The status of tiers, by the three numbers of each, before the `later` of the charged
/// units were taken. `request_id` names what is held in flight.
pub(crate) fn statuses<'a>(
    tiers: impl Iterator<Item = (&'a Definition, [u64; 3])>,
    later: u64,
    request_id: u64,
) -> impl Iterator<Item = TierState> {
    tiers.map(move |(definition, numbers)| {
        let QuotaStatus { remaining, reset } = quota_status(definition, numbers, later);
        let mark = if definition.holds_units() { request_id } else { numbers[2] };
        TierState { remaining, reset, violated: false, shared: false, mark, ahead: 0, age: 0 }
    })
}

/// What was left of a tier then.
fn quota_status(definition: &Definition, [first, second, _]: [u64; 3], later: u64) -> QuotaStatus {
    let units = later.saturating_mul(definition.cost);
    if !definition.algorithm.has_burst() {
        let remaining = second.saturating_add(units);
        return QuotaStatus { remaining, reset: first.saturating_mul(1_000) };
    }
    let rate = definition.rate;
    let span = rate.minus(Span { micros: first, parts: second }, units);
    let remaining = match definition.algorithm == Algorithm::LeakyBucket {
        true => u64::from(span == Span::default() && definition.capacity > 0),
        false => definition.capacity.saturating_sub(rate.units_in(span)),
    };
    QuotaStatus { remaining, reset: rate.nanos(span) }
}
