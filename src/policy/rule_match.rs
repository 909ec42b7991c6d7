//! The requests that a rule is for: [`Match`]. Paths are found by the matcher.
//!
//! Plain data: `validate` checks it. Invariant: what is not named takes every request.

use std::collections::BTreeMap;

use http::Method;
#[cfg(feature = "serde")]
use schemars::JsonSchema;
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

#[cfg(feature = "serde")]
use super::forms;
use crate::descriptor::Priority;

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
