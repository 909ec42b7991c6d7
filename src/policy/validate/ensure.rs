//! One check: [`ensure`].

use std::fmt::Display;

use crate::error::ConfigError;

/// An error with key, value and reason, unless `holds`. Value and reason are
/// formatted only then.
pub(super) fn ensure(holds: bool, key: &str, value: impl Display, reason: impl Display) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError::new(key, reason.to_string()).with_value(value)) }
}
