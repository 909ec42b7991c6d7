//! What tenants and plans have instead of a rule's own tiers: [`Override`].
//!
//! Plain data: `tiers` compiles it, `config` reads it. Invariant: one that says nothing
//! changes nothing.

use crate::{descriptor::Priority, quota::Quota};

/// What one tenant or plan has instead of a rule's own tiers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Override {
    pub(crate) limits: Limits,
    pub(crate) priority: Option<Priority>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Limits {
    /// Those that apply otherwise.
    #[default]
    Same,
    Tiers(Vec<Quota>),
    Unlimited,
}
