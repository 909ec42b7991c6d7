//! What can go wrong when building, and when a backend is asked.

use std::{error::Error, fmt, sync::Arc};

/// A policy that cannot be put in force, or another setting that cannot hold:
/// names the rule, the key and the value.
///
/// ```
/// use tower_ratelimit::{Policy, Quota, RateLimiter, Rule};
///
/// let policy = Policy::new().rule(Rule::new("login").tier(Quota::per_second(5).burst(0)));
/// let error = RateLimiter::new(policy).unwrap_err();
/// assert_eq!(error.rule(), Some("login"));
/// assert_eq!(error.key(), "tiers[0].burst");
/// assert_eq!(error.to_string(), "rule `login`: tiers[0].burst: `0`: must be at least 1");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    rule: Option<String>,
    key: String,
    value: Option<String>,
    reason: String,
}

impl ConfigError {
    pub(crate) fn new(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { rule: None, key: key.into(), value: None, reason: reason.into() }
    }

    #[must_use]
    pub(crate) fn of_rule(mut self, rule: impl Into<String>) -> Self {
        self.rule = Some(rule.into());
        self
    }

    /// Prefixes the key: the error is of a value below `key`.
    #[must_use]
    pub(crate) fn under(mut self, key: impl fmt::Display) -> Self {
        self.key = format!("{key}.{}", self.key);
        self
    }

    /// Long values are cut, so that an error stays one readable line.
    #[must_use]
    pub(crate) fn with_value(mut self, value: impl fmt::Display) -> Self {
        let mut value = value.to_string();
        if value.len() > 100 {
            let end = (0..=100).rev().find(|&at| value.is_char_boundary(at)).unwrap_or(0);
            value.truncate(end);
            value.push('…');
        }
        self.value = Some(value);
        self
    }

    /// The rule's id, or its place (`rules[3]`) where it has none.
    #[must_use]
    pub fn rule(&self) -> Option<&str> {
        self.rule.as_deref()
    }

    /// The key, as a path within the rule: `tiers[1].window`.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The value that cannot be taken, where there is one.
    #[must_use]
    pub fn value(&self) -> Option<&str> {
        self.value.as_deref()
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rule) = &self.rule {
            write!(f, "rule `{}`: ", rule.escape_debug())?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key.escape_debug())?;
        }
        if let Some(value) = &self.value {
            write!(f, "`{}`: ", value.escape_debug())?;
        }
        f.write_str(&self.reason)
    }
}

impl Error for ConfigError {}

/// Why a backend gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// The store cannot be reached, or does not work.
    Unavailable,
    /// The store did not answer in time; whether it counted is unknown.
    Timeout,
    /// The backend cannot decide such a request.
    Unsupported,
    /// The store answers, and rejects: a wrong password, no right to run
    /// scripts, a key that holds something else. It will not mend by itself.
    Misconfigured,
}

/// A backend gave no answer: neither "allowed" nor "denied". What then happens
/// is the rule's [`FailureMode`](crate::policy::FailureMode).
///
/// ```
/// use tower_ratelimit::{BackendError, BackendErrorKind};
///
/// let error = BackendError::new(BackendErrorKind::Unavailable, "connection refused");
/// assert_eq!(error.kind(), BackendErrorKind::Unavailable);
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[error("the rate limit backend gave no answer ({})", describe(*.kind))]
pub struct BackendError {
    kind: BackendErrorKind,
    source: Arc<dyn Error + Send + Sync>,
}

impl BackendError {
    /// An error of `kind`, caused by `source`.
    pub fn new(kind: BackendErrorKind, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { kind, source: source.into().into() }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn unavailable(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(BackendErrorKind::Unavailable, source)
    }

    #[cfg(feature = "redis")]
    pub(crate) fn timeout(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(BackendErrorKind::Timeout, source)
    }

    #[cfg(feature = "redis")]
    pub(crate) fn misconfigured(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(BackendErrorKind::Misconfigured, source)
    }

    /// The kind of what is rejected because of this: what was not even asked
    /// did not time out.
    #[cfg(feature = "redis")]
    pub(crate) fn rejection_kind(&self) -> BackendErrorKind {
        match self.kind {
            BackendErrorKind::Misconfigured => BackendErrorKind::Misconfigured,
            _ => BackendErrorKind::Unavailable,
        }
    }

    /// Why there is no answer.
    #[must_use]
    pub fn kind(&self) -> BackendErrorKind {
        self.kind
    }
}

impl BackendErrorKind {
    /// How many there are.
    #[cfg(feature = "metrics")]
    pub(crate) const COUNT: usize = 4;

    /// As a label.
    #[cfg(any(feature = "metrics", feature = "tracing"))]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::Unsupported => "unsupported",
            Self::Misconfigured => "misconfigured",
        }
    }
}

fn describe(kind: BackendErrorKind) -> &'static str {
    match kind {
        BackendErrorKind::Unavailable => "unavailable",
        BackendErrorKind::Timeout => "timed out",
        BackendErrorKind::Unsupported => "unsupported request",
        BackendErrorKind::Misconfigured => "misconfigured store",
    }
}
