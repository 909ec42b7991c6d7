//! What the JSON Schema of a policy file is made of.
//!
//! It says which keys, types and names there are, and is never stricter than the
//! reader, which also checks what a schema cannot say. Each key has its schema
//! where it is read.

use std::fmt::Display;

use super::node::Node;

impl Node {
    /// With the entries of `other` as well.
    pub(super) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Map(entries), Self::Map(others)) => Self::Map(entries.into_iter().chain(others).collect()),
            (own, _) => own,
        }
    }
}

fn text(text: &str) -> Node {
    Node::Text(text.into())
}

pub(super) fn map<const N: usize>(entries: [(&str, Node); N]) -> Node {
    Node::Map(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

pub(super) fn of_type(name: &str) -> Node {
    map([("type", text(name))])
}

pub(super) fn flag() -> Node {
    of_type("boolean")
}

pub(super) fn number() -> Node {
    of_type("integer").and(map([("minimum", Node::Integer(0)), ("maximum", Node::Integer(u64::MAX.into()))]))
}

pub(super) fn fraction() -> Node {
    of_type("number").and(map([("minimum", Node::Integer(0)), ("maximum", Node::Integer(1))]))
}

/// Text that `regex` finds something in.
pub(super) fn like(regex: &str) -> Node {
    of_type("string").and(map([("pattern", text(regex))]))
}

pub(super) fn duration() -> Node {
    like("[0-9] *[a-zµ]")
}

pub(super) fn path() -> Node {
    like("^/")
}

/// One of `names`.
pub(super) fn names<T: Display>(names: &[T]) -> Node {
    map([("enum", Node::List(names.iter().map(|name| text(&name.to_string())).collect()))])
}

pub(super) fn list(items: Node) -> Node {
    of_type("array").and(map([("items", items)]))
}

pub(super) fn at_least_one() -> Node {
    map([("minItems", Node::Integer(1))])
}

/// A map with any keys.
pub(super) fn map_of(values: Node) -> Node {
    of_type("object").and(map([("additionalProperties", values)]))
}

pub(super) fn any_of<const N: usize>(choices: [Node; N]) -> Node {
    map([("anyOf", Node::List(choices.into()))])
}

pub(super) fn require(keys: &[&str]) -> Node {
    map([("required", Node::List(keys.iter().map(|key| text(key)).collect()))])
}

/// A map with no other keys than these.
pub(super) fn object(properties: Vec<(String, Node)>, required: &[&str]) -> Node {
    let object = of_type("object")
        .and(map([("properties", Node::Map(properties)), ("additionalProperties", Node::Bool(false))]));
    if required.is_empty() { object } else { object.and(require(required)) }
}

/// The keys of a map, each with its schema.
pub(super) type KnownKeys = [(&'static str, fn() -> Node)];

/// [`object`] of known keys.
pub(super) fn fields(known: &KnownKeys, required: &[&str]) -> Node {
    object(known.iter().map(|(key, schema)| ((*key).to_owned(), schema())).collect(), required)
}

/// A schema that the document has once.
pub(super) fn reference(name: &str) -> Node {
    map([("$ref", text(&format!("#/$defs/{name}")))])
}
