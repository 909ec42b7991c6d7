//! A document before it is read as a policy, [`Node`], and what serde finds wrong
//! with it, [`Mistake`], in words for an operator.
//!
//! Any serde format becomes the same tree, from which serde then reads a policy. It
//! keeps duplicate keys and values of the wrong type, so that an error can show
//! them.

use std::{collections::HashSet, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{
        Error, Expected, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
        value::{MapDeserializer, SeqDeserializer},
    },
    forward_to_deserialize_any,
};

use crate::policy::settings::nearest;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Null,
    Bool(bool),
    Unsigned(u64),
    Negative(i64),
    Float(f64),
    Text(String),
    List(Vec<Self>),
    Map(Vec<(String, Self)>),
}

impl Node {
    /// The values of a key: several, if it stands there more than once.
    pub(super) fn values(&self, key: &str) -> impl Iterator<Item = &Self> {
        let entries = if let Self::Map(entries) = self { &entries[..] } else { &[] };
        entries.iter().filter(move |(own, _)| own == key).map(|(_, value)| value)
    }

    pub(super) fn items_mut(&mut self) -> &mut [Self] {
        if let Self::List(items) = self { items } else { &mut [] }
    }

    pub(super) fn item(&self, index: usize) -> Option<&Self> {
        let Self::List(items) = self else { return None };
        items.get(index)
    }
}

/// One line, in YAML flow style.
impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = |parts: Vec<String>| parts.join(", ");
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => value.fmt(f),
            Self::Unsigned(value) => value.fmt(f),
            Self::Negative(value) => value.fmt(f),
            Self::Float(value) => write!(f, "{value:?}"),
            Self::Text(value) => f.write_str(value),
            Self::List(items) => write!(f, "[{}]", joined(items.iter().map(Self::to_string).collect())),
            Self::Map(entries) => {
                write!(f, "{{{}}}", joined(entries.iter().map(|(key, value)| format!("{key}: {value}")).collect()))
            }
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a boolean, a number, a string, a list or a map")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Unsigned(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(u64::try_from(value).map_or(Node::Negative(value), Node::Unsigned))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        // Keys are read as strings, so that a tenant `007` keeps its zeros.
        while let Some(entry) = access.next_entry::<String, Node>()? {
            entries.push(entry);
        }
        Ok(Node::Map(entries))
    }
}

impl<'de> IntoDeserializer<'de, Mistake> for &'de Node {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = Mistake;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        match self {
            Node::Null => visitor.visit_unit(),
            Node::Bool(value) => visitor.visit_bool(*value),
            Node::Unsigned(value) => visitor.visit_u64(*value),
            Node::Negative(value) => visitor.visit_i64(*value),
            Node::Float(value) => visitor.visit_f64(*value),
            Node::Text(value) => visitor.visit_str(value),
            Node::List(items) => visitor.visit_seq(SeqDeserializer::new(items.iter())),
            Node::Map(entries) => {
                let mut seen = HashSet::new();
                match entries.iter().find(|(key, _)| !seen.insert(key)) {
                    Some((key, _)) => Err(Mistake { key: Some(key.clone()), reason: "duplicate key".into() }),
                    None => visitor
                        .visit_map(MapDeserializer::new(entries.iter().map(|(key, value)| (key.as_str(), value)))),
                }
            }
        }
    }

    /// A key without a value is a mistake, and not a missing key.
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        visitor.visit_some(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        let name = String::deserialize(self)?;
        visitor.visit_enum(name.into_deserializer())
    }

    /// serde would read a list as the values of all keys.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        match self {
            Node::List(_) => Err(Mistake::invalid_type(Unexpected::Seq, &"a map")),
            _ => self.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map identifier ignored_any
    }
}

/// An error of serde, before it is known where it stands.
#[derive(Debug)]
pub(super) struct Mistake {
    /// The key that it is about, where that is below the place of the error.
    pub(super) key: Option<String>,
    pub(super) reason: String,
}

impl Error for Mistake {
    fn custom<T: fmt::Display>(reason: T) -> Self {
        Self { key: None, reason: reason.to_string() }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(mismatch(found, &expected.to_string()))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        match found {
            // A key that is known, but not here: see `misplaced`.
            Unexpected::Other(key) => Self { key: Some(key.into()), reason: expected.to_string() },
            found => Self::invalid_type(found, expected),
        }
    }

    fn missing_field(key: &'static str) -> Self {
        Self { key: Some(key.into()), reason: "is missing".into() }
    }

    fn unknown_field(key: &str, known: &'static [&'static str]) -> Self {
        Self::custom(format_args!("unknown key{}", suggestion(key, known)))
    }

    fn unknown_variant(name: &str, known: &'static [&'static str]) -> Self {
        if name == "eventual" && known.contains(&"leased") {
            return Self::custom("there is no level `eventual` any more: use `leased`");
        }
        // The algorithm's own name, under which others have it.
        let name = if name.eq_ignore_ascii_case("gcra") { "token-bucket" } else { name };
        Self::custom(format_args!("unknown name{}", suggestion(name, known)))
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Mistake {}

/// The nearest of the known names, or all of them.
fn suggestion(word: &str, known: &[&str]) -> String {
    match nearest(word, known.iter().copied()) {
        Some(name) => format!("; did you mean `{name}`?"),
        None => format!("; one of `{}`", known.join("`, `")),
    }
}

/// Why a value is not of the expected type, and how to write it.
fn mismatch(found: Unexpected<'_>, expected: &str) -> String {
    let expected = match expected {
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "u64" => "a whole number",
        "f64" => "a number",
        text if text.starts_with("struct ") => "a map",
        text => text,
    };
    let is_number = expected == "a whole number" || expected == "a number";
    let (kind, is_scalar) = match found {
        Unexpected::Bool(_) => ("a boolean", true),
        Unexpected::Signed(_) if is_number => return "must not be negative".into(),
        // Formats give integers that they have no type for as floats.
        Unexpected::Float(_) if is_number => {
            return format!("must be a whole number: no point, no exponent, at most {}", u64::MAX);
        }
        Unexpected::Unsigned(_) | Unexpected::Signed(_) | Unexpected::Float(_) => ("a number", true),
        Unexpected::Str(text) if is_number && text.parse::<f64>().is_ok() => {
            return format!("expected {expected}, found a string: write it without quotes");
        }
        Unexpected::Str(_) => ("a string", false),
        Unexpected::Seq => ("a list", false),
        Unexpected::Map => ("a map", false),
        _ => ("nothing", false),
    };
    let advice = if is_scalar && expected == "a string" { ": put it in quotes" } else { "" };
    format!("expected {expected}, found {kind}{advice}")
}
