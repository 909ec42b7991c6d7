/// Which messages of a gRPC call are charged one by one: see
/// [`Rule::per_message`](crate::Rule::per_message).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Messages {
    /// Those that the client streams.
    Client,
    /// Those that the server streams.
    Server,
    /// All.
    Both,
}

impl Messages {
    /// Whether `other` is among them.
    pub(crate) fn include(self, other: Self) -> bool {
        self == Self::Both || self == other
    }
}
