//! The machines of this instance's share of each quota: [`ShareMachines`].
//!
//! It holds no counters: the engine does. Invariant: no decision waits for a lock
//! that another thread takes, unless the share has changed.

use std::{
    cell::Cell,
    collections::{HashMap, hash_map::Entry},
    fmt,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use foldhash::fast::FixedState;
#[cfg(feature = "gossip")]
use futures_util::future::BoxFuture;
use tokio::sync::watch;
#[cfg(feature = "gossip")]
use tokio::sync::{mpsc, oneshot};

use super::rule_shares::{Asked, CachedMachine, RuleHistories, follows_keys, for_all_rules};
#[cfg(feature = "gossip")]
use super::{
    demand::{AskedUnits, RefusedUnits},
    rule_shares::{Shares, Subject, fleet_key},
};
#[cfg(feature = "gossip")]
use crate::backend::request::TierState;
use crate::{
    algorithm::{Machine, Share},
    backend::{
        memory::{MachineSource, Machines},
        request::LONGEST_RACE,
    },
    fingerprint::Fingerprint,
    policy::{Tier, charge::Charge},
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
    by_demand: Option<ByDemand>,
}

struct State {
    histories: Arc<RuleHistories>,
    /// Until its sender is dropped.
    source: Option<watch::Receiver<Share>>,
}

/// What an instance keeps whose share follows demand.
#[cfg(feature = "gossip")]
struct ByDemand {
    asked: Mutex<AskedUnits>,
    refused: Mutex<RefusedUnits>,
    leave: Leave,
}

/// Asks the instance to leave its fleet, and to answer once it has.
#[cfg(feature = "gossip")]
pub(super) type Leave = mpsc::Sender<oneshot::Sender<()>>;

/// What one thread caches.
pub(crate) struct ThreadMachines {
    owner: u64,
    version: u64,
    source: Option<watch::Receiver<Share>>,
    histories: Arc<RuleHistories>,
    /// Whether keys have shares of their own.
    have_keys: bool,
    /// Valid for decisions within this time. Before it, the clock has stepped
    /// back over the last change; after it, the clock has passed it again.
    valid: Range<u64>,
    /// By the address of the tier, and for keys that have shares of their own.
    machines: HashMap<(usize, Option<u64>), CachedMachine, FixedState>,
    /// Keys that have no share of their own, each at its place; empty before the first.
    strangers: Vec<u128>,
    /// At this number, machines of dropped tiers are removed.
    sweep_at: usize,
}

/// How many backends a thread caches machines of.
const KEPT: usize = 64;

const FEWEST_TO_SWEEP: usize = 64;

/// How many keys without a share of their own a thread remembers.
const STRANGERS: usize = 1_024;

#[allow(clippy::vec_box, reason = "moved by pointer")]
type Cached = Vec<Box<ThreadMachines>>;

thread_local! {
    /// The backend that was used last comes last.
    static CACHED: Cell<Cached> = const { Cell::new(Vec::new()) };
}

impl ShareMachines {
    pub(super) fn new(share: Share, source: Option<watch::Receiver<Share>>) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let state = State { histories: Arc::new(RuleHistories::new(share)), source };
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            version: AtomicU64::new(0),
            state: Mutex::new(state),
            #[cfg(feature = "gossip")]
            by_demand: None,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Begins without a share, and takes its own with the first decision: one that never
    /// changes is the last one of a source.
    pub(super) fn join(&self) {
        let mut state = self.state();
        let share = state.histories.common().clone();
        state.source.get_or_insert_with(|| watch::channel(share).1);
        state.histories = Arc::new(RuleHistories::new(Share::none()));
    }

    /// The share in force.
    pub(crate) fn current(&self) -> Share {
        let state = self.state();
        match &state.source {
            Some(source) => source.borrow().clone(),
            None => state.histories.common().clone(),
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
        if let Some(share) = latest
            && Arc::make_mut(&mut state.histories).change(&for_all_rules(share), now)
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
            have_keys: histories.have_keys(),
            histories,
            machines: HashMap::default(),
            strangers: Vec::new(),
            sweep_at: FEWEST_TO_SWEEP,
        }
    }

    /// A count of a thread's own, which is read if somebody reads any.
    #[cold]
    fn new_count(&self, rule: &'static str, key: Option<u64>) -> Asked {
        #[cfg(feature = "gossip")]
        if let Some(by_demand) = &self.by_demand {
            return lock(&by_demand.asked).add(Subject { rule: rule.to_owned(), key });
        }
        let _ = (rule, key);
        Asked::default()
    }

    /// The latest shares, by which the charge's key counts from now on if it has its own.
    #[cold]
    fn learn(&self, charge: &Charge<'_>, key: u64) -> Arc<RuleHistories> {
        let mut state = self.state();
        Arc::make_mut(&mut state.histories).learn(charge.key, key);
        self.version.fetch_add(1, Ordering::Release);
        Arc::clone(&state.histories)
    }
}

#[cfg(feature = "gossip")]
impl ShareMachines {
    /// Without a share until it is given one, and with counts that are read.
    pub(super) fn by_demand(leave: Leave) -> Self {
        let by_demand = ByDemand { asked: Mutex::default(), refused: Mutex::default(), leave };
        Self { by_demand: Some(by_demand), ..Self::new(Share::none(), None) }
    }

    /// Puts shares in force. At once, so that an instance that decides nothing for a
    /// while misses no change.
    pub(super) fn set(&self, shares: &Shares, now: u64) {
        Arc::make_mut(&mut self.state().histories).change(shares, now);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// How many units were asked for since the last call, and refused.
    pub(super) fn take_asked(&self) -> [std::collections::BTreeMap<Subject, u64>; 2] {
        let take = |by_demand: &ByDemand| [lock(&by_demand.asked).take(), lock(&by_demand.refused).take()];
        self.by_demand.as_ref().map(take).unwrap_or_default()
    }
}

impl MachineSource for Arc<ShareMachines> {
    type Machines<'m> = &'m ThreadMachines;

    fn with<R>(&self, charges: &[Charge<'_>], now: u64, run: impl FnOnce(&ThreadMachines) -> R) -> R {
        self.with_thread(now, |machines| {
            for charge in charges {
                let key = machines.key_of(self, charge);
                for tier in charge.tiers() {
                    machines.cached(self, (tier, None), now);
                    if key.is_some() {
                        machines.cached(self, (tier, key), now);
                    }
                }
            }
            run(machines)
        })
    }

    fn with_one<R>(&self, key: Fingerprint, tier: &Tier, now: u64, run: impl FnOnce(&Machine) -> R) -> R {
        self.with_thread(now, |machines| {
            let key = machines.known(key).flatten();
            run(&machines.cached(self, (tier, key), now).machine)
        })
    }

    /// Not where a key that this thread has not seen yet may have a share of its own.
    fn charge_one<R>(
        &self,
        (key, tier): (Fingerprint, &Tier),
        cost: u64,
        now: u64,
        run: impl FnOnce(&Machine) -> Option<R>,
    ) -> Option<R> {
        self.with_thread(now, |machines| {
            let cached = machines.cached(self, (tier, machines.known(key)?), now);
            let charged = run(&cached.machine)?;
            cached.count(cost);
            Some(charged)
        })
    }

    /// Not where another thread counts: no request waits for that.
    #[cfg(feature = "gossip")]
    fn count_refused(&self, charges: &[Charge<'_>], tiers: &[TierState]) {
        let Some(by_demand) = &self.by_demand else { return };
        let mut states = tiers.iter();
        for charge in charges {
            // All of its states are read: the next charge's follow.
            let found = charge.tiers().iter().zip(states.by_ref().take(charge.tiers().len()));
            if found.filter(|(tier, state)| state.violated && follows_keys(tier)).count() > 0
                && let Some(key) = fleet_key(charge)
                && let Ok(mut refused) = by_demand.refused.try_lock()
            {
                refused.count(charge.rule.id, key, charge.cost);
            }
        }
    }

    #[cfg(feature = "gossip")]
    fn leave(&self) -> BoxFuture<'static, ()> {
        let leave = self.by_demand.as_ref().map(|by_demand| by_demand.leave.clone());
        Box::pin(async move {
            if let Some(leave) = leave {
                let (left, has_left) = oneshot::channel();
                // Fails where it has left already.
                let _ = leave.send(left).await;
                let _ = has_left.await;
            }
        })
    }
}

impl Machines for &ThreadMachines {
    fn of<'t>(&'t self, key: Fingerprint, tier: &'t Tier) -> &'t Machine {
        &self.get(key, tier).machine
    }

    fn count_asked(self, charges: &[Charge<'_>]) {
        for charge in charges {
            if let Some(tier) = charge.tiers().first() {
                self.get(charge.key, tier).count(charge.cost);
            }
        }
    }
}

impl ThreadMachines {
    /// The machine of a tier, or of a key's tier, made if there is none, or it has to be
    /// another.
    #[inline]
    fn cached(&mut self, owner: &ShareMachines, (tier, key): (&Tier, Option<u64>), now: u64) -> &CachedMachine {
        if self.machines.len() >= self.sweep_at {
            self.sweep();
        }
        let make = |old: Option<&_>| {
            let history = self.histories.of(tier.rule, key.filter(|_| follows_keys(tier)));
            CachedMachine::new(tier, history, now, old, || owner.new_count(tier.rule, key))
        };
        match self.machines.entry((address(tier), key)) {
            Entry::Occupied(mut cached) => {
                if now >= cached.get().until {
                    let made = make(Some(cached.get()));
                    cached.insert(made);
                }
                cached.into_mut()
            }
            Entry::Vacant(vacant) => vacant.insert(make(None)),
        }
    }

    /// The key of a charge, if it has a share of its own.
    #[inline]
    fn key_of(&mut self, owner: &ShareMachines, charge: &Charge<'_>) -> Option<u64> {
        self.known(charge.key).unwrap_or_else(|| {
            let Some(key) = self.histories.find(charge) else {
                self.strangers.resize(STRANGERS, 0);
                self.strangers[charge.key.spread_over(STRANGERS)] = charge.key.to_u128();
                return None;
            };
            self.histories = owner.learn(charge, key);
            Some(key)
        })
    }

    /// The key that this one is, if it has a share of its own; `None` if that is not known.
    #[allow(clippy::option_option, reason = "two questions")]
    #[inline]
    fn known(&self, key: Fingerprint) -> Option<Option<u64>> {
        if !self.have_keys || self.strangers.get(key.spread_over(STRANGERS)) == Some(&key.to_u128()) {
            return Some(None);
        }
        self.histories.known(key).map(Some)
    }

    /// The machine of one of the tiers that [`MachineSource::with`] was asked for. Whatever is
    /// known of their keys by now, that has cached one without a key of each.
    fn get(&self, key: Fingerprint, tier: &Tier) -> &CachedMachine {
        let own = self.known(key).flatten().and_then(|key| self.machines.get(&(address(tier), Some(key))));
        own.unwrap_or_else(|| &self.machines[&(address(tier), None)])
    }

    #[cold]
    fn sweep(&mut self) {
        self.machines.retain(|_, cached| cached.is_used());
        self.sweep_at = (self.machines.len() * 2).max(FEWEST_TO_SWEEP);
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
