//! How tiers stand in a policy file: `{ limit: 10, window: 1s }`, `{ concurrent: 10 }`, or
//! `{ concurrent: { min: 10, max: 500 } }`.
//!
//! A tier is read if its keys belong together. Whether its numbers make sense is for
//! `validate` to say.

use std::{borrow::Cow, fmt, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{
        Error, MapAccess, SeqAccess, Unexpected, Visitor,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};

use crate::{
    descriptor::Priority,
    policy::{
        forms::{self, is_default},
        settings::{Limits, Override},
    },
    quota::{Algorithm, Quota},
};

/// The window of a tier.
#[derive(Clone, Copy, PartialEq)]
enum Window {
    Length(Duration),
    Month,
}

impl Serialize for Window {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Length(length) => forms::duration::serialize(&Some(*length), serializer),
            Self::Month => serializer.serialize_str("month"),
        }
    }
}

impl<'de> Deserialize<'de> for Window {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        forms::duration::deserialize_by(deserializer, |text| match text {
            "month" => Ok(Self::Month),
            _ => forms::duration::parse(text).map(Self::Length),
        })
    }
}

/// The keys of a tier.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "tier", extend("anyOf" = [{ "required": ["limit", "window"] }, { "required": ["concurrent"] }]))]
struct Tier {
    #[serde(default, skip_serializing_if = "is_default")]
    limit: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    #[schemars(with = "String", regex(pattern = forms::WINDOW))]
    window: Option<Window>,
    #[serde(default, skip_serializing_if = "is_default")]
    burst: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    algorithm: Option<Algorithm>,
    #[serde(default, skip_serializing_if = "is_default", with = "forms::duration")]
    #[schemars(with = "String", regex(pattern = forms::DURATION))]
    offset: Option<Duration>,
    #[serde(default, skip_serializing_if = "is_default")]
    concurrent: Option<Concurrent>,
}

/// A concurrency limit: a number, or the bounds between which it is found.
#[derive(PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "concurrent")]
enum Concurrent {
    Limit(u64),
    Found(Found),
}

#[derive(PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "adaptive_concurrency")]
struct Found {
    min: u64,
    max: u64,
    /// `None`: the minimum.
    #[serde(default, skip_serializing_if = "is_default")]
    start: Option<u64>,
}

impl<'de> Deserialize<'de> for Concurrent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ConcurrentVisitor)
    }
}

struct ConcurrentVisitor;

impl<'de> Visitor<'de> for ConcurrentVisitor {
    type Value = Concurrent;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As serde names it: errors are worded by that.
        f.write_str("u64")
    }

    fn visit_u64<E: Error>(self, limit: u64) -> Result<Concurrent, E> {
        Ok(Concurrent::Limit(limit))
    }

    fn visit_i64<E: Error>(self, limit: i64) -> Result<Concurrent, E> {
        u64::try_from(limit).map(Concurrent::Limit).map_err(|_| E::invalid_value(Unexpected::Signed(limit), &self))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Concurrent, A::Error> {
        Found::deserialize(MapAccessDeserializer::new(map)).map(Concurrent::Found)
    }
}

impl From<Concurrent> for Quota {
    fn from(concurrent: Concurrent) -> Self {
        match concurrent {
            Concurrent::Limit(limit) => Self::concurrent(limit),
            Concurrent::Found(Found { min, max, start }) => Self::adaptive(min, max, start.unwrap_or(min)),
        }
    }
}

impl Tier {
    fn quota<E: Error>(self) -> Result<Quota, E> {
        let misplaced = |key, reason: &str| E::invalid_value(Unexpected::Other(key), &reason);
        let Self { limit, window, burst, algorithm, offset, concurrent } = self;
        if let Some(concurrent) = concurrent {
            let others = [
                ("limit", limit.is_some()),
                ("window", window.is_some()),
                ("burst", burst.is_some()),
                ("algorithm", algorithm.is_some()),
                ("offset", offset.is_some()),
            ];
            return match others.iter().find(|(_, is_set)| *is_set) {
                Some((key, _)) => Err(misplaced(key, "has no meaning beside `concurrent`, which needs no other key")),
                None => Ok(concurrent.into()),
            };
        }
        if algorithm == Some(Algorithm::Concurrency) {
            return Err(misplaced("algorithm", "has no window: write the tier as `{ concurrent: 10 }`"));
        }
        let limit = limit.ok_or_else(|| E::missing_field("limit"))?;
        let window = window.ok_or_else(|| E::missing_field("window"))?;
        let quota = match window {
            Window::Month => Quota::per_month(limit),
            Window::Length(length) => Quota::new(limit, length),
        };
        let quota = algorithm.map_or(quota, |algorithm| quota.algorithm(algorithm));
        match (burst, offset) {
            (Some(_), Some(_)) => Err(misplaced("offset", "has no meaning beside `burst`: no algorithm has both")),
            (Some(burst), None) => Ok(quota.burst(burst)),
            (None, offset) => Ok(offset.map_or(quota, |offset| quota.offset(offset))),
        }
    }
}

