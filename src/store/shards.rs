//! Values behind a lock each, by key: [`Shards`], with the lock and the atomics of the
//! store and of what it shares with receipts. It does not know what is behind the locks.
//!
//! With `--cfg tower_ratelimit_loom` locks and atomics are those of loom, which runs a
//! test with every interleaving of its threads: see `scripts/loom`.
//!
//! Invariant: several shards are locked in ascending order.

use smallvec::SmallVec;

pub(crate) use self::primitives::{AtomicU64, Guard, Lock};
use crate::fingerprint::Fingerprint;

#[derive(Debug)]
pub(crate) struct Shards<T>(Box<[Padded<Lock<T>>]>);

impl<T: Default> Shards<T> {
    pub(crate) fn new(count: usize) -> Self {
        Self((0..count).map(|_| Padded::default()).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn index_of(&self, key: Fingerprint) -> usize {
        key.spread_over(self.0.len())
    }

    pub(crate) fn lock(&self, index: usize) -> Guard<'_, T> {
        self.0[index].0.lock()
    }

    /// Locks the shards of some keys, each once.
    pub(super) fn lock_all(
        &self,
        keys: impl Iterator<Item = Fingerprint> + Clone,
    ) -> SmallVec<[(usize, Guard<'_, T>); 2]> {
        let indexes = keys.map(|key| self.index_of(key));
        let mut locked = SmallVec::new();
        let mut next = indexes.clone().min();
        while let Some(index) = next {
            locked.push((index, self.lock(index)));
            next = indexes.clone().filter(|other| *other > index).min();
        }
        locked
    }
}

/// Fills whole cache lines, so that threads that use neighbouring values do not
/// slow each other down.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Padded<T>(pub(crate) T);

#[cfg(not(all(test, tower_ratelimit_loom)))]
mod primitives {
    pub(crate) use std::sync::atomic::AtomicU64;

    use spin::{
        mutex::{SpinMutex, SpinMutexGuard},
        relax::Yield,
    };

    /// A lock that is held for tens of nanoseconds, so a thread that waits for it
    /// spins and yields to the scheduler. Parking would cost every decision a
    /// second atomic instruction, to find on unlock that none waits.
    pub(crate) type Lock<T> = SpinMutex<T, Yield>;

    pub(crate) type Guard<'l, T> = SpinMutexGuard<'l, T, Yield>;
}

#[cfg(all(test, tower_ratelimit_loom))]
mod primitives {
    pub(crate) use loom::sync::{MutexGuard as Guard, atomic::AtomicU64};

    #[derive(Debug, Default)]
    pub(crate) struct Lock<T>(loom::sync::Mutex<T>);

    impl<T> Lock<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> Guard<'_, T> {
            self.0.lock().unwrap()
        }
    }
}
