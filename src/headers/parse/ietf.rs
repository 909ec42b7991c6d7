//! `RateLimit` and `RateLimit-Policy` of the IETF's Internet-Draft: structured
//! fields (RFC 9651).
//!
//! A line that is not well-formed is ignored whole.

use std::{borrow::Cow, time::Duration};

use http::{HeaderMap, HeaderName};
use sfv::{
    BareItemFromInput, KeyRef,
    visitor::{DictionaryVisitor, EntryVisitor, Ignored, InnerListVisitor, ItemVisitor, ListVisitor, ParameterVisitor},
};

use super::{
    Dialect,
    fields::lines_up_to,
    limit::{Precedence, ReportedLimit, ReportedLimits, Reset},
};

static POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
static LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// Enough for a list of some dozens of quotas.
const MOST_BYTES: usize = 4_096;

/// The most items of a line, and the most policies in all.
const MOST_ITEMS: usize = 64;

/// Adds the limits in the fields of `dialect`, or of both versions.
pub(super) fn read(headers: &HeaderMap, dialect: Option<Dialect>, limits: &mut ReportedLimits) {
    let mut lines = lines_up_to(MOST_BYTES, headers, &LIMIT).peekable();
    if lines.peek().is_none() {
        return;
    }
    let reads = |wanted| dialect.is_none_or(|dialect| dialect == wanted);
    let mut policies = None;
    for line in lines {
        if let Some(limit) = dictionary(line).filter(|_| reads(Dialect::Ietf07)) {
            limits.add(limit);
        }
        let items = list(line).into_iter().flatten().filter(|_| reads(Dialect::Ietf));
        for item in items {
            let policies = policies.get_or_insert_with(|| Policies::new(headers));
            if let Some(limit) = item.limit(policies) {
                limits.add(limit);
            }
        }
    }
}

/// Versions 08 and later: `"burst";r=50;t=30, "daily";r=900;t=7200`.
fn list(line: &str) -> Option<Vec<Item<'_>>> {
    let mut list = List::default();
    sfv::Parser::new(line).parse_list_with_visitor(&mut list).ok()?;
    Some(list.items)
}

/// Version 07: `limit=100, remaining=50, reset=5`.
fn dictionary(line: &str) -> Option<ReportedLimit> {
    let mut quota = Item::default();
    sfv::Parser::new(line).parse_dictionary_with_visitor(&mut quota).ok()?;
    if quota.remaining.is_none() && quota.reset.is_none() {
        return None;
    }
    let reset = quota.reset.map(|after| Reset { precedence: Precedence::Delay, after });
    let (limit, remaining) = (quota.quota.map(whole), quota.remaining.map(whole));
    Some(ReportedLimit { dialect: Dialect::Ietf07, limit, remaining, reset })
}

/// The items of `RateLimit-Policy`.
struct Policies<'h>(Vec<Item<'h>>);

impl<'h> Policies<'h> {
    fn new(headers: &'h HeaderMap) -> Self {
        Self(lines_up_to(MOST_BYTES, headers, &POLICY).filter_map(list).flatten().take(MOST_ITEMS).collect())
    }

    /// The quota of the policy that an item names.
    fn quota(&self, of: &Item<'_>) -> Option<u64> {
        let named = self.0.iter().filter(|policy| policy.name == of.name);
        named.filter_map(|policy| policy.quota.map(whole)).min()
    }
}

/// An item of either field, or the dictionary of version 07. Parameters that
/// are negative or no number are left out.
#[derive(Default)]
struct Item<'h> {
    name: Cow<'h, str>,
    quota: Option<Duration>,
    remaining: Option<Duration>,
    /// A proposed name for `remaining`.
    available: Option<Duration>,
    reset: Option<Duration>,
    /// A proposed name for `reset`.
    wait: Option<Duration>,
}

