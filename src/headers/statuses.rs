//! Sets of HTTP statuses: [`Statuses`].
//!
//! A set is written by classes where it has them as a whole, and else one by one.

use std::{fmt, ops::Range};

use http::StatusCode;

/// A set of HTTP statuses, by class or one by one. A rule charges or refunds
/// responses by it.
///
/// Only statuses from 100 to 599 can be in a set. Another one is an error when
/// the policy is built, and a response with such a status is in no set.
///
/// ```
/// use http::StatusCode;
/// use tower_ratelimit::policy::Statuses;
///
/// let failed = Statuses::SERVER_ERRORS.and([404, 410]);
/// assert!(failed.contains(StatusCode::BAD_GATEWAY) && failed.contains(StatusCode::GONE));
/// assert!(!failed.contains(StatusCode::UNAUTHORIZED));
///
/// assert_eq!(Statuses::from(StatusCode::UNAUTHORIZED), Statuses::from([401]));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statuses {
    /// A bit for each single status.
    codes: [u64; 8],
    /// The first status out of range.
    invalid: Option<u16>,
}

/// An element of a set, as a policy file has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// By its first digit.
    Class(u8),
    Code(u16),
}

impl Statuses {
    /// The empty set.
    pub const NONE: Self = Self { codes: [0; 8], invalid: None };

    /// 1xx.
    pub const INFORMATIONAL: Self = Self::class(1);

    /// 2xx.
    pub const SUCCESSES: Self = Self::class(2);

    /// 3xx.
    pub const REDIRECTIONS: Self = Self::class(3);

    /// 4xx.
    pub const CLIENT_ERRORS: Self = Self::class(4);

    /// 5xx.
    pub const SERVER_ERRORS: Self = Self::class(5);

    const fn class(digit: u8) -> Self {
        let (mut statuses, mut code) = (Self::NONE, digit as u16 * 100);
        while code < digit as u16 * 100 + 100 {
            statuses = statuses.with(code);
            code += 1;
        }
        statuses
    }

    const fn with(mut self, code: u16) -> Self {
        if 100 <= code && code < 600 {
            let index = code as usize - 100;
            self.codes[index / 64] |= 1 << (index % 64);
        } else {
            self.invalid = Some(code);
        }
        self
    }

    /// The union with `others`.
    #[must_use]
    pub fn and(mut self, others: impl Into<Self>) -> Self {
        let others = others.into();
        self.codes.iter_mut().zip(others.codes).for_each(|(codes, others)| *codes |= others);
        self.invalid = self.invalid.or(others.invalid);
        self
    }

    /// Whether this status is in the set.
    #[must_use]
    pub fn contains(&self, status: StatusCode) -> bool {
        self.has(status.as_u16())
    }

    fn has(&self, code: u16) -> bool {
        let index = usize::from(code.wrapping_sub(100));
        index < 500 && self.codes[index / 64] >> (index % 64) & 1 == 1
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::NONE
    }

    pub(crate) fn invalid(&self) -> Option<u16> {
        self.invalid
    }

    /// The elements, classes first.
    pub(crate) fn items(&self) -> impl Iterator<Item = Item> {
        let is_whole = |digit: &u8| self.covers(Item::Class(*digit));
        let is_single = move |code: &u16| self.has(*code) && !is_whole(&((code / 100) as u8));
        (1..=5).filter(is_whole).map(Item::Class).chain((100..600).filter(is_single).map(Item::Code))
    }

    /// Whether any status of `item` is in the set.
    #[cfg(feature = "serde")]
    pub(crate) fn intersects(&self, item: Item) -> bool {
        item.codes().any(|code| self.has(code))
    }

    /// Whether all statuses of `item` are in the set.
    pub(crate) fn covers(&self, item: Item) -> bool {
        item.codes().all(|code| self.has(code))
    }
}

impl Item {
    fn codes(self) -> Range<u16> {
        let (first, count) = match self {
            Self::Class(digit) => (u16::from(digit) * 100, 100),
            Self::Code(code) => (code, 1),
        };
        first..first + count
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Class(digit) => write!(f, "{digit}xx"),
            Self::Code(code) => code.fmt(f),
        }
    }
}

impl From<u16> for Statuses {
    fn from(code: u16) -> Self {
        Self::NONE.with(code)
    }
}

impl From<StatusCode> for Statuses {
    fn from(status: StatusCode) -> Self {
        Self::from(status.as_u16())
    }
}

impl<T: Into<Self>, const N: usize> From<[T; N]> for Statuses {
    fn from(statuses: [T; N]) -> Self {
        statuses.into_iter().fold(Self::NONE, Self::and)
    }
}

#[cfg(feature = "serde")]
impl From<Item> for Statuses {
    fn from(item: Item) -> Self {
        match item {
            Item::Class(digit) => Self::class(digit),
            Item::Code(code) => Self::from(code),
        }
    }
}

#[cfg(test)]
mod tests;
