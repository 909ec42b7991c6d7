//! Several costs of one request: each rule counts in its unit, and all are decided together.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use tokio::{task::JoinSet, time::Instant};
use tower_ratelimit::{
    Algorithm, Descriptor, Permit, Policy, Quota, RateLimiter, Rule, policy::Unsettled, testing::TokioClock,
};

use super::Bench;

const MINUTE: Duration = Duration::from_secs(60);

fn requests(quota: Quota) -> Rule {
    Rule::new("requests").tier(quota)
}

fn tokens(quota: Quota) -> Rule {
    Rule::new("tokens").unit("tokens").tier(quota).settle(true)
}

fn both(requests_a_day: u64, tokens_a_day: u64) -> Bench {
    let day = |limit| Quota::per_day(limit).algorithm(Algorithm::FixedWindow);
    Bench::new(Policy::new().rule(requests(day(requests_a_day))).rule(tokens(day(tokens_a_day))))
}

/// What is left of each tier, in the rules' order.
async fn left(limiter: &RateLimiter) -> Vec<u64> {
    let asked = Descriptor::new("/").tenant("acme").cost(0).cost_in("tokens", 0).cost_in("output", 0);
    limiter.peek(&asked).await.tiers().iter().map(tower_ratelimit::TierStatus::remaining).collect()
}

async fn take(limiter: &RateLimiter, tokens: u64) -> Permit {
    let prompt = Descriptor::new("/").tenant("acme").cost_in("tokens", tokens);
    limiter.acquire(&prompt, Duration::ZERO).await.unwrap()
}

#[tokio::test]
async fn each_rule_is_charged_in_its_unit_and_all_together_or_none() {
    let Bench { limiter, .. } = both(3, 100);
    let prompt = |tokens| Descriptor::new("/").tenant("acme").cost_in("tokens", tokens);
    let decision = limiter.check(&prompt(60)).await;
    let tiers: Vec<_> = decision.tiers().iter().map(|tier| (tier.unit(), tier.remaining())).collect();
    assert_eq!(tiers, [("requests", 2), ("tokens", 40)]);
    let rejected = limiter.check(&prompt(41)).await;
    assert_eq!(rejected.tiers().iter().map(|tier| tier.is_violated()).collect::<Vec<_>>(), [false, true]);
    assert_eq!(left(&limiter).await, [2, 40], "no request is charged without its tokens");
    assert!(limiter.check(&prompt(0).cost(2)).await.is_allowed());
    assert!(!limiter.check(&prompt(40)).await.is_allowed(), "no tokens without its request");
    assert_eq!(left(&limiter).await, [0, 40]);
}

#[tokio::test]
async fn a_rules_cost_multiplies_what_is_stated_and_nothing_stated_is_nothing() {
    let dear = tokens(Quota::per_hour(100)).cost(3);
    let Bench { limiter, .. } = Bench::new(Policy::new().rule(dear));
    drop(take(&limiter, 5).await);
    assert_eq!(left(&limiter).await, [85]);
    assert!(limiter.check(&Descriptor::new("/").tenant("acme").cost(50)).await.is_allowed());
    assert_eq!(left(&limiter).await, [85]);
    // The last one that is stated counts, and `requests` is the unit of `cost`.
    let restated = Descriptor::new("/").tenant("acme").cost_in("tokens", 1).cost_in("tokens", 2);
    assert!(limiter.check(&restated).await.is_allowed());
    assert_eq!(left(&limiter).await, [79]);
    let Bench { limiter, .. } = Bench::new(Policy::new().rule(requests(Quota::per_hour(10)).unit("requests")));
    assert!(limiter.check(&Descriptor::new("/").tenant("acme").cost_in("requests", 4)).await.is_allowed());
    assert_eq!(left(&limiter).await, [6]);
}

#[tokio::test]
async fn a_permit_settles_by_unit() {
    let settling = requests(Quota::per_hour(10)).settle(true);
    let output = Rule::new("output").unit("output").tier(Quota::per_hour(1_000)).settle(true);
    let policy = Policy::new().rule(settling).rule(tokens(Quota::per_hour(1_000)).cost(2)).rule(output);
    let Bench { limiter, .. } = Bench::new(policy);
    let prompt = Descriptor::new("/").tenant("acme").cost_in("tokens", 100).cost_in("output", 1);
    let permit = limiter.acquire(&prompt, Duration::ZERO).await.unwrap();
    assert_eq!(left(&limiter).await, [9, 800, 999]);
    permit.settle_in("tokens", 120);
    permit.add_in("output", 9);
    assert_eq!(left(&limiter).await, [9, 760, 990]);
    permit.settle_in("tokens", 70);
    permit.give_back_in("output", 4);
    assert_eq!(left(&limiter).await, [9, 860, 994]);
    permit.try_add_in("output", 94).await.unwrap();
    permit.try_add_in("output", 901).await.expect_err("900 are left");
    assert_eq!(left(&limiter).await, [9, 860, 900]);
    // Of what was added and stated in this unit only.
    permit.give_back_in("tokens", 1_000);
    permit.settle_in("output", 30);
    assert_eq!(left(&limiter).await, [9, 1_000, 970]);
    permit.add(2);
    permit.settle_in("unknown", 500);
    assert_eq!(left(&limiter).await, [7, 1_000, 970]);
}

