//! Decides on a Redis or Valkey server that a whole fleet shares.
//!
//! `Redis` makes an `Ask` of a request, in the script's numbers (`plan`); its
//! `Lane` sends what is asked at the same time together; `Calling` makes calls
//! of the scripts of it (`batch`, `change`), and outcomes of their answers;
//! `Link` runs them within the deadline, under a breaker. ARCHITECTURE.md says
//! why.

mod batch;
mod builder;
mod calling;
mod change;
mod connect;
mod denied;
mod epoch;
mod failure;
mod groups;
mod key;
mod lane;
mod link;
mod number;
mod pack;
mod plan;
mod round;
mod script;
mod settings;
mod sharing;
mod single;
mod suspects;
mod ticker;

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use smallvec::SmallVec;
use tokio::time::{MissedTickBehavior, interval};

pub use self::builder::RedisBuilder;
#[cfg(all(feature = "redis-tls", feature = "watch"))]
pub(crate) use self::connect::provide_cryptography;
use self::{
    calling::{Calling, Done, Leases, Work, leases},
    change::{Change, What},
    denied::Denied,
    lane::{Lane, LaneLimits},
    link::Link,
    plan::{Ask, Manner},
    settings::Settings,
    sharing::Sharing,
};
use super::{
    Acquire, AcquireRequest, Answer, Backend, Charge, CooldownListener, CooldownNotice, Outcome, Receipt, Settlement,
    TierState, Usage,
};
use crate::{
    error::BackendError,
    time::{Timestamp, nanos},
};

