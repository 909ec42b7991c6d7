//! The machines of this instance's share, as each thread knows them.

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
    backend::{AcquireRequest, local::LONGEST_RACE},
    policy::Tier,
};

/// The share in force, and where the next one comes from.
///
/// Every thread keeps the machines of the tiers that it has met, by the share
/// in force. One shared load tells that it still is, and another that no new
/// one has come: no decision takes a lock that another thread takes.
pub(crate) struct Shares {
    id: u64,
    version: AtomicU64,
    state: Mutex<State>,
}

struct State {
    history: Arc<ShareHistory>,
    source: Option<watch::Receiver<Share>>,
    /// What comes in force with the first decision.
    joins_with: Option<Share>,
}

/// What one thread knows.
pub(crate) struct Parts {
    owner: u64,
    version: u64,
    source: Option<watch::Receiver<Share>>,
    history: Arc<ShareHistory>,
    /// For decisions within this time. Before it the clock has stepped back over
    /// the last change; after it, it has passed that again.
    valid: Range<u64>,
    machines: HashMap<usize, Part, FixedState>,
    /// With so many, those of tiers that are gone are looked for.
    sweep_at: usize,
    nothing: Machine,
}

struct Part {
    /// While there is this, nobody else has its address.
    tier: Weak<()>,
    machine: Machine,
    /// When it is to be made anew.
    until: u64,
}

/// How many backends a thread remembers.
const KEPT: usize = 64;

const FEWEST_TO_SWEEP: usize = 64;

#[allow(clippy::vec_box, reason = "it changes places by its pointer")]
type Others = Vec<Box<Parts>>;

thread_local! {
    static LATEST: Cell<Option<Box<Parts>>> = const { Cell::new(None) };
    static OTHERS: Cell<Others> = const { Cell::new(Vec::new()) };
}

impl Shares {
    pub(super) fn new(share: Share, source: Option<watch::Receiver<Share>>) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let state = State { history: Arc::new(ShareHistory::new(share)), source, joins_with: None };
        Self { id: NEXT_ID.fetch_add(1, Ordering::Relaxed), version: AtomicU64::new(0), state: Mutex::new(state) }
    }

    /// Has nothing until the first decision, and joins then.
    pub(crate) fn joining(self) -> Self {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.joins_with.is_none() {
            state.joins_with = Some(state.history.current().share.clone());
            state.history = Arc::new(ShareHistory::new(Share::none()));
        }
        drop(state);
        self
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

    /// Runs something with the machines of all tiers of a request.
    pub(crate) fn with<R>(&self, request: &AcquireRequest<'_>, run: impl FnOnce(&Parts) -> R) -> R {
        let now = request.now.as_nanos();
        self.with_parts(now, |parts| {
            for tier in request.charges.iter().flat_map(|charge| charge.tiers()) {
                if parts.ready(tier, now).is_none() {
                    parts.make(tier, now);
                }
            }
            run(parts)
        })
    }

    /// Runs something with the machine of one tier.
    #[inline]
    pub(crate) fn with_one<R>(&self, tier: &Tier, now: u64, run: impl FnOnce(&Machine) -> R) -> R {
        self.with_parts(now, |parts| match parts.ready(tier, now) {
            Some(machine) => run(machine),
            None => {
                parts.make(tier, now);
                run(parts.machine(tier))
            }
        })
    }

    #[inline]
    fn with_parts<R>(&self, now: u64, run: impl FnOnce(&mut Parts) -> R) -> R {
        let latest = LATEST.try_with(Cell::take).ok().flatten();
        let mut parts = match latest {
            Some(parts) if self.is_current(&parts, now) => parts,
            other => self.find(other, now),
        };
        let result = run(&mut parts);
        // While the thread ends there is no place left to keep it.
        let _ = LATEST.try_with(|latest| latest.set(Some(parts)));
        result
    }

    #[inline]
    fn is_current(&self, parts: &Parts, now: u64) -> bool {
        let unchanged = |source: &watch::Receiver<Share>| matches!(source.has_changed(), Ok(false));
        parts.owner == self.id
            && parts.valid.contains(&now)
            && parts.version == self.version.load(Ordering::Acquire)
            && parts.source.as_ref().is_none_or(unchanged)
    }

    #[cold]
    fn find(&self, displaced: Option<Box<Parts>>, now: u64) -> Box<Parts> {
        let mut others = OTHERS.try_with(Cell::take).unwrap_or_default();
        others.extend(displaced);
        let own = others.iter().position(|parts| parts.owner == self.id).map(|index| others.remove(index));
        if others.len() > KEPT {
            others.remove(0);
        }
        let _ = OTHERS.try_with(|place| place.set(others));
        match own {
            Some(parts) if self.is_current(&parts, now) => parts,
            _ => Box::new(self.renew(now)),
        }
    }

    /// Puts what has come in force.
    fn renew(&self, now: u64) -> Parts {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Asked before it is read: a last share may come in between.
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
            // A clock that steps back must not leave everybody waiting for the
            // time of a change: until then, that counts as of now. Only here:
            // it may be this thread that comes late.
            Arc::make_mut(&mut history).step_back(now);
            now.saturating_sub(LONGEST_RACE)..since
        } else {
            since..u64::MAX
        };
        Parts {
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

impl Parts {
    /// The machine of a tier that was made ready.
    #[inline]
    pub(crate) fn machine(&self, tier: &Tier) -> &Machine {
        self.machines.get(&address(tier)).map_or(&self.nothing, |part| &part.machine)
    }

    /// The same, unless it is to be made, or made anew.
    #[inline]
    fn ready(&self, tier: &Tier, now: u64) -> Option<&Machine> {
        let part = self.machines.get(&address(tier)).filter(|part| now < part.until)?;
        Some(&part.machine)
    }

    /// Makes the machine of a tier ready.
    #[cold]
    fn make(&mut self, tier: &Tier, now: u64) {
        if self.machines.len() >= self.sweep_at {
            self.machines.retain(|_, part| part.tier.strong_count() > 0);
            self.sweep_at = (self.machines.len() * 2).max(FEWEST_TO_SWEEP);
        }
        let (machine, until) = tier.machine.share(&tier.quota, &self.history, now);
        let part = Part { tier: Arc::downgrade(&tier.identity), machine, until };
        self.machines.insert(address(tier), part);
    }
}

fn address(tier: &Tier) -> usize {
    Arc::as_ptr(&tier.identity).addr()
}

impl fmt::Debug for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shares").field("current", &self.current()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("history", &self.history).finish_non_exhaustive()
    }
}
