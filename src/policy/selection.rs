//! Which of a rule's tier sets, endpoints and methods a request uses:
//! [`Selection`].
//!
//! Indexes only. They are valid for the rule that made them, and for another
//! rule with the same paths, methods, plans and tenants.

/// Indexes into a rule's tier sets, endpoints and counted methods.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selection {
    pub(super) tier_set: u32,
    pub(super) endpoint: u16,
    pub(super) method: u16,
}
