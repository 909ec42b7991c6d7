//! Typed access to a document: reads a [`Node`] as the expected type.
//!
//! Every error names the key, as a path from the node that was read, and the
//! value where there is one.

use std::{
    collections::{BTreeMap, HashSet},
    fmt::Display,
    time::Duration,
};

use super::{duration, node::Node, schema::KnownKeys};
use crate::error::ConfigError;

pub(super) type Result<T> = std::result::Result<T, ConfigError>;

impl Node {
    pub(super) fn error(&self, reason: impl Into<String>) -> ConfigError {
        ConfigError::new("", reason).with_value(self)
    }

    pub(super) fn expected(&self, what: &str) -> ConfigError {
        self.error(format!("expected {what}, found {}", self.kind()))
    }

    /// A value in quotes that is expected without them, or the other way round.
    fn misquoted(&self, what: &str, advice: &str) -> ConfigError {
        self.error(format!("expected {what}, found {}: {advice}", self.kind()))
    }

    pub(super) fn text(&self) -> Result<&str> {
        match self {
            Self::Text(text) => Ok(text),
            Self::Bool(_) | Self::Integer(_) | Self::Float(_) => Err(self.misquoted("a string", "put it in quotes")),
            _ => Err(self.expected("a string")),
        }
    }

    pub(super) fn string(&self) -> Result<String> {
        self.text().map(str::to_owned)
    }

    pub(super) fn boolean(&self) -> Result<bool> {
        match self {
            Self::Bool(value) => Ok(*value),
            _ => Err(self.expected("true or false")),
        }
    }

    pub(super) fn number(&self) -> Result<u64> {
        let too_large = || self.error(format!("is too large: at most {}", u64::MAX));
        match self {
            Self::Integer(value) if *value < 0 => Err(self.error("must not be negative")),
            Self::Integer(value) => u64::try_from(*value).map_err(|_| too_large()),
            // Formats give integers that they have no type for as floats.
            Self::Float(value) if value.fract() == 0.0 && *value >= 18_446_744_073_709_551_616.0 => Err(too_large()),
            Self::Float(value) if value.fract() == 0.0 && *value < -9_223_372_036_854_775_808.0 => {
                Err(self.error("must not be negative"))
            }
            Self::Float(value) if value.fract() == 0.0 => {
                Err(self.error("must be written as a whole number: no point, no exponent, no leading zero"))
            }
            Self::Float(_) => Err(self.error("must be a whole number")),
            Self::Text(text) if text.parse::<u64>().is_ok() => {
                Err(self.misquoted("a whole number", "write it without quotes"))
            }
            _ => Err(self.expected("a whole number")),
        }
    }

    /// A number that need not be whole. Validation checks its bounds.
    #[allow(clippy::cast_precision_loss, reason = "only 1 is within the bounds")]
    pub(super) fn fraction(&self) -> Result<f64> {
        match self {
            Self::Integer(value) => Ok(*value as f64),
            Self::Float(value) => Ok(*value),
            Self::Text(text) if text.parse::<f64>().is_ok() => {
                Err(self.misquoted("a number", "write it without quotes"))
            }
            _ => Err(self.expected("a number")),
        }
    }

    pub(super) fn duration(&self) -> Result<Duration> {
        match self {
            Self::Text(text) => duration::parse(text).map_err(|reason| self.error(reason)),
            Self::Integer(value) if *value >= 0 => {
                Err(self.error(format!("a duration needs a unit, such as `{value}s` or `{value}ms`")))
            }
            Self::Integer(_) | Self::Float(_) => Err(self.error("a duration needs a unit, such as `1s` or `250ms`")),
            _ => Err(self.expected("a duration such as `250ms`, `1s`, `10m` or `1d`")),
        }
    }

    /// One of `choices`, by its name.
    pub(super) fn choice<T: Copy + Display>(&self, kind: &str, choices: &[T]) -> Result<T> {
        let text = self.text()?;
        let names: Vec<String> = choices.iter().map(T::to_string).collect();
        match names.iter().position(|name| name == text) {
            Some(index) => Ok(choices[index]),
            None => Err(self.error(format!("unknown {kind}{}", suggestion(text, &names)))),
        }
    }

