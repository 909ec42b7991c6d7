//! One keyed decision, without any middleware around it.

use std::{collections::HashMap, hint::black_box, num::NonZeroU32, sync::Arc, time::Duration};

use limitador::limit::{Context, Expression, Limit, Namespace};
use throttle_kit::InMemoryBackend;
use tower::{Layer, Service};
use tower_resilience_ratelimiter::RateLimiterLayer;

use crate::{
    keys,
    race::{Contestant, Meter, Plan, now, race},
    table::{Table, figure, times},
};

/// The burst, so large that no request is ever rejected.
pub const PLENTY: u32 = 1_000_000_000;

/// The refill interval of one unit, so long that a used key never becomes idle
/// during a run. Otherwise a limiter could drop the state of full buckets.
pub const REFILL: Duration = Duration::from_secs(10);

pub fn section(plan: Plan) {
    for (what, count) in
        [("1,000 keys", 1_000), ("100,000 keys", 100_000), ("1,000,000 keys", 1_000_000), ("one hot key", 1)]
    {
        let mut table = Table::new(
            format!("Keyed decision, {what}"),
            [
                "crate",
                "threads",
                "ns a decision and thread",
                "million decisions/s",
                "allocations",
                "times cheaper than governor",
            ],
        );
        let contestants = contestants(count);
        for threads in [1, 2] {
            let streams: Vec<_> = (1..=threads).map(|seed| keys::stream(count, seed, keys::tenant)).collect();
            let outcomes = race(&contestants, &streams, plan);
            for outcome in &outcomes {
                table.row([
                    outcome.name.to_owned(),
                    threads.to_string(),
                    outcome.nanos().to_string(),
                    figure(threads as f64 * 1e3 / outcome.nanos().median),
                    figure(outcome.allocations),
                    times(outcome.paired(&outcomes[0], |own, governor| governor / own)),
                ]);
            }
        }
        table.print();
    }
    println!(
        "\n`tower-resilience-ratelimiter` has no keys and no limiter outside its service: it is \
         measured as a whole, over a no-op service, on the one hot key only."
    );
}

/// Ratios refer to the first contestant.
fn contestants(keys: usize) -> Vec<Contestant<String>> {
    let mut all = vec![governor(), rate_net(), throttle_kit(), limitador()];
    if keys == 1 {
        all.push(tower_resilience());
    }
    #[cfg(feature = "ours")]
    all.push(crate::ours::decision());
    all
}

/// `thread` creates the decision function of one thread.
pub fn contestant<D>(name: &'static str, thread: impl Fn() -> D + Send + Sync + 'static) -> Contestant<String>
where
    D: FnMut(&String) -> bool,
{
    Contestant::new(name, move |tenants, start, calls| {
        let mut allowed = thread();
        let mut meter = Meter::default();
        let rejected = meter.measure(|| {
            let mut rejected = 0;
            let mut at = start;
            for _ in 0..calls {
                rejected += usize::from(!allowed(black_box(&tenants[at])));
                at += 1;
                if at == tenants.len() {
                    at = 0;
                }
            }
            rejected
        });
        assert_eq!(rejected, 0, "{name} rejected within its limit");
        meter
    })
}

fn governor() -> Contestant<String> {
    let limiter = Arc::new(governor_limiter());
    contestant("governor", move || {
        let limiter = Arc::clone(&limiter);
        move |tenant| limiter.check_key(tenant).is_ok()
    })
}

pub fn governor_limiter() -> governor::DefaultKeyedRateLimiter<String> {
    let plenty = NonZeroU32::new(PLENTY).expect("plenty is not zero");
    let quota = governor::Quota::with_period(REFILL).expect("a refill takes time");
    governor::RateLimiter::keyed(quota.allow_burst(plenty))
}

fn rate_net() -> Contestant<String> {
    let limiter = Arc::new(rate_net_limiter());
    contestant("rate-net", move || {
        let limiter = Arc::clone(&limiter);
        move |tenant| limiter.check(tenant.as_str()).is_allow()
    })
}

pub fn rate_net_limiter() -> rate_net::RateLimiter {
    let quota = rate_net::Quota::rate(1, REFILL).expect("a valid quota");
    rate_net::RateLimiter::with_quota(quota.with_burst(PLENTY))
}

fn throttle_kit() -> Contestant<String> {
    let limiter = Arc::new(throttle_kit_limiter());
    contestant("throttle-kit", move || {
        let limiter = Arc::clone(&limiter);
        move |tenant| now(limiter.check(tenant)).allowed
    })
}

pub fn throttle_kit_quota() -> throttle_kit::Quota {
    throttle_kit::Quota::from_parts(REFILL, PLENTY)
}

pub fn throttle_kit_limiter() -> throttle_kit::RateLimiter<InMemoryBackend> {
    throttle_kit::RateLimiter::new(throttle_kit_quota(), InMemoryBackend::new())
}

fn limitador() -> Contestant<String> {
    let limiter = Arc::new(Limitador::new());
    contestant("limitador", move || {
        let limiter = Arc::clone(&limiter);
        move |tenant| limiter.allows(tenant)
    })
}

/// `limitador` counting per tenant; it takes its variables as owned strings.
pub struct Limitador {
    limiter: limitador::RateLimiter,
    namespace: Namespace,
}

impl Limitador {
    pub fn new() -> Self {
        // A fixed window, so long that it does not end during a run.
        Self::of_windows(&[86_400])
    }

    /// One limit for each window, in seconds.
    pub fn of_windows(windows: &[u64]) -> Self {
        // Capacity for twice the number of keys, so that no key is evicted.
        let limiter = limitador::RateLimiter::new(2_000_000);
        for window in windows {
            let tenant = Expression::try_from("tenant").expect("a variable");
            limiter.add_limit(Limit::new("peers", u64::from(u32::MAX), *window, [], [tenant]));
        }
        Self { limiter, namespace: Namespace::from("peers") }
    }

    pub fn allows(&self, tenant: &str) -> bool {
        let values = HashMap::from([("tenant".to_owned(), tenant.to_owned())]);
        let context = Context::from(values);
        let result = self.limiter.check_rate_limited_and_update(&self.namespace, &context, 1);
        result.is_ok_and(|result| !result.limited)
    }
}

fn tower_resilience() -> Contestant<String> {
    let layer = RateLimiterLayer::burst(PLENTY as usize, PLENTY as usize)
        .timeout_duration(Duration::ZERO)
        .build()
        .expect("a valid configuration");
    let nothing = tower::service_fn(|()| std::future::ready(Ok::<_, std::convert::Infallible>(())));
    let service = layer.layer(nothing);
    let service = std::sync::Mutex::new(service);
    contestant("tower-resilience-ratelimiter", move || {
        let mut service = service.lock().expect("a lock that is not poisoned").clone();
        move |_| now(service.call(())).is_ok()
    })
}
