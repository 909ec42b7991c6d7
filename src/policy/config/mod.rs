//! Policies in files: serde for [`Policy`] and [`Quota`], YAML, and the JSON Schema.
//!
//! A document of any format becomes a tree, which serde reads as a policy, in the native form
//! of rules and in the `slas` form. An error names the rule by its id, the key by its path, the
//! value as it was written, and the nearest known key. Invariant: a policy that is read here is
//! valid, and a small file cannot unfold into gigabytes.

mod tier;
mod tree;

use std::{borrow::Cow, time::Duration};

use http::Method;
use schemars::{
    JsonSchema, Schema, SchemaGenerator,
    generate::SchemaSettings,
    transform::{RecursiveTransform, Transform},
};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, IgnoredAny},
};
use serde_json::{Value, json};
use serde_path_to_error::Segment;
use serde_saphyr::{MergeKeyPolicy, NonFiniteFloatPolicy, Options, budget::BudgetBreach};

use self::tree::{Mistake, Node};
use super::{
    Policy,
    forms::{self, Part, is_default, yes},
    pattern,
    rule::Rule,
    settings::{Dimension, Match},
    validate::{check_id, validate},
};
use crate::{
    error::ConfigError,
    overload::{self, Overload},
    quota::{Algorithm, Quota},
};

impl Policy {
    /// The policy of a YAML file.
    ///
    /// ```
    /// use tower_ratelimit::{Policy, Quota, Rule};
    ///
    /// let policy = Policy::from_yaml(
    ///     "rules:
    ///       - id: search
    ///         match: { methods: [GET], paths: [/search] }
    ///         tiers:
    ///           - { limit: 10, window: 1s, burst: 20 }
    ///     ",
    /// )?;
    /// let tier = Quota::per_second(10).burst(20);
    /// let rule = Rule::new("search").methods([http::Method::GET]).path("/search").tier(tier);
    /// assert_eq!(policy, Policy::new().rule(rule));
    ///
    /// let error = Policy::from_yaml("rules: [{ id: search, tiers: [{ limit: 10, window: 0s }] }]").unwrap_err();
    /// assert_eq!(error.to_string(), "rule `search`: tiers[0].window: `0s`: must be longer than zero");
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// An invalid policy, with the rule, the key and the value; invalid YAML,
    /// with line and column.
    pub fn from_yaml(text: &str) -> Result<Self, ConfigError> {
        let node = serde_saphyr::from_str_with_options(text, options());
        read(&node.map_err(|error| unreadable(&error))?)
    }

    /// The JSON Schema (2020-12) of a policy file, in any serde format: editors
    /// complete and check a policy by it. The repository has it as
    /// `docs/policy.schema.json`.
    ///
    /// It is never stricter than the reader of policies.
    ///
    /// ```
    /// use tower_ratelimit::Policy;
    ///
    /// let schema = serde_json::to_value(Policy::json_schema())?;
    /// assert_eq!(schema["properties"]["ignore_case"]["type"], "boolean");
    /// # Ok::<_, serde_json::Error>(())
    /// ```
    pub fn json_schema() -> impl Serialize {
        let mut schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<Document>();
        RecursiveTransform(as_read).transform(&mut schema);
        schema
    }
}

/// From any self-describing format, such as JSON, TOML or YAML. The policy is
/// validated, as by [`Policy::from_yaml`].
impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        read(&Node::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

fn unreadable(error: &serde_saphyr::Error) -> ConfigError {
    let reason = match error {
        // The library's messages address its callers, not operators.
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), location } => {
            let (line, column) = (location.line(), location.column());
            format!("duplicate key `{key}` at line {line}, column {column}")
        }
        serde_saphyr::Error::Budget { breach: BudgetBreach::Documents { .. }, location } => {
            format!("a second document starts at line {}, column {}", location.line(), location.column())
        }
        other => other.to_string(),
    };
    ConfigError::new("", format!("the file cannot be read as YAML: {reason}"))
}

