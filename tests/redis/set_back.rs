//! A store whose clock was set back, or that failed over to a host with another
//! clock. The counters are as a clock one hour ahead would have written them.

use std::time::Duration;

use tower_ratelimit::{Algorithm, Descriptor, Policy, Quota, RateLimiter, Rule, backend::Redis};

#[cfg(feature = "tracing")]
use super::log;
use super::{LONG, Seen, algorithms::ALGORITHMS, ask, limiter, patient, server::Server, shared_machine, until};

/// Moves all times that the store has into the future, by microseconds.
const ADVANCE: &str = "
local by = tonumber(ARGV[1])
local function moved(time) return string.format('%.0f', time + by) end
for _, key in ipairs(redis.call('KEYS', 'rl:*')) do
  if redis.call('TYPE', key).ok == 'zset' then
    local entries = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    redis.call('DEL', key)
    for i = 1, #entries, 2 do
      local units = string.match(entries[i], '^%d+:(%d+)$')
      local member = units and moved(entries[i + 1]) .. ':' .. units or entries[i]
      redis.call('ZADD', key, moved(entries[i + 1]), member)
    end
  elseif key == 'rl:epoch' then
    local id, seen = string.match(redis.call('GET', key), '^(%x+):(%d+)$')
    redis.call('SET', key, id .. ':' .. moved(seen))
  else
    local value = redis.call('GET', key)
    local format = '<B' .. string.rep('d', (#value - 1) / 8)
    local fields = { struct.unpack(format, value) }
    -- The times of each kind of counter.
    local times = { [33] = { 2, 6 }, [34] = { 2 }, [35] = { 2 }, [36] = { 4, 6 }, [37] = {} }
    for _, index in ipairs(times[fields[1]]) do
      if index <= (#value - 1) / 8 + 1 then fields[index] = fields[index] + by end
    end
    redis.call('SET', key, struct.pack(format, unpack(fields)), 'PX', 7200000)
  end
end";

async fn set_back(server: &Server) {
    set_back_by(server, "3600000000").await;
}

/// By microseconds.
pub(super) async fn set_back_by(server: &Server, length: &str) {
    let () = server.run("EVAL", [ADVANCE, "0", length]).await;
}

fn rule(name: &str, algorithm: Algorithm, quota: Quota) -> Rule {
    let id = format!("{name}-{algorithm}");
    Rule::new(&*id).path(format!("/{id}")).tier(quota.algorithm(algorithm))
}

/// One rule that is used up for a second, and one that is for a day, for each
/// algorithm.
fn policy() -> Policy {
    let second = Quota::new(5, Duration::from_secs(1));
    ALGORITHMS.into_iter().fold(Policy::new(), |policy, algorithm| {
        let day = rule("day", algorithm, Quota::per_day(5));
        policy.rule(rule("second", algorithm, second)).rule(day)
    })
}

async fn use_up(limiter: &RateLimiter, path: &str) {
    until("the limit to be used up", async || (ask(limiter, path, "acme").await == Seen::Rejected).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_was_set_back_rejects_no_tenant_for_the_jump() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let before = limiter(policy(), &patient(server.url()).await);
    for algorithm in ALGORITHMS {
        use_up(&before, &format!("/day-{algorithm}")).await;
        use_up(&before, &format!("/second-{algorithm}")).await;
    }
    set_back(&server).await;
    // An instance that was there before, and one that started later.
    let after = limiter(policy(), &patient(server.url()).await);
    for algorithm in ALGORITHMS {
        for limiter in [&before, &after] {
            let path = format!("/second-{algorithm}");
            let what = format!("{algorithm} to admit again");
            until(&what, async || (ask(limiter, &path, "acme").await == Seen::Admitted).then_some(())).await;
        }
    }
    for algorithm in ALGORITHMS {
        let path = format!("/day-{algorithm}");
        let retry_after = before.check(&Descriptor::new(&path).tenant("acme")).await.retry_after();
        assert!(
            retry_after.is_some_and(|after| after <= 2 * Duration::from_secs(86_400)),
            "{algorithm}: {retry_after:?}"
        );
    }
}

/// Units of an instance that crashed return after one lease, as without a jump.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_from_before_the_jump_ends_after_one_lease() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let url = server.url();
    let backend = |url: String| Redis::builder().url(url).deadline(LONG).lease(Duration::from_secs(1));
    let policy = || Policy::new().rule(Rule::new("busy").tier(Quota::concurrent(1)));
    // An instance that crashes while it holds the only unit.
    let crashing = move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let limiter = limiter(policy(), &backend(url).on_current_runtime().connect().await.unwrap());
            std::mem::forget(limiter.acquire(&Descriptor::new("/").tenant("acme"), Duration::ZERO).await.unwrap());
        });
        runtime.shutdown_background();
    };
    tokio::task::spawn_blocking(crashing).await.unwrap();
    set_back(&server).await;
    let limiter = limiter(policy(), &backend(server.url()).connect().await.unwrap());
    let request = Descriptor::new("/").tenant("acme");
    assert!(limiter.acquire(&request, Duration::ZERO).await.is_err(), "the lease is still in force");
    let _permit = until("the lease to end", async || limiter.acquire(&request, Duration::ZERO).await.ok()).await;
}

/// Each instance logs it when it finds out.
#[cfg(feature = "tracing")]
#[tokio::test]
async fn a_clock_that_was_set_back_is_logged() {
    const MESSAGE: &str = "redis clock was set back";
    let _machine = shared_machine().await;
    log::start();
    let server = Server::start().await;
    let backend =
        async || Redis::builder().url(server.url()).deadline(LONG).on_current_runtime().connect().await.unwrap();
    let before = limiter(policy(), &backend().await);
    let path = format!("/day-{}", ALGORITHMS[0]);
    ask(&before, &path, "acme").await;
    assert_eq!(log::count_here(MESSAGE), 0);
    set_back(&server).await;
    until("the event", async || {
        ask(&before, &path, "acme").await;
        (log::count_here(MESSAGE) > 0).then_some(())
    })
    .await;
    assert_eq!(log::count_here(MESSAGE), 1);
    let _after = limiter(policy(), &backend().await);
    assert_eq!(log::count_here(MESSAGE), 2);
}
