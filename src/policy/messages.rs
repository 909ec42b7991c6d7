//! Which messages of a gRPC stream a rule charges: [`Messages`].

use super::names::names;

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
