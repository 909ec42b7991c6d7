//! The policy in force, as each thread sees it. A decision runs under one
//! snapshot and never sees half of a reload.

use std::{
    cell::Cell,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering, fence},
    },
};

use arc_swap::{ArcSwap, Cache};

use super::observe::{Counters, Totals};
use crate::{policy::CompiledPolicy, sync::lock, time::Timestamp};

/// The policy in force, and the counters of each thread.
///
/// Every thread keeps the policies of the limiters that it last used, with
/// counters that only it writes. So a decision writes no memory that another
/// thread writes, and one shared load tells whether the policy is still in
/// force. A thread keeps the last policies of at most [`KEPT`] limiters that it
/// no longer uses.
pub(super) struct Current {
    /// Differs from that of every other limiter of this process.
    pub(super) id: u64,
    policy: Arc<ArcSwap<CompiledPolicy>>,
    /// Locked while the policy is replaced, or what it carries.
    replacing: Mutex<Replacements>,
    /// Of every thread, and the sums of those that have ended.
    counters: Mutex<(Vec<Arc<Counters>>, Totals)>,
}

/// How often a policy was set, and when last.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(not(feature = "admin"), allow(dead_code, reason = "a page for operators shows it"))]
pub(crate) struct Replacements {
    pub(crate) set: u64,
    pub(crate) last: Option<Timestamp>,
}

/// The most limiters that a thread remembers beside the last one.
const KEPT: usize = 64;

/// A limiter's policy, cached by one thread, and that thread's counters.
struct ThreadPolicy {
    owner: u64,
    policy: Cache<Arc<ArcSwap<CompiledPolicy>>, Arc<CompiledPolicy>>,
    counters: Arc<Counters>,
}

#[allow(clippy::vec_box, reason = "each is moved by its pointer")]
type Others = Vec<Box<ThreadPolicy>>;

/// The policy that a decision is made under, and the thread's counters.
#[derive(Clone, Copy)]
pub(super) struct PolicySnapshot<'p> {
    pub(super) policy: &'p Arc<CompiledPolicy>,
    pub(super) counters: &'p Counters,
}

thread_local! {
    static LATEST: Cell<Option<Box<ThreadPolicy>>> = const { Cell::new(None) };
    static OTHERS: Cell<Others> = const { Cell::new(Vec::new()) };
}

impl Current {
    pub(super) fn new(policy: CompiledPolicy) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            policy: Arc::new(ArcSwap::from_pointee(policy)),
            replacing: Mutex::default(),
            counters: Mutex::default(),
        }
    }

    pub(super) fn set(&self, policy: CompiledPolicy) {
        self.policy.store(Arc::new(policy));
    }

    /// Takes another form of the policy, unless it was replaced meanwhile.
    pub(super) fn replace(&self, old: &Arc<CompiledPolicy>, policy: CompiledPolicy) {
        self.policy.compare_and_swap(old, Arc::new(policy));
    }

    /// Locks the policy against other replacements.
    pub(super) fn replacing(&self) -> MutexGuard<'_, Replacements> {
        lock(&self.replacing)
    }

    /// Does the same unless another replacement is under way.
    pub(super) fn try_replacing(&self) -> Option<MutexGuard<'_, Replacements>> {
        self.replacing.try_lock().ok()
    }

    pub(super) fn policy(&self) -> Arc<CompiledPolicy> {
        self.policy.load_full()
    }

    /// Runs `decide` with the policy in force. Meanwhile the thread-local cell
    /// is empty, so that a clock or backend may use a limiter too.
    #[inline]
    pub(super) fn with<R>(&self, decide: impl FnOnce(PolicySnapshot<'_>) -> R) -> R {
        let latest = LATEST.try_with(Cell::take).ok().flatten();
        let mut cached = match latest {
            Some(cached) if cached.owner == self.id => cached,
            other => self.find(other),
        };
        let result = decide(PolicySnapshot { policy: cached.policy.load(), counters: &cached.counters });
        // Fails while the thread ends.
        let _ = LATEST.try_with(|latest| latest.set(Some(cached)));
        result
    }

    #[cold]
    fn find(&self, displaced: Option<Box<ThreadPolicy>>) -> Box<ThreadPolicy> {
        let mut others = OTHERS.try_with(Cell::take).unwrap_or_default();
        others.extend(displaced);
        let own = others.iter().position(|cached| cached.owner == self.id).map(|index| others.remove(index));
        if others.len() > KEPT {
            others.remove(0);
        }
        let _ = OTHERS.try_with(|place| place.set(others));
        own.unwrap_or_else(|| {
            let policy = Cache::new(Arc::clone(&self.policy));
            Box::new(ThreadPolicy { owner: self.id, policy, counters: self.register() })
        })
    }

    /// Counters for this thread. Sums up those of threads that have ended.
    fn register(&self) -> Arc<Counters> {
        let counters = Arc::new(Counters::default());
        let mut all = lock(&self.counters);
        let (threads, ended) = &mut *all;
        threads.retain(|thread| {
            let is_alive = Arc::strong_count(thread) > 1;
            if !is_alive {
                // Sees what the thread wrote before it dropped its counters.
                fence(Ordering::Acquire);
                thread.add_to(ended);
            }
            is_alive
        });
        threads.push(Arc::clone(&counters));
        counters
    }

    pub(super) fn totals(&self) -> Totals {
        let all = lock(&self.counters);
        let (threads, mut totals) = (&all.0, all.1);
        threads.iter().for_each(|thread| thread.add_to(&mut totals));
        totals
    }
}

impl fmt::Debug for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Current").field("policy", &self.policy().policy).finish_non_exhaustive()
    }
}
