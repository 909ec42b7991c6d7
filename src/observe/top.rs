//! The tenants that use most, or are rejected most, by rule: [`TopTenants`]; and which requests
//! are counted for that: [`Sampler`].
//!
//! It counts what it is told. Invariant: memory is bounded by the number of rules, whatever the
//! tenants and threads.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::BuildHasher,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use foldhash::fast::RandomState;

use crate::{
    descriptor::{Tenant, TenantId},
    jitter::draw,
    sync::lock,
    time::Timestamp,
};

/// Each thread counts in one of them.
const SHARDS: usize = 8;

/// The most bytes of a tenant's name that are kept.
const LONGEST_NAME: usize = 256;

/// What one tenant used of a rule in the last minutes, from
/// [`RateLimiter::top`](crate::RateLimiter::top).
///
/// Counts are halved each minute of the limiter's clock: at a steady rate, they are between
/// one and two minutes' worth. They are estimates, for two reasons. Of many admitted
/// requests only some are counted, each for those before it. And of the tenants with
/// little, some are forgotten, for which the errors here are bounds.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TopTenant {
    /// The rule's id.
    pub rule: String,
    /// The tenant, or the key by which the rule counts instead; `None` for the anonymous
    /// tenant. A name beyond 256 bytes is cut, and ends in `…`.
    pub tenant: Option<Tenant>,
    /// Units that its admitted requests were charged.
    pub units: u64,
    /// By how much `units` may be wrong, since tenants were forgotten.
    pub units_error: u64,
    /// How many of its requests this rule rejected, or in shadow mode would have.
    pub rejections: u64,
    /// By how much `rejections` may be wrong, since tenants were forgotten.
    pub rejections_error: u64,
    /// The least part of a tier that its counted requests left, in this minute and the last
    /// one: 0.0 for nothing, 1.0 for all of it.
    pub least_remaining: f64,
}

/// What is counted of a tenant.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Measure {
    Units,
    Rejections,
}

/// The tenants with most units and most rejections, by rule.
#[derive(Debug)]
pub(crate) struct TopTenants {
    /// Tenants by rule and measure in each shard.
    capacity: usize,
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Shard {
    /// In which the counts were last halved.
    minute: u64,
    /// By the rule's id, one for each [`Measure`].
    rules: HashMap<&'static str, [Sketch; 2], RandomState>,
}

/// One tenant of all shards.
#[derive(Debug)]
struct Merged {
    tenant: Option<Tenant>,
    counts: [u64; 2],
    /// By how much the errors in the shards that know it are less than the largest there.
    certain: [u64; 2],
    least_remaining: f64,
    is_top: bool,
}

impl TopTenants {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), shards: Default::default(), hasher: RandomState::default() }
    }

    /// Counts an amount for a tenant of a rule, which left this part of a tier.
    pub(crate) fn count(
        &self,
        (rule, tenant): (&'static str, Option<TenantId<'_>>),
        (measure, amount): (Measure, u64),
        remaining: f64,
        now: Timestamp,
    ) {
        let key = self.hasher.hash_one(tenant);
        let mut shard = self.lock(shard_of_thread(), now);
        let new = || [Sketch::new(self.capacity), Sketch::new(self.capacity)];
        let sketches = shard.rules.entry(rule).or_insert_with(new);
        sketches[measure as usize].add(key, || tenant.map(shortened), amount, remaining);
    }

    /// The tenants of a rule that are among the first `n` by units, by rejections or by what
    /// is left; those with most units first.
    pub(crate) fn of_rule(&self, rule: &'static str, n: usize, now: Timestamp) -> Vec<TopTenant> {
        let (tenants, errors) = self.merge(rule, now);
        let mut all: Vec<_> = tenants.into_values().collect();
        all.sort_by(|one, other| one.least_remaining.total_cmp(&other.least_remaining));
        all.iter_mut().take(n).filter(|tenant| tenant.least_remaining < 1.0).for_each(|tenant| tenant.is_top = true);
        for measure in [Measure::Rejections as usize, Measure::Units as usize] {
            all.sort_by_key(|tenant| Reverse(tenant.counts[measure]));
            all.iter_mut().take(n).filter(|tenant| tenant.counts[measure] > 0).for_each(|tenant| tenant.is_top = true);
        }
        let top = all.into_iter().filter(|tenant| tenant.is_top);
        top.map(|tenant| tenant.of_rule(rule, errors)).collect()
    }

    /// The tenants of a rule, by their hashes, and the largest error of each measure.
    fn merge(&self, rule: &'static str, now: Timestamp) -> (BTreeMap<u64, Merged>, [u64; 2]) {
        let (mut tenants, mut errors) = (BTreeMap::new(), [0; 2]);
        for index in 0..SHARDS {
            let shard = self.lock(index, now);
            let sketches = shard.rules.get(rule).into_iter().flatten();
            for (measure, sketch) in sketches.enumerate() {
                let largest = sketch.largest_error();
                errors[measure] += largest;
                for (key, counted) in &sketch.tenants {
                    let merged = tenants.entry(*key).or_insert_with(|| Merged::new(counted.tenant.clone()));
                    merged.counts[measure] += counted.count;
                    merged.certain[measure] += largest - counted.error;
                    merged.least_remaining = merged.least_remaining.min(counted.least_remaining());
                }
            }
        }
        (tenants, errors)
    }

    /// Locks a shard, and halves its counts for each minute that has passed.
    fn lock(&self, index: usize, now: Timestamp) -> MutexGuard<'_, Shard> {
        let mut shard = lock(&self.shards[index]);
        let minute = minute(now);
        if shard.minute != minute {
            let passed = minute.saturating_sub(shard.minute);
            shard.minute = minute;
            shard.rules.retain(|_, sketches| {
                sketches.iter_mut().for_each(|sketch| sketch.halve(passed));
                sketches.iter().any(|sketch| !sketch.tenants.is_empty())
            });
        }
        shard
    }
}

