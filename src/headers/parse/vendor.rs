//! Quotas that are told in three fields: limit, remaining, reset.

use http::HeaderName;

use super::{
    Dialect,
    dimension::{Dimension, Reset, Survey},
    fields::Fields,
    form::{self, Form, When},
};
use crate::time::Timestamp;

struct Quota {
    limit: HeaderName,
    remaining: HeaderName,
    reset: HeaderName,
    /// Who sends it, and how they tell times. Where several do, the form says
    /// who it is: the first that tells times like that.
    by: &'static [(Dialect, Form)],
}

const fn quota(
    limit: &'static str,
    remaining: &'static str,
    reset: &'static str,
    by: &'static [(Dialect, Form)],
) -> Quota {
    Quota {
        limit: HeaderName::from_static(limit),
        remaining: HeaderName::from_static(remaining),
        reset: HeaderName::from_static(reset),
        by,
    }
}

const LIMIT: &str = "x-ratelimit-limit";
const REMAINING: &str = "x-ratelimit-remaining";

static QUOTAS: [Quota; 11] = [
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
    // GitLab sends the Unix epoch under the draft's names.
    quota("ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", &[(Dialect::Ietf03, Form::Number)]),
    quota(
        "x-ratelimit-limit-requests",
        "x-ratelimit-remaining-requests",
        "x-ratelimit-reset-requests",
        &[(Dialect::OpenAi, Form::Units)],
    ),
    quota(
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-tokens",
        &[(Dialect::OpenAi, Form::Units)],
    ),
    quota(
        "anthropic-ratelimit-requests-limit",
        "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-reset",
        &[(Dialect::Anthropic, Form::Date)],
    ),
    quota(
        "anthropic-ratelimit-tokens-limit",
        "anthropic-ratelimit-tokens-remaining",
        "anthropic-ratelimit-tokens-reset",
        &[(Dialect::Anthropic, Form::Date)],
    ),
    quota(
        "anthropic-ratelimit-input-tokens-limit",
        "anthropic-ratelimit-input-tokens-remaining",
        "anthropic-ratelimit-input-tokens-reset",
        &[(Dialect::Anthropic, Form::Date)],
    ),
    quota(
        "anthropic-ratelimit-output-tokens-limit",
        "anthropic-ratelimit-output-tokens-remaining",
        "anthropic-ratelimit-output-tokens-reset",
        &[(Dialect::Anthropic, Form::Date)],
    ),
];

static SHOPIFY: HeaderName = HeaderName::from_static("x-shopify-shop-api-call-limit");

/// Adds what stands in the fields of `dialect`, or of them all.
pub(super) fn read(fields: Fields<'_>, dialect: Option<Dialect>, from: Timestamp, survey: &mut Survey) {
    let dimensions = QUOTAS.iter().filter_map(|quota| quota.read(fields, dialect, from));
    dimensions.for_each(|dimension| survey.add(dimension));
    if dialect.is_none_or(|dialect| dialect == Dialect::Shopify) {
        fields.lines(&SHOPIFY).filter_map(shopify).for_each(|dimension| survey.add(dimension));
    }
}

impl Quota {
    fn read(&self, fields: Fields<'_>, dialect: Option<Dialect>, from: Timestamp) -> Option<Dimension> {
        let form = match dialect {
            None => Form::Any,
            Some(dialect) => self.by.iter().find(|(by, _)| *by == dialect)?.1,
        };
        let mut told = fields.lines(&self.reset).filter_map(|line| form.read(line)).peekable();
        let remaining = fields.lines(&self.remaining).filter_map(form::count).min();
        let first = told.peek().copied();
        if first.is_none() && remaining.is_none() {
            return None;
        }
        Some(Dimension {
            dialect: dialect.or_else(|| self.teller(first))?,
            limit: fields.lines(&self.limit).filter_map(first_count).min(),
            remaining,
            reset: told.map(|when| Reset::new(when, from)).reduce(Reset::and),
        })
    }

    fn teller(&self, told: Option<When>) -> Option<Dialect> {
        let form = told.map(|when| match when {
            When::After(_) => Form::Delay,
            When::Epoch(_) => Form::Epoch,
            When::Date(_) => Form::Date,
        });
        let teller = self.by.iter().find(|(_, by)| Some(*by) == form).or_else(|| self.by.first());
        teller.map(|(dialect, _)| *dialect)
    }
}

/// `10`, or `10, 10;w=1;name="per-ip"`: the binding limit, and then all.
fn first_count(line: &str) -> Option<u64> {
    form::count(line.split([',', ';']).next()?.trim_end())
}

/// `32/40`: what was used, and the limit. It leaks at a pace that is not told
/// here.
fn shopify(line: &str) -> Option<Dimension> {
    let (used, limit) = line.split_once('/')?;
    let (used, limit) = (form::count(used.trim_end())?, form::count(limit.trim_start())?);
    let remaining = Some(limit.saturating_sub(used));
    Some(Dimension { dialect: Dialect::Shopify, limit: Some(limit), remaining, reset: None })
}
