//! What becomes of leased units and of local copies when the store fails over, and when
//! an instance is paused.

use std::time::Duration;

use tokio::{
    runtime::{Builder, Runtime},
    time::Instant,
};
use tower_ratelimit::{Algorithm, Consistency, FailureMode, Policy, Quota, RateLimiter, Rule, backend::Redis};

use super::{
    Seen, ask, limiter, patient,
    sentinel::{MASTER, Watched},
    server::Server,
    shared_machine, until,
};

const LEVELS: [Consistency; 2] = [Consistency::Leased, Consistency::Eventual];
const LIMIT: usize = 1_000;

/// A copy that is older than this decides nothing: some intervals.
const STALE: Duration = Duration::from_millis(500);

fn policy(level: Consistency) -> Policy {
    let day = Quota::per_day(LIMIT as u64).algorithm(Algorithm::FixedWindow);
    let rule = Rule::new("day").tier(day).consistency(level);
    Policy::new().rule(rule.on_backend_failure(FailureMode::Closed))
}

async fn admitted(limiter: &RateLimiter, tries: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..tries {
        admitted += usize::from(ask(limiter, "/", "acme").await == Seen::Admitted);
    }
    admitted
}

/// The replica has all that was given back and reported before the failover, and what
/// the instance has reserved or counted since is part of the same limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_keeps_what_was_used_at_every_level() {
    let _machine = shared_machine().await;
    for level in LEVELS {
        let mut servers = Watched::start().await;
        let redis = Redis::builder().sentinel(MASTER, [servers.sentinel.url()]).deadline(Duration::from_millis(500));
        let redis = redis.connect().await.unwrap();
        let limiter = limiter(policy(level), &redis);
        let before = admitted(&limiter, 400).await;
        assert_eq!(before, 400, "{level:?}");
        limiter.drain().await;
        servers.replicated().await;
        servers.fail_over().await;
        let mut all = before;
        until("the new primary to decide", async || {
            all += admitted(&limiter, 1).await;
            (ask(&limiter, "/", "another").await != Seen::Failed).then_some(())
        })
        .await;
        all += admitted(&limiter, 2 * LIMIT).await;
        assert_eq!(redis.stats().memory_lost, 0, "{level:?}: nothing was lost");
        assert!(all <= LIMIT, "{level:?}: {all} admitted");
        assert!(all > LIMIT * 9 / 10, "{level:?}: {all} admitted");
    }
}

/// An instance on a runtime that runs only while the test says so.
struct Paused {
    runtime: Runtime,
    limiter: RateLimiter,
}

impl Paused {
    fn new(url: String, level: Consistency) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let limiter = runtime.block_on(async { limiter(policy(level), &patient(url).await) });
        Self { runtime, limiter }
    }

    fn admit(&self, tries: usize) -> usize {
        self.runtime.block_on(admitted(&self.limiter, tries))
    }
}

/// What a paused instance has reserved stays its own. Of what it has only a copy, others
/// may use all: it does not decide by the copy when it goes on.
#[test]
fn a_paused_instance_admits_nothing_that_others_have_used() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let _machine = runtime.block_on(shared_machine());
    for level in LEVELS {
        let server = runtime.block_on(Server::start());
        let paused = Paused::new(server.url(), level);
        let mut all = paused.admit(100);
        assert_eq!(all, 100, "{level:?}");
        paused.runtime.block_on(async {
            if level == Consistency::Eventual {
                paused.limiter.drain().await;
            }
        });
        runtime.block_on(async {
            let other = limiter(policy(level), &patient(server.url()).await);
            let start = Instant::now();
            until("the others to use up the limit", async || {
                let more = admitted(&other, 50).await;
                all += more;
                (more == 0 && start.elapsed() > STALE).then_some(())
            })
            .await;
        });
        all += paused.admit(2 * LIMIT);
        assert!(all <= LIMIT, "{level:?}: {all} admitted");
        assert!(all > LIMIT / 2, "{level:?}: {all} admitted");
    }
}
