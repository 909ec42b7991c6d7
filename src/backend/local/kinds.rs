use crate::{algorithm::Machine, backend::split::Parts, policy::Tier};

/// By which machine a tier is counted.
pub(super) trait Kinds: Copy {
    fn of<'t>(&'t self, tier: &'t Tier) -> &'t Machine;
}

/// By the one of the whole quota.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole;

impl Kinds for Whole {
    #[inline]
    fn of<'t>(&'t self, tier: &'t Tier) -> &'t Machine {
        &tier.machine
    }
}

/// By the one of this instance's share.
impl Kinds for &Parts {
    #[inline]
    fn of<'t>(&'t self, tier: &'t Tier) -> &'t Machine {
        self.machine(tier)
    }
}
