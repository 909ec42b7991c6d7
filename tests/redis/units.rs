//! Several costs of one request, at each level: what is charged in the end is what was used.

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

use tokio::task::JoinSet;
use tower_ratelimit::{Algorithm, Consistency, Descriptor, FailureMode, Permit, Policy, Quota, RateLimiter, Rule};

use super::{limiter, patient, server::Server, shared_machine, until};

const TOKENS: u64 = 1_000_000;
const REQUESTS: u64 = 10_000;

/// What is reserved for each call: some use more, some less.
const ESTIMATE: u64 = 101;

fn policy(level: Consistency, is_alone: bool) -> Policy {
    let rule = |id: &str, limit| {
        let day = Quota::per_day(limit).algorithm(Algorithm::FixedWindow);
        Rule::new(id).tier(day).consistency(level).on_backend_failure(FailureMode::Closed)
    };
    let policy = Policy::new().rule(rule("tokens", TOKENS).unit("tokens").settle(true));
    if is_alone { policy } else { policy.rule(rule("requests", REQUESTS)) }
}

async fn left(limiter: &RateLimiter) -> Vec<u64> {
    let asked = Descriptor::new("/").tenant("acme").cost(0).cost_in("tokens", 0);
    limiter.peek(&asked).await.tiers().iter().map(tower_ratelimit::TierStatus::remaining).collect()
}

/// How often something happened.
#[derive(Default)]
struct Seen {
    /// Tokens that calls have used.
    used: AtomicU64,
    admitted: AtomicU64,
    /// Given up before it was known whether they are admitted.
    unknown: AtomicU64,
    /// Given up while they added tokens.
    adding: AtomicU64,
}

/// One call: it may be given up anywhere, and settles what it has used by then.
struct Call {
    permit: Permit,
    used: u64,
    is_adding: bool,
    seen: Arc<Seen>,
}

impl Call {
    async fn run(mut self, chunk: u64) {
        for step in 0..8 {
            if step % 3 == 0 {
                self.is_adding = true;
                self.permit.try_add_in("tokens", chunk).await.unwrap();
                self.is_adding = false;
            }
            self.used += chunk;
            tokio::task::yield_now().await;
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.permit.settle_in("tokens", self.used);
        self.seen.used.fetch_add(self.used, Ordering::Relaxed);
        self.seen.adding.fetch_add(self.is_adding.into(), Ordering::Relaxed);
    }
}

/// Polls so many times, and then gives up: `None`.
async fn give_up_after<T>(polls: &mut u64, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|context| match polls.checked_sub(1) {
        None => Poll::Ready(None),
        Some(fewer) => {
            *polls = fewer;
            future.as_mut().poll(context).map(Some)
        }
    })
    .await
}

async fn call(limiter: RateLimiter, seen: Arc<Seen>, random: u64) {
    let (mut polls, chunk) = (random >> 60, random >> 30 & 63);
    let prompt = Descriptor::new("/").tenant("acme").cost_in("tokens", ESTIMATE);
    let Some(permit) = give_up_after(&mut polls, limiter.acquire(&prompt, Duration::ZERO)).await else {
        seen.unknown.fetch_add(1, Ordering::Relaxed);
        return;
    };
    seen.admitted.fetch_add(1, Ordering::Relaxed);
    let call = Call { permit: permit.unwrap(), used: 0, is_adding: false, seen };
    give_up_after(&mut polls, call.run(chunk)).await;
}

/// A call that is given up before it is known to be admitted is charged as if it had been
/// served, or not at all. Any other is charged what it has used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_charged_is_what_was_used_whoever_gives_up() {
    let _machine = shared_machine().await;
    for (level, is_alone) in [(Consistency::Exact, false), (Consistency::Leased, false), (Consistency::Leased, true)] {
        let server = Server::start().await;
        let redis = patient(server.url()).await;
        let limiter = limiter(policy(level, is_alone), &redis);
        let (seen, mut calls) = (Arc::<Seen>::default(), JoinSet::new());
        let mut random = 7_u64;
        for _ in 0..300 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            calls.spawn(call(limiter.clone(), Arc::clone(&seen), random));
        }
        calls.join_all().await;
        let [used, admitted, unknown, adding] =
            [&seen.used, &seen.admitted, &seen.unknown, &seen.adding].map(|count| count.load(Ordering::Relaxed));
        assert!(used > 5_000 && admitted > 150, "{admitted} calls used {used}");
        assert!(level != Consistency::Exact || unknown > 0 && adding > 0, "{unknown} and {adding} gave up in flight");
        // What was settled is on its way, and leased units are given back.
        let what = format!("{used} tokens of {admitted} calls to be settled: {level:?}, alone {is_alone}");
        let exact = super::limiter(policy(Consistency::Exact, is_alone), &redis);
        until(&what, async || {
            limiter.drain().await;
            let left = left(&exact).await;
            let tokens = TOKENS - left[0];
            let served = match left.get(1) {
                Some(requests) => REQUESTS - requests,
                None => admitted + tokens.saturating_sub(used) / ESTIMATE,
            };
            let is_settled = (admitted..=admitted + unknown).contains(&served);
            (is_settled && tokens == used + (served - admitted) * ESTIMATE).then_some(())
        })
        .await;
    }
}
