//! Parsers for points in time: HTTP-dates and RFC 3339.

use std::time::Duration;

use crate::time::Timestamp;

/// An HTTP-date in any of its three forms: `Sun, 06 Nov 1994 08:49:37 GMT`,
/// `Sunday, 06-Nov-94 08:49:37 GMT`, `Sun Nov  6 08:49:37 1994`.
pub(super) fn http(text: &str) -> Option<Timestamp> {
    httpdate::parse_http_date(text).ok().map(Timestamp::from)
}

/// A date of RFC 3339, or a near form of ISO 8601: the offset may lack its
/// colon or its minutes. Without an offset it is UTC.
pub(super) fn iso(text: &str) -> Option<Timestamp> {
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