fn options() -> Options {
    serde_saphyr::options! {
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 100_000,
            max_replay_stack_depth: 8,
        },
        budget: serde_saphyr::budget! {
            max_depth: 32,
            max_documents: 1,
        },
        merge_keys: MergeKeyPolicy::Merge,
        // The reader reports these, with rule and key.
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        reject_unsupported_tags: true,
        // Without it, a tenant `no` would be a boolean.
        strict_booleans: true,
        with_snippet: false,
    }
}

/// The policy of a document.
fn read(node: &Node) -> Result<Policy, ConfigError> {
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
    // A rule without this key has an empty list.
    let has_tiers = |index| rule_at(node, "rules", index).is_some_and(|rule| rule.values("tiers").next().is_some());
    if let Some(index) = (0..natives).find(|&index| rules[index].needs_tiers() && !has_tiers(index)) {
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
    let ids = rule_at(document, list, index).into_iter().flat_map(|rule| rule.values("id"));
    let mut valid = ids.filter_map(|id| match id {
        Node::Text(id) if check_id(id).is_ok() => Some(id.clone()),
        _ => None,
    });
    valid.next().unwrap_or_else(|| format!("{list}[{index}]"))
}

fn rule_at<'n>(document: &'n Node, list: &str, index: usize) -> Option<&'n Node> {
    document.values(list).last().and_then(|rules| rules.item(index))
}

/// The keys of a document.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "A policy of tower-ratelimit")]
#[schemars(extend("anyOf" = [{ "required": ["rules"] }, { "required": ["slas"] }]))]
struct Document {
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

/// How overload stands in a document: `{ cpu: 85%, scheduling_delay: 20ms }`. Signals of a
/// program's own cannot stand in a file, and are not written to one.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "overload", extend("anyOf" = [{ "required": ["cpu"] }, { "required": ["scheduling_delay"] }]))]
struct Signals {
    #[serde(default, skip_serializing_if = "is_default")]
    cpu: Option<Part>,
    #[serde(default, skip_serializing_if = "is_default", with = "forms::duration")]
    #[schemars(with = "String", regex(pattern = forms::DURATION))]
    scheduling_delay: Option<Duration>,
}

impl From<Signals> for Overload {
    fn from(Signals { cpu, scheduling_delay }: Signals) -> Self {
        let mut overload = Self::new();
        if let Some(Part(threshold)) = cpu {
            overload = overload.signal(overload::cpu(), threshold);
        }
        if let Some(threshold) = scheduling_delay {
            overload = overload.signal(overload::scheduling_delay(), threshold.as_secs_f64());
        }
        overload
    }
}

impl Serialize for Overload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let threshold = |name| self.thresholds().find(|(own, _)| *own == name).map(|(_, threshold)| threshold);
        let cpu = threshold(overload::CPU).map(Part);
        let delay = threshold(overload::SCHEDULING_DELAY);
        let scheduling_delay = delay.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Signals { cpu, scheduling_delay }.serialize(serializer)
    }
}

/// The keys of a rule that `defaults` cannot have.
const NO_DEFAULTS: [&str; 3] = ["id", "match", "exempt"];

/// As a document is read: a key that is there has a value. The documentation of Rust
/// types is not for operators.
fn as_read(schema: &mut Schema) {
    for keyword in ["default", "description", "format"] {
        schema.remove(keyword);
    }
    if let Some(Value::Array(types)) = schema.get("type")
        && let [value, null] = &types[..]
        && null == "null"
    {
        let value = value.clone();
        schema.insert("type".into(), value);
    }
    if let Some(Value::Array(choices)) = schema.get("anyOf")
        && let [value, null] = &choices[..]
        && *null == json!({ "type": "null" })
        && let Ok(value) = Schema::try_from(value.clone())
    {
        *schema = value;
    }
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
