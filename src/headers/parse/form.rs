//! The lines of header fields, and the forms of the times and numbers in them.
//!
//! It knows no dialect. The invariant: work is bounded, and malformed text is `None`.

use std::{str, time::Duration};

use http::HeaderMap;

use crate::time::Timestamp;

/// A field with one quota has one line; a proxy may add some.
const MOST_LINES: usize = 16;

/// Twice the length of any date, time or number in use.
const MOST_BYTES: usize = 128;

/// The lines of a field with one value.
pub(super) fn lines<'h>(headers: &'h HeaderMap, name: &str) -> impl Iterator<Item = &'h str> + use<'h> {
    lines_up_to(MOST_BYTES, headers, name)
}

/// The first lines of a field, without those that are longer than `bytes`.
pub(super) fn lines_up_to<'h>(
    bytes: usize,
    headers: &'h HeaderMap,
    name: &str,
) -> impl Iterator<Item = &'h str> + use<'h> {
    let lines = headers.get_all(name).into_iter().take(MOST_LINES);
    let short = lines.filter(move |line| line.len() <= bytes);
    short.filter_map(|line| str::from_utf8(line.as_bytes()).ok()).map(str::trim)
}

/// A number of seconds above this is a point in time, not a delay. It is the
/// year 2001, or 31 years.
const EPOCH: Duration = Duration::from_secs(1_000_000_000);

/// The form of a time. All numbers may have a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Any form, recognized by its look.
    Any,
    /// As in `Retry-After`: a number or a date.
    NumberOrDate,
    /// Seconds from now, or since the Unix epoch if the number is large.
    Number,
    /// Seconds from now.
    Delay,
    /// Seconds since the Unix epoch.
    Epoch,
    /// Numbers with units, or seconds from now.
    Units,
    /// An HTTP-date, or one of RFC 3339.
    Date,
}

/// A time as it was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    After(Duration),
    Epoch(Timestamp),
    Date(Timestamp),
}

impl Form {
    /// `None` where the text is malformed.
    pub(super) fn read(self, text: &str) -> Option<When> {
        match self {
            Self::Any => number(text).or_else(|| units(text).map(When::After)).or_else(|| any_date(text)),
            Self::NumberOrDate => number(text).or_else(|| any_date(text)),
            Self::Number => number(text),
            Self::Delay => seconds(text).map(When::After),
            Self::Epoch => seconds(text).map(epoch),
            Self::Units => seconds(text).or_else(|| units(text)).map(When::After),
            Self::Date => any_date(text),
        }
    }
}

impl When {
    /// The time from `now` on; zero if it has passed.
    pub(super) const fn after(self, now: Timestamp) -> Duration {
        match self {
            Self::After(after) => after,
            Self::Epoch(time) | Self::Date(time) => time.saturating_since(now),
        }
    }
}

/// A number of units. A fraction of a unit is of no use.
pub(super) fn count(text: &str) -> Option<u64> {
    decimal(text).map(|(whole, _)| whole)
}

fn number(text: &str) -> Option<When> {
    seconds(text).map(|seconds| if seconds > EPOCH { epoch(seconds) } else { When::After(seconds) })
}

fn epoch(seconds: Duration) -> When {
    When::Epoch(Timestamp::UNIX_EPOCH.saturating_add(seconds))
}

fn any_date(text: &str) -> Option<When> {
    http_date(text).or_else(|| iso_date(text)).map(When::Date)
}

/// Digits and an optional fraction. No sign, no exponent. A number that is too
/// large is cut.
fn seconds(text: &str) -> Option<Duration> {
    let (whole, nanos) = decimal(text)?;
    Some(Duration::from_secs(whole).saturating_add(Duration::from_nanos(nanos)))
}

/// Numbers with units, as in Go's durations: `1h2m3.5s`, `12ms`.
fn units(mut text: &str) -> Option<Duration> {
    let mut sum = Duration::ZERO;
    loop {
        let (number, rest) = text.split_at_checked(text.find(|c: char| c != '.' && !c.is_ascii_digit())?)?;
        let (nanos, rest) = unit(rest)?;
        let (whole, billionths) = decimal(number)?;
        // A fraction of a unit is less than the unit.
        let fraction = (u128::from(billionths) * u128::from(nanos)).div_ceil(1_000_000_000);
        let part = whole.saturating_mul(nanos).saturating_add(u64::try_from(fraction).unwrap_or(nanos));
        sum = sum.saturating_add(Duration::from_nanos(part));
        if rest.is_empty() {
            return Some(sum);
        }
        text = rest;
    }
}

