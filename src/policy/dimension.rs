//! What a rule counts separately: [`Dimension`].

use super::names::names;

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
