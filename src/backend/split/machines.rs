//! The machines of this instance's share of each quota: [`ShareMachines`].
//!
//! It holds no counters: the engine does. Invariant: no decision takes a lock
//! that another thread takes, unless the share has changed.

use std::{
    cell::Cell,
    collections::HashMap,
    fmt,
    ops::Range,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use foldhash::fast::FixedState;
use tokio::sync::watch;

use crate::{
    algorithm::{Machine, Share, ShareHistory},
    backend::{
        memory::machine_source::{MachineSource, Machines},
        request::LONGEST_RACE,
    },
    policy::Tier,
};

/// The share in force, and where the next one comes from.
///
/// Every thread caches the machines of the tiers that it has charged, by the
/// share in force. Two shared loads show that the share has not changed.
pub(crate) struct ShareMachines {
    id: u64,
    version: AtomicU64,
    state: Mutex<State>,
}

struct State {
    history: Arc<ShareHistory>,
    source: Option<watch::Receiver<Share>>,
    /// The share that the first decision takes.
    joins_with: Option<Share>,
}

/// What one thread caches.
pub(crate) struct ThreadMachines {
    owner: u64,
    version: u64,
    source: Option<watch::Receiver<Share>>,
    history: Arc<ShareHistory>,
    /// Valid for decisions within this time. Before it, the clock has stepped
    /// back over the last change; after it, the clock has passed it again.
    valid: Range<u64>,
    machines: HashMap<usize, CachedMachine, FixedState>,
    /// At this number, machines of dropped tiers are removed.
    sweep_at: usize,
    nothing: Machine,
}

struct CachedMachine {
    /// Keeps the tier's address from being used again.
    tier: Weak<()>,
    machine: Machine,
    /// When it has to be made again.
    until: u64,
}

/// How many backends a thread caches machines of.
const KEPT: usize = 64;

const FEWEST_TO_SWEEP: usize = 64;

#[allow(clippy::vec_box, reason = "moved by pointer")]
type Cached = Vec<Box<ThreadMachines>>;

thread_local! {
    /// The backend that was used last comes last.
    static CACHED: Cell<Cached> = const { Cell::new(Vec::new()) };
}

impl ShareMachines {
    pub(super) fn new(share: Share, source: Option<watch::Receiver<Share>>) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let state = State { history: Arc::new(ShareHistory::new(share)), source, joins_with: None };
        Self { id: NEXT_ID.fetch_add(1, Ordering::Relaxed), version: AtomicU64::new(0), state: Mutex::new(state) }
    }

    /// Begins without a share, and takes its own with the first decision.
    pub(super) fn join(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.joins_with.is_none() {
            state.joins_with = Some(state.history.current().share.clone());
            state.history = Arc::new(ShareHistory::new(Share::none()));
        }
    }

    /// The share in force.
    pub(crate) fn current(&self) -> Share {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match (&state.source, &state.joins_with) {
            (Some(source), _) => source.borrow().clone(),
            (None, Some(share)) => share.clone(),
            (None, None) => state.history.current().share.clone(),
        }
    }

    fn with_thread<R>(&self, now: u64, run: impl FnOnce(&mut ThreadMachines) -> R) -> R {
        // While the thread ends, the cache is gone.
        let mut cached = CACHED.try_with(Cell::take).unwrap_or_default();
        let own = cached.iter().rposition(|machines| machines.owner == self.id);
        let mut machines = match own.map(|index| cached.remove(index)) {
            Some(machines) if self.is_current(&machines, now) => machines,
            _ => Box::new(self.renew(now)),
        };
        let result = run(&mut machines);
        if cached.len() >= KEPT {
            cached.remove(0);
        }
        cached.push(machines);
        let _ = CACHED.try_with(|kept| kept.set(cached));
        result
    }

    fn is_current(&self, machines: &ThreadMachines, now: u64) -> bool {
        let unchanged = |source: &watch::Receiver<Share>| matches!(source.has_changed(), Ok(false));
        machines.valid.contains(&now)
            && machines.version == self.version.load(Ordering::Acquire)
            && machines.source.as_ref().is_none_or(unchanged)
    }

    /// Puts the latest share in force.
    fn renew(&self, now: u64) -> ThreadMachines {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Checked before it is read: a last share may come in between.
        let is_closed = state.source.as_ref().is_some_and(|source| source.has_changed().is_err());
        let latest = state.source.as_mut().map(|source| source.borrow_and_update().clone());
        let joins_with = state.joins_with.take();
        if let Some(share) = latest.or(joins_with)
            && Arc::make_mut(&mut state.history).change(share, now)
        {
            self.version.fetch_add(1, Ordering::Release);
        }
        if is_closed {
            state.source = None;
        }
        let mut history = Arc::clone(&state.history);
        let since = history.current().since.saturating_sub(LONGEST_RACE);
        let valid = if now < since {
            // A clock that steps back must not make all requests wait for the
            // time of a change: until then, the change counts as of now. Only in
            // this thread: it may be the one that is late.
            Arc::make_mut(&mut history).step_back(now);
            now.saturating_sub(LONGEST_RACE)..since
        } else {
            since..u64::MAX
        };
        ThreadMachines {
            owner: self.id,
            version: self.version.load(Ordering::Acquire),
            source: state.source.clone(),
            valid,
            history,
            machines: HashMap::default(),
            sweep_at: FEWEST_TO_SWEEP,
            nothing: Machine::rejecting(),
        }
    }
}

impl MachineSource for Arc<ShareMachines> {
    type Machines<'m> = &'m ThreadMachines;

    fn with<'t, R>(
        &self,
        tiers: impl Iterator<Item = &'t Tier>,
        now: u64,
        run: impl FnOnce(&ThreadMachines) -> R,
    ) -> R {
        self.with_thread(now, |machines| {
            tiers.for_each(|tier| machines.make(tier, now));
            run(machines)
        })
    }

    fn with_one<R>(&self, tier: &Tier, now: u64, run: impl FnOnce(&Machine) -> R) -> R {
        self.with([tier].into_iter(), now, |machines| run(machines.of(tier)))
    }
}

impl Machines for &ThreadMachines {
    fn of<'t>(&'t self, tier: &'t Tier) -> &'t Machine {
        self.machines.get(&address(tier)).map_or(&self.nothing, |cached| &cached.machine)
    }
}

impl ThreadMachines {
    /// Makes the machine of a tier that has none, or has to have another.
    fn make(&mut self, tier: &Tier, now: u64) {
        if self.machines.get(&address(tier)).is_some_and(|cached| now < cached.until) {
            return;
        }
        if self.machines.len() >= self.sweep_at {
            self.machines.retain(|_, cached| cached.tier.strong_count() > 0);
            self.sweep_at = (self.machines.len() * 2).max(FEWEST_TO_SWEEP);
        }
        let (machine, until) = tier.machine.share(&tier.quota, &self.history, now);
        let cached = CachedMachine { tier: Arc::downgrade(&tier.identity), machine, until };
        self.machines.insert(address(tier), cached);
    }
}

fn address(tier: &Tier) -> usize {
    Arc::as_ptr(&tier.identity).addr()
}

impl fmt::Debug for ShareMachines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShareMachines").field("current", &self.current()).finish_non_exhaustive()
    }
}
