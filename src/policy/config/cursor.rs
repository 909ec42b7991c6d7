//! Typed access to a document: a [`Cursor`] is a node with its path, and reads
//! it as the expected type.
//!
//! Every error names the rule, the key and, where there is one, the value.

use std::{collections::HashSet, fmt::Display, time::Duration};

use super::{duration, node::Node};
use crate::error::ConfigError;

pub(super) type Result<T> = std::result::Result<T, ConfigError>;

#[derive(Clone, Debug)]
pub(super) struct Cursor<'n> {
    rule: Option<String>,
    key: String,
    pub(super) node: &'n Node,
}

impl<'n> Cursor<'n> {
    /// The root of a document.
    pub(super) fn new(node: &'n Node) -> Self {
        Self { rule: None, key: String::new(), node }
    }

    /// The root of a rule: keys are relative to it.
    pub(super) fn in_rule(self, rule: impl Into<String>) -> Self {
        Self { rule: Some(rule.into()), key: String::new(), node: self.node }
    }

    fn child(&self, key: String, node: &'n Node) -> Self {
        Self { rule: self.rule.clone(), key, node }
    }

    fn key_of(&self, name: &str) -> String {
        let dot = if self.key.is_empty() { "" } else { "." };
        format!("{}{dot}{name}", self.key)
    }

    /// An error without a value.
    pub(super) fn error_at(&self, key: &str, reason: impl Into<String>) -> ConfigError {
        let error = ConfigError::new(key, reason);
        match &self.rule {
            Some(rule) => error.of_rule(rule),
            None => error,
        }
    }

    pub(super) fn error(&self, reason: impl Into<String>) -> ConfigError {
        self.error_at(&self.key, reason).with_value(self.node)
    }

    pub(super) fn expected(&self, what: &str) -> ConfigError {
        self.error(format!("expected {what}, found {}", self.node.kind()))
    }

    /// A value in quotes that is expected without them, or the other way round.
    fn misquoted(&self, what: &str, advice: &str) -> ConfigError {
        self.error(format!("expected {what}, found {}: {advice}", self.node.kind()))
    }

