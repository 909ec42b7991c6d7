//! `RateLimit` and `RateLimit-Policy` of the IETF's Internet-Draft: structured
//! fields (RFC 9651).
//!
//! A line that is not well-formed is ignored whole.

use std::{convert::Infallible, time::Duration};

use http::HeaderMap;
use sfv::{
    BareItemFromInput, KeyRef, Parser,
    visitor::{DictionaryVisitor, EntryVisitor, Ignored, InnerListVisitor, ItemVisitor, ListVisitor, ParameterVisitor},
};

use super::{
    form::lines_up_to,
    limit::{Dialect, Precedence, ReportedLimit, ReportedLimits, Reset},
};
use crate::unit::{REQUESTS, Unit};

/// Enough for a list of some dozens of quotas.
const MOST_BYTES: usize = 4_096;

/// The most items of a line, and the most policies in all.
const MOST_ITEMS: usize = 64;

/// Adds the limits in the fields of `dialect`, or of both versions.
pub(super) fn read(headers: &HeaderMap, dialect: Option<Dialect>, limits: &mut ReportedLimits<'_>) {
    let reads = |wanted| dialect.is_none_or(|dialect| dialect == wanted);
    let mut policies = None;
    for line in lines_up_to(MOST_BYTES, headers, "ratelimit") {
        if let Some(limit) = dictionary(line).filter(|_| reads(Dialect::Ietf07)) {
            limits.add(limit);
        }
        for item in list(line).into_iter().filter(|_| reads(Dialect::Ietf)) {
            let policies = policies.get_or_insert_with(|| read_policies(headers));
            if let Some(limit) = item.limit(policies) {
                limits.add(limit);
            }
        }
    }
}

/// The items of `RateLimit-Policy`.
fn read_policies(headers: &HeaderMap) -> Vec<Item> {
    lines_up_to(MOST_BYTES, headers, "ratelimit-policy").flat_map(list).take(MOST_ITEMS).collect()
}

/// Versions 08 and later: `"burst";r=50;t=30, "daily";r=900;t=7200`.
fn list(line: &str) -> Vec<Item> {
    let mut items = Items::default();
    let is_list = Parser::new(line).parse_list_with_visitor(&mut items).is_ok();
    if is_list { items.0 } else { Vec::new() }
}

/// Version 07: `limit=100, remaining=50, reset=5`.
fn dictionary(line: &str) -> Option<ReportedLimit> {
    let mut item = Item::default();
    Parser::new(line).parse_dictionary_with_visitor(&mut item).ok()?;
    if item.remaining.is_none() && item.reset.is_none() {
        return None;
    }
    let reset = item.reset.map(|after| Reset { precedence: Precedence::Delay, after });
    let (limit, remaining) = (item.quota.map(whole), item.remaining.map(whole));
    Some(ReportedLimit { dialect: Dialect::Ietf07, unit: None, limit, remaining, reset })
}

/// An item of either field, or the dictionary of version 07. Numbers that are negative
/// are left out.
#[derive(Default)]
struct Item {
    name: String,
    /// `qu`, of a policy.
    unit: Option<String>,
    quota: Option<Duration>,
    remaining: Option<Duration>,
    /// A proposed name for `remaining`.
    available: Option<Duration>,
    reset: Option<Duration>,
    /// A proposed name for `reset`.
    wait: Option<Duration>,
}

impl Item {
    fn limit(&self, policies: &[Self]) -> Option<ReportedLimit> {
        let remaining = self.remaining.into_iter().chain(self.available).min();
        let reset = self.reset.max(self.wait).map(|after| Reset { precedence: Precedence::RateLimit, after });
        let named = || policies.iter().filter(|policy| policy.name == self.name);
        let limit = named().filter_map(|policy| policy.quota.map(whole)).min();
        // A policy counts requests unless it says otherwise.
        let unit = named().next().and_then(|policy| Unit::find(policy.unit.as_deref().unwrap_or(REQUESTS)));
        // `r` is required: an item without it is ignored.
        Some(ReportedLimit { dialect: Dialect::Ietf, unit, limit, remaining: Some(whole(remaining?)), reset })
    }
}

const fn whole(number: Duration) -> u64 {
    number.as_secs()
}

/// A number as a duration, which keeps its fraction.
fn number(item: &BareItemFromInput<'_>) -> Option<Duration> {
    let millis = match item {
        BareItemFromInput::Integer(number) => i64::from(*number) * 1_000,
        BareItemFromInput::Decimal(number) => number.as_integer_scaled_1000().into(),
        _ => return None,
    };
    u64::try_from(millis).ok().map(Duration::from_millis)
}

/// The items of a list whose names are strings or tokens.
#[derive(Default)]
struct Items(Vec<Item>);

impl<'h> ListVisitor<'h> for Items {
    type Error = Infallible;

    fn entry(&mut self) -> Result<impl EntryVisitor<'h>, Infallible> {
        Ok(self)
    }
}

impl<'h> ItemVisitor<'h> for &mut Items {
    type Error = Infallible;

    fn bare_item(self, item: BareItemFromInput<'h>) -> Result<impl ParameterVisitor<'h>, Infallible> {
        let name = match &item {
            BareItemFromInput::String(name) => name.as_str(),
            BareItemFromInput::Token(name) => name.as_str(),
            _ => return Ok(None),
        };
        // Further items only have to be well-formed.
        if self.0.len() == MOST_ITEMS {
            return Ok(None);
        }
        self.0.push(Item { name: name.to_owned(), ..Item::default() });
        Ok(self.0.last_mut())
    }
}

impl<'h> EntryVisitor<'h> for &mut Items {
    fn inner_list(self) -> Result<impl InnerListVisitor<'h>, Infallible> {
        Ok(Ignored)
    }
}

impl<'h> ParameterVisitor<'h> for &mut Item {
    type Error = Infallible;

    fn parameter(&mut self, key: &'h KeyRef, value: BareItemFromInput<'h>) -> Result<(), Infallible> {
        let parameter = match key.as_str() {
            "q" => &mut self.quota,
            "r" => &mut self.remaining,
            "a" => &mut self.available,
            "t" => &mut self.reset,
            "w" => &mut self.wait,
            "qu" => {
                self.unit =
                    if let BareItemFromInput::String(unit) = value { Some(unit.as_str().to_owned()) } else { None };
                return Ok(());
            }
            _ => return Ok(()),
        };
        // The last of several counts (RFC 9651).
        *parameter = number(&value);
        Ok(())
    }
}

impl<'h> DictionaryVisitor<'h> for Item {
    type Error = Infallible;

    fn entry(&mut self, key: &'h KeyRef) -> Result<impl EntryVisitor<'h>, Infallible> {
        let member = match key.as_str() {
            "limit" => &mut self.quota,
            "remaining" => &mut self.remaining,
            "reset" => &mut self.reset,
            _ => return Ok(None),
        };
        *member = None;
        Ok(Some(Member(member)))
    }
}

/// A member of a dictionary.
struct Member<'i>(&'i mut Option<Duration>);

impl<'h> ItemVisitor<'h> for Member<'_> {
    type Error = Infallible;

    fn bare_item(self, item: BareItemFromInput<'h>) -> Result<impl ParameterVisitor<'h>, Infallible> {
        *self.0 = number(&item);
        Ok(Ignored)
    }
}

impl<'h> EntryVisitor<'h> for Member<'_> {
    fn inner_list(self) -> Result<impl InnerListVisitor<'h>, Infallible> {
        Ok(Ignored)
    }
}
