//! The requests that a rule is for: [`Match`]. Paths are found by the matcher.
//!
//! `validate` checks its paths and methods. Invariant: what is not named takes every
//! request.

use std::collections::{BTreeMap, HashSet};

use http::{HeaderMap, HeaderName, HeaderValue, Method};
#[cfg(feature = "serde")]
use schemars::JsonSchema;
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

#[cfg(feature = "serde")]
use super::forms;
use crate::{
    descriptor::Priority,
    error::{ConfigError, ensure},
};

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
    /// Whether every path matches.
    pub(crate) fn is_everywhere(&self) -> bool {
        self.paths.is_empty() && self.routes.is_empty()
    }

    /// Whether a request matches by its path or route alone.
    pub(crate) fn is_by_path(&self) -> bool {
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

    /// A header that no request can have would make the rule one for no request. So would one that
    /// is named in two spellings, as a request needs a value of each.
    pub(super) fn check_headers(&self) -> Result<(), ConfigError> {
        let mut names = HashSet::new();
        for (name, values) in &self.headers {
            ensure(name.parse::<HeaderName>().is_ok(), "match.headers", name, "is not the name of a header")?;
            ensure(names.insert(name.to_ascii_lowercase()), "match.headers", name, "is named twice, but for capitals")?;
            ensure(!values.is_empty(), &format!("match.headers.{name}"), "[]", "must name at least one value")?;
            for (index, value) in values.iter().enumerate() {
                let key = format!("match.headers.{name}[{index}]");
                let is_sent = HeaderValue::from_str(value).is_ok() && value.trim_ascii() == value && !value.is_empty();
                ensure(is_sent, &key, value, "is not the value of a header, with no spaces around it")?;
            }
        }
        Ok(())
    }

    /// Whether it takes every method, priority and headers that the other one takes.
    pub(super) fn covers_beside_paths(&self, other: &Self) -> bool {
        self.covers_methods(other) && self.covers_headers(other) && self.covers_priorities(other)
    }

    fn covers_methods(&self, other: &Self) -> bool {
        let takes = |method: &Method| {
            self.methods.contains(method) || *method == Method::HEAD && self.methods.contains(&Method::GET)
        };
        self.methods.is_empty() || !other.methods.is_empty() && other.methods.iter().all(takes)
    }

    fn covers_headers(&self, other: &Self) -> bool {
        self.headers.iter().all(|(name, values)| {
            let mut same = other.headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
            same.any(|(_, others)| others.iter().all(|value| values.contains(value)))
        })
    }

    fn covers_priorities(&self, other: &Self) -> bool {
        let named = if other.priorities.is_empty() { Priority::ALL } else { &other.priorities };
        self.priorities.is_empty() || named.iter().all(|priority| self.priorities.contains(priority))
    }
}
