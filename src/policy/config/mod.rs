//! Policies in files: the native form, and the `slas` form.

mod cursor;
mod duration;
mod node;
mod read;
mod write;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use self::{
    cursor::{Cursor, Place},
    node::Node,
};
use super::Policy;
use crate::quota::Quota;

/// In the native form; what is as by default is left out.
impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        write::policy(self).serialize(serializer)
    }
}

/// From any format that describes itself, such as JSON, TOML or YAML. The
/// policy is then valid, as by [`Policy::from_yaml`].
impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        read::policy(&Node::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// As a tier of a policy: `{ limit: 10, window: 1s }`, or `{ concurrent: 10 }`.
impl Serialize for Quota {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        write::quota(self).serialize(serializer)
    }
}

/// As a tier of a policy: `{ limit: 10, window: 1s }`, or `{ concurrent: 10 }`. Whether it can be
/// counted is seen when a policy is built of it.
impl<'de> Deserialize<'de> for Quota {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let node = Node::deserialize(deserializer)?;
        read::quota(&Cursor::new(Place::default(), &node)).map_err(D::Error::custom)
    }
}

#[cfg(feature = "yaml")]
mod yaml;
