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

/// The numbers in a field, of all its lines. A proxy may have joined several, and each
/// may have parameters: `0,0`, `76;w=21600`.
pub(super) fn counts<'h>(headers: &'h HeaderMap, name: &str) -> impl Iterator<Item = u64> + use<'h> {
    lines(headers, name).flat_map(|line| line.split(',')).filter_map(|item| count(without_parameters(item)))
}

fn without_parameters(item: &str) -> &str {
    item.split(';').next().unwrap_or(item).trim()
}

/// A number of seconds above this is a point in time, not a delay. It is the
/// year 2001, or 31 years.
const EPOCH: Duration = Duration::from_secs(1_000_000_000);

/// A number that is a point in time further away than this is malformed: no quota
/// is as long.
const FURTHEST: Duration = Duration::from_secs(366 * 86_400);

/// The form of a time. All numbers may have a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Any form, recognized by its look.
    Any,
    /// From now, or since the Unix epoch if the number is large.
    Number,
    /// From now: seconds, or numbers with units.
    Delay,
    /// Since the Unix epoch: in seconds, or finer if the number is too large for that.
    Epoch,
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
    /// The times in a field, of all its lines. A proxy may have joined several, and
    /// each may have parameters. Points in time are compared with `now`.
    pub(super) fn times<'h>(
        self,
        headers: &'h HeaderMap,
        name: &str,
        now: Timestamp,
    ) -> impl Iterator<Item = When> + use<'h> {
        let times = lines(headers, name).flat_map(move |line| self.read_line(line));
        times.filter(move |when| when.is_plausible(now))
    }

    /// The times in a line, without what is malformed.
    fn read_line(self, line: &str) -> Vec<When> {
        let mut times = Vec::new();
        // An HTTP-date has a comma after its weekday.
        let mut weekday = "";
        for item in line.split(',').map(without_parameters) {
            let time = self.read(&format!("{weekday}, {item}")).or_else(|| self.read(item));
            weekday = if time.is_none() { item } else { "" };
            times.extend(time);
        }
        times
    }

    /// `None` where the text is malformed.
    fn read(self, text: &str) -> Option<When> {
        match self {
            Self::Any => number(text).or_else(|| any_date(text)),
            Self::Number => number(text),
            Self::Delay => delay(text).map(When::After),
            Self::Epoch => epoch(text),
            Self::Date => any_date(text),
        }
    }
}

impl When {
    fn is_plausible(self, now: Timestamp) -> bool {
        match self {
            Self::Epoch(time) => time.saturating_since(now) <= FURTHEST,
            Self::After(_) | Self::Date(_) => true,
        }
    }

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
    match seconds(text) {
        Some(seconds) if seconds > EPOCH => epoch(text),
        _ => delay(text).map(When::After),
    }
}

fn delay(text: &str) -> Option<Duration> {
    seconds(text).or_else(|| units(text))
}

/// A point in time. Above 10^11 seconds, which is the year 5138, a number is one of
/// milliseconds; three digits further, of microseconds, and then of nanoseconds.
fn epoch(text: &str) -> Option<When> {
    /// Numbers, and the nanoseconds of the unit that larger ones have.
    const FINER: [(u64, u64); 3] =
        [(100_000_000_000_000_000, 1), (100_000_000_000_000, 1_000), (100_000_000_000, 1_000_000)];

    let (whole, billionths) = decimal(text)?;
    let finer = FINER.into_iter().find(|(most, _)| whole > *most);
    let unit = finer.map_or(1_000_000_000, |(_, nanos)| nanos);
    Some(When::Epoch(Timestamp::UNIX_EPOCH.saturating_add(times_unit(whole, billionths, unit))))
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
        sum = sum.saturating_add(times_unit(whole, billionths, nanos));
        if rest.is_empty() {
            return Some(sum);
        }
        text = rest;
    }
}

/// A decimal number of a unit of so many nanoseconds.
fn times_unit(whole: u64, billionths: u64, nanos: u64) -> Duration {
    // A fraction of a unit is less than the unit.
    let fraction = (u128::from(billionths) * u128::from(nanos)).div_ceil(1_000_000_000);
    Duration::from_nanos(whole.saturating_mul(nanos).saturating_add(u64::try_from(fraction).unwrap_or(nanos)))
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
    let fraction = fraction.map(billionths);
    match (whole, fraction) {
        ("", Some(fraction)) => Some((0, fraction?)),
        (whole, fraction) => Some((digits(whole)?, fraction.unwrap_or(Some(0))?)),
    }
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
/// `Sunday, 06-Nov-94 08:49:37 GMT`, `Sun Nov  6 08:49:37 1994`. In place of `GMT`
/// it may have `UTC` or an offset.
pub(super) fn http_date(text: &str) -> Option<Timestamp> {
    let parse = |text: &str| httpdate::parse_http_date(text).ok().map(Timestamp::from);
    parse(text).or_else(|| {
        let (local, zone) = text.rsplit_once(' ')?;
        let zone = if zone == "UTC" { "Z" } else { zone };
        to_utc(parse(&format!("{local} GMT"))?, zone)
    })
}

/// A date of RFC 3339, or a near form of ISO 8601: it may lack its seconds, and the
/// offset its colon or its minutes. Without an offset it is UTC.
fn iso_date(text: &str) -> Option<Timestamp> {
    // Lengths of parts of `1994-11-06T08:49:37`.
    const DATE: usize = 10;
    const MINUTES: usize = 16;
    const SECONDS: usize = 19;

    let text = text.to_ascii_uppercase();
    let zone = text.char_indices().skip(DATE).find(|(_, c)| matches!(c, 'Z' | '+' | '-'));
    let (local, zone) = text.split_at_checked(zone.map_or(text.len(), |(at, _)| at))?;
    let seconds = if local.len() == MINUTES { ":00" } else { "" };
    let local = format!("{local}{seconds}");
    let fraction = local.get(SECONDS..)?;
    if !fraction.is_empty() && (fraction.len() < 2 || !fraction.starts_with('.')) {
        return None;
    }
    to_utc(Timestamp::from(humantime::parse_rfc3339_weak(&local).ok()?), zone)
}

/// The time at which it is `local` time in a zone.
fn to_utc(local: Timestamp, zone: &str) -> Option<Timestamp> {
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
    digits(text).filter(|_| text.len() == 2)
}
