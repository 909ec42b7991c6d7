//! The whole document: rules in the native form and in the `slas` form.
//!
//! A policy that is read here is valid.

use std::{borrow::Cow, time::Duration};

use http::Method;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny},
};
use serde_json::Value;
use serde_path_to_error::Segment;

use super::{
    overload::Signals,
    tree::{Mistake, Node},
};
use crate::{
    error::ConfigError,
    policy::{
        Policy,
        forms::{self, yes},
        pattern,
        rule::Rule,
        settings::{Dimension, Match},
        validate::{check_id, validate},
    },
    quota::{Algorithm, Quota},
};

/// The keys of a rule that `defaults` cannot have.
const NO_DEFAULTS: [&str; 3] = ["id", "match", "exempt"];

/// The keys of a document.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "A policy of tower-ratelimit")]
#[schemars(extend("anyOf" = [{ "required": ["rules"] }, { "required": ["slas"] }]))]
pub(super) struct Document {
    rules: Option<Vec<Rule>>,
    /// The settings of rules that do not have them: see [`with_defaults`].
    #[serde(default)]
    #[schemars(schema_with = "defaults_schema")]
    #[allow(dead_code, reason = "the rules have them by then")]
    defaults: Option<IgnoredAny>,
    slas: Option<Vec<Sla>>,
    #[serde(default)]
    ignore_case: bool,
    /// How many instances share the limits.
    instances: Option<u64>,
    overload: Option<Signals>,
}

/// The form of a rule that service teams have already. It is only read.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "sla")]
struct Sla {
    id: String,
    #[serde(default = "yes")]
    enabled: bool,
    #[serde(default, rename = "match")]
    matches: SlaMatch,
    tiers: Vec<SlaTier>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct SlaMatch {
    #[serde(default, with = "forms::methods")]
    #[schemars(with = "Vec<String>", inner(regex(pattern = "^[^a-z]+$")))]
    methods: Vec<Method>,
    #[serde(default, deserialize_with = "pattern")]
    path_pattern: Option<String>,
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SlaTier {
    #[serde(deserialize_with = "period")]
    period: u64,
    threshold: u64,
}

/// Checked here, because `validate` does not know this form's key.
fn pattern<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let pattern = String::deserialize(deserializer)?;
    pattern::check(&pattern).map_err(D::Error::custom)?;
    Ok(Some(pattern))
}

/// Checked here, because `validate` does not know this form's key.
fn period<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    match u64::deserialize(deserializer)? {
        0 => Err(D::Error::custom("must be at least 1 second")),
        seconds => Ok(seconds),
    }
}

impl From<Sla> for Rule {
    fn from(sla: Sla) -> Self {
        let tier = |SlaTier { period, threshold }| {
            Quota::new(threshold, Duration::from_secs(period)).algorithm(Algorithm::FixedWindow)
        };
        let SlaMatch { methods, path_pattern } = sla.matches;
        let mut rule = Self::new(sla.id).enabled(sla.enabled).per(Dimension::ALL.iter().cloned());
        rule.matches = Match { methods, paths: path_pattern.into_iter().collect(), ..Match::default() };
        rule.tiers = sla.tiers.into_iter().map(tier).collect();
        rule
    }
}

/// The policy of a document.
pub(super) fn read(node: &Node) -> Result<Policy, ConfigError> {
    if *node == Node::Null {
        return Err(ConfigError::new("", "the policy is empty: it needs `rules`"));
    }
    let node = &*with_defaults(node)?;
    let read: Result<Document, _> = serde_path_to_error::deserialize(node);
    let Document { rules, slas, ignore_case, instances, overload, .. } = read.map_err(|error| locate(node, error))?;
    if rules.is_none() && slas.is_none() {
        return Err(ConfigError::new("", "the policy has no `rules`"));
    }
    let rules = rules.unwrap_or_default();
    let natives = rules.len();
    if let Some(index) = (0..natives).find(|&index| rules[index].needs_tiers() && !has_tiers(node, index)) {
        return Err(ConfigError::new("tiers", "is missing").of_rule(rule_name(node, "rules", index)));
    }
    let rules = rules.into_iter().chain(slas.into_iter().flatten().map(Rule::from)).collect();
    let policy = Policy { rules, ignore_case, instances, overload: overload.map(Into::into) };
    validate(&policy, |index| match index.checked_sub(natives) {
        None => format!("rules[{index}]"),
        Some(index) => format!("slas[{index}]"),
    })?;
    Ok(policy)
}

/// The document, whose rules have the settings that its `defaults` have for them. An
/// exempt rule has none.
fn with_defaults(document: &Node) -> Result<Cow<'_, Node>, ConfigError> {
    let (Some(defaults), Node::Map(entries)) = (document.values("defaults").last(), document) else {
        return Ok(Cow::Borrowed(document));
    };
    let Node::Map(settings) = defaults else {
        return Err(ConfigError::new("defaults", "must be a map of a rule's settings").with_value(defaults));
    };
    if let Some((key, value)) = settings.iter().find(|(key, _)| NO_DEFAULTS.contains(&&**key)) {
        return Err(ConfigError::new(format!("defaults.{key}"), "each rule has its own").with_value(value));
    }
    // Read once by themselves, so that an error names them and no rule.
    let id = ("id".to_owned(), Node::Text("defaults".to_owned()));
    let alone = Node::Map(settings.iter().cloned().chain([id]).collect());
    let read: Result<Rule, _> = serde_path_to_error::deserialize(&alone);
    drop(read.map_err(|error| locate(&alone, error).under("defaults"))?);
    let mut entries = entries.clone();
    for rule in entries.iter_mut().filter(|(key, _)| key == "rules").flat_map(|(_, rules)| rules.items_mut()) {
        let is_exempt = rule.values("exempt").any(|exempt| *exempt == Node::Bool(true));
        if let Node::Map(own) = rule
            && !is_exempt
        {
            let is_missing = |(key, _): &&(String, Node)| !own.iter().any(|(known, _)| known == key);
            let missing: Vec<_> = settings.iter().filter(is_missing).cloned().collect();
            own.extend(missing);
        }
    }
    Ok(Cow::Owned(Node::Map(entries)))
}

fn defaults_schema(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = Rule::json_schema(generator);
    schema.remove("required");
    schema.remove("anyOf");
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.retain(|key, _| !NO_DEFAULTS.contains(&&**key));
    }
    schema
}

/// Whether the key `tiers` of a rule is there: without tiers, a rule has an empty list.
fn has_tiers(document: &Node, index: usize) -> bool {
    let rule = document.values("rules").last().and_then(|rules| rules.item(index));
    rule.is_some_and(|rule| rule.values("tiers").next().is_some())
}

/// The error of a whole document, with rule, key and value.
fn locate(document: &Node, error: serde_path_to_error::Error<Mistake>) -> ConfigError {
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
fn rule_name(document: &Node, list: &str, index: usize) -> String {
    let rule = document.values(list).last().and_then(|rules| rules.item(index));
    let id = rule.into_iter().flat_map(|rule| rule.values("id")).find_map(|id| match id {
        Node::Text(id) if check_id(id).is_ok() => Some(id.clone()),
        _ => None,
    });
    id.unwrap_or_else(|| format!("{list}[{index}]"))
}