/// The nanoseconds of the unit at the start, and the text after it.
fn unit(text: &str) -> Option<(u64, &str)> {
    // A unit comes before those that are its prefix.
    const UNITS: [(&str, u64); 9] = [
        ("ns", 1),
        ("us", 1_000),
        ("\u{b5}s", 1_000),
        ("\u{3bc}s", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("m", 60_000_000_000),
        ("h", 3_600_000_000_000),
        ("d", 86_400_000_000_000),
    ];
    UNITS.iter().find_map(|&(unit, nanos)| Some((nanos, text.strip_prefix(unit)?)))
}

/// The whole part of a decimal number, and its fraction in billionths, rounded
/// up.
fn decimal(text: &str) -> Option<(u64, u64)> {
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (text, None),
    };
    Some((digits(whole)?, fraction.map_or(Some(0), billionths)?))
}

/// A whole number.
pub(super) fn digits(text: &str) -> Option<u64> {
    let are_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // Parsing can only fail because the number is too large.
    are_digits.then(|| text.parse().unwrap_or(u64::MAX))
}

fn billionths(fraction: &str) -> Option<u64> {
    const DIGITS: usize = 9;

    digits(fraction)?;
    let (first, rest) = fraction.split_at_checked(DIGITS).unwrap_or((fraction, ""));
    let missing = DIGITS.saturating_sub(first.len());
    let scale = 10_u64.pow(u32::try_from(missing).ok()?);
    let more = rest.bytes().any(|byte| byte != b'0');
    Some(digits(first)? * scale + u64::from(more))
}

/// An HTTP-date in any of its three forms: `Sun, 06 Nov 1994 08:49:37 GMT`,
/// `Sunday, 06-Nov-94 08:49:37 GMT`, `Sun Nov  6 08:49:37 1994`.
pub(super) fn http_date(text: &str) -> Option<Timestamp> {
    httpdate::parse_http_date(text).ok().map(Timestamp::from)
}

/// A date of RFC 3339, or a near form of ISO 8601: the offset may lack its
/// colon or its minutes. Without an offset it is UTC.
fn iso_date(text: &str) -> Option<Timestamp> {
    /// The length of a date up to its seconds: `1994-11-06T08:49:37`.
    const SECONDS: usize = 19;

    let text = text.to_ascii_uppercase();
    let zone = text.char_indices().skip(SECONDS).find(|(_, c)| matches!(c, 'Z' | '+' | '-'));
    let (local, zone) = text.split_at_checked(zone.map_or(text.len(), |(at, _)| at))?;
    let fraction = local.get(SECONDS..)?;
    if !fraction.is_empty() && (fraction.len() < 2 || !fraction.starts_with('.')) {
        return None;
    }
    let local = Timestamp::from(humantime::parse_rfc3339_weak(local).ok()?);
    let (east, offset) = offset(zone)?;
    // East of Greenwich, local time is ahead of UTC.
    Some(match east {
        true => {
            Timestamp::UNIX_EPOCH.saturating_add(local.saturating_since(Timestamp::UNIX_EPOCH.saturating_add(offset)))
        }
        false => local.saturating_add(offset),
    })
}

/// Whether a zone is east of Greenwich, and its offset from UTC.
fn offset(zone: &str) -> Option<(bool, Duration)> {
    let (east, digits) = match zone.split_at_checked(1) {
        None | Some(("Z", "")) => return Some((true, Duration::ZERO)),
        Some(("+", digits)) => (true, digits),
        Some(("-", digits)) => (false, digits),
        Some(_) => return None,
    };
    let (hours, minutes) = digits.split_at_checked(2)?;
    let minutes = match minutes.strip_prefix(':').unwrap_or(minutes) {
        "" if minutes.is_empty() => 0,
        minutes => two_digits(minutes)?,
    };
    let minutes =
        two_digits(hours).filter(|&hours| hours < 24)? * 60 + Some(minutes).filter(|&minutes| minutes < 60)?;
    Some((east, Duration::from_secs(minutes * 60)))
}

fn two_digits(text: &str) -> Option<u64> {
    let are_digits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    are_digits.then(|| text.parse().ok()).flatten()
}
