//! [`Unit`]: what a tier counts, as a number that fits into the state of a tier.
//!
//! It knows no amounts. Invariant: a name has one number for as long as the process lives,
//! and only policies add names, so neither requests nor upstreams make this memory grow.

use std::sync::{LazyLock, PoisonError, RwLock};

/// What a rule counts unless it says otherwise.
pub(crate) const REQUESTS: &str = "requests";

/// By number. Read for the headers of each response under a unit, so readers do not wait
/// for each other.
static NAMES: LazyLock<RwLock<Vec<&'static str>>> = LazyLock::new(|| RwLock::new(vec![REQUESTS]));

/// The unit that a tier counts in; the default is [`REQUESTS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unit(u32);

impl Unit {
    pub(crate) fn new(name: &str) -> Self {
        let mut names = NAMES.write().unwrap_or_else(PoisonError::into_inner);
        let known = names.iter().position(|known| *known == name);
        let index = known.unwrap_or_else(|| {
            names.push(String::from(name).leak());
            names.len() - 1
        });
        Self(u32::try_from(index).unwrap_or_default())
    }

    /// The unit of this name; `None` where no policy has it.
    pub(crate) fn find(name: &str) -> Option<Self> {
        let names = NAMES.read().unwrap_or_else(PoisonError::into_inner);
        let index = names.iter().position(|known| *known == name)?;
        Some(Self(u32::try_from(index).unwrap_or_default()))
    }

    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            0 => REQUESTS,
            index => {
                let names = NAMES.read().unwrap_or_else(PoisonError::into_inner);
                names.get(index as usize).copied().unwrap_or(REQUESTS)
            }
        }
    }
}