/// Decides on a Redis or Valkey server that a whole fleet shares: one limit for
/// all instances, exactly.
///
/// ```no_run
/// use tower_ratelimit::{FailureMode, Policy, Quota, RateLimiter, Rule, backend::Redis};
///
/// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
/// let redis = Redis::connect("redis://127.0.0.1:6379").await?;
/// let rule = Rule::new("search").tier(Quota::per_second(100)).tier(Quota::per_hour(5_000));
/// // Of four instances, while the server does not answer.
/// let rule = rule.on_backend_failure(FailureMode::Local).local_share(0.25);
/// let limiter = RateLimiter::builder().policy(Policy::new().rule(rule)).backend(redis).build()?;
/// # Ok(())
/// # }
/// ```
///
/// A clone is the same backend, with the same connections. Limiters share their
/// counters if they have the same prefix, and rules of the same id. It needs a
/// tokio runtime, on which it keeps a few tasks for as long as it is there: the
/// one that it was made on.
///
/// # What is guaranteed
///
/// - **All or nothing, exactly.** All tiers of all rules that apply are read,
///   decided and written in one script, by the server's clock in whole
///   microseconds. Instances never admit one too many between them; a rejection
///   writes nothing. Algorithms decide as those of [`Local`](super::Local) do.
///   In a cluster this holds for all that lies in one slot, which is all that a
///   tenant is charged; a request that is charged in several slots is never
///   admitted beyond a limit, but what one slot has charged is given back only
///   after another rejected, and meanwhile others may be rejected for it.
/// - **At most one round trip** for a decision; none where the request is
///   charged what another one was rejected for, at most
///   [`rejection_cache_ttl`](RedisBuilder::rejection_cache_ttl) ago, and nothing may wait, is
///   settled late or is in flight. What is asked at the same time goes out
///   together. It takes a second one where the server has lost its scripts, a
///   bucket was last charged under another limit, or a cluster's slot has
///   moved; and up to four where a request that may wait is charged in several
///   slots.
/// - **Bounded time.** An answer is there within the
///   [`deadline`](RedisBuilder::deadline), queueing included (each time that
///   slots are asked), or there is none, and each rule's
///   [`FailureMode`](crate::FailureMode) decides. It is told in sixteenths: up to
///   one of them (and a millisecond) too soon; and where the machine is
///   late, too late by no more than that and one of them.
/// - **Never charged twice.** Nothing is sent again that may have been run. Who
///   gets no answer, or does not wait for it, may have been charged; but a turn
///   that is yet to come is given back when the answer is there after all.
/// - **A server that is gone costs nothing.** After
///   [so many failures](RedisBuilder::breaker) in a row, or one lost connection
///   (which in a cluster is one of those failures), nothing is asked of it.
///   Probes in the background find out when it is back.
///
/// # When the server forgets
///
/// A key whose counter is lost starts anew: at most one more limit's worth is
/// admitted, its burst or what a window holds. That counts for all keys after a
/// restart without persistence, and for what was used since the last write
/// that was saved or replicated after a restart with it, or a failover:
/// replication is asynchronous. [`stats`](Self::stats) says how often the memory
/// was found to be another one; it is looked at on each connection, and once a
/// second while requests come. With one server, or behind sentinels, another one
/// is a memory whose key `PREFIX:epoch` is gone or has another id in it, or says
/// that it was last looked at before we did: an old snapshot, a replica that
/// lagged. In a cluster, so is a node's restart or failover, where the user may
/// run `INFO`; but not a node that is emptied while it runs.
///
/// What is in flight is held on leases, 30 s unless set, renewed every third of
/// that. What an instance held that crashed comes back within a lease. One that
/// is paused or cut off for longer may find that others have what it holds; once
/// it is back both count, so that more than the limit may be in flight. What
/// was forgotten is counted again with the next renewal.
///
/// # Holding back
///
/// What a provider asks of one instance
/// ([`hold_back`](crate::RateLimiter::cool_down), and a
/// [client](crate::RateLimitLayer::client) by itself) all are told, in the
/// background: usually within some milliseconds, without a promise. It is
/// published to the channel `PREFIX:held`, and stands for up to an hour in the
/// sorted set of the same name, for those who come later: at most 4,096 keys,
/// of which those leave first that end first, each by a name of at most 1,024
/// bytes. What is told is the time that is left, so that clocks may differ. An
/// instance that hears it goes by its own policy, adds its own jitter, and never
/// ends a hold early for it.
///
/// For this a client's instance keeps one connection more, to hear; one that
/// only serves does not. Where the server is gone, or does not let it publish
/// or subscribe, each instance goes by what it is told itself (which is logged
/// once), until it can hear again; then it reads what it has missed, as it does
/// every ten seconds in any case. A restart forgets what others would read, not
/// what they have heard.
///
/// # Bounds
///
/// - Limits above 2,251,799,813,685 count as that in buckets, and above 2^51
///   elsewhere. Rates that no fraction of 32 bits expresses are slower, by less
///   than (1 + units per microsecond) / 2^31.
/// - Windows, and what a burst takes, count as 2^51 µs (71 years) where they are
///   longer, and are rounded up to whole microseconds; but for those of buckets
///   of up to 26 days, which are exact.
/// - A request that is charged more than 50 tiers gets no answer
///   ([`Unsupported`](crate::BackendErrorKind::Unsupported)).
/// - For each connection, and each of 256 parts of the tenants of a cluster, two
///   calls are under way at once, and 64 times
///   [`max_batch`](RedisBuilder::max_batch) requests may stand in line behind
///   them; the next gets no answer.
/// - On the server a counter has one key of some 120 bytes, name included; a log,
///   or a limit on what is in flight, has a sorted set beside it, with at most
///   one entry for each admission. Each has a TTL. How many there are is not
///   capped: use `maxmemory` with `noeviction`, since an evicted counter starts
///   anew.
///
/// # Errors
///
/// [`connect`](Self::connect) says what is wrong: see [`RedisBuilder::connect`].
/// Later, an error is an answer that is missing, and goes to the rules' failure
/// modes. Its [`kind`](BackendError::kind) is `Timeout` beyond the deadline;
/// `Unavailable` where there is no connection, or the server is loading, busy, out
/// of memory or a replica; `Misconfigured` where it does not let us, or a key
/// under the prefix holds something that is no counter of this version, which
/// is never overwritten; `Unsupported` as above.
///
/// # Settings
///
/// | [`Redis::builder`] | default | |
/// |---|---|---|
/// | [`url`](RedisBuilder::url), [`cluster`](RedisBuilder::cluster), [`sentinel`](RedisBuilder::sentinel) | `redis://127.0.0.1:6379` | where the server is |
/// | [`username`](RedisBuilder::username), [`password`](RedisBuilder::password), [`database`](RedisBuilder::database) | those of the URL | stand above it |
/// | `root_certificate`, `client_certificate` | Mozilla's roots; none | feature `redis-tls`, for `rediss://` |
/// | [`prefix`](RedisBuilder::prefix) | `rl` | what all keys begin with |
/// | [`connections`](RedisBuilder::connections) | 1 | 1 to 1024; a cluster has one to each node |
/// | [`connect_timeout`](RedisBuilder::connect_timeout) | 1 s | for each server |
/// | [`deadline`](RedisBuilder::deadline) | 50 ms | for an answer |
/// | [`breaker`](RedisBuilder::breaker) | 5, 100 ms, 5 s | failures that open it; the shortest and longest time between probes, of which each takes half to all |
/// | [`max_batch`](RedisBuilder::max_batch) | 256 | decisions in a call |
/// | [`rejection_cache_ttl`](RedisBuilder::rejection_cache_ttl), [`rejection_cache_size`](RedisBuilder::rejection_cache_size) | 1 s, 65,536 | for how long a rejection is remembered, and how many are |
/// | [`lease`](RedisBuilder::lease) | 30 s | for how long a unit in flight is held without renewal |
#[derive(Clone)]
pub struct Redis {
    shared: Arc<Shared>,
}

