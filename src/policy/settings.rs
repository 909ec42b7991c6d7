//! The types of a rule's settings: the requests that it is for, [`Match`], what single tenants
//! and plans have instead of its tiers, [`Override`], and what is chosen by name, such as
//! [`Dimension`] and [`FailureMode`].
//!
//! Plain data: `validate` checks it, and the matcher finds paths. Invariant: what a rule does
//! not name takes every request, and a policy file has the names that are given here.

use std::{collections::BTreeMap, fmt, sync::Arc};

use http::{HeaderMap, Method};
#[cfg(feature = "serde")]
use schemars::JsonSchema;
#[cfg(feature = "serde")]
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[cfg(feature = "serde")]
use super::forms;
use crate::{descriptor::Priority, names::names, quota::Quota};

/// The requests that a rule is for: all, where nothing is named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize, JsonSchema))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields), schemars(rename = "match"))]
pub(crate) struct Match {
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default", with = "forms::methods"))]
    #[cfg_attr(feature = "serde", schemars(with = "Vec<String>", inner(regex(pattern = "^[^a-z]+$"))))]
    pub(crate) methods: Vec<Method>,
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default"))]
    #[cfg_attr(feature = "serde", schemars(inner(regex(pattern = "^/"))))]
    pub(crate) paths: Vec<String>,
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default"))]
    pub(crate) routes: Vec<String>,
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default", rename = "priority"))]
    pub(crate) priorities: Vec<Priority>,
    /// Of each, one of its values.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "forms::is_default"))]
    #[cfg_attr(feature = "serde", schemars(with = "BTreeMap<String, forms::HeaderValues>"))]
    pub(crate) headers: BTreeMap<String, Vec<String>>,
}

impl Match {
    /// Its paths, then its routes: a pattern's index counts both.
    pub(super) fn patterns(&self) -> impl Iterator<Item = &str> {
        self.paths.iter().chain(&self.routes).map(String::as_str)
    }

    /// Whether every path matches.
    pub(super) fn is_everywhere(&self) -> bool {
        self.patterns().next().is_none()
    }

    /// Whether a request matches by its path or route alone.
    pub(super) fn is_by_path(&self) -> bool {
        self.methods.is_empty() && self.priorities.is_empty() && self.headers.is_empty()
    }

    /// Whether a request with these headers has all that are named.
    pub(super) fn takes_headers(&self, sent: Option<&HeaderMap>) -> bool {
        let has = |name: &str, values: &[String]| {
            let mut sent = sent.into_iter().flat_map(|sent| sent.get_all(name));
            sent.any(|sent| values.iter().any(|value| *sent == **value))
        };
        self.headers.iter().all(|(name, values)| has(name, values))
    }
}

/// What one tenant or plan has instead of a rule's own tiers. One that says nothing changes
/// nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Override {
    /// `None`: those that apply otherwise.
    pub(crate) limits: Option<Limits>,
    pub(crate) priority: Option<Priority>,
}

/// As written, or compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limits<T = Vec<Quota>> {
    Tiers(T),
    Unlimited,
}

/// A property of requests. Those that differ in it have different counters.
///
/// ```
/// use tower_ratelimit::Dimension;
///
/// assert_eq!(Dimension::Endpoint.to_string(), "endpoint");
/// assert_eq!(Dimension::key("ip").as_str(), "ip");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Dimension {
    /// The tenant: the caller as the layer identifies it.
    Tenant,
    /// The path pattern, or route, of the rule that matched.
    Endpoint,
    /// The HTTP method. All methods that HTTP does not define share a counter.
    Method,
    /// A key that requests have beside their tenant, by its name: see
    /// [`RateLimitLayer::key`](crate::RateLimitLayer::key) and
    /// [`Descriptor::key`](crate::Descriptor::key). What happens to a request without it
    /// is [`Rule::on_missing_key`](crate::Rule::on_missing_key).
    Key(Arc<str>),
}

impl Dimension {
    /// All dimensions that every request has.
    pub const ALL: &'static [Self] = &[Self::Tenant, Self::Endpoint, Self::Method];

    /// The key with this name: at most 64 bytes, ASCII letters, digits, `-` and
    /// `_`. A policy in which a rule counts by another name is an error.
    pub fn key(name: impl Into<Arc<str>>) -> Self {
        Self::Key(name.into())
    }

