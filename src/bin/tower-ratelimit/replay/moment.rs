//! Points in time as logs write them: [`parse`].
//!
//! It reads no clock. Invariant: no text makes it panic, and a time before 1970 is none.

use std::time::UNIX_EPOCH;

/// Nanoseconds since the Unix epoch of `10/Oct/2000:13:55:36 -0700`, of
/// `2000-10-10T13:55:36.5-07:00`, or of a number: of seconds, or by its size of smaller units.
pub(super) fn parse(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    match (bytes.get(2), bytes.get(4)) {
        (Some(b'/'), _) => common(text),
        (_, Some(b'-')) => iso(text),
        _ => number(text),
    }
}

const SECOND: u64 = 1_000_000_000;

fn common(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (day, month, year) = (text.get(..2)?, text.get(3..6)?, text.get(7..11)?);
    let month = 1 + MONTHS.iter().position(|name| *name == month)?;
    let (clock, zone) = text.get(12..).map(|rest| rest.split_once(' ').unwrap_or((rest, "Z")))?;
    instant(&format!("{year}-{month:02}-{day}T{clock}"), zone)
}

fn iso(text: &str) -> Option<u64> {
    let time = text.get(11..)?;
    let zone = time.find(['Z', 'z', '+', '-']).map_or(text.len(), |zone| 11 + zone);
    let (local, zone) = text.split_at(zone);
    instant(&local.replace(',', ".").replace('t', "T"), zone)
}

/// `local` is `2000-10-10T13:55:36` with or without a fraction, `zone` is `Z`, `-0700` or `+02:00`.
fn instant(local: &str, zone: &str) -> Option<u64> {
    let local = humantime::parse_rfc3339_weak(local).ok()?.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(local.as_nanos()).ok()?.checked_add_signed(-offset(zone)? * SECOND as i64)
}

/// Seconds east of Greenwich.
fn offset(zone: &str) -> Option<i64> {
    let sign = match zone.as_bytes().first() {
        None | Some(b'Z' | b'z') => return Some(0),
        Some(b'+') => 1,
        Some(b'-') => -1,
        _ => return None,
    };
    let zone = zone.get(1..)?;
    let (hours, minutes) = (digits(zone.get(..2)?)?, digits(zone.get(zone.len().checked_sub(2)?..)?)?);
    (hours < 24 && minutes < 60).then(|| sign * (hours * 3_600 + minutes * 60) as i64)
}

/// Seconds; from 100 billion on milliseconds, and so on by factors of a thousand: seconds
/// that large would be more than three thousand years away.
fn number(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole = digits(whole)?;
    let mut unit = SECOND;
    while unit > 1 && whole >= 100_000_000_000 * (SECOND / unit) {
        unit /= 1_000;
    }
    whole.checked_mul(unit)?.checked_add(nanos(fraction)? * unit / SECOND)
}

/// Digits after a point, in billionths.
fn nanos(fraction: &str) -> Option<u64> {
    let known = &fraction[..fraction.len().min(9)];
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(known.bytes().fold((0, SECOND / 10), |(sum, unit), digit| (sum + u64::from(digit - b'0') * unit, unit / 10)).0)
}

fn digits(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.len() <= 19 && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.parse().ok() } else { None }
}
