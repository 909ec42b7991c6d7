//! How the values of a rule stand in a policy file, where serde's own form does
//! not do. They are functions and modules that serde calls by their names.
//!
//! A value is read if it has the right form. Whether it makes sense is for
//! `validate` to say.

use std::{collections::BTreeMap, fmt, time::Duration};

use http::{Method, StatusCode};
use schemars::{JsonSchema, Schema};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeSeed, Error, SeqAccess, Visitor},
};

use super::statuses::{Item, Statuses};
use crate::{descriptor::Priority, quota::Quota, time::in_one_unit, unit::REQUESTS};

/// What every duration looks like, for the schema.
pub(super) const DURATION: &str = "[0-9] *[a-zµ]";

/// What the window of a tier looks like, for the schema.
pub(super) const WINDOW: &str = "^month$|[0-9] *[a-zµ]";

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

pub(super) fn yes() -> bool {
    true
}

pub(super) fn is_yes(value: &bool) -> bool {
    *value
}

pub(super) fn one() -> u64 {
    1
}

pub(super) fn is_one(value: &u64) -> bool {
    *value == 1
}

/// The unit of a rule: `requests` is none.
pub(super) fn unit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let name = String::deserialize(deserializer)?;
    Ok(Some(name).filter(|name| name != REQUESTS))
}

/// What a rule needs at least, and the other name of a key.
pub(super) fn needs_tiers(schema: &mut Schema) {
    if let Some(properties) = schema.get_mut("properties").and_then(serde_json::Value::as_object_mut)
        && let Some(tenant) = properties.get("tenant_from").cloned()
    {
        properties.insert("tenant".into(), tenant);
    }
    let choices = serde_json::json!([
        { "required": ["tiers"], "properties": { "tiers": { "minItems": 1 } } },
        { "required": ["adaptive_rate"] },
        { "required": ["exempt"], "properties": { "exempt": { "const": true } } },
    ]);
    schema.insert("anyOf".into(), choices);
}

/// The floor, ceiling or start of an adaptive rate.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "rate")]
pub(super) struct Rate {
    limit: u64,
    #[serde(deserialize_with = "duration::deserialize")]
    #[schemars(with = "String", regex(pattern = DURATION))]
    window: Option<Duration>,
}

/// For a key that may be missing, too.
pub(super) fn rate<'de, T: From<Quota>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    let Rate { limit, window } = Rate::deserialize(deserializer)?;
    Ok(Quota::new(limit, window.unwrap_or_default()).into())
}

/// Durations with a unit: `250ms`, `1h 30m`. What `format` writes, `parse` reads as the same
/// duration.
pub(super) mod duration {
    use super::*;

    /// For a key that may be missing.
    pub(crate) fn serialize<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        duration.map(format).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        deserialize_by(deserializer, parse).map(Some)
    }

    /// For a value that is a duration, or another text that `parse` reads.
    pub(crate) fn deserialize_by<'de, T, D: Deserializer<'de>>(
        deserializer: D,
        parse: fn(&str) -> Result<T, String>,
    ) -> Result<T, D::Error> {
        deserializer.deserialize_any(DurationVisitor(parse))
    }

    struct DurationVisitor<T>(fn(&str) -> Result<T, String>);

    impl<T> Visitor<'_> for DurationVisitor<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a duration such as `250ms`, `1s`, `10m` or `1d`")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
            self.0(text).map_err(E::custom)
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
            Err(E::custom(format_args!("a duration needs a unit, such as `{number}s` or `{number}ms`")))
        }

        fn visit_f64<E: Error>(self, _: f64) -> Result<T, E> {
            Err(E::custom("a duration needs a unit, such as `1s` or `250ms`"))
        }
    }

    const EXPECTED: &str = "a duration is a number and its unit, such as `250ms`, `1s`, `10m` or `1d`";

    /// Reads `250ms`, `1s`, `1h 30m`.
    pub(crate) fn parse(text: &str) -> Result<Duration, String> {
        let mut left = text.trim();
        if left.is_empty() {
            return Err(EXPECTED.into());
        }
        // One span at a time: humantime panics if the sum of several overflows a
        // `Duration`.
        let mut sum = Duration::ZERO;
        while !left.is_empty() {
            let unit = left.find(char::is_alphabetic).ok_or(EXPECTED)?;
            let length = left[unit..].find(|c: char| !c.is_alphabetic());
            let (span, rest) = left.split_at(length.map_or(left.len(), |length| unit + length));
            if matches!(&span[unit..], "M" | "month" | "months" | "y" | "yr" | "yrs" | "year" | "years") {
                return Err("months and years differ in length: write days, or `window: month`".into());
            }
            let span = humantime::parse_duration(span).map_err(|error| match error {
                humantime::DurationError::NumberOverflow => "is longer, or finer, than can be counted".into(),
                _ => String::from(EXPECTED),
            })?;
            sum = sum.checked_add(span).ok_or("is longer than can be counted")?;
            left = rest.trim_start();
        }
        Ok(sum)
    }

    /// Formats for [`parse`], in one unit if one is enough.
    fn format(duration: Duration) -> String {
        let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
        match u64::try_from(duration.as_nanos()) {
            Ok(nanos) => in_one_unit(nanos).unwrap_or_else(|| "0s".into()),
            Err(_) if nanos == 0 => format!("{seconds}s"),
            Err(_) => format!("{seconds}s {nanos}ns"),
        }
    }

    #[cfg(test)]
    mod tests;
}

