//! What becomes of leased units when the store fails over, and when an instance is paused.

use std::time::Duration;

use tokio::{
    runtime::{Builder, Runtime},
    time::Instant,
};
use tower_ratelimit::{
    Algorithm, Consistency, Descriptor, FailureMode, Policy, Quota, RateLimiter, Rule, backend::Redis,
};

use super::{
    LONG, Seen, ask, closed, limiter, patient,
    sentinel::{MASTER, Watched},
    server::Server,
    shared_machine, until,
};

const LIMIT: usize = 1_000;

/// What was reserved longer ago than this is not needed any more: some intervals.
const STALE: Duration = Duration::from_millis(500);

fn policy() -> Policy {
    let day = Quota::per_day(LIMIT as u64).algorithm(Algorithm::FixedWindow);
    let rule = Rule::new("day").tier(day).consistency(Consistency::Leased);
    Policy::new().rule(rule.on_backend_failure(FailureMode::Closed))
}

async fn admitted(limiter: &RateLimiter, tries: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..tries {
        admitted += usize::from(ask(limiter, "/", "acme").await == Seen::Admitted);
    }
    admitted
}

/// The replica has all that was given back before the failover, and what the instance has
/// reserved since is part of the same limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_keeps_what_was_used() {
    let _machine = shared_machine().await;
    let mut servers = Watched::start().await;
    let redis = Redis::builder().sentinel(MASTER, [servers.sentinel.url()]).deadline(Duration::from_millis(500));
    let redis = redis.connect().await.unwrap();
    let limiter = limiter(policy(), &redis);
    let before = admitted(&limiter, 400).await;
    assert_eq!(before, 400);
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
    assert_eq!(redis.stats().memory_lost, 0, "nothing was lost");
    assert!(all <= LIMIT, "{all} admitted");
    assert!(all > LIMIT * 9 / 10, "{all} admitted");
}

/// An instance on a runtime that runs only while the test says so.
struct Paused {
    runtime: Runtime,
    limiter: RateLimiter,
}

impl Paused {
    fn new(url: String) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let limiter = runtime.block_on(async {
            limiter(policy(), &Redis::builder().url(url).deadline(LONG).on_current_runtime().connect().await.unwrap())
        });
        Self { runtime, limiter }
    }

    fn admit(&self, tries: usize) -> usize {
        self.runtime.block_on(admitted(&self.limiter, tries))
    }
}

/// What a paused instance has reserved stays its own.
#[test]
fn a_paused_instance_admits_nothing_that_others_have_used() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let _machine = runtime.block_on(shared_machine());
    let server = runtime.block_on(Server::start());
    let paused = Paused::new(server.url());
    let mut all = paused.admit(100);
    assert_eq!(all, 100);
    runtime.block_on(async {
        let other = limiter(policy(), &patient(server.url()).await);
        let start = Instant::now();
        until("the others to use up the limit", async || {
            let more = admitted(&other, 50).await;
            all += more;
            (more == 0 && start.elapsed() > STALE).then_some(())
        })
        .await;
    });
    all += paused.admit(2 * LIMIT);
    assert!(all <= LIMIT, "{all} admitted");
    assert!(all > LIMIT / 2, "{all} admitted");
}

/// Runs a request while the server is frozen. Panics unless it has ended long before
/// two deadlines have passed, which two requests of another backend measure.
async fn within_a_deadline(request: impl Future<Output = Seen>, frozen: &Server, deadlines: &[RateLimiter; 2]) -> Seen {
    let one_and_a_half = async {
        for limiter in deadlines {
            assert_eq!(ask(limiter, "/", "acme").await, Seen::Failed);
        }
    };
    tokio::select! {
        biased;
        seen = request => seen,
        () = one_and_a_half => panic!("it took more than its deadline, on port {}", frozen.port()),
    }
}

/// What a decision waits for one after the other has one deadline.
#[tokio::test]
async fn a_decision_in_several_steps_has_one_deadline() {
    let _machine = shared_machine().await;
    let deadline = Duration::from_millis(500);
    let connect = async |server: &Server, deadline| {
        let redis = Redis::builder().url(server.url()).deadline(deadline).breaker(1_000, LONG, LONG);
        redis.connect().await.unwrap()
    };
    let mut server = Server::start().await;
    let of_others = async |deadline| limiter(closed(Quota::per_day(9)), &connect(&server, deadline).await);
    let deadlines = [of_others(deadline).await, of_others(deadline / 2).await];
    let limiter = limiter(policy(), &connect(&server, deadline).await);
    assert_eq!(admitted(&limiter, 300).await, 300);
    let _permit = limiter.acquire(&Descriptor::new("/").method("GET").tenant("acme"), Duration::ZERO).await.unwrap();
    server.freeze();
    // The last units are used up, and a refill is under way.
    let own = limiter.clone();
    let dry = tokio::spawn(async move { while ask(&own, "/", "acme").await == Seen::Admitted {} });
    tokio::task::yield_now().await;
    assert!(!dry.is_finished());
    // What it brings is of another policy: it is given back before the store is asked.
    let more = Quota::per_day(2 * LIMIT as u64).algorithm(Algorithm::FixedWindow);
    let rule = Rule::new("day").tier(more).consistency(Consistency::Leased).on_backend_failure(FailureMode::Closed);
    limiter.set_policy(Policy::new().rule(rule)).unwrap();
    let seen = within_a_deadline(ask(&limiter, "/", "acme"), &server, &deadlines).await;
    assert_eq!(seen, Seen::Failed);
    server.thaw();
    drop(dry);
}
