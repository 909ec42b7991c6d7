//! One request of one tier, alone in its call: on a shorter way than a batch.

use redis::Value;
use smallvec::smallvec;

use super::{
    batch::{OUTLIVES, OUTLIVES_FROZEN, Reading, UNTOLD, cut_short, something_else},
    plan::Ask,
    script::{Call, SINGLE},
};
use crate::{backend::Outcome, error::BackendError};

const ARGUMENTS: usize = 13;
const ANSWERS: usize = 7;

/// `None` where it takes more than that.
pub(super) fn call(ask: &Ask) -> Option<Call> {
    let [part] = &ask.parts[..] else { return None };
    if !ask.is_plain() {
        return None;
    }
    let outlives = if ask.now.is_some() { OUTLIVES_FROZEN } else { OUTLIVES };
    let head = [ask.now.unwrap_or(0), outlives, u64::from(ask.now.is_none())];
    let mut argument = [0; 8 * ARGUMENTS];
    for (bytes, number) in argument.chunks_exact_mut(8).zip(head.into_iter().chain(part.definition.few())) {
        #[allow(clippy::cast_precision_loss, reason = "below 2^53")]
        bytes.copy_from_slice(&(number as f64).to_le_bytes());
    }
    Some(Call::new(&SINGLE, [&*part.key], 1, &argument))
}

/// What is said of it; `None` where the script cannot tell.
pub(super) fn read(ask: &Ask, call: &Call, answer: &Value) -> Result<Option<Outcome>, BackendError> {
    let Value::BulkString(bytes) = answer else { return Err(cut_short()) };
    let mut numbers = [0; ANSWERS];
    if bytes.len() != 8 * ANSWERS {
        return Err(cut_short());
    }
    for (number, bytes) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
        let bytes = bytes.try_into().map_err(|_| cut_short())?;
        #[allow(clippy::cast_possible_truncation, reason = "saturates")]
        let read = f64::from_le_bytes(bytes) as i64;
        *number = read;
    }
    let [now, admitted, when, waits_for, first, second, third] = numbers;
    if admitted < 0 {
        return if admitted == UNTOLD { Ok(None) } else { Err(something_else(call.key(1))) };
    }
    let unsigned = |number: i64| u64::try_from(number).unwrap_or(0);
    let reading = Reading {
        now: unsigned(now),
        admitted: unsigned(admitted),
        when,
        waits_for: unsigned(waits_for),
        tiers: smallvec![[unsigned(first), unsigned(second), unsigned(third)]],
    };
    Ok(Some(reading.outcome(ask, 0, 1)))
}
