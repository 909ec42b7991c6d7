//! The settings of a rule that are chosen by name: [`Dimension`],
//! [`FailureMode`] and [`Messages`].
//!
//! One table of names serves `Display`, `FromStr` and the reader of policy
//! files.

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
    kind: &'static str,
    name: String,
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
            type Err = UnknownName;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                let named = Self::ALL.iter().copied().find(|value| value.as_str() == name);
                named.ok_or_else(|| UnknownName { kind: $kind, name: name.into() })
            }
        }
    };
}

/// A property of requests. Those that differ in it have different counters.
///
/// ```
/// use tower_ratelimit::Dimension;
///
/// assert_eq!("tenant".parse(), Ok(Dimension::Tenant));
/// assert_eq!(Dimension::Endpoint.to_string(), "endpoint");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Dimension {
    /// The tenant: the caller as the layer identifies it.
    Tenant,
    /// The path pattern, or route, of the rule that matched.
    Endpoint,
    /// The HTTP method. All methods that HTTP does not define share a counter.
    Method,
}

names!(Dimension, "dimension", { Tenant => "tenant", Endpoint => "endpoint", Method => "method" });

/// What a rule does with a request when the backend fails.
///
/// ```
/// use tower_ratelimit::FailureMode;
///
/// assert_eq!("closed".parse(), Ok(FailureMode::Closed));
/// assert_eq!(FailureMode::default().to_string(), "open");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureMode {
    /// Fail open: the request is admitted. The default, but for one failure: if
    /// the store is out of memory, a rule with a counter for each tenant fails
    /// local unless it sets a mode. Else a flood of invented tenants would turn
    /// the limit off.
    #[default]
    Open,
    /// Fail closed: the request is rejected, over HTTP with 503.
    Closed,
    /// Fail local: a fallback limiter in this process decides, at the rule's
    /// limits or a share of them (see [`Rule::local_share`](crate::Rule::local_share)).
    /// It delays no request.
    ///
    /// The fallback limiter is kept warm. While the backend works, it counts
    /// what the backend admits, up to the limit, and what is given back, added
    /// afterwards or released. So a tenant that has used up its limit does not
    /// get it again when the backend fails.
    ///
    /// It knows only what this limiter has admitted, holds at most as many keys
    /// as [`Local`](crate::backend::Local) does by default, and does not report
    /// to the backend what it admits.
    Local,
}

names!(FailureMode, "failure mode", { Open => "open", Closed => "closed", Local => "local" });

/// The messages of a gRPC call that are charged one by one: see
/// [`Rule::per_message`](crate::Rule::per_message).
///
/// ```
/// use tower_ratelimit::policy::Messages;
///
/// assert_eq!("server".parse(), Ok(Messages::Server));
/// assert_eq!(Messages::Both.to_string(), "both");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Messages {
    /// Those that the client streams.
    Client,
    /// Those that the server streams.
    Server,
    /// Those in both directions.
    Both,
}

names!(Messages, "direction", { Client => "client", Server => "server", Both => "both" });

impl Messages {
    /// Whether messages in the direction `other` are charged.
    pub(crate) fn include(self, other: Self) -> bool {
        self == Self::Both || self == other
    }
}
