//! Policies in files: serde for [`Policy`] and [`Quota`], and YAML.
//!
//! Hand-written instead of derived: each error names the rule by its id, the key
//! by its path, the value as it was written, and the nearest known key. Each key
//! is named once, with its reader and its schema.

mod document;
mod duration;
mod keys;
mod node;
mod rule;
mod schema;
mod typed;
mod values;
#[cfg(feature = "yaml")]
mod yaml;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use self::node::Node;
use super::rule_set::Policy;
use crate::quota::Quota;

impl Policy {
    /// The JSON Schema (2020-12) of a policy file, in any serde format: editors
    /// complete and check a policy by it. The repository has it as
    /// `docs/policy.schema.json`.
    ///
    /// It is never stricter than the reader of policies. It also has the key
    /// `instances`, which only the documents of a policy source may have.
    ///
    /// ```
    /// use tower_ratelimit::Policy;
    ///
    /// let schema = serde_json::to_value(Policy::json_schema())?;
    /// assert_eq!(schema["properties"]["ignore_case"]["type"], "boolean");
    /// # Ok::<_, serde_json::Error>(())
    /// ```
    pub fn json_schema() -> impl Serialize {
        let head = [
            ("$schema", Node::Text("https://json-schema.org/draft/2020-12/schema".into())),
            ("title", Node::Text("A policy of tower-ratelimit".into())),
        ];
        schema::map(head).and(document::schema())
    }
}

/// In the native form, without settings at their default.
impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        document::write(self).serialize(serializer)
    }
}

/// From any self-describing format, such as JSON, TOML or YAML. The policy is
/// validated, as by [`Policy::from_yaml`].
impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        document::read(&Node::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// As a tier of a policy: `{ limit: 10, window: 1s }`, or `{ concurrent: 10 }`.
impl Serialize for Quota {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        values::write_tier(self).serialize(serializer)
    }
}

/// As a tier of a policy: `{ limit: 10, window: 1s }`, or `{ concurrent: 10 }`.
/// It is validated when a policy is built of it.
impl<'de> Deserialize<'de> for Quota {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        values::read_tier(&Node::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}