    /// The name in a policy file.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Tenant => "tenant",
            Self::Endpoint => "endpoint",
            Self::Method => "method",
            Self::Key(name) => name,
        }
    }

    /// Why it cannot be counted by, or be written to a policy file.
    pub(super) fn check(&self) -> Result<(), String> {
        const MAX: usize = 64;
        let Self::Key(name) = self else { return Ok(()) };
        let is_text = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        if name.is_empty() || name.len() > MAX || !is_text {
            return Err(format!("a key's name has 1 to {MAX} letters, digits, `-` and `_`"));
        }
        // A misspelled dimension would be a key that no request has.
        match nearest(name, Self::ALL.iter().map(Self::as_str)) {
            Some(other) => Err(format!("unknown dimension; did you mean `{other}`?")),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(feature = "serde")]
impl Serialize for Dimension {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(feature = "serde")]
impl<'de> Deserialize<'de> for Dimension {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let known = Self::ALL.iter().find(|known| known.as_str() == name).cloned();
        Ok(known.unwrap_or_else(|| Self::key(name)))
    }
}

/// How exactly a rule's limit holds for a whole fleet, and what that costs. Only
/// [`backend::Redis`](crate::backend) has a choice; a backend that decides in this
/// process ignores it.
///
/// ```
/// use tower_ratelimit::Consistency;
///
/// assert_eq!("leased".parse(), Ok(Consistency::Leased));
/// assert_eq!(Consistency::default().to_string(), "exact");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize, JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Consistency {
    /// The store decides each request, in one round trip. The default.
    #[default]
    Exact,
    /// This process decides, on units that it has reserved in the store ahead of
    /// demand. The fleet never admits more than the limit in fixed and anchored
    /// windows. In buckets it admits at most burst + limit·(t + lease)/window in any
    /// time t. Sliding windows and logs, and units in flight, are decided exactly. Units that are
    /// reserved and not used are lost to others until they are given back or expire.
    Leased,
}

names!(Consistency, "consistency level", { Exact => "exact", Leased => "leased" });

/// What a rule does with a request when the backend fails.
///
/// ```
/// use tower_ratelimit::FailureMode;
///
/// assert_eq!("closed".parse(), Ok(FailureMode::Closed));
/// assert_eq!(FailureMode::default().to_string(), "open");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize, JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum FailureMode {
    /// Fail open: the request is admitted. The default, but for one failure: if
    /// the store is out of memory, a rule with a counter for each tenant fails
    /// local unless it sets a mode. Else a flood of invented tenants would turn
    /// the limit off.
    #[default]
    Open,
    /// Fail closed: the request is rejected, over HTTP with 503.
    Closed,
    /// Fail local: a fallback limiter in this process decides, at the rule's
    /// limits or a share of them (see [`Rule::local_share`](crate::Rule::local_share)).
    /// It delays no request.
    ///
    /// The fallback limiter is kept warm. While the backend works, it counts
    /// what the backend admits, up to the limit, and what is given back, added
    /// afterwards or released. So a tenant that has used up its limit does not
    /// get it again when the backend fails.
    ///
    /// It knows only what this limiter has admitted, holds at most as many keys
    /// as [`Local`](crate::backend::Local) does by default, and does not report
    /// to the backend what it admits.
    Local,
}

names!(FailureMode, "failure mode", { Open => "open", Closed => "closed", Local => "local" });

/// The messages of a gRPC call that are charged one by one: see
/// [`Rule::per_message`](crate::Rule::per_message).
///
/// ```
/// use tower_ratelimit::policy::Messages;
///
/// assert_eq!("server".parse(), Ok(Messages::Server));
/// assert_eq!(Messages::Both.to_string(), "both");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize, JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Messages {
    /// Those that the client streams.
    Client,
    /// Those that the server streams.
    Server,
    /// Those in both directions.
    Both,
}

names!(Messages, "direction", { Client => "client", Server => "server", Both => "both" });

/// What happens to a charge that no handler has settled: see
/// [`Rule::unsettled`](crate::Rule::unsettled).
///
/// ```
/// use tower_ratelimit::policy::Unsettled;
///
/// assert_eq!("refund".parse(), Ok(Unsettled::Refund));
/// assert_eq!(Unsettled::default().to_string(), "keep");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize, JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Unsettled {
    /// It stays. The default.
    #[default]
    Keep,
    /// It is given back.
    Refund,
}

names!(Unsettled, "choice", { Keep => "keep", Refund => "refund" });

/// The bytes that a request has cost: see
/// [`Rule::per_response_byte`](crate::Rule::per_response_byte).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize, JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub(crate) enum PerByte {
    Response,
}

/// The first of the known names that `word` may stand for: in another case, with
/// or without separators, or with one letter wrong, missing, added or swapped.
pub(super) fn nearest<'n>(word: &str, mut known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let plain = |word: &str| word.to_lowercase().replace(['-', '_', ' '], "");
    let word = plain(word);
    known.find(|name| strsim::osa_distance(&word, &plain(name)) <= 1)
}
