use http::StatusCode;

/// Statuses of HTTP responses, by class or one by one: by which a rule tells
/// what it charges.
///
/// Only those from 100 to 599 can be meant; of others a rule says so when its
/// policy is built, and a response with such a status is in no set.
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
    /// A bit for each class that is there as a whole, by its first digit.
    classes: u8,
    /// A bit for each status that is there by itself.
    codes: [u64; 8],
    /// The first that cannot be meant.
    no_status: Option<u16>,
}

/// An item of a set, as it is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// By its first digit.
    Class(u16),
    Code(u16),
}

impl Statuses {
    /// None of them.
    pub const NONE: Self = Self { classes: 0, codes: [0; 8], no_status: None };

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

    /// These and others.
    #[must_use]
    pub fn and(mut self, others: impl Into<Self>) -> Self {
        let others = others.into();
        self.classes |= others.classes;
        self.codes.iter_mut().zip(others.codes).for_each(|(codes, others)| *codes |= others);
        self.no_status = self.no_status.or(others.no_status);
        self
    }

    /// Whether a response of this status is meant.
    #[must_use]
    pub fn contains(&self, status: StatusCode) -> bool {
        let code = status.as_u16();
        place(code).is_some_and(|(word, bit)| self.classes >> (code / 100) & 1 == 1 || self.codes[word] & bit != 0)
    }

    /// Whether it means none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::NONE
    }

    pub(crate) fn no_status(&self) -> Option<u16> {
        self.no_status
    }

    /// What it is made of, classes first.
    pub(crate) fn items(&self) -> impl Iterator<Item = Item> {
        let classes = (1..=5).filter(|digit| self.classes >> digit & 1 == 1).map(Item::Class);
        let codes = (100..600).filter(|code| place(*code).is_some_and(|(word, bit)| self.codes[word] & bit != 0));
        classes.chain(codes.map(Item::Code))
    }

    /// Whether one of those is meant that an item stands for.
    #[cfg(feature = "serde")]
    pub(crate) fn meets(&self, item: Item) -> bool {
        item.codes().any(|status| self.contains(status))
    }

    /// Whether all of those are meant that an item stands for.
    pub(crate) fn covers(&self, item: Item) -> bool {
        item.codes().all(|status| self.contains(status))
    }
}

impl Item {
    /// What it stands for.
    fn codes(self) -> impl Iterator<Item = StatusCode> {
        let codes = match self {
            Self::Class(digit) => digit * 100..digit * 100 + 100,
            Self::Code(code) => code..code + 1,
        };
        codes.filter_map(|code| StatusCode::from_u16(code).ok())
    }
}

impl std::fmt::Display for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Class(digit) => write!(f, "{digit}xx"),
            Self::Code(code) => code.fmt(f),
        }
    }
}

/// Its word and bit.
fn place(code: u16) -> Option<(usize, u64)> {
    let place = code.checked_sub(100).filter(|place| *place < 500)?;
    Some((usize::from(place / 64), 1 << (place % 64)))
}

impl From<u16> for Statuses {
    fn from(code: u16) -> Self {
        let mut statuses = Self::NONE;
        match place(code) {
            Some((word, bit)) => statuses.codes[word] |= bit,
            None => statuses.no_status = Some(code),
        }
        statuses
    }
}

impl From<StatusCode> for Statuses {
    fn from(status: StatusCode) -> Self {
        Self::from(status.as_u16())
    }
}

impl<const N: usize> From<[u16; N]> for Statuses {
    fn from(codes: [u16; N]) -> Self {
        codes.into_iter().fold(Self::NONE, Self::and)
    }
}

impl<const N: usize> From<[StatusCode; N]> for Statuses {
    fn from(statuses: [StatusCode; N]) -> Self {
        statuses.into_iter().fold(Self::NONE, Self::and)
    }
}

#[cfg(feature = "serde")]
impl From<Item> for Statuses {
    fn from(item: Item) -> Self {
        match item {
            Item::Class(digit @ 1..=5) => Self { classes: 1 << digit, ..Self::NONE },
            Item::Class(digit) => Self { no_status: Some(digit.saturating_mul(100)), ..Self::NONE },
            Item::Code(code) => Self::from(code),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16) -> StatusCode {
        StatusCode::from_u16(code).unwrap()
    }

    #[test]
    fn a_set_holds_what_it_was_given_and_nothing_else() {
        let given = [100, 163, 164, 401, 404, 599];
        let codes = Statuses::from(given);
        let mixed = codes.and(Statuses::SUCCESSES).and(status(503));
        for code in 100..=999 {
            assert_eq!(codes.contains(status(code)), given.contains(&code), "{code}");
            let meant = given.contains(&code) || (200..300).contains(&code) || code == 503;
            assert_eq!(mixed.contains(status(code)), meant, "{code}");
        }
        assert_eq!(Statuses::NONE.items().count(), 0);
        let items: Vec<String> = mixed.items().map(|item| item.to_string()).collect();
        assert_eq!(items, ["2xx", "100", "163", "164", "401", "404", "503", "599"]);
    }

    #[test]
    fn what_is_no_status_is_remembered_and_means_nothing() {
        for code in [0, 99, 600, 999, 1_000, u16::MAX] {
            let statuses = Statuses::from([200, code, 12]);
            assert_eq!(statuses.no_status(), Some(code));
            assert_eq!(statuses.items().collect::<Vec<_>>(), [Item::Code(200)]);
            assert!(!statuses.is_empty());
        }
        assert!(Statuses::default().is_empty());
    }

    #[test]
    fn a_class_is_covered_when_all_of_it_is_there() {
        let client = Statuses::CLIENT_ERRORS;
        assert!(client.covers(Item::Class(4)) && client.covers(Item::Code(404)));
        assert!(!client.covers(Item::Class(5)) && !Statuses::from([404]).covers(Item::Class(4)));
        let all = (400..500).fold(Statuses::NONE, Statuses::and);
        assert!(all.covers(Item::Class(4)));
    }

    #[test]
    fn a_rule_charges_what_is_named_and_gives_back_the_rest() {
        use crate::{
            policy::{CompiledPolicy, Policy, Rule},
            quota::Quota,
        };
        let keeps = |rule: Rule| -> Vec<u16> {
            let policy = Policy::new().rule(rule.tier(Quota::per_second(1)));
            let compiled = CompiledPolicy::new(policy).unwrap();
            let rule = &compiled.rules[0];
            [100, 200, 302, 401, 404, 500, 599, 600].into_iter().filter(|code| rule.keeps(status(*code))).collect()
        };
        let rule = || Rule::new("rule");
        assert_eq!(keeps(rule()), [100, 200, 302, 401, 404, 500, 599, 600]);
        assert_eq!(keeps(rule().charge_on([401, 599])), [401, 599]);
        assert_eq!(keeps(rule().refund_on(Statuses::SERVER_ERRORS.and(404))), [100, 200, 302, 401, 600]);
        assert_eq!(keeps(rule().charge_on(Statuses::CLIENT_ERRORS).refund_on(StatusCode::NOT_FOUND)), [401]);
        assert_eq!(keeps(rule().charge_on([401]).charge_on([500])), [401, 500]);
    }
}
