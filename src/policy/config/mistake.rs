//! What is wrong with a document: [`Mistake`], in words for an operator.
//!
//! serde says what was found and what was expected, and `serde_path_to_error` where.
//! Invariant: every error names the key and, if there is one, the value.

use std::fmt;

use serde::de::{self, Expected, Unexpected};
use serde_path_to_error::Segment;

use super::tree::Node;
use crate::{
    error::ConfigError,
    policy::{nearest::nearest, validate::check_id},
};

/// An error of serde, before it is known where it stands.
#[derive(Debug)]
pub(super) struct Mistake {
    /// The key that it is about, where that is below the place of the error.
    key: Option<String>,
    reason: String,
}

impl Mistake {
    pub(super) fn duplicate(key: &str) -> Self {
        Self { key: Some(key.into()), reason: "duplicate key".into() }
    }
}

impl de::Error for Mistake {
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
            return Self::custom("there is no level `eventual` any more: use `leased`, which is never over the limit");
        }
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
        Unexpected::Float(value) if is_number => return not_whole(value).into(),
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

/// Formats give integers that they have no type for as floats.
fn not_whole(value: f64) -> &'static str {
    if value.fract() != 0.0 || value.is_infinite() {
        "must be a whole number"
    } else if value < 0.0 {
        "must not be negative"
    } else if value >= 18_446_744_073_709_551_616.0 {
        "is too large: at most 18446744073709551615"
    } else {
        "must be written as a whole number: no point, no exponent, no leading zero"
    }
}

/// The error of a whole document, with rule, key and value.
pub(super) fn locate(document: &Node, error: serde_path_to_error::Error<Mistake>) -> ConfigError {
    let mut path: Vec<Segment> = error.path().iter().cloned().collect();
    let Mistake { key, reason } = error.into_inner();
    path.extend(key.map(|key| Segment::Map { key }));
    let mut error = ConfigError::new("", reason);
    let value = path.iter().try_fold(document, |node, segment| match segment {
        Segment::Map { key } => node.values(key).last(),
        Segment::Seq { index } => node.item(*index),
        Segment::Enum { .. } | Segment::Unknown => Some(node),
    });
    if let Some(value) = value {
        error = error.with_value(value);
    }
    let (rule, within) = match &path[..] {
        [Segment::Map { key: list }, Segment::Seq { index }, within @ ..] => {
            (Some(rule_name(document, list, *index)), within)
        }
        all => (None, all),
    };
    for segment in within.iter().rev() {
        match segment {
            Segment::Map { key } => error = error.under(key),
            Segment::Seq { index } => error = error.under(format_args!("[{index}]")),
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    rule.into_iter().fold(error, ConfigError::of_rule)
}

/// The name of a rule in errors: its id, or its place if it has no valid one.
pub(super) fn rule_name(document: &Node, list: &str, index: usize) -> String {
    let rule = document.values(list).last().and_then(|rules| rules.item(index));
    let id = rule.into_iter().flat_map(|rule| rule.values("id")).find_map(|id| match id {
        Node::Text(id) if check_id(id).is_ok() => Some(id.clone()),
        _ => None,
    });
    id.unwrap_or_else(|| format!("{list}[{index}]"))
}