impl Merged {
    fn new(tenant: Option<Tenant>) -> Self {
        Self { tenant, counts: [0; 2], certain: [0; 2], least_remaining: 1.0, is_top: false }
    }

    fn of_rule(self, rule: &str, errors: [u64; 2]) -> TopTenant {
        let Self { tenant, counts: [units, rejections], certain, least_remaining, .. } = self;
        TopTenant {
            rule: rule.to_owned(),
            tenant,
            units,
            units_error: errors[0] - certain[0],
            rejections,
            rejections_error: errors[1] - certain[1],
            least_remaining,
        }
    }
}

/// The minute of a time, since the epoch.
pub(crate) fn minute(now: Timestamp) -> u64 {
    now.as_nanos() / 60_000_000_000
}

fn shard_of_thread() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: usize = THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    SHARD.with(|shard| *shard)
}

/// Callers may send names of any length.
fn shortened(tenant: TenantId<'_>) -> Tenant {
    match tenant {
        TenantId::Name(name) if name.len() > LONGEST_NAME => {
            let end = (0..=LONGEST_NAME).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
            Tenant::new(format!("{}…", &name[..end]))
        }
        tenant => Tenant::from(tenant),
    }
}

/// Which tenants have most, without a counter for each: the Space-Saving algorithm (Metwally,
/// Agrawal and El Abbadi, 2005). It counts for at most `capacity` tenants. A new one beyond takes
/// the place, and the count, of the one with least.
///
/// Until counts are halved, each is at least the true one and at most its `error` above, and no
/// error exceeds the sum of all that was added divided by the capacity.
#[derive(Debug)]
struct Sketch {
    capacity: usize,
    /// By hash.
    tenants: HashMap<u64, Counted, RandomState>,
    /// Counts with the tenants' hashes, the least first.
    order: BTreeSet<(u64, u64)>,
}

/// What is counted of one tenant.
#[derive(Debug)]
struct Counted {
    tenant: Option<Tenant>,
    count: u64,
    /// How much of `count` may be of others.
    error: u64,
    /// The least part that was left in this minute, and in the last one.
    remaining: [f64; 2],
}

impl Sketch {
    fn new(capacity: usize) -> Self {
        Self { capacity, tenants: HashMap::default(), order: BTreeSet::new() }
    }

