//! `RateLimit` and `RateLimit-Policy` of the IETF's Internet-Draft: structured
//! fields (RFC 9651).
//!
//! A line that is not well-formed is ignored whole.

use std::{borrow::Cow, time::Duration};

use http::{HeaderMap, HeaderName};

use super::{
    Dialect,
    fields::lines_up_to,
    limit::{Precedence, ReportedLimit, ReportedLimits, Reset},
    structured::{Part, Value, read_dictionary, read_list},
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
    let (mut items, mut is_item) = (Vec::new(), false);
    read_list(line, &mut |part| match part {
        // Further items only have to be well-formed.
        Part::Member(Value::Text(name)) if items.len() < MOST_ITEMS => {
            is_item = true;
            items.push(Item { name, ..Item::default() });
        }
        Part::Parameter(key, value) if is_item => {
            if let Some(parameter) = items.last_mut().and_then(|item| item.parameter(key)) {
                // The last of several counts (RFC 9651).
                *parameter = number(&value);
            }
        }
        _ => is_item = false,
    })?;
    Some(items)
}

/// Version 07: `limit=100, remaining=50, reset=5`.
fn dictionary(line: &str) -> Option<ReportedLimit> {
    let (mut quota, mut last) = (Item::default(), "");
    read_dictionary(line, &mut |part| match (part, last) {
        (Part::Key(key), _) => last = key,
        (Part::Member(value), "limit") => quota.quota = number(&value),
        (Part::Member(value), "remaining") => quota.remaining = number(&value),
        (Part::Member(value), "reset") => quota.reset = number(&value),
        _ => {}
    })?;
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
    fn parameter(&mut self, key: &str) -> Option<&mut Option<Duration>> {
        match key {
            "q" => Some(&mut self.quota),
            "r" => Some(&mut self.remaining),
            "a" => Some(&mut self.available),
            "t" => Some(&mut self.reset),
            "w" => Some(&mut self.wait),
            _ => None,
        }
    }

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

fn number(value: &Value<'_>) -> Option<Duration> {
    if let Value::Number(number) = value { Some(*number) } else { None }
}
