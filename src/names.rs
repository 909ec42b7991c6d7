//! Values that have a name: in policy files, metrics and messages.
//!
//! One table of names serves `as_str`, `Display` and `FromStr`. It names nothing
//! itself. The invariant: a value's name is read as that value.

use std::{error::Error, fmt};

/// A name that no value of its type has.
///
/// ```
/// use tower_ratelimit::{Algorithm, FailureMode};
///
/// let error = "ajar".parse::<FailureMode>().unwrap_err();
/// assert_eq!(error.to_string(), "unknown failure mode: `ajar`");
/// assert!("tokenbucket".parse::<Algorithm>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName {
    kind: &'static str,
    name: String,
}

impl UnknownName {
    pub(crate) fn new(kind: &'static str, name: &str) -> Self {
        Self { kind, name: name.into() }
    }
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown {}: `{}`", self.kind, self.name)
    }
}

impl Error for UnknownName {}

/// Gives each variant of an enum its name.
macro_rules! names {
    ($type:ident, $kind:literal, { $($variant:ident => $name:literal),+ $(,)? }) => {
        impl $type {
            /// All values.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::names::UnknownName;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                let named = Self::ALL.iter().copied().find(|value| value.as_str() == name);
                named.ok_or_else(|| $crate::names::UnknownName::new($kind, name))
            }
        }
    };
}

pub(crate) use names;
