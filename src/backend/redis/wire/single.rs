//! A call of `single.lua` for one request of one tier, and its reply: doubles
//! instead of MessagePack. Charge sets of several tiers or requests are encoded
//! by `encode`.
//!
//! Invariant: its outcome is the one that `decide.lua` gives.

use redis::Value;
use smallvec::smallvec;

use super::{
    decode::{ChargeReply, Decided, malformed_reply, undecided},
    encode::{RETENTION, RETENTION_BY_LIMITER},
    scripts::{Call, SINGLE},
};
use crate::backend::redis::plan::ChargeSet;

const ARGUMENTS: usize = 13;
const NUMBERS: usize = 7;

/// `None` where the charge set needs another script.
pub(crate) fn call(set: &ChargeSet) -> Option<Call> {
    let [tier] = &set.tiers[..] else { return None };
    if !set.is_plain() {
        return None;
    }
    let retention = if set.now.is_some() { RETENTION_BY_LIMITER } else { RETENTION };
    let header = [set.now.unwrap_or(0), retention, u64::from(set.now.is_none())];
    let mut argument = [0; 8 * ARGUMENTS];
    for (bytes, number) in argument.chunks_exact_mut(8).zip(header.into_iter().chain(tier.definition.numbers())) {
        #[allow(clippy::cast_precision_loss, reason = "below 2^53")]
        bytes.copy_from_slice(&(number as f64).to_le_bytes());
    }
    Some(Call::new(&SINGLE, [&*tier.key], 1, &argument))
}

/// The outcome; `None` where only `decide.lua` can decide.
pub(crate) fn read(set: &ChargeSet, call: &Call, reply: &Value) -> Decided {
    let Value::BulkString(bytes) = reply else { return Err(malformed_reply()) };
    let bytes: &[u8; 8 * NUMBERS] = bytes.as_slice().try_into().map_err(|_| malformed_reply())?;
    let mut numbers = [0; NUMBERS];
    for (number, bytes) in numbers.iter_mut().zip(bytes.as_chunks().0) {
        #[allow(clippy::cast_possible_truncation, reason = "saturates")]
        let read = f64::from_le_bytes(*bytes) as i64;
        *number = read;
    }
    let [now, admitted, when, delaying, first, second, third] = numbers;
    if admitted < 0 {
        return undecided(admitted, call.key(1));
    }
    let unsigned = |number: i64| u64::try_from(number).unwrap_or(0);
    let reply = ChargeReply {
        now: unsigned(now),
        admitted: unsigned(admitted),
        when,
        delaying: unsigned(delaying),
        tiers: smallvec![[unsigned(first), unsigned(second), unsigned(third)]],
    };
    Ok(Some(reply.outcome(set, 0, 1)))
}