impl Item<'_> {
    fn limit(&self, policies: &Policies<'_>) -> Option<ReportedLimit> {
        let remaining = self.remaining.into_iter().chain(self.available).min();
        let reset = self.reset.max(self.wait).map(|after| Reset { precedence: Precedence::RateLimit, after });
        let dialect = Dialect::Ietf;
        // `r` is required: an item without it is ignored.
        Some(ReportedLimit { dialect, limit: policies.quota(self), remaining: Some(whole(remaining?)), reset })
    }
}

const fn whole(number: Duration) -> u64 {
    number.as_secs()
}

/// A number that is not negative, as a duration, which keeps its fraction.
fn number(value: &BareItemFromInput<'_>) -> Option<Duration> {
    match value {
        BareItemFromInput::Integer(integer) => u64::try_from(*integer).ok().map(Duration::from_secs),
        BareItemFromInput::Decimal(decimal) => {
            u64::try_from(decimal.as_integer_scaled_1000()).ok().map(Duration::from_millis)
        }
        _ => None,
    }
}

#[derive(Default)]
struct List<'h> {
    items: Vec<Item<'h>>,
}

impl<'h> ListVisitor<'h> for List<'h> {
    type Error = std::convert::Infallible;

    fn entry(&mut self) -> Result<impl EntryVisitor<'h>, Self::Error> {
        // Further items only have to be well-formed.
        Ok(Some(self).filter(|list| list.items.len() < MOST_ITEMS))
    }
}

impl<'h> ItemVisitor<'h> for &mut List<'h> {
    type Error = std::convert::Infallible;

    fn bare_item(self, name: BareItemFromInput<'h>) -> Result<impl ParameterVisitor<'h>, Self::Error> {
        let name = match name {
            BareItemFromInput::String(Cow::Borrowed(name)) => Cow::Borrowed(name.as_str()),
            BareItemFromInput::String(Cow::Owned(name)) => Cow::Owned(name.into()),
            BareItemFromInput::Token(name) => Cow::Borrowed(name.as_str()),
            _ => return Ok(None),
        };
        self.items.push(Item { name, ..Item::default() });
        Ok(self.items.last_mut())
    }
}

impl<'h> EntryVisitor<'h> for &mut List<'h> {
    fn inner_list(self) -> Result<impl InnerListVisitor<'h>, Self::Error> {
        Ok(Ignored)
    }
}

impl<'h> ParameterVisitor<'h> for &mut Item<'h> {
    type Error = std::convert::Infallible;

    fn parameter(&mut self, key: &'h KeyRef, value: BareItemFromInput<'h>) -> Result<(), Self::Error> {
        let parameter = match key.as_str() {
            "q" => &mut self.quota,
            "r" => &mut self.remaining,
            "a" => &mut self.available,
            "t" => &mut self.reset,
            "w" => &mut self.wait,
            _ => return Ok(()),
        };
        // The last of several parameters counts (RFC 9651).
        *parameter = number(&value);
        Ok(())
    }
}

impl<'h> DictionaryVisitor<'h> for Item<'_> {
    type Error = std::convert::Infallible;

    fn entry(&mut self, key: &'h KeyRef) -> Result<impl EntryVisitor<'h>, Self::Error> {
        Ok(match key.as_str() {
            "limit" => Some(Number(&mut self.quota)),
            "remaining" => Some(Number(&mut self.remaining)),
            "reset" => Some(Number(&mut self.reset)),
            _ => None,
        })
    }
}

struct Number<'q>(&'q mut Option<Duration>);

impl<'h> ItemVisitor<'h> for Number<'_> {
    type Error = std::convert::Infallible;

    fn bare_item(self, value: BareItemFromInput<'h>) -> Result<impl ParameterVisitor<'h>, Self::Error> {
        *self.0 = number(&value);
        Ok(Ignored)
    }
}

impl<'h> EntryVisitor<'h> for Number<'_> {
    fn inner_list(self) -> Result<impl InnerListVisitor<'h>, Self::Error> {
        *self.0 = None;
        Ok(Ignored)
    }
}
