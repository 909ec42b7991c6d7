//! Errors: of a configuration, and of a backend.
//!
//! A rejection is no error of either kind: see
//! [`RateLimited`](crate::RateLimited). The invariant: an error names what was
//! wrong (the rule, the key, the value), and never a tenant.

use std::{error::Error, fmt, sync::Arc};

/// An invalid policy or setting. Names the rule, the key and the value.
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

    /// Prefixes the key: the error is of the value at `key`, or of one below it.
    #[must_use]
    pub(crate) fn under(mut self, key: impl fmt::Display) -> Self {
        let dot = if self.key.is_empty() || self.key.starts_with('[') { "" } else { "." };
        self.key = format!("{key}{dot}{}", self.key);
        self
    }

    /// Truncates long values, so that an error stays one readable line.
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

    /// The rule's id, or its position (`rules[3]`) if it has none.
    #[must_use]
    pub fn rule(&self) -> Option<&str> {
        self.rule.as_deref()
    }

    /// The key, as a path within the rule: `tiers[1].window`.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The invalid value, if there is one.
    #[must_use]
    pub fn value(&self) -> Option<&str> {
        self.value.as_deref()
    }

    /// What is wrong with the value, and what it must be.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
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

/// An error with key, value and reason, unless `holds`. Value and reason are
/// formatted only then.
pub(crate) fn ensure(
    holds: bool,
    key: &str,
    value: impl fmt::Display,
    reason: impl fmt::Display,
) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError::new(key, reason.to_string()).with_value(value)) }
}

/// Why a backend failed.
///
/// ```
/// use tower_ratelimit::{BackendError, error::BackendErrorKind};
///
/// /// Whether trying again may help.
/// fn is_transient(error: &BackendError) -> bool {
///     matches!(error.kind(), BackendErrorKind::Unavailable | BackendErrorKind::Timeout)
/// }
/// assert!(is_transient(&BackendError::new(BackendErrorKind::Timeout, "no answer within 50ms")));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// The store cannot be reached, or reports a failure.
    Unavailable,
    /// The store has no memory left for more counters. For rules that set no
    /// failure mode see [`FailureMode`](crate::policy::FailureMode).
    OutOfMemory,
    /// The store did not answer in time. Whether it charged is unknown.
    Timeout,
    /// The backend does not support such a request.
    Unsupported,
    /// The store answers with an error that an operator has to fix: a wrong
    /// password, no permission to run scripts, a key of another type.
    Misconfigured,
    /// No failure: the caller names a rule that the policy does not have.
    UnknownRule,
}

/// A backend failed: the request is neither allowed nor denied. The rule's
/// [`FailureMode`](crate::policy::FailureMode) decides what happens.
///
/// ```
/// use tower_ratelimit::error::{BackendError, BackendErrorKind};
///
/// let error = BackendError::new(BackendErrorKind::Unavailable, "connection refused");
/// assert_eq!(error.kind(), BackendErrorKind::Unavailable);
/// ```
#[derive(Clone, Debug)]
pub struct BackendError {
    kind: BackendErrorKind,
    source: Arc<dyn Error + Send + Sync>,
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            BackendErrorKind::UnknownRule => self.source.fmt(f),
            kind => write!(f, "the rate limit backend failed ({}): {}", kind.as_str(), self.source),
        }
    }
}

impl Error for BackendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
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

    /// The kind of error for requests that the open circuit breaker stops because
    /// of this error: they were not sent, so they did not time out.
    #[cfg(feature = "redis")]
    pub(crate) fn rejection_kind(&self) -> BackendErrorKind {
        match self.kind {
            kind @ (BackendErrorKind::Misconfigured | BackendErrorKind::OutOfMemory) => kind,
            _ => BackendErrorKind::Unavailable,
        }
    }

    /// Why the backend failed.
    #[must_use]
    pub fn kind(&self) -> BackendErrorKind {
        self.kind
    }
}

impl BackendErrorKind {
    /// The number of kinds.
    pub(crate) const COUNT: usize = 6;

    /// The kind in a message, and the label of a metric or an event.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::OutOfMemory => "out_of_memory",
            Self::Timeout => "timeout",
            Self::Unsupported => "unsupported",
            Self::Misconfigured => "misconfigured",
            Self::UnknownRule => "unknown_rule",
        }
    }
}
