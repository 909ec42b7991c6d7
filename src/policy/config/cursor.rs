use std::{collections::HashSet, time::Duration};

use super::{duration, node::Node};
use crate::error::ConfigError;

/// Where in the file a node stands.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    rule: Option<String>,
    key: String,
}

impl Place {
    pub(super) fn of_rule(rule: impl Into<String>) -> Self {
        Self { rule: Some(rule.into()), key: String::new() }
    }

    fn key(&self, key: &str) -> Self {
        let dot = if self.key.is_empty() { "" } else { "." };
        Self { rule: self.rule.clone(), key: format!("{}{dot}{key}", self.key) }
    }

    fn item(&self, index: usize) -> Self {
        Self { rule: self.rule.clone(), key: format!("{}[{index}]", self.key) }
    }

    pub(super) fn error(&self, reason: impl Into<String>) -> ConfigError {
        let error = ConfigError::new(&self.key, reason);
        match &self.rule {
            Some(rule) => error.of_rule(rule),
            None => error,
        }
    }
}

/// A node and its place: takes it for what is expected there, or says what is
/// wrong.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'n> {
    pub(super) place: Place,
    pub(super) node: &'n Node,
}

impl<'n> Cursor<'n> {
    pub(super) fn new(place: Place, node: &'n Node) -> Self {
        Self { place, node }
    }

    /// The same node as the first thing of a rule: keys start anew.
    pub(super) fn in_rule(self, rule: impl Into<String>) -> Self {
        Self { place: Place::of_rule(rule), node: self.node }
    }

    pub(super) fn error(&self, reason: impl Into<String>) -> ConfigError {
        self.place.error(reason).with_value(self.node)
    }

    fn expected(&self, what: &str) -> ConfigError {
        self.error(format!("expected {what}, found {}", self.node.kind()))
    }

