//! Vendors' quotas: three fields for limit, remaining and reset, or one field
//! for used and limit.
//!
//! If several vendors share field names, the form of the reset tells which one
//! it is.

use http::{HeaderMap, HeaderName};

use super::{
    Dialect,
    fields::lines,
    form::{self, Form, When},
    limit::{ReportedLimit, ReportedLimits, Reset},
};
use crate::time::Timestamp;

struct QuotaFields {
    limit: HeaderName,
    remaining: HeaderName,
    reset: HeaderName,
    /// Its dialects, and the form of the reset in each. If no dialect is
    /// pinned, the first one with the form that was received counts.
    by: &'static [(Dialect, Form)],
}

const fn quota(
    limit: &'static str,
    remaining: &'static str,
    reset: &'static str,
    by: &'static [(Dialect, Form)],
) -> QuotaFields {
    QuotaFields {
        limit: HeaderName::from_static(limit),
        remaining: HeaderName::from_static(remaining),
        reset: HeaderName::from_static(reset),
        by,
    }
}

macro_rules! openai {
    ($unit:literal) => {
        quota(
            concat!("x-ratelimit-limit-", $unit),
            concat!("x-ratelimit-remaining-", $unit),
            concat!("x-ratelimit-reset-", $unit),
            &[(Dialect::OpenAi, Form::Units)],
        )
    };
}

macro_rules! anthropic {
    ($unit:literal) => {
        quota(
            concat!("anthropic-ratelimit-", $unit, "-limit"),
            concat!("anthropic-ratelimit-", $unit, "-remaining"),
            concat!("anthropic-ratelimit-", $unit, "-reset"),
            &[(Dialect::Anthropic, Form::Date)],
        )
    };
}

const LIMIT: &str = "x-ratelimit-limit";
const REMAINING: &str = "x-ratelimit-remaining";

static QUOTAS: [QuotaFields; 11] = [
    quota(
        LIMIT,
        REMAINING,
        "x-ratelimit-reset",
        &[
            (Dialect::Envoy, Form::Delay),
            (Dialect::GitHub, Form::Epoch),
            (Dialect::Vimeo, Form::Date),
            (Dialect::Discord, Form::Epoch),
        ],
    ),
    quota(LIMIT, REMAINING, "x-ratelimit-reset-after", &[(Dialect::Discord, Form::Delay)]),
    quota(LIMIT, REMAINING, "x-ratelimit-next", &[(Dialect::Akamai, Form::Date)]),
    quota("x-rate-limit-limit", "x-rate-limit-remaining", "x-rate-limit-reset", &[(Dialect::X, Form::Epoch)]),
    // GitLab sends a Unix timestamp under the draft's names.
    quota("ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", &[(Dialect::Ietf03, Form::Number)]),
    openai!("requests"),
    openai!("tokens"),
    anthropic!("requests"),
    anthropic!("tokens"),
    anthropic!("input-tokens"),
    anthropic!("output-tokens"),
];

static SHOPIFY: HeaderName = HeaderName::from_static("x-shopify-shop-api-call-limit");

/// Adds the limits in the fields of `dialect`, or of all.
pub(super) fn read(headers: &HeaderMap, dialect: Option<Dialect>, from: Timestamp, limits: &mut ReportedLimits) {
    QUOTAS.iter().filter_map(|quota| quota.read(headers, dialect, from)).for_each(|limit| limits.add(limit));
    if dialect.is_none_or(|dialect| dialect == Dialect::Shopify) {
        lines(headers, &SHOPIFY).filter_map(shopify).for_each(|limit| limits.add(limit));
    }
}

impl QuotaFields {
    fn read(&self, headers: &HeaderMap, dialect: Option<Dialect>, from: Timestamp) -> Option<ReportedLimit> {
        let form = match dialect {
            None => Form::Any,
            Some(dialect) => self.by.iter().find(|(by, _)| *by == dialect)?.1,
        };
        let mut resets = lines(headers, &self.reset).filter_map(|line| form.read(line)).peekable();
        let remaining = lines(headers, &self.remaining).filter_map(form::count).min();
        let first = resets.peek().copied();
        if first.is_none() && remaining.is_none() {
            return None;
        }
        Some(ReportedLimit {
            dialect: dialect.or_else(|| self.dialect_of(first))?,
            limit: lines(headers, &self.limit).filter_map(first_count).min(),
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

/// `10`, or Envoy's `10, 10;w=1;name="per-ip"`: the binding limit comes first.
fn first_count(line: &str) -> Option<u64> {
    form::count(line.split([',', ';']).next()?.trim_end())
}

/// `32/40`: used and limit. The rate at which it leaks is not reported.
fn shopify(line: &str) -> Option<ReportedLimit> {
    let (used, limit) = line.split_once('/')?;
    let (used, limit) = (form::count(used.trim_end())?, form::count(limit.trim_start())?);
    let remaining = Some(limit.saturating_sub(used));
    Some(ReportedLimit { dialect: Dialect::Shopify, limit: Some(limit), remaining, reset: None })
}
