//! Checks of what a rule matches: paths, routes and methods.
//!
//! A pattern that passes can be inserted into the matcher, and some path matches
//! it.

use std::collections::HashSet;

use matchit::{InsertError, Router};

use crate::{error::ConfigError, policy::rule::Rule};

/// The index of a pattern in its rule is stored in 16 bits.
const MAX_PATTERNS: usize = 1 << 16;

/// matchit panics at 26.
const MAX_PARAMETERS: usize = 25;

/// The matcher recurses once per segment.
const MAX_SEGMENTS: usize = 256;

/// Each method that a rule names has counters of its own.
const MAX_METHODS: usize = 64;

pub(super) fn check_patterns(rule: &Rule) -> Result<(), ConfigError> {
    if rule.paths.len() + rule.routes.len() > MAX_PATTERNS {
        return Err(ConfigError::new("match", format!("more than {MAX_PATTERNS} paths and routes")));
    }
    if rule.methods.len() > MAX_METHODS {
        return Err(ConfigError::new("match.methods", format!("more than {MAX_METHODS} methods")));
    }
    check_each("path", &rule.paths, check_path)?;
    check_each("route", &rule.routes, |route| if route.is_empty() { Err("must not be empty".into()) } else { Ok(()) })
}

fn check_each(kind: &str, patterns: &[String], check: fn(&str) -> Result<(), String>) -> Result<(), ConfigError> {
    let mut seen = HashSet::new();
    for (index, pattern) in patterns.iter().enumerate() {
        let is_new = seen.insert(pattern);
        check(pattern)
            .and_then(|()| is_new.then_some(()).ok_or_else(|| format!("the rule has the same {kind} twice")))
            .map_err(|reason| ConfigError::new(format!("match.{kind}s[{index}]"), reason).with_value(pattern))?;
    }
    Ok(())
}

/// Checks a path pattern; the error is the reason.
pub(in crate::policy) fn check_path(path: &str) -> Result<(), String> {
    if path.is_empty() {
        return Err("must not be empty".into());
    }
    if !path.starts_with('/') {
        return Err("must start with `/`".into());
    }
    if path.contains(['?', '#']) {
        return Err("must be only a path, without a query or a fragment".into());
    }
    let segments: Vec<&str> = path.split('/').collect();
    if segments.len() > MAX_SEGMENTS {
        return Err(format!("has more than {MAX_SEGMENTS} segments"));
    }
    // matchit takes such an asterisk literally: hardly any path would match.
    if segments.iter().any(|&segment| segment != "*" && segment.replace("{*", "").contains('*')) {
        return Err("`*` stands for one whole segment; `{*rest}` takes all that is left".into());
    }
    // matchit allows a prefix before a catch-all; the matcher works by segments.
    if segments.iter().any(|segment| segment.replace("{{", "").find("{*").is_some_and(|at| at > 0)) {
        return Err(reason(&InsertError::InvalidCatchAll));
    }
    let named: Vec<&str> = segments.iter().map(|&segment| if segment == "*" { "{_}" } else { segment }).collect();
    let named = named.join("/");
    let unescaped = named.replace("{{", "");
    let parameters = unescaped.split('{').skip(1);
    if parameters.clone().count() > MAX_PARAMETERS {
        return Err(format!("has more than {MAX_PARAMETERS} parameters"));
    }
    if !parameters.clone().all(|parameter| parameter.contains('}')) {
        return Err(reason(&InsertError::InvalidParam));
    }
    // matchit accepts a name with a slash or a brace, and no path matches it.
    if segments.iter().any(|segment| {
        let unescaped = segment.replace("{{", "").replace("}}", "");
        unescaped.matches('{').count() != unescaped.matches('}').count()
    }) {
        return Err(reason(&InsertError::InvalidParam));
    }
    Router::new().insert(named, ()).map_err(|error| reason(&error))
}

fn reason(error: &InsertError) -> String {
    match error {
        InsertError::InvalidParam => {
            "a parameter needs a name and both its braces; write `{{` and `}}` for literal braces".into()
        }
        InsertError::InvalidParamSegment => "only one parameter is allowed in a segment".into(),
        InsertError::InvalidCatchAll => "`{*rest}` is allowed only as the whole last segment".into(),
        other => other.to_string(),
    }
}