    pub(super) fn text(&self) -> Result<&'n str, ConfigError> {
        match self.node {
            Node::Text(text) => Ok(text),
            Node::Bool(_) | Node::Integer(_) | Node::Float(_) => {
                Err(self.error(format!("expected a string, found {}: put it in quotes", self.node.kind())))
            }
            _ => Err(self.expected("a string")),
        }
    }

    pub(super) fn boolean(&self) -> Result<bool, ConfigError> {
        match self.node {
            Node::Bool(value) => Ok(*value),
            _ => Err(self.expected("true or false")),
        }
    }

    pub(super) fn number(&self) -> Result<u64, ConfigError> {
        let too_large = || self.error(format!("is too large: at most {}", u64::MAX));
        match self.node {
            Node::Integer(value) if *value < 0 => Err(self.error("must not be negative")),
            Node::Integer(value) => u64::try_from(*value).map_err(|_| too_large()),
            // So do formats give integers that they have no type for.
            Node::Float(value) if value.fract() == 0.0 && *value >= 18_446_744_073_709_551_616.0 => Err(too_large()),
            Node::Float(value) if value.fract() == 0.0 && *value < -9_223_372_036_854_775_808.0 => {
                Err(self.error("must not be negative"))
            }
            Node::Float(value) if value.fract() == 0.0 => {
                Err(self.error("must be written as a whole number: no point, no exponent, no leading zero"))
            }
            Node::Float(_) => Err(self.error("must be a whole number")),
            Node::Text(text) if text.parse::<u64>().is_ok() => {
                Err(self.error("expected a whole number, found a string: write it without quotes"))
            }
            _ => Err(self.expected("a whole number")),
        }
    }

    /// A number that need not be whole. Its bounds are for the policy to check.
    #[allow(clippy::cast_precision_loss, reason = "only 1 is within the bounds")]
    pub(super) fn fraction(&self) -> Result<f64, ConfigError> {
        match self.node {
            Node::Integer(value) => Ok(*value as f64),
            Node::Float(value) => Ok(*value),
            Node::Text(text) if text.parse::<f64>().is_ok() => {
                Err(self.error("expected a number, found a string: write it without quotes"))
            }
            _ => Err(self.expected("a number")),
        }
    }

    pub(super) fn duration(&self) -> Result<Duration, ConfigError> {
        match self.node {
            Node::Text(text) => duration::parse(text).map_err(|reason| self.error(reason)),
            Node::Integer(value) if *value >= 0 => {
                Err(self.error(format!("a duration needs a unit, such as `{value}s` or `{value}ms`")))
            }
            Node::Integer(_) | Node::Float(_) => Err(self.error("a duration needs a unit, such as `1s` or `250ms`")),
            _ => Err(self.expected("a duration such as `250ms`, `1s`, `10m` or `1d`")),
        }
    }

    pub(super) fn list(&self) -> Result<Vec<Self>, ConfigError> {
        let Node::List(items) = self.node else {
            return Err(self.expected("a list"));
        };
        let item = |(index, node)| Self::new(self.place.item(index), node);
        Ok(items.iter().enumerate().map(item).collect())
    }

    /// One of `choices`, as its name.
    pub(super) fn choice<T: Copy>(&self, what: &str, choices: &[(&str, T)]) -> Result<T, ConfigError> {
        let text = self.text()?;
        let found = choices.iter().find(|(name, _)| *name == text).map(|(_, choice)| *choice);
        found.ok_or_else(|| {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            self.error(format!("is no {what}{}", suggest(text, &names)))
        })
    }

    /// The entries of a map whose keys are free.
    pub(super) fn entries(&self) -> Result<Vec<(&'n str, Self)>, ConfigError> {
        let Node::Map(entries) = self.node else {
            return Err(self.expected("a map"));
        };
        let mut seen = HashSet::new();
        let entry = |(key, node): &'n (String, Node)| {
            let value = Self::new(self.place.key(key), node);
            match seen.insert(key) {
                true => Ok((key.as_str(), value)),
                false => Err(value.error("the key stands here twice")),
            }
        };
        entries.iter().map(entry).collect()
    }

    /// The entries of a map that has only these keys.
    pub(super) fn fields(&self, allowed: &'static [&'static str]) -> Result<Fields<'n>, ConfigError> {
        let entries = self.entries()?;
        match entries.iter().find(|(key, _)| !allowed.contains(key)) {
            Some((key, value)) => Err(value.error(format!("is no key here{}", suggest(key, allowed)))),
            None => Ok(Fields { place: self.place.clone(), entries }),
        }
    }
}

/// The entries of a map with known keys.
#[derive(Debug)]
pub(super) struct Fields<'n> {
    place: Place,
    entries: Vec<(&'n str, Cursor<'n>)>,
}

impl<'n> Fields<'n> {
    pub(super) fn get(&self, key: &str) -> Option<&Cursor<'n>> {
        self.entries.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    pub(super) fn required(&self, key: &str) -> Result<&Cursor<'n>, ConfigError> {
        self.get(key).ok_or_else(|| self.place.key(key).error("is missing"))
    }
}

fn suggest(word: &str, allowed: &[&str]) -> String {
    let plain = |word: &str| word.to_lowercase().replace(['-', '_', ' '], "");
    let near = |candidate: &&&str| distance(&plain(word), &plain(candidate)) <= 1;
    let names: Vec<String> = allowed.iter().map(|name| format!("`{name}`")).collect();
    match allowed.iter().find(near) {
        Some(name) => format!("; did you mean `{name}`?"),
        None => format!("; one of {}", names.join(", ")),
    }
}

/// 0 where two words are alike, 1 where one letter differs, is missing or is
/// too many, else 2.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let (short, long) = if a.len() < b.len() { (a, b) } else { (b, a) };
    let start = short.iter().zip(&long).take_while(|(a, b)| a == b).count();
    let rest = &short[start..];
    let end = rest.iter().rev().zip(long.iter().rev()).take_while(|(a, b)| a == b).count();
    (long.len() - start - end).min(2)
}
