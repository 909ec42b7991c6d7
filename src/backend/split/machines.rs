//! The machines of this instance's share of each quota: [`ShareMachines`].
//!
//! It holds no counters: the engine does. Invariant: no decision takes a lock
//! that another thread takes, unless the share has changed.

use std::{
    cell::Cell,
    collections::{HashMap, hash_map::Entry},
    fmt,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use foldhash::fast::FixedState;
#[cfg(feature = "gossip")]
use futures_util::future::BoxFuture;
use tokio::sync::watch;

use super::rule_shares::{RuleHistories, RuleShares};
use crate::{
    algorithm::{Machine, Share, ShareHistory},
    backend::{
        memory::machine_source::{MachineSource, Machines},
        request::LONGEST_RACE,
    },
    policy::Tier,
    sync::lock,
};

/// The share in force, and where the next one comes from.
///
/// Every thread caches the machines of the tiers that it has charged, by the
/// share in force. Two shared loads show that the share has not changed.
pub(crate) struct ShareMachines {
    id: u64,
    version: AtomicU64,
    state: Mutex<State>,
    #[cfg(feature = "gossip")]
    leave: std::sync::OnceLock<Leave>,
}

struct State {
    histories: Arc<RuleHistories>,
    source: Option<watch::Receiver<Share>>,
    /// The share that the first decision takes.
    joins_with: Option<Share>,
    /// What each thread has counted, where somebody reads it.
    #[cfg(feature = "gossip")]
    asked: Option<HashMap<&'static str, Vec<AskedByThread>>>,
}

/// How an instance leaves its fleet.
#[cfg(feature = "gossip")]
pub(super) type Leave = Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// The units that one thread was asked for under a rule. Only that thread writes it.
type Asked = Arc<AtomicU64>;

#[cfg(feature = "gossip")]
struct AskedByThread {
    units: Asked,
    read: u64,
}

/// What one thread caches.
pub(crate) struct ThreadMachines {
    owner: u64,
    version: u64,
    source: Option<watch::Receiver<Share>>,
    histories: Arc<RuleHistories>,
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
    asked: Asked,
}

impl CachedMachine {
    /// No other thread writes, so no locked instruction is needed.
    #[inline]
    fn count(&self, units: u64) {
        self.asked.store(self.asked.load(Ordering::Relaxed).wrapping_add(units), Ordering::Relaxed);
    }
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
        let state = State {
            histories: Arc::new(RuleHistories::new(share)),
            source,
            joins_with: None,
            #[cfg(feature = "gossip")]
            asked: None,
        };
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            version: AtomicU64::new(0),
            state: Mutex::new(state),
            #[cfg(feature = "gossip")]
            leave: std::sync::OnceLock::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Begins without a share, and takes its own with the first decision.
    pub(super) fn join(&self) {
        let mut state = self.state();
        if state.joins_with.is_none() {
            state.joins_with = Some(state.histories.common().clone());
            state.histories = Arc::new(RuleHistories::new(Share::none()));
        }
    }

    /// The share in force.
    pub(crate) fn current(&self) -> Share {
        let state = self.state();
        match (&state.source, &state.joins_with) {
            (Some(source), _) => source.borrow().clone(),
            (None, Some(share)) => share.clone(),
            (None, None) => state.histories.common().clone(),
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
        let mut state = self.state();
        // Checked before it is read: a last share may come in between.
        let is_closed = state.source.as_ref().is_some_and(|source| source.has_changed().is_err());
        let latest = state.source.as_mut().map(|source| source.borrow_and_update().clone());
        let joins_with = state.joins_with.take();
        if let Some(share) = latest.or(joins_with)
            && Arc::make_mut(&mut state.histories).change(RuleShares::same(share), now)
        {
            self.version.fetch_add(1, Ordering::Release);
        }
        if is_closed {
            state.source = None;
        }
        let mut histories = Arc::clone(&state.histories);
        let since = histories.since().saturating_sub(LONGEST_RACE);
        let valid = if now < since {
            // A clock that steps back must not make all requests wait for the
            // time of a change: until then, the change counts as of now. Only in
            // this thread: it may be the one that is late.
            Arc::make_mut(&mut histories).step_back(now);
            now.saturating_sub(LONGEST_RACE)..since
        } else {
            since..u64::MAX
        };
        ThreadMachines {
            owner: self.id,
            version: self.version.load(Ordering::Acquire),
            source: state.source.clone(),
            valid,
            histories,
            machines: HashMap::default(),
            sweep_at: FEWEST_TO_SWEEP,
            nothing: Machine::rejecting(),
        }
    }

    /// A count of a thread's own, which is read if somebody reads any.
    #[cold]
    fn new_count(&self, rule: &'static str) -> Asked {
        let units = Asked::default();
        #[cfg(feature = "gossip")]
        if let Some(asked) = &mut self.state().asked {
            asked.entry(rule).or_default().push(AskedByThread { units: Arc::clone(&units), read: 0 });
        }
        #[cfg(not(feature = "gossip"))]
        let _ = rule;
        units
    }
}

#[cfg(feature = "gossip")]
impl ShareMachines {
    /// Without a share until it is given one, and with counts that are read.
    pub(super) fn by_demand() -> Self {
        let machines = Self::new(Share::none(), None);
        machines.state().asked = Some(HashMap::new());
        machines
    }

    /// Puts shares in force. At once, so that an instance that decides nothing for a
    /// while misses no change.
    pub(super) fn set(&self, shares: RuleShares, now: u64) {
        Arc::make_mut(&mut self.state().histories).change(shares, now);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// How many units were asked for under each rule since the last call.
    pub(super) fn take_asked(&self) -> HashMap<&'static str, u64> {
        let mut state = self.state();
        let of_rule = |(rule, threads): (&&'static str, &mut Vec<AskedByThread>)| {
            let mut sum = 0_u64;
            threads.retain_mut(|thread| {
                // Before the count is read: its thread may add to it and then end.
                let is_used = Arc::strong_count(&thread.units) > 1;
                let units = thread.units.load(Ordering::Acquire);
                sum = sum.saturating_add(units.wrapping_sub(thread.read));
                thread.read = units;
                is_used
            });
            (*rule, sum)
        };
        state.asked.iter_mut().flatten().map(of_rule).collect()
    }

    pub(super) fn leave_by(&self, leave: Leave) {
        let _ = self.leave.set(leave);
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
            for tier in tiers {
                machines.cached(self, tier, now);
            }
            run(machines)
        })
    }

    fn with_one<R>(&self, tier: &Tier, now: u64, run: impl FnOnce(&Machine) -> R) -> R {
        self.with_thread(now, |machines| run(&machines.cached(self, tier, now).machine))
    }

    fn charge_one<R>(&self, tier: &Tier, cost: u64, now: u64, run: impl FnOnce(&Machine) -> Option<R>) -> Option<R> {
        self.with_thread(now, |machines| {
            let cached = machines.cached(self, tier, now);
            let charged = run(&cached.machine)?;
            cached.count(cost);
            Some(charged)
        })
    }

    #[cfg(feature = "gossip")]
    fn leave(&self) -> BoxFuture<'static, ()> {
        match self.leave.get() {
            Some(leave) => leave(),
            None => Box::pin(std::future::ready(())),
        }
    }
}

