//! [`Calendar`]: into which windows the wall clock is divided, by number: windows of one
//! length, or calendar months of UTC.
//!
//! It counts nothing, and knows no limits. Unix time has no leap seconds, and UTC no
//! daylight saving time, so all of it is arithmetic. The invariant: each window ends
//! where the next one begins.

use crate::{
    quota::{LONGEST_MONTH, Quota},
    time::nanos,
};

#[derive(Clone, Copy, Debug)]
pub(super) enum Calendar {
    /// Windows of one length. Number 0 begins so long before the Unix epoch.
    Even { length: u64, ahead: u64 },
    /// Months since January 1970.
    Months,
}

impl Calendar {
    /// Windows of one length, of which one begins at the Unix epoch.
    pub(super) fn even(length: u64) -> Self {
        Self::Even { length, ahead: 0 }
    }

    /// The windows of a quota that counts by fixed windows.
    pub(super) fn of(quota: &Quota) -> Self {
        let length = nanos(quota.window()).max(1);
        match quota.phase() {
            _ if quota.is_month() => Self::Months,
            0 => Self::even(length),
            phase => Self::Even { length, ahead: length.saturating_sub(phase) },
        }
    }

    /// The length of the longest window.
    pub(super) fn longest(self) -> u64 {
        match self {
            Self::Even { length, .. } => length,
            Self::Months => nanos(LONGEST_MONTH),
        }
    }

    /// The number of the window that is open at a time.
    pub(super) fn number(self, at: u64) -> u64 {
        match self {
            Self::Even { length, ahead } => at.saturating_add(ahead) / length,
            Self::Months => month_of(at),
        }
    }

    /// When a window begins: the end of time for one that begins later.
    pub(super) fn start(self, number: u64) -> u64 {
        match self {
            Self::Even { length, ahead } => {
                number.checked_mul(length).map_or(u64::MAX, |start| start.saturating_sub(ahead))
            }
            Self::Months => start_of_month(number),
        }
    }

    /// When the window ends that is open at a time.
    pub(super) fn end(self, at: u64) -> u64 {
        self.start(self.number(at).saturating_add(1))
    }

    /// The end of the window so many windows after the one that ends at `end`.
    pub(super) fn later(self, end: u64, windows: u64) -> u64 {
        match self {
            // Also where windows do not begin at its multiples.
            Self::Even { length, .. } => end.saturating_add(windows.saturating_mul(length)),
            Self::Months => start_of_month(month_of(end).saturating_add(windows)),
        }
    }

    /// The end of the window so many windows before the one that ends at `end`.
    pub(super) fn earlier(self, end: u64, windows: u64) -> u64 {
        match self {
            Self::Even { length, .. } => end.saturating_sub(windows.saturating_mul(length)),
            Self::Months => start_of_month(month_of(end).saturating_sub(windows)),
        }
    }

    /// How many windows begin after `now`, up to the one that ends at `end`.
    pub(super) fn begin_after(self, now: u64, end: u64) -> u64 {
        match self {
            Self::Even { length, .. } => end.saturating_sub(1).saturating_sub(now) / length,
            Self::Months => month_of(end.saturating_sub(1)).saturating_sub(month_of(now)),
        }
    }
}

/// In nanoseconds.
const DAY: u64 = 86_400_000_000_000;

/// A twelfth of the mean year: 400 years have 146,097 days.
const MEAN_MONTH: u64 = DAY / 4_800 * 146_097;

/// From March 1 of year 0 to January 1, 1970: in days, and in months.
const EPOCH_DAYS: u64 = 719_468;
const EPOCH_MONTHS: u64 = 1969 * 12 + 10;

/// All months that begin within 64 bits of nanoseconds have lower numbers.
const END_OF_TIME: u64 = 10_000;

/// Years begin in March here, so that the leap day is the last one of a year.
fn start_of_month(number: u64) -> u64 {
    let months = number.min(END_OF_TIME) + EPOCH_MONTHS;
    let (year, month) = (months / 12, months % 12);
    // Five months from March on have 153 days, and so have the next five.
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5;
    (days - EPOCH_DAYS).saturating_mul(DAY)
}

fn month_of(at: u64) -> u64 {
    // Months begin within a few days of the mean ones.
    let near = at / MEAN_MONTH;
    let number = near + u64::from(start_of_month(near + 1) <= at);
    number - u64::from(start_of_month(number) > at)
}

#[cfg(test)]
mod tests;
