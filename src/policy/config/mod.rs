//! Policies in files: serde for [`Policy`] and [`Quota`](crate::Quota), YAML, and the
//! JSON Schema.
//!
//! A document of any format becomes a tree, which serde reads as a policy. An error
//! names the rule by its id, the key by its path, the value as it was written, and
//! the nearest known key.

mod document;
mod overload;
mod tier;
mod tree;
mod yaml;

use schemars::{
    Schema,
    generate::SchemaSettings,
    transform::{RecursiveTransform, Transform},
};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::{Value, json};

use self::{document::Document, tree::Node};
use super::Policy;

impl Policy {
    /// The JSON Schema (2020-12) of a policy file, in any serde format: editors
    /// complete and check a policy by it. The repository has it as
    /// `docs/policy.schema.json`.
    ///
    /// It is never stricter than the reader of policies.
    ///
    /// ```
    /// use tower_ratelimit::Policy;
    ///
    /// let schema = serde_json::to_value(Policy::json_schema())?;
    /// assert_eq!(schema["properties"]["ignore_case"]["type"], "boolean");
    /// # Ok::<_, serde_json::Error>(())
    /// ```
    pub fn json_schema() -> impl Serialize {
        let mut schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<Document>();
        RecursiveTransform(as_read).transform(&mut schema);
        schema
    }
}

/// As a document is read: a key that is there has a value. The documentation of Rust
/// types is not for operators.
fn as_read(schema: &mut Schema) {
    for keyword in ["default", "description", "format"] {
        schema.remove(keyword);
    }
    if let Some(Value::Array(types)) = schema.get("type")
        && let [value, null] = &types[..]
        && null == "null"
    {
        let value = value.clone();
        schema.insert("type".into(), value);
    }
    if let Some(Value::Array(choices)) = schema.get("anyOf")
        && let [value, null] = &choices[..]
        && *null == json!({ "type": "null" })
        && let Ok(value) = Schema::try_from(value.clone())
    {
        *schema = value;
    }
}

/// From any self-describing format, such as JSON, TOML or YAML. The policy is
/// validated, as by [`Policy::from_yaml`].
impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        document::read(&Node::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}
