//! The keys of a map in a policy file, each named once: [`Keys`] reads, writes
//! or describes them.
//!
//! Of several errors the first is reported. An unknown key comes before all
//! others: it may be why another one is missing.

use super::{
    node::Node,
    schema,
    typed::{Fields, Result},
};
use crate::error::ConfigError;

/// How a value of a policy file is read, and its schema.
#[derive(Debug)]
pub(super) struct Kind<T> {
    pub(super) read: fn(&Node) -> Result<T>,
    pub(super) schema: fn() -> Node,
}

/// A map that is read, written or described key by key.
pub(super) enum Keys<'n> {
    Read { fields: Fields<'n>, known: Vec<&'static str>, error: Option<ConfigError> },
    Write(Vec<(String, Node)>),
    Describe { properties: Vec<(String, Node)>, required: Vec<&'static str> },
}

/// Reads a map: sets `value` by the keys that `visit` names.
pub(super) fn read<T>(node: &Node, mut value: T, visit: impl FnOnce(&mut T, &mut Keys<'_>)) -> Result<T> {
    let mut keys = Keys::Read { fields: node.entries()?, known: Vec::new(), error: None };
    visit(&mut value, &mut keys);
    if let Keys::Read { fields, known, error } = keys {
        fields.check_known(&known)?;
        error.map_or(Ok(()), Err)?;
    }
    Ok(value)
}

/// Writes `value` as a map of the keys that `visit` names, in their order.
pub(super) fn write<T: Clone>(value: &T, visit: impl FnOnce(&mut T, &mut Keys<'_>)) -> Node {
    let mut keys = Keys::Write(Vec::new());
    visit(&mut value.clone(), &mut keys);
    match keys {
        Keys::Write(entries) => Node::Map(entries),
        Keys::Read { .. } | Keys::Describe { .. } => Node::Null,
    }
}

/// The schema of a map of the keys that `visit` names.
pub(super) fn describe<T>(mut value: T, visit: impl FnOnce(&mut T, &mut Keys<'_>)) -> Node {
    let mut keys = Keys::Describe { properties: Vec::new(), required: Vec::new() };
    visit(&mut value, &mut keys);
    match keys {
        Keys::Describe { properties, required } => schema::object(properties, &required),
        Keys::Read { .. } | Keys::Write(_) => Node::Null,
    }
}

impl Keys<'_> {
    /// A key that may be missing: `value` is then left unchanged. `write`
    /// gives `None` for the value that a missing key stands for.
    pub(super) fn key<T>(
        &mut self,
        key: &'static str,
        value: &mut T,
        kind: &Kind<T>,
        write: impl FnOnce(&T) -> Option<Node>,
    ) {
        self.visit(key, value, kind.read, kind.schema, write);
    }

    pub(super) fn optional<T>(
        &mut self,
        key: &'static str,
        value: &mut Option<T>,
        kind: &Kind<T>,
        write: impl FnOnce(&T) -> Node,
    ) {
        self.visit(key, value, |node| (kind.read)(node).map(Some), kind.schema, |value| value.as_ref().map(write));
    }

    fn visit<T>(
        &mut self,
        key: &'static str,
        value: &mut T,
        read: impl FnOnce(&Node) -> Result<T>,
        schema: fn() -> Node,
        write: impl FnOnce(&T) -> Option<Node>,
    ) {
        match self {
            Self::Write(entries) => entries.extend(write(value).map(|node| (key.to_owned(), node))),
            Self::Describe { properties, .. } => properties.push((key.to_owned(), schema())),
            Self::Read { fields, known, error } => {
                known.push(key);
                match fields.optional(key, read) {
                    Ok(read) => read.into_iter().for_each(|read| *value = read),
                    Err(new) => _ = error.get_or_insert(new),
                }
            }
        }
    }

    /// Makes it an error that the key is missing.
    pub(super) fn require(&mut self, key: &'static str) {
        match self {
            Self::Write(_) => {}
            Self::Describe { required, .. } => required.push(key),
            Self::Read { fields, error, .. } => {
                if let Err(missing) = fields.required(key, |_| Ok(())) {
                    error.get_or_insert(missing);
                }
            }
        }
    }

    /// [`require`](Self::require), on a condition that a schema has to say itself.
    pub(super) fn require_if(&mut self, needed: bool, key: &'static str) {
        if needed && matches!(self, Self::Read { .. }) {
            self.require(key);
        }
    }

    /// A flag that is written where it is not `default`.
    pub(super) fn flag(&mut self, key: &'static str, value: &mut bool, default: bool) {
        let write = |value: &bool| (*value != default).then_some(Node::Bool(*value));
        self.visit(key, value, Node::boolean, schema::flag, write);
    }
}
