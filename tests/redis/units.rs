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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_charged_is_what_was_used_whoever_gives_up() {
    let _machine = shared_machine().await;
    for (level, is_alone) in [(Consistency::Exact, false), (Consistency::Leased, false), (Consistency::Leased, true)] {
        let server = Server::start().await;
        let redis = patient(server.url()).await;
        let limiter = limiter(policy(level, is_alone), &redis);
        let (total, admitted, mut calls) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default(), JoinSet::new());
        let mut random = 7_u64;
        for _ in 0..300 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (polls, estimate, chunk) = (random >> 60, random >> 40 & 127, random >> 30 & 63);
            let (limiter, total, admitted) = (limiter.clone(), Arc::clone(&total), Arc::clone(&admitted));
            calls.spawn(give_up_after(polls, async move {
                let prompt = Descriptor::new("/").tenant("acme").cost_in("tokens", estimate);
                let permit = limiter.acquire(&prompt, Duration::ZERO).await.unwrap();
                let mut call = Call { permit, used: 0, total };
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
        assert!(total > 5_000 && admitted > 150, "{admitted} calls used {total}");
        // What was settled is on its way, and leased units are given back.
        let mut expected = vec![TOKENS - total, REQUESTS - admitted];
        expected.truncate(if is_alone { 1 } else { 2 });
        let exact = super::limiter(policy(Consistency::Exact, is_alone), &redis);
        until("all to be settled", async || {
            limiter.drain().await;
            (left(&exact).await == expected).then_some(())
        })
        .await;
    }
}
