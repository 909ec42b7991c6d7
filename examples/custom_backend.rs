//! A backend of one's own: fixed windows in a map behind a lock.
//!
//! `cargo run --example custom_backend`

use std::sync::{Mutex, PoisonError};
use std::{collections::HashMap, time::Duration};

use tower_ratelimit::backend::{Backend, Decide, Outcome, Receipt, Request};
use tower_ratelimit::{Descriptor, Policy, Quota, RateLimiter, Rule, time::Timestamp};

/// For each key and each of its tiers, the last window's number and count. A
/// sketch: it never forgets a key.
#[derive(Debug, Default)]
struct WindowMap(Mutex<HashMap<Counter, (u128, u64)>>);

type Counter = (u128, usize);

/// What one tier of one charge has counted.
struct Count {
    counter: Counter,
    window: u128,
    used: u64,
    cost: u64,
    limit: u64,
    left: Duration,
    passes: bool,
}

impl Backend for WindowMap {
    fn decide(&self, request: &Request<'_>) -> Decide {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut counts = Vec::new();
        for charge in request.charges {
            for (index, tier) in charge.tiers().iter().enumerate() {
                let (now, length) = (u128::from(request.now.as_nanos()), tier.quota().window().as_nanos());
                let (counter, window) = ((charge.fingerprint(), index), now / length);
                let used = map.get(&counter).filter(|last| last.0 == window).map_or(0, |last| last.1);
                let left = Duration::from_nanos(u64::try_from(length - now % length).unwrap_or(u64::MAX));
                let (cost, limit) = (charge.cost(), tier.quota().limit());
                let passes = used.saturating_add(cost) <= limit;
                counts.push(Count { counter, window, used, cost, limit, left, passes });
            }
        }
        // All must pass before any is charged.
        let admitted = counts.iter().all(|count| count.passes);
        let mut outcome = Outcome::admitted(Duration::ZERO);
        if !admitted {
            let never = counts.iter().any(|count| count.cost > count.limit);
            let left = counts.iter().filter(|count| !count.passes).map(|count| count.left).max();
            outcome = Outcome::rejected(left.filter(|_| !never));
        }
        for count in counts {
            let used = if admitted { count.used + count.cost } else { count.used };
            outcome = outcome.tier(count.limit.saturating_sub(used), count.left, !count.passes);
            map.insert(count.counter, (count.window, used));
        }
        Decide::Now(Ok(outcome))
    }

    // What was charged stays charged: less is admitted, never more.
    fn refund(&self, _: &Receipt, _: Timestamp) {}
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let week = Duration::from_secs(7 * 86_400);
    let reports = Rule::new("reports").tier(Quota::new(3, week)).tier(Quota::new(5, 52 * week));
    let limiter = RateLimiter::builder().policy(Policy::new().rule(reports)).backend(WindowMap::default()).build()?;

    let steps = [("acme", 2, true), ("acme", 2, false), ("acme", 1, true), ("globex", 3, true), ("acme", 9, false)];
    for (tenant, cost, expected) in steps {
        let decision = limiter.check(&Descriptor::new("/").tenant(tenant).cost(cost)).await;
        println!(
            "{tenant} asks for {cost}: {:?}, {} left",
            decision.verdict(),
            decision.remaining().unwrap_or_default()
        );
        assert_eq!(decision.is_allowed(), expected);
    }
    Ok(())
}
