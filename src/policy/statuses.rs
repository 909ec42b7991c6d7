//! Sets of HTTP statuses: [`Statuses`].
//!
//! A set remembers which classes it was given as a whole, so that it is written
//! as it was read.

use std::fmt;

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
    /// A bit for each whole class, by its first digit.
    classes: u8,
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
    pub const NONE: Self = Self { classes: 0, codes: [0; 8], invalid: None };

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
        Self { classes: 1 << digit, ..Self::NONE }
    }

    /// The union with `others`.
    #[must_use]
    pub fn and(mut self, others: impl Into<Self>) -> Self {
        let others = others.into();
        self.classes |= others.classes;
        self.codes.iter_mut().zip(others.codes).for_each(|(codes, others)| *codes |= others);
        self.invalid = self.invalid.or(others.invalid);
        self
    }

    /// Whether this status is in the set.
    #[must_use]
    pub fn contains(&self, status: StatusCode) -> bool {
        let code = status.as_u16();
        bit_of(code).is_some_and(|(word, bit)| self.classes >> (code / 100) & 1 == 1 || self.codes[word] & bit != 0)
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
        let classes = (1..=5).filter(|digit| self.classes >> digit & 1 == 1).map(Item::Class);
        let codes = (100..600).filter(|code| bit_of(*code).is_some_and(|(word, bit)| self.codes[word] & bit != 0));
        classes.chain(codes.map(Item::Code))
    }

    /// Whether any status of `item` is in the set.
    #[cfg(feature = "serde")]
    pub(crate) fn intersects(&self, item: Item) -> bool {
        item.codes().any(|status| self.contains(status))
    }

    /// Whether all statuses of `item` are in the set.
    pub(crate) fn covers(&self, item: Item) -> bool {
        item.codes().all(|status| self.contains(status))
    }
}

impl Item {
    fn codes(self) -> impl Iterator<Item = StatusCode> {
        let (first, count) = match self {
            Self::Class(digit) => (u16::from(digit) * 100, 100),
            Self::Code(code) => (code, 1),
        };
        (first..first + count).filter_map(|code| StatusCode::from_u16(code).ok())
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

/// The word and bit of a status in [`Statuses::codes`].
fn bit_of(code: u16) -> Option<(usize, u64)> {
    let index = code.checked_sub(100).filter(|index| *index < 500)?;
    Some((usize::from(index / 64), 1 << (index % 64)))
}

impl From<u16> for Statuses {
    fn from(code: u16) -> Self {
        let mut statuses = Self::NONE;
        match bit_of(code) {
            Some((word, bit)) => statuses.codes[word] |= bit,
            None => statuses.invalid = Some(code),
        }
        statuses
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