/// As a tier of a policy: `{ limit: 10, window: 1s }`, or `{ concurrent: 10 }`.
/// It is validated when a policy is built of it.
impl<'de> Deserialize<'de> for Quota {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Tier::deserialize(deserializer)?.quota()
    }
}

/// As a tier of a policy: `{ limit: 10, window: 1s }`, or `{ concurrent: 10 }`.
impl Serialize for Quota {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (limit, algorithm) = (Some(self.limit()), self.counted_by());
        let tier = if algorithm == Algorithm::Concurrency {
            let concurrent = match self.adaptive_bounds() {
                Some((min, max, start)) => {
                    Concurrent::Found(Found { min, max, start: Some(start).filter(|start| *start != min) })
                }
                None => Concurrent::Limit(self.limit()),
            };
            Tier { concurrent: Some(concurrent), ..Tier::default() }
        } else {
            let (window, default) = match self.is_month() {
                true => (Window::Month, Algorithm::FixedWindow),
                false => (Window::Length(self.window()), Algorithm::default()),
            };
            let algorithm = Some(algorithm).filter(|algorithm| *algorithm != default);
            let (burst, offset) = (self.explicit_burst(), self.explicit_offset());
            Tier { limit, window: Some(window), burst, algorithm, offset, concurrent: None }
        };
        tier.serialize(serializer)
    }
}

impl JsonSchema for Quota {
    fn schema_name() -> Cow<'static, str> {
        Tier::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Tier::json_schema(generator)
    }
}

/// As it stands beside a plan or a tenant: its limits, or a map of these and a priority.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "exception", extend("anyOf" = [{ "required": ["priority"] }, { "required": ["tiers"] }]))]
struct Exception {
    #[serde(default, skip_serializing_if = "is_default")]
    priority: Option<Priority>,
    #[serde(default, skip_serializing_if = "is_default", deserialize_with = "limits")]
    tiers: Option<Limits>,
}

impl Serialize for Override {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.priority {
            None => self.limits.serialize(serializer),
            priority => Exception { priority, tiers: self.limits.clone() }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Override {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OverrideVisitor { takes_map: true })
    }
}

fn limits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Limits>, D::Error> {
    Ok(deserializer.deserialize_any(OverrideVisitor { takes_map: false })?.limits)
}

const LIMITS: &str = "`unlimited` or a list of tiers";

struct OverrideVisitor {
    /// Whether there may be a map of limits and a priority.
    takes_map: bool,
}

impl<'de> Visitor<'de> for OverrideVisitor {
    type Value = Override;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.takes_map {
            true => "`unlimited`, a list of tiers, or a map with `priority`",
            false => LIMITS,
        })
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Override, E> {
        match text {
            "unlimited" => Ok(Limits::Unlimited.into()),
            other => Err(E::invalid_value(Unexpected::Str(other), &LIMITS)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, tiers: A) -> Result<Override, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(tiers)).map(|tiers| Limits::Tiers(tiers).into())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Override, A::Error> {
        if !self.takes_map {
            return Err(A::Error::invalid_type(Unexpected::Map, &self));
        }
        let Exception { priority, tiers: limits } = Exception::deserialize(MapAccessDeserializer::new(map))?;
        match (priority, &limits) {
            (None, None) => Err(A::Error::custom("must have `priority`, `tiers`, or both")),
            _ => Ok(Override { limits, priority }),
        }
    }
}

impl From<Limits> for Override {
    fn from(limits: Limits) -> Self {
        Self { limits: Some(limits), priority: None }
    }
}

impl JsonSchema for Override {
    fn schema_name() -> Cow<'static, str> {
        "override".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let limits = generator.subschema_for::<Limits>();
        let exception = generator.subschema_for::<Exception>();
        json_schema!({ "anyOf": [limits, exception] })
    }
}

impl Serialize for Limits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Tiers(tiers) => tiers.serialize(serializer),
            Self::Unlimited => serializer.serialize_str("unlimited"),
        }
    }
}

impl JsonSchema for Limits {
    fn schema_name() -> Cow<'static, str> {
        "limits".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let tier = generator.subschema_for::<Quota>();
        json_schema!({ "anyOf": [{ "const": "unlimited" }, { "type": "array", "items": tier, "minItems": 1 }] })
    }
}
