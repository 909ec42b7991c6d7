//! The keys of a map in a policy file, each named once: [`Keys`] either reads
//! or writes them.
//!
//! Of several errors the first is reported. An unknown key comes before all
//! others: it may be why another one is missing.

use super::{
    node::Node,
    typed::{Fields, Result},
};
use crate::error::ConfigError;

/// A map that is read or written key by key.
pub(super) enum Keys<'n> {
    Read { fields: Fields<'n>, known: Vec<&'static str>, error: Option<ConfigError> },
    Write(Vec<(String, Node)>),
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
        Keys::Read { .. } => Node::Null,
    }
}

impl Keys<'_> {
    /// A key that may be missing: `value` is then left unchanged. `write`
    /// gives `None` for the value that a missing key stands for.
    pub(super) fn key<T>(
        &mut self,
        key: &'static str,
        value: &mut T,
        read: impl FnOnce(&Node) -> Result<T>,
        write: impl FnOnce(&T) -> Option<Node>,
    ) {
        match self {
            Self::Write(entries) => entries.extend(write(value).map(|node| (key.to_owned(), node))),
            Self::Read { fields, known, error } => {
                known.push(key);
                match fields.optional(key, read) {
                    Ok(read) => read.into_iter().for_each(|read| *value = read),
                    Err(new) => _ = error.get_or_insert(new),
                }
            }
        }
    }

    pub(super) fn optional<T>(
        &mut self,
        key: &'static str,
        value: &mut Option<T>,
        read: impl FnOnce(&Node) -> Result<T>,
        write: impl FnOnce(&T) -> Node,
    ) {
        self.key(key, value, |node| read(node).map(Some), |value| value.as_ref().map(write));
    }

    /// Makes it an error that the key is missing.
    pub(super) fn require(&mut self, key: &'static str) {
        if let Self::Read { fields, error, .. } = self
            && let Err(missing) = fields.required(key, |_| Ok(()))
        {
            error.get_or_insert(missing);
        }
    }

    /// A flag that is written where it is not `default`.
    pub(super) fn flag(&mut self, key: &'static str, value: &mut bool, default: bool) {
        self.key(key, value, Node::boolean, |value| (*value != default).then_some(Node::Bool(*value)));
    }
}