    /// The most that a tenant may have that is not counted here.
    fn largest_error(&self) -> u64 {
        let least = self.order.first().filter(|_| self.tenants.len() == self.capacity);
        least.map_or(0, |(count, _)| *count)
    }

    /// Where there is room for no more, a new tenant displaces the one with least.
    fn add(&mut self, key: u64, tenant: impl FnOnce() -> Option<Tenant>, amount: u64, remaining: f64) {
        let error = self.largest_error();
        let new = || Counted { tenant: tenant(), count: error, error, remaining: [1.0; 2] };
        let counted = self.tenants.entry(key).or_insert_with(new);
        self.order.remove(&(counted.count, key));
        counted.count = counted.count.saturating_add(amount);
        counted.remaining[0] = counted.remaining[0].min(remaining);
        self.order.insert((counted.count, key));
        if self.tenants.len() > self.capacity
            && let Some((_, least)) = self.order.pop_first()
        {
            self.tenants.remove(&least);
        }
    }

    /// So many minutes have passed.
    fn halve(&mut self, minutes: u64) {
        if minutes == 0 {
            return;
        }
        let halved = |count: u64| count.checked_shr(u32::try_from(minutes).unwrap_or(u32::MAX)).unwrap_or(0);
        for counted in self.tenants.values_mut() {
            (counted.count, counted.error) = (halved(counted.count), halved(counted.error));
            let last = if minutes == 1 { counted.remaining[0] } else { 1.0 };
            counted.remaining = [1.0, last];
        }
        self.order = self.tenants.iter().map(|(key, counted)| (counted.count, *key)).collect();
        if self.tenants.values().all(|counted| counted.count == 0) {
            *self = Self::new(self.capacity);
        }
    }
}

impl Counted {
    fn least_remaining(&self) -> f64 {
        let [this, last] = self.remaining;
        this.min(last)
    }
}

/// At most one of so many requests is sampled, once there are many.
const ONE_IN: u64 = 128;

/// Decisions of each minute from which on fewer and fewer requests are sampled. Before, all
/// are.
const ALL_OF: u64 = 512;

/// Which admitted requests are counted. What the sampled ones stand for sums up to what all
/// requests were charged, up to the last sampled one.
///
/// Chooses the request that is charged one of the units drawn, so that a request counts by its
/// cost. The distance to the next drawn unit is random: callers that take turns must not
/// meet it always, or never. Written by one thread only.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    /// Units that are charged before the next drawn one.
    left: AtomicU64,
    last: Mutex<LastSample>,
}

#[derive(Debug, Default)]
struct LastSample {
    /// The units that were then left.
    left: u64,
    /// The thread's decisions by then.
    decisions: u64,
    /// What a request costs, on average and bounded by what it was before.
    cost: u64,
    /// The minute, and the thread's decisions when it began.
    minute: (u64, u64),
}

impl Sampler {
    /// Whether a request that was charged so many units is sampled.
    #[inline]
    pub(crate) fn is_due(&self, units: u64) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.wrapping_sub(units), Ordering::Relaxed);
        units > left
    }

    /// How many units the request that is [due](Self::is_due) stands for: all since the last
    /// one. `decisions` are those of this thread so far.
    pub(crate) fn take(&self, units: u64, decisions: u64, minute: u64) -> u64 {
        let mut last = lock(&self.last);
        let left = self.left.load(Ordering::Relaxed).wrapping_add(units);
        let charged = last.left.wrapping_sub(left).saturating_add(units);
        let requests = decisions.wrapping_sub(last.decisions).max(1);
        last.decisions = decisions;
        // One dear request does not make thousands pass unseen.
        last.cost = (charged / requests).clamp(1, last.cost.saturating_mul(2).saturating_add(1));
        if last.minute.0 != minute {
            last.minute = (minute, decisions);
        }
        let one_in = (decisions.wrapping_sub(last.minute.1) * 2 / ALL_OF).clamp(1, ONE_IN);
        last.left = draw((one_in - 1).saturating_mul(last.cost).saturating_mul(2));
        self.left.store(last.left, Ordering::Relaxed);
        charged
    }
}

#[cfg(test)]
mod tests;
