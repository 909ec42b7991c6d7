//! What tenants and plans have instead of a rule's own tiers: [`Override`].
//!
//! Plain data: `tiers` compiles it, `config` reads it. Invariant: one that says nothing
//! changes nothing.

use crate::{descriptor::Priority, quota::Quota};

/// What one tenant or plan has instead of a rule's own tiers: as written, or compiled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Override<T = Vec<Quota>> {
    /// `None`: those that apply otherwise.
    pub(crate) limits: Option<Limits<T>>,
    pub(crate) priority: Option<Priority>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limits<T = Vec<Quota>> {
    Tiers(T),
    Unlimited,
}
