//! Decides on a Redis or Valkey server that a whole fleet shares. This file is
//! the public face; it delegates.
//!
//! A request walks down and up again: `dispatch` takes a cached rejection,
//! coalesces it, or puts its charges into the scripts' terms (`plan`); one of the `lanes`
//! batches it (`transport/lane`); `executor` encodes the batch as calls of
//! scripts (`wire`) and sends them over the link (`transport`), under the
//! circuit breaker and the deadline; the replies become outcomes.
//!
//! Invariant: imports go one way. Each layer imports only those before it, and
//! no two files of a layer import each other:
//!
//! `sync` < `plan` < `wire` < `transport/breaker` < `settings` < `transport` <
//! `leased/pools` < `executor` < `lanes` < `dispatch`, `cooldowns` < `leased` < this file <
//! `builder`
//!
//! The level `leased` needs no second way to the store. A lease of n units is a charge
//! set that is charged n times: a lane carries it as any other, and what no request
//! waits for fills a pool of this process.

mod builder;
mod cooldowns;
mod dispatch;
mod executor;
mod lanes;
mod leased;
mod plan;
mod settings;
#[cfg(test)]
mod tests;
mod transport;
mod wire;

use std::{
    fmt,
    sync::{Arc, Weak},
};

use futures_util::future::BoxFuture;

pub use self::builder::RedisBuilder;
#[cfg(all(feature = "tls", feature = "watch"))]
pub(crate) use self::transport::server::provide_cryptography;
use self::{cooldowns::Cooldowns, dispatch::Dispatcher, leased::Levels, plan::ReceiptOp, transport::Link};
use super::{
    Backend, Charge, CooldownListener, CooldownNotice, Decide, Extension, ImmediateStates, Receipt, Request, Settlement,
};
use crate::{error::BackendError, time::Timestamp};

