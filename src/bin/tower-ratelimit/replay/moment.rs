//! Points in time as logs write them: [`parse`].
//!
//! It reads no clock. Invariant: no text makes it panic, and a time before 1970 is none.

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
    let (day, rest) = (text.get(..2)?, text.get(3..)?);
    let (month, rest) = (rest.get(..3)?, rest.get(4..)?);
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let (year, clock) = rest.split_once(':')?;
    let (clock, zone) = clock.split_once(' ').unwrap_or((clock, "Z"));
    instant(digits(year)?, month, digits(day)?, clock, zone)
}

fn iso(text: &str) -> Option<u64> {
    let (date, time) = (text.get(..10)?, text.get(11..)?);
    let end = time.find(['Z', 'z', '+', '-']).unwrap_or(time.len());
    let (clock, zone) = time.split_at(end);
    instant(digits(date.get(..4)?)?, digits(date.get(5..7)?)?, digits(date.get(8..)?)?, clock, zone)
}

/// `clock` is `13:55:36` with or without a fraction, `zone` is `Z`, `-0700` or `+02:00`.
fn instant(year: u64, month: u64, day: u64, clock: &str, zone: &str) -> Option<u64> {
    let (clock, fraction) = clock.split_once(['.', ',']).unwrap_or((clock, ""));
    let mut parts = clock.split(':').map(digits);
    let (hours, minutes, seconds) = (parts.next()??, parts.next()??, parts.next()??);
    let is_valid = (1..=12).contains(&month) && (1..=31).contains(&day) && hours < 24 && minutes < 60 && seconds <= 60;
    if !is_valid || year > 9_999 || parts.next().is_some() {
        return None;
    }
    let local = (days(year, month, day)? * 86_400 + hours * 3_600 + minutes * 60 + seconds) as i64;
    let seconds = u64::try_from(local - offset(zone)?).ok()?;
    seconds.checked_mul(SECOND)?.checked_add(nanos(fraction)?)
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

/// Days from 1970-01-01 to a day of the Gregorian calendar: leap days end a year that begins
/// in March.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let leap_days = year / 4 - year / 100 + year / 400;
    (year * 365 + leap_days + (month * 153 + 2) / 5 + day).checked_sub(719_469)
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
