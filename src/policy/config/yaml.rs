//! YAML, with bounds: a small file cannot unfold into gigabytes.

use serde_saphyr::{Error, MergeKeyPolicy, NonFiniteFloatPolicy, Options, budget::BudgetBreach};

use super::{document, tree::Node};
use crate::{error::ConfigError, policy::Policy};

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
        document::read(&node(text)?)
    }
}

fn node(text: &str) -> Result<Node, ConfigError> {
    serde_saphyr::from_str_with_options(text, options()).map_err(|error| unreadable(&error))
}

fn unreadable(error: &Error) -> ConfigError {
    let reason = match error {
        // The library's messages address its callers, not operators.
        Error::DuplicateMappingKey { key: Some(key), location } => {
            let (line, column) = (location.line(), location.column());
            format!("duplicate key `{key}` at line {line}, column {column}")
        }
        Error::Budget { breach: BudgetBreach::Documents { .. }, location } => {
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
