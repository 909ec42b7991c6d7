//! Calendar months, whose bounds the scripts compute.

use std::time::Duration;

use tower_ratelimit::{
    Algorithm, Consistency, Descriptor, Policy, Quota, RateLimiter, Rule,
    backend::Redis,
    testing::ManualClock,
    time::{Clock, SystemClock, Timestamp},
};

use super::{LONG, limiter, patient, server::Server, set_back::set_back_by, shared_machine, until};

const SECOND: Duration = Duration::from_secs(1);
const DAY: u64 = 86_400;

/// When each month of these years ends, counted day by day.
fn ends() -> Vec<Timestamp> {
    let (mut ends, mut days) = (Vec::new(), 0);
    for year in 1970..=2100 {
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        for days_of_month in [31, if is_leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
            days += days_of_month;
            ends.push(Timestamp::from_secs(days * DAY));
        }
    }
    ends
}

fn plan(limit: u64) -> Rule {
    Rule::new("plan").tier(Quota::per_month(limit))
}

/// A limiter that decides by its own time.
async fn with_own_time(server: &Server, rule: Rule) -> (RateLimiter, ManualClock) {
    let redis = Redis::builder().url(server.url()).deadline(LONG).limiter_time().connect().await.unwrap();
    let clock = ManualClock::new();
    let limiter = RateLimiter::builder().policy(Policy::new().rule(rule)).backend(redis).clock(clock.clone());
    (limiter.build().unwrap(), clock)
}

/// Whether a month ends so long after now, give or take the time that a test needs.
fn ends_after(reset: Duration) -> bool {
    let end = SystemClock::new().now().saturating_add(reset);
    let apart = |month: Timestamp| month.saturating_since(end).max(end.saturating_since(month));
    ends().into_iter().any(|month| apart(month) < 10 * SECOND)
}

/// By the limiter's time: each month is used up a second before its end, and the next
/// one is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn months_end_where_a_naive_calendar_says() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let (limiter, clock) = with_own_time(&server, plan(1)).await;
    clock.set(Timestamp::UNIX_EPOCH);
    let request = Descriptor::new("/").tenant("acme");
    for end in ends() {
        clock.set(Timestamp::from_nanos(end.as_nanos() - 1_000_000_000));
        let first = limiter.check(&request).await;
        assert!(first.is_allowed(), "the month before {end}");
        assert_eq!(first.reset(), SECOND, "{end}");
        assert_eq!(limiter.check(&request).await.retry_after(), Some(SECOND), "{end}");
    }
    assert_eq!(server.keys("rl:plan*").await, ["rl:plan:{acme}:::fixed-window/month"]);
}

/// By the server's time, exact and on leased units.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_servers_month_ends_with_the_calendars() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    for consistency in [Consistency::Exact, Consistency::Leased] {
        let policy = Policy::new().rule(plan(100).consistency(consistency));
        let limiter = limiter(policy, &patient(server.url()).await);
        let tenant = format!("{consistency:?}");
        let request = Descriptor::new("/").tenant(&*tenant);
        let mut admitted = 0;
        for _ in 0..120 {
            let decision = limiter.check(&request).await;
            admitted += u64::from(decision.is_allowed());
            assert!(ends_after(decision.reset()), "{consistency:?}: {:?}", decision.reset());
        }
        assert_eq!(admitted, 100, "{consistency:?}");
    }
}

/// The pace of a smooth rule is that of the month's own length: April has 30 days.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pace_is_that_of_the_month() {
    const APRIL: u64 = 1_711_929_600;
    let _machine = shared_machine().await;
    let server = Server::start().await;
    // One unit a millisecond.
    let rule = plan(30 * DAY * 1_000).smooth(true).max_wait(SECOND);
    let (limiter, clock) = with_own_time(&server, rule).await;
    clock.set(Timestamp::from_secs(APRIL));
    let request = Descriptor::new("/").tenant("acme");
    assert!(limiter.check(&request.clone().cost(12 * DAY * 1_000 + 20)).await.is_allowed());
    clock.set(Timestamp::from_secs(APRIL + 12 * DAY));
    let permit = limiter.acquire(&request, SECOND).await.unwrap();
    assert_eq!(permit.decision().wait(), Duration::from_millis(20));
}

/// A counter that is further ahead than a month moves back to a month's end, whatever the
/// lengths of the months in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_month_of_a_clock_that_was_set_back_ends_with_a_month() {
    const MOST: Duration = Duration::from_secs(32 * DAY);
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let limiter = limiter(Policy::new().rule(plan(1)), &patient(server.url()).await);
    let request = Descriptor::new("/").tenant("acme");
    assert!(limiter.check(&request).await.is_allowed());
    // By 45 days.
    set_back_by(&server, "3888000000000").await;
    let retry_after = until("the counter to move back", async || {
        limiter.check(&request).await.retry_after().filter(|retry_after| *retry_after < MOST)
    })
    .await;
    assert!(ends_after(retry_after), "{retry_after:?}");
}

/// Windows with another start have counters of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offset_is_a_part_of_the_name() {
    let _machine = shared_machine().await;
    let server = Server::start().await;
    let day = Quota::per_day(5).algorithm(Algorithm::FixedWindow);
    let rule = Rule::new("plan").tier(day.offset(Duration::from_secs(9 * 3_600))).tier(day);
    let limiter = limiter(Policy::new().rule(rule), &patient(server.url()).await);
    let decision = limiter.check(&Descriptor::new("/").tenant("acme")).await;
    let [moved, plain] = [0, 1].map(|tier: usize| decision.tiers()[tier].reset().as_secs());
    let apart = (moved + DAY - plain) % DAY;
    assert!((9 * 3_600 - 1..=9 * 3_600 + 1).contains(&apart), "{moved} {plain}");
    let mut names = server.keys("rl:plan*").await;
    names.sort();
    let name = "rl:plan:{acme}:::fixed-window/86400s";
    assert_eq!(names, [name.to_owned(), format!("{name}+32400s")]);
}