/// The name of a parameter of the path: `{org}`.
pub(super) mod parameter {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(name: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
        name.as_ref().map(|name| format!("{{{name}}}")).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
            Some(name) if !name.is_empty() && !name.contains(['{', '}', '*', '/']) => Ok(Some(name.into())),
            _ => Err(D::Error::custom("must name a parameter of the path in braces, such as `{org}`")),
        }
    }
}

/// HTTP methods by their names.
pub(super) mod methods {
    use super::*;

    struct Named(Method);

    impl<'de> Deserialize<'de> for Named {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let name = String::deserialize(deserializer)?;
            // Methods are case-sensitive: a rule for `get` would match no request.
            if name.bytes().any(|byte| byte.is_ascii_lowercase()) {
                return Err(D::Error::custom("methods are written in capitals, such as `GET`"));
            }
            let method = Method::from_bytes(name.as_bytes());
            method.map(Self).map_err(|_| D::Error::custom("must be an HTTP method"))
        }
    }

    pub(crate) fn serialize<S: Serializer>(methods: &[Method], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(methods.iter().map(Method::as_str))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Method>, D::Error> {
        Ok(Vec::deserialize(deserializer)?.into_iter().map(|Named(method)| method).collect())
    }
}

/// One status, or a class of them.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged, expecting = "must be a number from 100 to 599, or a class such as `5xx`")]
#[schemars(rename = "status")]
pub(super) enum Status {
    Code(#[schemars(range(min = 100, max = 599))] u16),
    Class(#[schemars(regex(pattern = "^[1-5]xx$"))] String),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Status::deserialize(deserializer)? {
            Status::Code(code @ 100..=599) => return Ok(Self::Code(code)),
            Status::Code(_) => {}
            Status::Class(text) => match text.as_bytes() {
                [digit @ b'1'..=b'5', b'x', b'x'] => return Ok(Self::Class(digit - b'0')),
                [b'1'..=b'5', b'0'..=b'9', b'0'..=b'9'] => {
                    return Err(D::Error::custom("expected a number, found a string: write it without quotes"));
                }
                _ => {}
            },
        }
        Err(D::Error::custom("must be a number from 100 to 599, or a class such as `5xx`"))
    }
}

impl Serialize for Item {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Class(_) => serializer.collect_str(self),
            Self::Code(code) => serializer.serialize_u16(*code),
        }
    }
}

/// The values of a header that a rule is for.
#[derive(JsonSchema)]
#[schemars(inline)]
#[allow(dead_code, reason = "only its schema is used")]
pub(super) struct HeaderValues(#[schemars(length(min = 1))] Vec<String>);

/// The status of a response.
pub(super) mod status {
    use super::*;

    #[allow(clippy::ref_option, reason = "serde's signature")]
    pub(crate) fn serialize<S: Serializer>(status: &Option<StatusCode>, serializer: S) -> Result<S::Ok, S::Error> {
        status.map(|status| status.as_u16()).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<StatusCode>, D::Error> {
        let code = u64::deserialize(deserializer)?;
        let status = u16::try_from(code).ok().and_then(|code| StatusCode::from_u16(code).ok());
        status.map(Some).ok_or_else(|| D::Error::custom("must be an HTTP status from 400 to 599"))
    }
}

/// A list of statuses, in which none stands twice.
pub(super) mod statuses {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(statuses: &Option<Statuses>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(statuses.iter().flat_map(Statuses::items))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Statuses>, D::Error> {
        deserializer.deserialize_seq(StatusList(Statuses::NONE)).map(Some)
    }
}

struct StatusList(Statuses);

impl<'de> Visitor<'de> for StatusList {
    type Value = Statuses;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Statuses, A::Error> {
        while items.next_element_seed(&mut self)?.is_some() {}
        Ok(self.0)
    }
}

/// Reads one more status of a list.
impl<'de> DeserializeSeed<'de> for &mut StatusList {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let item = Item::deserialize(deserializer)?;
        if self.0.intersects(item) {
            return Err(D::Error::custom("is named twice: as a number or by its class"));
        }
        self.0 = self.0.and(item);
        Ok(())
    }
}

/// A part of a whole, from 0 to 1: `20%`.
#[derive(Clone, Copy, PartialEq, JsonSchema)]
#[schemars(rename = "part")]
pub(super) struct Part(#[schemars(with = "String", regex(pattern = "^ *[0-9.]+ *% *$"))] pub(super) f64);

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // To a millionth: the product may end in a digit that was never written.
        let percent = (self.0 * 1e8).round() / 1e6;
        serializer.collect_str(&format_args!("{percent}%"))
    }
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PartVisitor)
    }
}

struct PartVisitor;

impl Visitor<'_> for PartVisitor {
    type Value = Part;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a part in percent, such as `20%`")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Part, E> {
        let number = text.trim().strip_suffix('%').and_then(|number| number.trim_end().parse::<f64>().ok());
        let part = number.filter(|number| number.is_finite()).map(|number| Part(number / 100.0));
        part.ok_or_else(|| E::custom("must be a part in percent, such as `20%`"))
    }
}

/// What is reserved for each class.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "reserve")]
pub(super) struct Reserve {
    normal: Option<Part>,
    high: Option<Part>,
    critical: Option<Part>,
}

pub(super) mod reserve {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(parts: &BTreeMap<Priority, f64>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(parts.iter().map(|(class, part)| (class, Part(*part))))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<Priority, f64>, D::Error> {
        let Reserve { normal, high, critical } = Reserve::deserialize(deserializer)?;
        let parts = [(Priority::Normal, normal), (Priority::High, high), (Priority::Critical, critical)];
        Ok(parts.into_iter().filter_map(|(class, part)| Some((class, part?.0))).collect())
    }
}
