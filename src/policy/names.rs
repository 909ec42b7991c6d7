//! The names that enums have in a policy file: one table for `Display`,
//! `FromStr` and the reader.

/// A name that no value of its type has.
///
/// ```
/// use tower_ratelimit::policy::FailureMode;
///
/// let error = "ajar".parse::<FailureMode>().unwrap_err();
/// assert_eq!(error.to_string(), "`ajar` is not a failure mode");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not a {kind}")]
pub struct UnknownName {
    pub(super) kind: &'static str,
    pub(super) name: String,
}

macro_rules! names {
    ($type:ident, $kind:literal, { $($variant:ident => $name:literal),+ }) => {
        impl $type {
            /// All values.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name in a policy file.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::policy::names::UnknownName;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                let named = Self::ALL.iter().copied().find(|value| value.as_str() == name);
                named.ok_or_else(|| $crate::policy::names::UnknownName { kind: $kind, name: name.into() })
            }
        }
    };
}

pub(super) use names;
