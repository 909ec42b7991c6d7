//! A [`Share`] from the environment: variables, or the name of the host.
//!
//! It reads once and follows no change. The invariant: an error names the
//! variable and its value.

use std::{env, fs};

use super::share::Share;
use crate::error::ConfigError;

impl Share {
    /// The index and the count from two environment variables.
    ///
    /// # Errors
    ///
    /// If a variable is missing, is no number, or is out of range: the error
    /// names the variable and its value.
    ///
    /// ```
    /// use tower_ratelimit::backend::Share;
    ///
    /// let error = Share::from_env("NO_INDEX", "NO_COUNT").unwrap_err();
    /// assert_eq!(error.to_string(), "NO_INDEX: is not set in the environment");
    /// ```
    pub fn from_env(index: &str, count: &str) -> Result<Self, ConfigError> {
        Self::from_keys(number(index, &variable(index)?)?, index, number(count, &variable(count)?)?, count)
    }

    /// The index from the ordinal at the end of this host's name (`web-3` has
    /// the index 3), as in a Kubernetes StatefulSet, and the count from an
    /// environment variable.
    ///
    /// The host's name is the variable `HOSTNAME`, which Kubernetes sets, or
    /// else the content of `/etc/hostname`. The StatefulSet's ordinals have to
    /// start at 0.
    ///
    /// # Errors
    ///
    /// As for [`from_env`](Self::from_env), and if the name has no ordinal or
    /// one that is not below the count.
    pub fn from_stateful_set(count: &str) -> Result<Self, ConfigError> {
        let host = variable("HOSTNAME").or_else(|error| fs::read_to_string("/etc/hostname").map_err(|_| error))?;
        Self::from_host_name(&host, number(count, &variable(count)?)?)
    }

    /// The index from the ordinal at the end of a host's name, up to its first
    /// dot, and a count.
    ///
    /// # Errors
    ///
    /// If the name has no ordinal, or one that is not below the count.
    ///
    /// ```
    /// use tower_ratelimit::backend::Share;
    ///
    /// assert_eq!(Share::from_host_name("web-3.web.shop.svc.cluster.local", 5)?, Share::new(3, 5)?);
    /// # Ok::<_, tower_ratelimit::ConfigError>(())
    /// ```
    pub fn from_host_name(name: &str, count: u64) -> Result<Self, ConfigError> {
        let host = name.trim().split('.').next().unwrap_or_default();
        let ordinal = host.rsplit_once('-').map(|(_, ordinal)| ordinal).filter(|ordinal| is_number(ordinal));
        let index = ordinal.and_then(|ordinal| ordinal.parse::<u64>().ok());
        match index {
            Some(index) => Self::from_keys(index, "host name", count, "share.count"),
            None => Err(ConfigError::new("host name", "must end with an ordinal, as `web-3`").with_value(name.trim())),
        }
    }
}

fn variable(name: &str) -> Result<String, ConfigError> {
    env::var(name).map_err(|error| match error {
        env::VarError::NotPresent => ConfigError::new(name, "is not set in the environment"),
        env::VarError::NotUnicode(value) => {
            ConfigError::new(name, "must be a whole number").with_value(value.to_string_lossy())
        }
    })
}

fn number(name: &str, value: &str) -> Result<u64, ConfigError> {
    let digits = Some(value.trim()).filter(|digits| is_number(digits));
    let number = digits.and_then(|digits| digits.parse().ok());
    number.ok_or_else(|| ConfigError::new(name, "must be a whole number").with_value(value))
}

/// Whether the text is digits only: parsing would also take a sign.
fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}