impl Machines for &ThreadMachines {
    fn of<'t>(&'t self, tier: &'t Tier) -> &'t Machine {
        self.machines.get(&address(tier)).map_or(&self.nothing, |cached| &cached.machine)
    }

    fn count_asked(self, tier: &Tier, cost: u64) {
        if let Some(cached) = self.machines.get(&address(tier)) {
            cached.count(cost);
        }
    }
}

impl ThreadMachines {
    /// The machine of a tier, made if there is none, or it has to be another.
    #[inline]
    fn cached(&mut self, owner: &ShareMachines, tier: &Tier, now: u64) -> &CachedMachine {
        if self.machines.len() >= self.sweep_at {
            self.sweep();
        }
        match self.machines.entry(address(tier)) {
            Entry::Occupied(cached) if now < cached.get().until => cached.into_mut(),
            entry => {
                let made = make(owner, tier, self.histories.of(tier.rule), now, &entry);
                entry.insert_entry(made).into_mut()
            }
        }
    }

    #[cold]
    fn sweep(&mut self) {
        self.machines.retain(|_, cached| cached.tier.strong_count() > 0);
        self.sweep_at = (self.machines.len() * 2).max(FEWEST_TO_SWEEP);
    }
}

/// Makes a machine, which keeps the count of the one that it replaces.
#[cold]
fn make(
    owner: &ShareMachines,
    tier: &Tier,
    history: &ShareHistory,
    now: u64,
    entry: &Entry<'_, usize, CachedMachine>,
) -> CachedMachine {
    let (machine, until) = tier.machine.share(&tier.quota, history, now);
    let asked = match entry {
        Entry::Occupied(old) if old.get().tier.strong_count() > 0 => Arc::clone(&old.get().asked),
        _ => owner.new_count(tier.rule),
    };
    CachedMachine { tier: Arc::downgrade(&tier.identity), machine, until, asked }
}

fn address(tier: &Tier) -> usize {
    Arc::as_ptr(&tier.identity).addr()
}

impl fmt::Debug for ShareMachines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShareMachines").field("current", &self.current()).finish_non_exhaustive()
    }
}