/// What became of the store, see [`Redis::stats`].
///
/// ```no_run
/// # fn watch(redis: tower_ratelimit::backend::Redis) {
/// let stats = redis.stats();
/// println!("left alone: {}, memory lost: {} times", stats.open, stats.memory_lost);
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisStats {
    /// Whether the circuit breaker is open: nothing is asked of the store at
    /// present.
    pub open: bool,
    /// How often the store was found to have lost what it had counted: it was
    /// emptied, or restarted without its memory, or with one that lacks more
    /// than the last second. In a cluster also how often a node was restarted
    /// or replaced, and may have lost its last writes.
    pub memory_lost: u64,
}

struct Shared {
    settings: Settings,
    manner: Arc<Manner>,
    link: Arc<Link>,
    lanes: Box<[Arc<Lane<Calling>>]>,
    denied: Denied<Arc<Denial>>,
    leases: Arc<Leases>,
    requests: AtomicU64,
    sharing: Arc<Sharing>,
}

/// What is known of a request that was rejected.
#[derive(Debug)]
struct Denial {
    until: u64,
    at: u64,
    tiers: SmallVec<[TierState; 2]>,
}

impl Redis {
    /// Connects to one server, with all other settings as they are by default.
    ///
    /// # Errors
    ///
    /// As [`RedisBuilder::connect`].
    pub async fn connect(url: impl Into<String>) -> Result<Self, BackendError> {
        Self::builder().url(url).connect().await
    }

    /// Sets one up.
    pub fn builder() -> RedisBuilder {
        RedisBuilder::new()
    }

    /// What became of the store so far.
    #[must_use]
    pub fn stats(&self) -> RedisStats {
        let link = &self.shared.link;
        RedisStats { open: link.rejects().is_some(), memory_lost: link.memory_lost() }
    }

    fn new(settings: Settings, link: Arc<Link>) -> Self {
        let is_cluster = settings.is_cluster();
        let manner = Arc::new(Manner {
            prefix: settings.prefix.clone(),
            // A clock that is moved by hand may pass any lease at once.
            lease: if settings.limiter_time { LEASE_BY_LIMITER } else { settings.lease },
            limiter_time: settings.limiter_time,
            one_slot: !is_cluster,
        });
        let instance = RandomState::new().hash_one(0) >> 11;
        let (held, moved) = (Arc::new(Leases::default()), Arc::default());
        let limits = LaneLimits::new(settings.max_batch);
        let count = if is_cluster { CLUSTER_LANES } else { settings.connections.max(1) };
        let lane = |number| {
            Arc::new_cyclic(|lane| {
                let (manner, link, leases, moved) =
                    (Arc::clone(&manner), Arc::clone(&link), Arc::clone(&held), Arc::clone(&moved));
                let (deadline, runtime) = (Arc::clone(link.deadline()), link.runtime().clone());
                let (built_upon, lane) = (Mutex::default(), lane.clone());
                let calling = Calling { number, manner, link, instance, leases, built_upon, moved, lane };
                Lane::new(calling, limits, deadline, runtime)
            })
        };
        let denied = Denied::new(settings.rejection_cache_size, settings.rejection_cache_ttl);
        let lanes = (0..count).map(lane).collect();
        let (requests, runtime) = (AtomicU64::new(1), link.runtime().clone());
        let sharing = Sharing::new(settings.clone(), Arc::clone(&link));
        let shared = Arc::new(Shared { settings, manner, link, lanes, denied, leases: held, requests, sharing });
        let clears = Arc::downgrade(&shared);
        shared.link.on_memory_lost(move || {
            if let Some(shared) = clears.upgrade() {
                shared.denied.clear();
            }
        });
        runtime.spawn(hold_on(Arc::downgrade(&shared), shared.manner.lease / 3));
        Self { shared }
    }

    /// The lane of what has this tag: always the same.
    fn lane(&self, tag: &str) -> &Arc<Lane<Calling>> {
        let lanes = &self.shared.lanes;
        match lanes.len() {
            1 => &lanes[0],
            count => &lanes[lane_of(tag, count)],
        }
    }

