//! [`Unit`]: what a tier counts, as a number that fits into the state of a tier.
//!
//! It knows no amounts. Invariant: a name has one number for as long as the process lives,
//! and only policies add names, so requests cannot make this memory grow.

use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// What a rule counts unless it says otherwise.
pub(crate) const REQUESTS: &str = "requests";

/// The unit that a tier counts in; the default is [`REQUESTS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unit(u32);

impl Unit {
    pub(crate) fn new(name: &str) -> Self {
        let mut names = names();
        let known = names.iter().position(|known| *known == name);
        let index = known.unwrap_or_else(|| {
            names.push(String::from(name).leak());
            names.len() - 1
        });
        Self(u32::try_from(index).unwrap_or_default())
    }

    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            0 => REQUESTS,
            index => names().get(index as usize).copied().unwrap_or(REQUESTS),
        }
    }
}

fn names() -> MutexGuard<'static, Vec<&'static str>> {
    static NAMES: LazyLock<Mutex<Vec<&'static str>>> = LazyLock::new(|| Mutex::new(vec![REQUESTS]));
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}
