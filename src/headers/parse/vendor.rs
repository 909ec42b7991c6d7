//! Vendors' quotas: three fields for limit, remaining and reset, or one field
//! for used and limit.
//!
//! If several vendors share field names, the form of the reset tells which one
//! it is.

use http::HeaderMap;

use super::{
    form::{Form, When, count, counts, lines},
    limit::{Dialect, ReportedLimit, ReportedLimits, Reset},
};
use crate::{
    time::Timestamp,
    unit::{REQUESTS, Unit},
};

/// The fields of a quota.
struct QuotaFields {
    limit: &'static str,
    remaining: &'static str,
    reset: &'static str,
    /// What it counts, if its fields say so.
    unit: Option<&'static str>,
    /// Its dialects, and the form of the reset in each. If no dialect is
    /// pinned, the first one with the form that was received counts.
    by: &'static [(Dialect, Form)],
}

const X_RATELIMIT: &[(Dialect, Form)] = &[
    (Dialect::Envoy, Form::Delay),
    (Dialect::GitHub, Form::Epoch),
    (Dialect::Vimeo, Form::Date),
    (Dialect::Discord, Form::Epoch),
];
const DISCORD: &[(Dialect, Form)] = &[(Dialect::Discord, Form::Delay)];
const AKAMAI: &[(Dialect, Form)] = &[(Dialect::Akamai, Form::Date)];
const X: &[(Dialect, Form)] = &[(Dialect::X, Form::Epoch)];
// GitLab sends a Unix timestamp under the draft's names.
const IETF_03: &[(Dialect, Form)] = &[(Dialect::Ietf03, Form::Number)];
const OPENAI: &[(Dialect, Form)] = &[(Dialect::OpenAi, Form::Delay)];
const ANTHROPIC: &[(Dialect, Form)] = &[(Dialect::Anthropic, Form::Date)];

/// A quota by the pattern of its fields' names, in which `*` stands for `limit`, `remaining`
/// and, unless another name is given, `reset`.
macro_rules! quota {
    ($before:literal * $after:literal, $unit:expr, $by:expr) => {
        quota!($before * $after, concat!($before, "reset", $after), $unit, $by)
    };
    ($before:literal * $after:literal, $reset:expr, $unit:expr, $by:expr) => {
        QuotaFields {
            limit: concat!($before, "limit", $after),
            remaining: concat!($before, "remaining", $after),
            reset: $reset,
            unit: $unit,
            by: $by,
        }
    };
}

static QUOTAS: [QuotaFields; 11] = [
    quota!("x-ratelimit-" * "", None, X_RATELIMIT),
    quota!("x-ratelimit-" * "", "x-ratelimit-reset-after", None, DISCORD),
    quota!("x-ratelimit-" * "", "x-ratelimit-next", None, AKAMAI),
    quota!("x-rate-limit-" * "", None, X),
    quota!("ratelimit-" * "", None, IETF_03),
    quota!("x-ratelimit-" * "-requests", Some(REQUESTS), OPENAI),
    quota!("x-ratelimit-" * "-tokens", Some("tokens"), OPENAI),
    quota!("anthropic-ratelimit-requests-" * "", Some(REQUESTS), ANTHROPIC),
    quota!("anthropic-ratelimit-tokens-" * "", Some("tokens"), ANTHROPIC),
    quota!("anthropic-ratelimit-input-tokens-" * "", Some("input-tokens"), ANTHROPIC),
    quota!("anthropic-ratelimit-output-tokens-" * "", Some("output-tokens"), ANTHROPIC),
];

/// Adds the limits in the fields of `dialect`, or of all.
pub(super) fn read(headers: &HeaderMap, dialect: Option<Dialect>, from: Timestamp, limits: &mut ReportedLimits<'_>) {
    QUOTAS.iter().filter_map(|quota| quota.read(headers, dialect, from)).for_each(|limit| limits.add(limit));
    if dialect.is_none_or(|dialect| dialect == Dialect::Shopify) {
        let items = lines(headers, "x-shopify-shop-api-call-limit").flat_map(|line| line.split(','));
        items.filter_map(shopify).for_each(|limit| limits.add(limit));
    }
}

impl QuotaFields {
    fn read(&self, headers: &HeaderMap, dialect: Option<Dialect>, from: Timestamp) -> Option<ReportedLimit> {
        let form = match dialect {
            None => Form::Any,
            Some(dialect) => self.by.iter().find(|(by, _)| *by == dialect)?.1,
        };
        let mut resets = form.times(headers, self.reset, from).peekable();
        let remaining = counts(headers, self.remaining).min();
        let first = resets.peek().copied();
        if first.is_none() && remaining.is_none() {
            return None;
        }
        Some(ReportedLimit {
            dialect: dialect.or_else(|| self.dialect_of(first))?,
            unit: self.unit.and_then(Unit::find),
            limit: lines(headers, self.limit).filter_map(first_count).min(),
            remaining,
            reset: resets.map(|when| Reset::new(when, from)).reduce(Reset::merge),
        })
    }

    fn dialect_of(&self, resets: Option<When>) -> Option<Dialect> {
        let form = resets.map(|when| match when {
            When::After(_) => Form::Delay,
            When::Epoch(_) => Form::Epoch,
            When::Date(_) => Form::Date,
        });
        let dialect_of = self.by.iter().find(|(_, by)| Some(*by) == form).or_else(|| self.by.first());
        dialect_of.map(|(dialect, _)| *dialect)
    }
}

/// `10`, or Envoy's `10, 10;w=1;name="per-ip"`: the binding limit comes first, and
/// its quotas may have commas in their names.
fn first_count(line: &str) -> Option<u64> {
    count(line.split([',', ';']).next()?.trim_end())
}

/// `32/40`: used and limit. The rate at which it leaks is not reported.
fn shopify(line: &str) -> Option<ReportedLimit> {
    let (used, limit) = line.split_once('/')?;
    let (used, limit) = (count(used.trim())?, count(limit.trim())?);
    let remaining = Some(limit.saturating_sub(used));
    Some(ReportedLimit { dialect: Dialect::Shopify, unit: None, limit: Some(limit), remaining, reset: None })
}
