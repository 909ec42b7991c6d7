//! Durations with a unit, as policy files have them: `250ms`, `1h 30m`.
//!
//! What `format` writes, `parse` reads as the same duration.

use std::{fmt, time::Duration};

use serde::{
    Deserializer, Serialize, Serializer,
    de::{Error, Visitor},
};

use crate::time::in_one_unit;

/// For a key that may be missing.
pub(super) fn serialize<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    duration.map(format).serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    deserializer.deserialize_any(DurationVisitor).map(Some)
}

struct DurationVisitor;

impl Visitor<'_> for DurationVisitor {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration such as `250ms`, `1s`, `10m` or `1d`")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
        parse(text).map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Duration, E> {
        Err(E::custom(format_args!("a duration needs a unit, such as `{number}s` or `{number}ms`")))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Duration, E> {
        Err(E::custom("a duration needs a unit, such as `1s` or `250ms`"))
    }
}

const EXPECTED: &str = "a duration is a number and its unit, such as `250ms`, `1s`, `10m` or `1d`";

/// Reads `250ms`, `1s`, `1h 30m`.
fn parse(text: &str) -> Result<Duration, String> {
    let mut left = text.trim();
    if left.is_empty() {
        return Err(EXPECTED.into());
    }
    // One span at a time: humantime panics if the sum of several overflows a
    // `Duration`.
    let mut sum = Duration::ZERO;
    while !left.is_empty() {
        let unit = left.find(char::is_alphabetic).ok_or(EXPECTED)?;
        let length = left[unit..].find(|c: char| !c.is_alphabetic());
        let (span, rest) = left.split_at(length.map_or(left.len(), |length| unit + length));
        if matches!(&span[unit..], "M" | "month" | "months" | "y" | "yr" | "yrs" | "year" | "years") {
            return Err("months and years differ in length: write days".into());
        }
        let span = humantime::parse_duration(span).map_err(|error| match error {
            humantime::DurationError::NumberOverflow => "is longer, or finer, than can be counted".into(),
            _ => String::from(EXPECTED),
        })?;
        sum = sum.checked_add(span).ok_or("is longer than can be counted")?;
        left = rest.trim_start();
    }
    Ok(sum)
}

/// Formats for [`parse`], in one unit if one is enough.
fn format(duration: Duration) -> String {
    let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
    match u64::try_from(duration.as_nanos()) {
        Ok(nanos) => in_one_unit(nanos).unwrap_or_else(|| "0s".into()),
        Err(_) if nanos == 0 => format!("{seconds}s"),
        Err(_) => format!("{seconds}s {nanos}ns"),
    }
}

#[cfg(test)]
mod tests;