    /// The lane of a request, where all keys may be in one call.
    fn lane_of(&self, charges: &[Charge<'_>]) -> &Arc<Lane<Calling>> {
        let lanes = &self.shared.lanes;
        let first = charges.first().map_or(0, Charge::fingerprint);
        &lanes[if lanes.len() == 1 { 0 } else { usize::try_from(first % lanes.len() as u128).unwrap_or(0) }]
    }

    fn change(&self, receipt: &Receipt, what: What, now: Timestamp) {
        let Some(first) = receipt.charges().next() else { return };
        // Of rules that are settled late no rejection is remembered.
        if let What::Refund | What::Settle(Settlement::GiveBack(_)) = what
            && receipt.charges().any(|charge| !charge.applied.rule.is_settled_late())
        {
            self.shared.denied.clear();
        }
        if self.shared.manner.one_slot {
            self.lane_of(std::slice::from_ref(&first)).push(Work::Change { receipt: receipt.clone(), what, now });
            return;
        }
        // Where there are slots, each has a lane of its own.
        let mut tags: SmallVec<[String; 2]> = receipt.charges().map(|charge| key::tag(&charge)).collect();
        tags.sort_unstable();
        tags.dedup();
        for tag in tags {
            if let Some(receipt) = receipt.clone().only(|charge| key::tag(charge) == tag) {
                self.lane(&tag).push(Work::Change { receipt, what, now });
            }
        }
    }
}

/// Goes on holding what is in flight, for as long as the backend is there.
async fn hold_on(shared: Weak<Shared>, every: Duration) {
    let mut ticks = interval(every.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        let held: Vec<_> = leases(&shared.leases).iter().map(|(lease, lane)| (*lane, lease.hold_on(None))).collect();
        let mut by_lane: Vec<Vec<Change>> = shared.lanes.iter().map(|_| Vec::new()).collect();
        held.into_iter().for_each(|(lane, change)| by_lane[lane].push(change));
        for (lane, mut changes) in shared.lanes.iter().zip(by_lane) {
            while !changes.is_empty() && shared.link.rejects().is_none() {
                let rest = changes.split_off(changes.len().min(RENEWED_AT_ONCE));
                lane.push(Work::Plain(std::mem::replace(&mut changes, rest)));
            }
        }
    }
}

/// So many leases are renewed in one call.
const RENEWED_AT_ONCE: usize = 500;

/// Where the limiter's clock decides: ten years.
const LEASE_BY_LIMITER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// So many, where every tenant may live in a slot of its own.
const CLUSTER_LANES: usize = 256;

fn lane_of(tag: &str, count: usize) -> usize {
    // FNV-1a: it need not be strong, and the order of two requests depends
    // only on its being the same.
    let hash = tag
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    usize::try_from(hash % count as u64).unwrap_or(0)
}

/// The same for requests that are charged the same, by the same policy.
fn likeness(charges: &[Charge<'_>]) -> u128 {
    charges.iter().fold(0, |likeness: u128, charge| {
        let tiers = charge.tiers().as_ptr().addr() as u128 ^ u128::from(charge.applied.rule.version) << 64;
        likeness.rotate_left(9) ^ charge.fingerprint() ^ tiers ^ u128::from(charge.cost).rotate_left(37)
    })
}

/// Whether requests that are charged the same can be decided as one: nobody
/// waits, and nobody holds anything.
fn is_alike(request: &AcquireRequest<'_>) -> bool {
    let longest = nanos(request.max_wait);
    request.charges.iter().all(|charge| {
        charge.max_wait.min(longest) == 0 && !charge.tiers().iter().any(crate::policy::Tier::is_in_flight)
    })
}

/// Whether a rejection holds until the time that it names, so that nobody needs
/// to ask before: nothing is given back as a matter of course.
fn is_final(request: &AcquireRequest<'_>) -> bool {
    !request.charges.iter().any(|charge| charge.applied.rule.is_settled_late())
}

impl Backend for Redis {
    fn acquire(&self, request: &AcquireRequest<'_>) -> Acquire {
        let shared = &self.shared;
        if let Some(error) = shared.link.rejects() {
            return Acquire::Ready(Err(error));
        }
        let now = request.now.as_nanos();
        let likeness = is_alike(request).then(|| likeness(request.charges));
        let denial = likeness.filter(|_| is_final(request));
        if let Some(denial) = denial.and_then(|likeness| shared.denied.get(likeness, now)) {
            return Acquire::Ready(Ok(denial.outcome(now)));
        }
        let denial = denial.map(|likeness| (likeness, shared.denied.clearing()));
        let asked = Asked { redis: self.clone(), denial, now };
        // By the limiter's clock, those of another time are not alike.
        let likeness =
            likeness.map(|likeness| if shared.manner.limiter_time { likeness ^ u128::from(now) } else { likeness });
        if shared.manner.one_slot
            && let Some(likeness) = likeness
            && let Some(joined) = self.lane_of(request.charges).join(likeness)
        {
            return Acquire::Pending(Box::pin(async move { asked.outcome(joined.await) }));
        }
        let number = shared.requests.fetch_add(1, Ordering::Relaxed);
        let (mut asks, slots) = match Ask::all(&shared.manner, request, number) {
            Ok(asks) => asks,
            Err(error) => return Acquire::Ready(Err(error)),
        };
        match asks.pop() {
            Some(ask) if asks.is_empty() => {
                let lane = if shared.manner.one_slot { self.lane_of(request.charges) } else { self.lane(&ask.tag) };
                let answer = lane.ask(Work::Decide(ask), likeness);
                Acquire::Pending(Box::pin(async move { asked.outcome(answer.await) }))
            }
            last => {
                asks.extend(last);
                Acquire::Pending(Box::pin(async move { asked.redis.ask_all(asks, slots, now).await }))
            }
        }
    }

    fn refund(&self, receipt: &Receipt, now: Timestamp) {
        self.change(receipt, What::Refund, now);
    }

    fn release(&self, receipt: &Receipt, now: Timestamp) {
        if receipt.holds_in_flight() {
            self.change(receipt, What::Release, now);
        }
    }

    fn settle(&self, receipt: &Receipt, settlement: Settlement, now: Timestamp) {
        self.change(receipt, What::Settle(settlement), now);
    }

    fn share_cooldown(&self, notice: &CooldownNotice<'_>) {
        self.shared.sharing.share(notice);
    }

    fn subscribe_cooldowns(&self, listener: Weak<dyn CooldownListener>) {
        self.shared.sharing.add(listener);
    }

    fn usage(&self) -> Usage {
        Usage::default()
    }
}

/// Who asked, and when.
struct Asked {
    redis: Redis,
    /// What a rejection is remembered under, where it is.
    denial: Option<(u128, u64)>,
    now: u64,
}

impl Asked {
    fn outcome(&self, done: Result<Done, BackendError>) -> Result<Outcome, BackendError> {
        let outcome = self.redis.outcome(done, self.now)?;
        if let Some((likeness, clearing)) = self.denial {
            self.redis.remember(likeness, self.now, clearing, &outcome);
        }
        Ok(outcome)
    }
}

impl Redis {
    async fn ask(&self, ask: Ask, now: u64) -> Result<Outcome, BackendError> {
        self.outcome(self.lane(&ask.tag).ask(Work::Decide(ask), None).await, now)
    }

    fn outcome(&self, done: Result<Done, BackendError>, now: u64) -> Result<Outcome, BackendError> {
        match done? {
            Done::Decided(outcome, held) => {
                held.keep();
                Ok(if self.shared.manner.limiter_time { by_limiter(outcome, now) } else { outcome })
            }
            Done::Changed => Err(batch::cut_short()),
        }
    }

    /// Remembers who was rejected.
    fn remember(&self, likeness: u128, now: u64, clearing: u64, outcome: &Outcome) {
        if let Answer::Rejected { retry_after: Some(retry_after) } = outcome.answer {
            // From before it was asked: nobody is rejected for too long.
            let until = now.saturating_add(retry_after);
            let denial = Denial { until, at: now, tiers: outcome.tiers.clone() };
            self.shared.denied.put(likeness, (now, until), clearing, Arc::new(denial));
        }
    }
}

/// What the limiter's clock says is decided by its last whole microsecond; the
/// rest of it has passed since.
fn by_limiter(mut outcome: Outcome, now: u64) -> Outcome {
    let passed = now.saturating_sub(outcome.decided_at.take().unwrap_or(now));
    match &mut outcome.answer {
        Answer::Admitted { wait } | Answer::Rejected { retry_after: Some(wait) } => *wait = wait.saturating_sub(passed),
        Answer::Rejected { retry_after: None } | Answer::Busy { .. } => {}
    }
    outcome.tiers.iter_mut().for_each(|tier| tier.reset = tier.reset.saturating_sub(passed));
    outcome
}

impl Denial {
    /// The same rejection at a later time.
    fn outcome(&self, now: u64) -> Outcome {
        let passed = now.saturating_sub(self.at);
        let tiers = self.tiers.iter();
        let tiers = tiers.map(|tier| TierState { reset: tier.reset.saturating_sub(passed), ..*tier }).collect();
        let answer = Answer::Rejected { retry_after: Some(self.until.saturating_sub(now)) };
        Outcome { answer, tiers, decided_at: None }
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}