    pub(super) fn items(&self) -> Result<&[Self]> {
        match self {
            Self::List(items) => Ok(items),
            _ => Err(self.expected("a list")),
        }
    }

    pub(super) fn list<T>(&self, mut read: impl FnMut(&Self) -> Result<T>) -> Result<Vec<T>> {
        let item = |(index, item)| read(item).map_err(|error| error.under(format_args!("[{index}]")));
        self.items()?.iter().enumerate().map(item).collect()
    }

    /// A map with any keys.
    pub(super) fn map<T>(&self, read: impl Fn(&Self) -> Result<T>) -> Result<BTreeMap<String, T>> {
        let entry = |(key, value): &(String, Self)| match read(value) {
            Ok(value) => Ok((key.clone(), value)),
            Err(error) => Err(error.under(key)),
        };
        self.entries()?.0.iter().map(entry).collect()
    }

    pub(super) fn entries(&self) -> Result<Fields<'_>> {
        let Self::Map(entries) = self else {
            return Err(self.expected("a map"));
        };
        let mut seen = HashSet::new();
        match entries.iter().find(|(key, _)| !seen.insert(key)) {
            Some((key, value)) => Err(value.error("duplicate key").under(key)),
            None => Ok(Fields(entries)),
        }
    }

    /// A map with no other keys than these.
    pub(super) fn fields(&self, known: &KnownKeys) -> Result<Fields<'_>> {
        let fields = self.entries()?;
        let names: Vec<&str> = known.iter().map(|(key, _)| *key).collect();
        fields.check_known(&names).map(|()| fields)
    }
}

/// The entries of a map, found by their keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'n>(&'n [(String, Node)]);

impl<'n> Fields<'n> {
    pub(super) fn check_known(&self, known: &[&str]) -> Result<()> {
        match self.0.iter().find(|(key, _)| !known.contains(&&**key)) {
            Some((key, value)) => Err(value.error(format!("unknown key{}", suggestion(key, known))).under(key)),
            None => Ok(()),
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&'n Node> {
        self.0.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    pub(super) fn optional<T>(&self, key: &str, read: impl FnOnce(&'n Node) -> Result<T>) -> Result<Option<T>> {
        self.get(key).map(read).transpose().map_err(|error| error.under(key))
    }

    /// The value, or `default` if the key is missing.
    pub(super) fn or<T>(&self, key: &str, default: T, read: impl FnOnce(&'n Node) -> Result<T>) -> Result<T> {
        Ok(self.optional(key, read)?.unwrap_or(default))
    }

    pub(super) fn required<T>(&self, key: &str, read: impl FnOnce(&'n Node) -> Result<T>) -> Result<T> {
        self.optional(key, read)?.ok_or_else(|| ConfigError::new(key, "is missing"))
    }
}

/// The nearest of `allowed`, or all of them.
fn suggestion<S: AsRef<str>>(word: &str, allowed: &[S]) -> String {
    let plain = |word: &str| word.to_lowercase().replace(['-', '_', ' '], "");
    let is_near = |candidate: &&S| distance(&plain(word), &plain(candidate.as_ref())) <= 1;
    match allowed.iter().find(is_near) {
        Some(name) => format!("; did you mean `{}`?", name.as_ref()),
        None => {
            let names: Vec<String> = allowed.iter().map(|name| format!("`{}`", name.as_ref())).collect();
            format!("; one of {}", names.join(", "))
        }
    }
}

/// 0 for equal words, 1 where one letter is wrong, missing or added, or two neighbours
/// are swapped, else 2.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let (short, long) = if a.len() < b.len() { (a, b) } else { (b, a) };
    let start = short.iter().zip(&long).take_while(|(a, b)| a == b).count();
    let rest = &short[start..];
    let end = rest.iter().rev().zip(long.iter().rev()).take_while(|(a, b)| a == b).count();
    if let ([a, b], [c, d]) = (&rest[..rest.len() - end], &long[start..long.len() - end])
        && (a, b) == (d, c)
    {
        return 1;
    }
    (long.len() - start - end).min(2)
}
