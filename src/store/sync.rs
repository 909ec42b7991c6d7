//! The lock and the atomics of the store, and of what it shares with receipts.
//! With `--cfg tower_ratelimit_loom` they are those of loom, which runs a test
//! with every interleaving of its threads: see `scripts/loom`.

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

pub(crate) use self::primitives::{AtomicU64, Guard, Lock};

/// Fills whole cache lines, so that threads that use neighbouring values do not
/// slow each other down.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Padded<T>(pub(crate) T);