#[tokio::test]
async fn what_is_never_settled_stays_or_comes_back() {
    let limiter = |choice| Bench::new(Policy::new().rule(tokens(Quota::per_hour(100)).unsettled(choice))).limiter;
    let keeping = limiter(Unsettled::Keep);
    drop(take(&keeping, 30).await);
    assert_eq!(left(&keeping).await, [70]);
    let refunding = limiter(Unsettled::Refund);
    drop(take(&refunding, 30).await);
    assert_eq!(left(&refunding).await, [100]);
    let permit = take(&refunding, 30).await;
    permit.settle_in("tokens", 30);
    drop(permit);
    assert_eq!(left(&refunding).await, [70]);
    let permit = take(&refunding, 30).await;
    permit.try_add_in("tokens", 20).await.unwrap();
    drop(permit);
    assert_eq!(left(&refunding).await, [20], "settled in part");
}

#[tokio::test]
async fn what_costs_nothing_is_rejected_while_its_key_is_in_debt() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog] {
        let rule = tokens(Quota::per_day(100).algorithm(algorithm));
        let Bench { limiter, .. } = Bench::new(Policy::new().rule(rule));
        let nothing = Descriptor::new("/").tenant("acme").cost_in("tokens", 0);
        take(&limiter, 1).await.settle_in("tokens", 100);
        assert!(limiter.check(&nothing).await.is_allowed(), "{algorithm:?}: used up");
        let permit = limiter.acquire(&nothing, Duration::ZERO).await.unwrap();
        permit.settle_in("tokens", 50);
        assert!(!limiter.check(&nothing).await.is_allowed(), "{algorithm:?}: in debt");
    }
}

/// One call: it may be given up anywhere, and settles what it has used by then.
struct Call {
    permit: Permit,
    used: u64,
    total: Arc<AtomicU64>,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.permit.settle_in("tokens", self.used);
        self.total.fetch_add(self.used, Ordering::Relaxed);
    }
}

/// Polls so many times, and then gives up.
async fn give_up_after(polls: u64, future: impl Future<Output = ()>) {
    let (mut left, mut future) = (polls, pin!(future));
    poll_fn(|context| match left.checked_sub(1) {
        None => Poll::Ready(()),
        Some(fewer) => {
            left = fewer;
            future.as_mut().poll(context)
        }
    })
    .await;
}

#[tokio::test]
async fn what_is_charged_is_what_was_used_whoever_gives_up() {
    const TOKENS: u64 = 1_000_000;
    let Bench { limiter, .. } = both(1_000, TOKENS);
    let (total, admitted, mut calls) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default(), JoinSet::new());
    let mut random = 7_u64;
    for _ in 0..500 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (polls, estimate, chunk) = (random >> 60, random >> 40 & 127, random >> 30 & 63);
        let (limiter, total, admitted) = (limiter.clone(), Arc::clone(&total), Arc::clone(&admitted));
        calls.spawn(give_up_after(polls, async move {
            let mut call = Call { permit: take(&limiter, estimate).await, used: 0, total };
            admitted.fetch_add(1, Ordering::Relaxed);
            for step in 0..8 {
                if step % 3 == 0 {
                    call.permit.try_add_in("tokens", chunk).await.unwrap();
                }
                call.used += chunk;
                tokio::task::yield_now().await;
            }
        }));
    }
    calls.join_all().await;
    let (total, admitted) = (total.load(Ordering::Relaxed), admitted.load(Ordering::Relaxed));
    assert!(total > 20_000 && admitted > 400, "{admitted} calls used {total}");
    assert_eq!(left(&limiter).await, [1_000 - admitted, TOKENS - total]);
}

/// The tokens a minute of a gateway.
const LIMIT: u64 = 100;