/// Decides on a Redis or Valkey server that a whole fleet shares: one limit for
/// all instances, exactly.
///
/// ```no_run
/// use tower_ratelimit::{FailureMode, Policy, Quota, RateLimiter, Rule, backend::Redis};
///
/// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
/// let redis = Redis::connect("redis://127.0.0.1:6379").await?;
/// let rule = Rule::new("search").tier(Quota::per_second(100)).tier(Quota::per_hour(5_000));
/// // While the server is unreachable, each of four instances limits locally.
/// let rule = rule.on_backend_failure(FailureMode::Local).local_share(0.25);
/// let limiter = RateLimiter::builder().policy(Policy::new().rule(rule)).backend(redis).build()?;
/// # Ok(())
/// # }
/// ```
///
/// A clone is the same backend, with the same connections. Limiters share their
/// counters if they have the same prefix, and rules of the same id.
///
/// # Runtimes
///
/// A thread of the backend's own drives its connections and a few tasks for as long as
/// the backend exists. Requests may come from any runtime, or from none: what becomes
/// of the runtime that the backend was created on does not matter.
///
/// # Guarantees
///
/// - **All or nothing, exactly.** One script reads, decides and writes all tiers
///   of all rules that apply, by the server's clock in whole microseconds. The
///   instances together never exceed a limit, and a rejection writes nothing.
///   Algorithms decide as those of [`Local`](super::Local) do. In a cluster this
///   holds within a hash slot, which has everything that a tenant is charged. A
///   request that is charged in several hash slots is never admitted beyond a
///   limit. But what one slot has charged is refunded only after another has
///   rejected, and until then other requests may be rejected for it.
/// - **At most one round trip** per decision. Requests that arrive during a call
///   are sent together in the next one. Rejections are cached in-process for up
///   to [`rejection_cache_ttl`](RedisBuilder::rejection_cache_ttl), except for
///   rules that wait, settle afterwards or limit concurrency; a cached rejection
///   needs no round trip. A second round trip is needed if the server has lost
///   its scripts, if a hash slot has moved, or to check a connection that was idle
///   for a second; and up
///   to four if a request that may wait is charged in several hash slots.
/// - **Bounded time.** A decision takes at most the
///   [`deadline`](RedisBuilder::deadline), queueing included (for each of the
///   round trips to several hash slots). After that it fails, and each rule's
///   [`FailureMode`](crate::FailureMode) applies. On a machine that is late a
///   timeout fires as much later, and 5 ms.
/// - **Connections may be closed between requests.** Servers (`timeout`) and
///   proxies close them. The backend notices that at once, and the next request
///   waits for a new connection, within the deadline. One that was idle for a second
///   is also checked by a `PING` before it is used. Neither is a failure: it does not
///   open the circuit breaker.
/// - **Never charged twice.** Nothing is sent again that may have run. A request
///   whose reply is lost, or that does not wait for it, may have been charged;
///   but a future reservation is refunded when its reply arrives after all.
/// - **Circuit breaker.** After a number of [consecutive
///   failures](RedisBuilder::breaker) or one connection that is lost during a call it
///   opens, and rules apply their failure mode at once. A background probe closes it
///   again. A cluster has one for each node, so a dead node concerns only its own keys.
///
/// # Data loss
///
/// A key whose counter is lost starts with a full quota: at most one more limit is
/// admitted, which is its burst, or what a window admits. This concerns all keys after a
/// restart without persistence. After a restart with it, or a failover, it
/// concerns what was used since the last write that was saved or replicated:
/// replication is asynchronous. [`stats`](Self::stats) counts the losses that
/// were detected. The backend checks for them on each connection, and once a
/// second while requests arrive.
///
/// With one server, or behind sentinels, `PREFIX:epoch` stores a dataset id and
/// a last-seen time. If the key is gone, has another id, or a last-seen time
/// before ours (an old snapshot, a replica that lagged), data was lost. In a
/// cluster a node's restart or failover counts as well, if the user may run
/// `INFO`; but not a node that is emptied while it runs.
///
/// Units in flight are held on leases, of 30 s by default, renewed at every
/// third of that. The units of an instance that crashed return after one lease.
/// An instance that is paused or disconnected for longer may find that others
/// hold its units; both then count, so that more than the limit may be in
/// flight. Leases that the server lost are restored by the next renewal.
///
/// # A clock that is set back
///
/// The server's clock decides. After it was set back, or after a failover to a
/// host whose clock is behind, counters are ahead of it. The backend notices
/// that by `PREFIX:epoch`, when it connects and once a second while requests
/// arrive, and logs a warning. Until the clock has caught up, it moves back each
/// counter that is further ahead than its capacity or window and the longest
/// wait. So a key is rejected for at most that long, not for the whole jump. What
/// was used stays used; of a debt, what exceeds this bound is forgiven.
///
/// The longest wait is the rule's [`max_wait`](crate::Rule::max_wait), or the
/// longest that any request to this instance has allowed. Where some instances
/// wait and others do not, set `max_wait`: else the latter would take
/// reservations of the former for counters from the future. A jump of less than
/// a second is ignored. In a cluster only the node that has `PREFIX:epoch` is
/// watched.
///
/// # Shared cooldowns
///
/// When an upstream asks one instance to pause
/// ([`cool_down`](crate::RateLimiter::cool_down), which a
/// [client](crate::RateLimitLayer::client) calls for its responses), the backend
/// tells the others in the background: usually within some milliseconds, without
/// a guarantee. Cooldowns are broadcast as (key, remaining time), so the
/// instances' clocks need not agree. They are published to the channel
/// `PREFIX:cooldowns`, and kept for up to an hour in the sorted set of the same
/// name for instances that start later. It has at most 4,096 keys, with names of
/// at most 1,024 bytes; beyond that, the cooldowns that end first are dropped.
/// An instance that receives a cooldown applies its own policy and its own
/// jitter, and never ends a cooldown early for it.
///
/// An instance with a client receives cooldowns over a connection that decides as
/// well; one that only serves receives none. If the server is unreachable, or denies
/// publishing or subscribing, each instance applies only its own cooldowns, and logs
/// that once. When it can subscribe again it reads what it has missed, as it does
/// every ten seconds in any case. A restart of the server loses the cooldowns
/// that it keeps, not those that instances have received.
///
/// # Bounds
///
/// - Limits above 2,251,799,813,685 count as that in buckets, and above 2^51
///   elsewhere. Rates that no fraction of 32 bits expresses are slower, by less
///   than (1 + units per microsecond) / 2^31.
/// - Windows, and the time that a burst takes, count as 2^51 µs (71 years) if
///   they are longer, and are rounded up to whole microseconds. Windows of
///   buckets up to 26 days are exact.
/// - A request that is charged more than 50 tiers fails
///   ([`Unsupported`](crate::error::BackendErrorKind::Unsupported)).
/// - Two calls run at the same time on each connection, or on each of 256 lanes
///   of a cluster, among which the tenants are divided. Behind them up to 64
///   times [`max_batch`](RedisBuilder::max_batch) requests are queued; the next
///   one fails.
/// - On the server a counter has one key of some 180 bytes, name included. A
///   log, or a concurrency limit, has a sorted set beside it, with at most one
///   entry per admission. Each key has a TTL. The number of keys is not bounded:
///   use `maxmemory` with `noeviction`, since an evicted counter is lost.
///
/// # Errors
///
/// [`connect`](Self::connect) names the cause: see [`RedisBuilder::connect`].
/// Later, an error means that a decision has failed, and the rules' failure
/// modes apply. Its [`kind`](BackendError::kind) is `Timeout` beyond the
/// deadline; `Unavailable` if there is no connection, or if the server is
/// loading, busy, out of memory or a replica; `Misconfigured` if the server
/// denies access, or if a key under the prefix is no counter of this version,
/// which is never overwritten; `Unsupported` as above.
///
/// # Settings
///
/// | [`Redis::builder`] | default | |
/// |---|---|---|
/// | [`url`](RedisBuilder::url), [`cluster`](RedisBuilder::cluster), [`sentinel`](RedisBuilder::sentinel) | `redis://127.0.0.1:6379` | where the server is |
/// | [`username`](RedisBuilder::username), [`password`](RedisBuilder::password), [`database`](RedisBuilder::database) | those of the URL | override the URL |
/// | `root_certificate`, `client_certificate` | Mozilla's roots; none | feature `tls`, for `rediss://` |
/// | [`prefix`](RedisBuilder::prefix) | `rl` | the prefix of all keys |
/// | [`connections`](RedisBuilder::connections) | 1 | 1 to 1024; a cluster has one to each node |
/// | [`connect_timeout`](RedisBuilder::connect_timeout) | 1 s | for each server |
/// | [`deadline`](RedisBuilder::deadline) | 50 ms | for a decision |
/// | [`breaker`](RedisBuilder::breaker) | 5, 100 ms, 5 s | consecutive failures that open it; the shortest and longest delay before a probe, of which each takes half to all |
/// | [`max_batch`](RedisBuilder::max_batch) | 256 | decisions per call |
/// | [`rejection_cache_ttl`](RedisBuilder::rejection_cache_ttl) | 1 s | how long a rejection is cached, up to 65,536 of them |
/// | [`lease`](RedisBuilder::lease) | 30 s | how long a unit in flight is held without renewal |
#[derive(Clone)]
pub struct Redis {
    levels: Arc<Levels>,
    cooldowns: Arc<Cooldowns>,
}

