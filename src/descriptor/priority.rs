//! [`Priority`]: how much a request matters when not all can be served.
//!
//! It is a class and no number: four are told apart everywhere, in limits, in what is shed
//! and in metrics. Invariant: a higher class is served wherever a lower one is.

use crate::names::names;

/// How much a request matters when not all can be served: see
/// [`Rule::reserve`](crate::Rule::reserve) and [`overload`](crate::overload).
///
/// ```
/// use tower_ratelimit::Priority;
///
/// assert!(Priority::Critical > Priority::default());
/// assert_eq!("low".parse(), Ok(Priority::Low));
/// assert!("urgent".parse::<Priority>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Priority {
    /// Work that can be done later, such as exports and prefetches.
    Low,
    /// Everything that does not say otherwise.
    #[default]
    Normal,
    /// What a person waits for.
    High,
    /// What must not fail while anything works, such as checkouts.
    Critical,
}

names!(Priority, "priority", { Low => "low", Normal => "normal", High => "high", Critical => "critical" });