/// What fifty callers of a gateway use in ten minutes of paused time. `costs` gives for each
/// call what it counts as while it is in flight, of which there is never more than the limit,
/// and what it takes.
#[allow(clippy::disallowed_methods, reason = "time is paused, and calls take some")]
async fn used_by_fifty(prompt: Descriptor<'static>, costs: fn(u64) -> [u64; 2]) -> u64 {
    let policy = Policy::new().rule(requests(Quota::per_second(1_000))).rule(tokens(Quota::per_minute(LIMIT)));
    let limiter = RateLimiter::builder().policy(policy).clock(TokioClock::default()).build().unwrap();
    let [calls, used, in_flight] = std::array::from_fn(|_| Arc::<AtomicU64>::default());
    let (mut callers, end) = (JoinSet::new(), Instant::now() + 10 * MINUTE);
    for index in 0..50 {
        let (limiter, prompt) = (limiter.clone(), prompt.clone());
        let [calls, used, in_flight] = [&calls, &used, &in_flight].map(Arc::clone);
        callers.spawn(async move {
            while Instant::now() < end {
                match limiter.acquire(&prompt, Duration::ZERO).await {
                    Ok(permit) => {
                        let [held, takes] = costs(calls.fetch_add(1, Ordering::Relaxed));
                        let all = in_flight.fetch_add(held, Ordering::Relaxed) + held;
                        assert!(all <= LIMIT, "{all} in flight");
                        tokio::time::sleep(Duration::from_millis(800 + 10 * index)).await;
                        permit.settle_in("tokens", takes);
                        in_flight.fetch_sub(held, Ordering::Relaxed);
                        used.fetch_add(takes, Ordering::Relaxed);
                    }
                    Err(rejected) => tokio::time::sleep(rejected.retry_after().unwrap()).await,
                }
            }
        });
    }
    callers.join_all().await;
    assert_eq!(in_flight.load(Ordering::Relaxed), 0);
    used.load(Ordering::Relaxed)
}

/// Callers that estimate 20 tokens for an answer that takes 30: where tokens are charged only
/// afterwards, all of them are admitted at once.
#[tokio::test(start_paused = true)]
async fn estimates_that_are_too_low_neither_exceed_the_limit_in_flight_nor_waste_it() {
    let prompt = Descriptor::new("/v1/chat").tenant("acme").cost_in("tokens", 20);
    let used = used_by_fifty(prompt, |_| [20, 30]).await;
    // The burst, ten minutes, and what the last ones in flight took above their estimate.
    assert!((1_100 * 95 / 100..=1_100 + 5 * 10).contains(&used), "{used} tokens");
}

/// Callers that do not know what an answer takes: 10 to 40 tokens. The most that it can take is
/// the whole limit.
#[tokio::test(start_paused = true)]
async fn without_estimates_the_usual_cost_is_reserved() {
    let prompt = Descriptor::new("/v1/chat").tenant("acme").cost_at_most("tokens", LIMIT);
    let used = used_by_fifty(prompt, |call| [10 * (1 + call * 7 % 4); 2]).await;
    assert!((1_100 * 95 / 100..=1_100).contains(&used), "{used} tokens");
}

#[tokio::test]
async fn the_usual_cost_is_the_keys_own_and_the_same_for_all_rules_of_a_unit() {
    let shared = Rule::new("shared").per([]).unit("tokens").tier(Quota::per_day(1_000_000)).settle(true);
    let policy = |a_day| Policy::new().rule(tokens(Quota::per_day(a_day)).cost(2)).rule(shared.clone());
    let Bench { limiter, .. } = Bench::new(policy(1_000_000));
    let unknown = |tenant: &'static str| Descriptor::new("/").tenant(tenant).cost_at_most("tokens", 900);
    let settle = async |tenant, cost| {
        let permit = limiter.acquire(&unknown(tenant), Duration::ZERO).await.unwrap();
        permit.settle_in("tokens", cost);
    };
    // What both rules charge of a request that is admitted now.
    let reserves = async |tenant: &'static str| {
        let before = limiter.peek(&unknown(tenant).cost_in("tokens", 0)).await;
        let after = limiter.acquire(&unknown(tenant), Duration::ZERO).await.unwrap();
        let tiers = before.tiers().iter().zip(after.decision().tiers());
        tiers.map(|(before, after)| before.remaining() - after.remaining()).collect::<Vec<_>>()
    };
    assert_eq!(reserves("acme").await, [1_800, 900], "the most");
    for cost in 1..=19 {
        settle("acme", cost).await;
    }
    assert_eq!(reserves("acme").await, [1_800, 900], "too few are known, and one was never settled");
    settle("acme", 50).await;
    assert_eq!(reserves("acme").await, [38, 19]);
    // At most two of twenty others share a class with it.
    let mut others = 0;
    for tenant in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t"] {
        others += usize::from(reserves(tenant).await == [1_800, 900]);
    }
    assert!(others >= 10, "{others} of 20 reserve the most");
    limiter.set_policy(policy(2_000_000)).unwrap();
    assert_eq!(reserves("acme").await, [38, 19], "a reload keeps what is known");
    // A most that is lower bounds it, and who knows the cost is charged that.
    let bounded = Descriptor::new("/").tenant("acme").cost_at_most("tokens", 5);
    let [before, after] = [limiter.peek(&bounded.clone().cost_in("tokens", 0)).await, limiter.check(&bounded).await];
    assert_eq!(before.tiers()[1].remaining() - after.tiers()[1].remaining(), 5);
}