/// The state of the store, see [`Redis::stats`].
///
/// ```no_run
/// # fn watch(redis: tower_ratelimit::backend::Redis) {
/// let stats = redis.stats();
/// println!("circuit breaker open: {}, data lost: {} times", stats.open, stats.memory_lost);
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisStats {
    /// Whether the circuit breaker is open or half-open: decisions fail at
    /// once. In a cluster: that of any node, whose keys cannot be decided.
    pub open: bool,
    /// How often the store was found to have lost counters: it was emptied, or
    /// restarted without its data, or with data that lacks more than the last
    /// second. In a cluster also how often a node was restarted or replaced,
    /// and may have lost its last writes.
    pub memory_lost: u64,
    /// How many instances have used a leased counter lately, as the store has seen
    /// them: at least 1, the most of any counter in the last 10 to 20 s. See
    /// [`Consistency`](crate::Consistency).
    pub instances: u64,
}

impl Redis {
    /// The state of the store.
    #[must_use]
    pub fn stats(&self) -> RedisStats {
        let link = &self.levels.dispatcher.link;
        RedisStats {
            open: link.is_open(),
            memory_lost: link.dataset.losses(),
            instances: self.levels.dispatcher.pools.instances.get(),
        }
    }

    fn new(link: Arc<Link>) -> Self {
        Self { cooldowns: Cooldowns::new(&link), levels: Levels::start(Dispatcher::new(link)) }
    }
}

impl Backend for Redis {
    fn decide(&self, request: &Request<'_>) -> Decide {
        if request.is_immediate() {
            return Decide::later(std::future::pending());
        }
        self.levels.decide(request)
    }

    fn refund(&self, receipt: &Receipt, now: Timestamp) {
        self.levels.dispatcher.change(receipt, ReceiptOp::Refund, now);
    }

    fn release(&self, receipt: &Receipt, now: Timestamp) {
        if receipt.holds_in_flight() {
            self.levels.dispatcher.change(receipt, ReceiptOp::Release, now);
        }
    }

    fn settle(&self, receipt: &Receipt, settlement: Settlement, now: Timestamp) {
        self.levels.dispatcher.change(receipt, ReceiptOp::Settle(settlement), now);
    }

    fn drain(&self, now: Timestamp) -> BoxFuture<'static, ()> {
        let levels = Arc::clone(&self.levels);
        Box::pin(async move { levels.drain(now).await })
    }

    fn peek(&self, request: &Request<'_>) -> Decide {
        self.levels.peek(request)
    }

    fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> BoxFuture<'static, Result<u64, BackendError>> {
        self.levels.reset(charges, now)
    }

    fn share_cooldown(&self, notice: &CooldownNotice<'_>) {
        self.cooldowns.publish(notice);
    }

    fn subscribe_cooldowns(&self, listener: Weak<CooldownListener>) {
        self.cooldowns.subscribe(listener);
    }

    fn extension(&self) -> Option<&dyn Extension> {
        Some(self)
    }
}

impl Extension for Redis {
    fn charge_leased(&self, charges: &[Charge<'_>], now: Timestamp, states: &mut ImmediateStates) -> bool {
        self.levels.charge_leased(charges, now.as_nanos(), &mut states.0)
    }

    fn honors_consistency(&self) -> bool {
        true
    }

    fn instances(&self) -> u64 {
        self.levels.dispatcher.pools.instances.get()
    }

    fn state(&self) -> Vec<(&'static str, String)> {
        let RedisStats { open, memory_lost, instances } = self.stats();
        let breaker = if open { "open" } else { "closed" };
        vec![
            ("circuit breaker", breaker.to_owned()),
            ("data losses", memory_lost.to_string()),
            ("instances that lease", instances.to_string()),
        ]
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("settings", &self.levels.dispatcher.link.settings).finish_non_exhaustive()
    }
}