    pub(super) fn text(&self) -> Result<&'n str> {
        match self.node {
            Node::Text(text) => Ok(text),
            Node::Bool(_) | Node::Integer(_) | Node::Float(_) => Err(self.misquoted("a string", "put it in quotes")),
            _ => Err(self.expected("a string")),
        }
    }

    pub(super) fn boolean(&self) -> Result<bool> {
        match self.node {
            Node::Bool(value) => Ok(*value),
            _ => Err(self.expected("true or false")),
        }
    }

    pub(super) fn number(&self) -> Result<u64> {
        let too_large = || self.error(format!("is too large: at most {}", u64::MAX));
        match self.node {
            Node::Integer(value) if *value < 0 => Err(self.error("must not be negative")),
            Node::Integer(value) => u64::try_from(*value).map_err(|_| too_large()),
            // Formats give integers that they have no type for as floats.
            Node::Float(value) if value.fract() == 0.0 && *value >= 18_446_744_073_709_551_616.0 => Err(too_large()),
            Node::Float(value) if value.fract() == 0.0 && *value < -9_223_372_036_854_775_808.0 => {
                Err(self.error("must not be negative"))
            }
            Node::Float(value) if value.fract() == 0.0 => {
                Err(self.error("must be written as a whole number: no point, no exponent, no leading zero"))
            }
            Node::Float(_) => Err(self.error("must be a whole number")),
            Node::Text(text) if text.parse::<u64>().is_ok() => {
                Err(self.misquoted("a whole number", "write it without quotes"))
            }
            _ => Err(self.expected("a whole number")),
        }
    }

    /// A number that need not be whole. Validation checks its bounds.
    #[allow(clippy::cast_precision_loss, reason = "only 1 is within the bounds")]
    pub(super) fn fraction(&self) -> Result<f64> {
        match self.node {
            Node::Integer(value) => Ok(*value as f64),
            Node::Float(value) => Ok(*value),
            Node::Text(text) if text.parse::<f64>().is_ok() => {
                Err(self.misquoted("a number", "write it without quotes"))
            }
            _ => Err(self.expected("a number")),
        }
    }

    pub(super) fn duration(&self) -> Result<Duration> {
        match self.node {
            Node::Text(text) => duration::parse(text).map_err(|reason| self.error(reason)),
            Node::Integer(value) if *value >= 0 => {
                Err(self.error(format!("a duration needs a unit, such as `{value}s` or `{value}ms`")))
            }
            Node::Integer(_) | Node::Float(_) => Err(self.error("a duration needs a unit, such as `1s` or `250ms`")),
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

    pub(super) fn list<T>(&self, read: impl Fn(&Self) -> Result<T>) -> Result<Vec<T>> {
        let Node::List(items) = self.node else {
            return Err(self.expected("a list"));
        };
        let item = |(index, node)| read(&self.child(format!("{}[{index}]", self.key), node));
        items.iter().enumerate().map(item).collect()
    }

    /// A map with any keys, read into a collection of pairs.
    pub(super) fn map<T, C>(&self, read: impl Fn(&Self) -> Result<T>) -> Result<C>
    where
        C: FromIterator<(String, T)>,
    {
        self.entries()?.into_iter().map(|(key, value)| Ok((key.to_owned(), read(&value)?))).collect()
    }

    fn entries(&self) -> Result<Vec<(&'n str, Self)>> {
        let Node::Map(entries) = self.node else {
            return Err(self.expected("a map"));
        };
        let mut seen = HashSet::new();
        let entry = |(key, node): &'n (String, Node)| {
            let value = self.child(self.key_of(key), node);
            if seen.insert(key) { Ok((key.as_str(), value)) } else { Err(value.error("duplicate key")) }
        };
        entries.iter().map(entry).collect()
    }

    /// A map with no other keys than these.
    pub(super) fn fields(&self, allowed: &[&str]) -> Result<Fields<'n>> {
        let entries = self.entries()?;
        match entries.iter().find(|(key, _)| !allowed.contains(key)) {
            Some((key, value)) => Err(value.error(format!("unknown key{}", suggestion(key, allowed)))),
            None => Ok(Fields { map: self.clone(), entries }),
        }
    }
}

/// The entries of a map with known keys.
#[derive(Debug)]
pub(super) struct Fields<'n> {
    map: Cursor<'n>,
    entries: Vec<(&'n str, Cursor<'n>)>,
}

impl<'n> Fields<'n> {
    pub(super) fn get(&self, key: &str) -> Option<&Cursor<'n>> {
        self.entries.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    pub(super) fn optional<T>(&self, key: &str, read: impl Fn(&Cursor<'n>) -> Result<T>) -> Result<Option<T>> {
        self.get(key).map(read).transpose()
    }

    /// The value, or `default` if the key is missing.
    pub(super) fn or<T>(&self, key: &str, default: T, read: impl Fn(&Cursor<'n>) -> Result<T>) -> Result<T> {
        self.get(key).map_or(Ok(default), read)
    }

    pub(super) fn required<T>(&self, key: &str, read: impl Fn(&Cursor<'n>) -> Result<T>) -> Result<T> {
        let missing = || self.map.error_at(&self.map.key_of(key), "is missing");
        self.get(key).ok_or_else(missing).and_then(read)
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

/// 0 for equal words, 1 where one letter is wrong, missing or added, else 2.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let (short, long) = if a.len() < b.len() { (a, b) } else { (b, a) };
    let start = short.iter().zip(&long).take_while(|(a, b)| a == b).count();
    let rest = &short[start..];
    let end = rest.iter().rev().zip(long.iter().rev()).take_while(|(a, b)| a == b).count();
    (long.len() - start - end).min(2)
}
