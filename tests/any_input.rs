//! Any input: names, numbers, floods and clocks that an attacker or an accident may bring.
//! No panic, a defined answer, bounded memory.
#![cfg(feature = "test-util")]
#![allow(clippy::unwrap_used)]

#[path = "common/algorithms.rs"]
mod algorithms;

use std::{
    collections::HashSet,
    fs,
    future::Future,
    pin::pin,
    sync::OnceLock,
    task::{Context, Poll, Waker},
    time::Duration,
};

use http::Method;
use proptest::prelude::*;
use tower_ratelimit::{
    Algorithm, Decision, Descriptor, Dimension, Policy, Quota, RateLimiter, Rule, Verdict,
    backend::{Backend, Local},
    testing::ManualClock,
    time::Clock,
};

use self::algorithms::ALGORITHMS;

fn ask(limiter: &RateLimiter, request: &Descriptor<'_>) -> Decision {
    match pin!(limiter.check(request)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(decision) => decision,
        Poll::Pending => panic!("a local decision took more than one poll"),
    }
}

fn on_manual_clock(policy: impl Into<Policy>, backend: impl Backend) -> (RateLimiter, ManualClock) {
    let clock = ManualClock::new();
    (RateLimiter::builder().policy(policy).backend(backend).clock(clock.clone()).build().unwrap(), clock)
}

const DAY: Duration = Duration::from_secs(86_400);

/// The clock steps nine seconds forward and back, repeatedly. The hour admits its
/// quota once.
#[test]
fn a_clock_that_jumps_back_and_forth() {
    for algorithm in ALGORITHMS {
        let (limiter, clock) = on_manual_clock(Quota::per_hour(10).algorithm(algorithm), Local::new());
        let times = [clock.now(), clock.now().saturating_add(Duration::from_secs(9))];
        let mut passed = 0;
        for jump in 0..200 {
            clock.set(times[jump % 2]);
            for _ in 0..7 {
                passed += usize::from(ask(&limiter, &Descriptor::new("/").tenant("acme")).is_allowed());
            }
        }
        assert_eq!(passed, if algorithm == Algorithm::LeakyBucket { 1 } else { 10 }, "{algorithm}");
    }
}

/// The clock is set back by a day: a key waits for an hour or two, not a day.
#[test]
fn a_clock_that_is_set_back_locks_no_key_out() {
    for algorithm in ALGORITHMS {
        let (limiter, clock) = on_manual_clock(Quota::per_hour(10).algorithm(algorithm), Local::new());
        let acme = Descriptor::new("/").tenant("acme");
        let today = clock.now();
        clock.advance(DAY);
        while ask(&limiter, &acme).is_allowed() {}
        clock.set(today);
        let rejected = ask(&limiter, &acme);
        assert!(!rejected.is_allowed(), "{algorithm}: used units came back");
        let retry_after = rejected.retry_after().unwrap();
        assert!(retry_after <= DAY / 12, "{algorithm}: {retry_after:?}");
        clock.advance(retry_after);
        assert!(ask(&limiter, &acme).is_allowed(), "{algorithm}");
    }
}

/// Paths and tenants that no honest caller sends.
#[test]
fn empty_huge_and_odd_names_are_counted() {
    let policy = Policy::new()
        .rule(Rule::new("every").tier(Quota::per_hour(2)))
        .rule(Rule::new("some").path("/a/{b}/{*rest}").tier(Quota::per_hour(1)));
    let (limiter, _) = on_manual_clock(policy, Local::new());
    let long = "t".repeat(64 * 1024);
    let longer = format!("{long}t");
    let deep = "/a".repeat(32 * 1024);
    let slashes = "/".repeat(64 * 1024);
    for (path, tenant) in [
        ("", ""),
        ("/", " "),
        ("", "\0"),
        ("no-slash", "no-slash"),
        ("/a/b/c", &long),
        (&deep, "deep"),
        (&slashes, "slashes"),
        (&long, &longer),
        ("/%", "%"),
        ("/%zz/%2", "%zz"),
        ("/../../etc/passwd", ".."),
        ("/\u{202e}/\u{0}", "\u{202e}"),
    ] {
        let passed = (0..5).filter(|_| ask(&limiter, &Descriptor::new(path).tenant(tenant).method("GET")).is_allowed());
        let some = path == "/a/b/c" || path == deep;
        assert_eq!(
            passed.count(),
            if some { 1 } else { 2 },
            "a path of {} bytes, {} of tenant",
            path.len(),
            tenant.len()
        );
    }
}

/// Every kind of matching and counting in one policy.
fn odd_policy() -> Policy {
    Policy::new()
        .ignore_case(true)
        .rule(Rule::new("org").path("/v1/{org}/x").path("/{*rest}").per([Dimension::Tenant]).tier(Quota::per_hour(3)))
        .rule(Rule::new("param").path("/v1/{org}/x").tenant_from_path("org").tier(Quota::per_minute(2)))
        .rule(Rule::new("post").methods([Method::POST]).tier(Quota::per_second(1).algorithm(Algorithm::SlidingLog)))
        .rule(Rule::new("method").per([Dimension::Method, Dimension::Endpoint]).tier(Quota::per_day(100_000)))
        .rule(Rule::new("wait").path("/wait/*").max_wait(DAY).tier(Quota::per_second(1)))
        .rule(Rule::new("shadow").shadow(true).tier(Quota::per_hour(1)))
        .rule(Rule::new("zero").path("/zero").tier(Quota::per_hour(0)))
        .rule(Rule::new("else").fallback(true).plan("\u{fffd}", [Quota::per_hour(5)]).tier(Quota::per_hour(7)))
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[/.%a-f0-9v1x{}*?#;]{0,40}",
        prop::collection::vec(any::<u8>(), 0..60).prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        prop::sample::select(&["/v1/acme/x", "/V1//acme/%78/", "/zero", "/wait/1", "/a/../zero", ""][..])
            .prop_map(String::from),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every request gets a decision: an admission with the remaining units, or a
    /// rejection with its reason. Equal spellings get equal decisions.
    #[test]
    fn any_request_gets_an_answer(
        (path, method, tenant, plan) in (any_text(), any_text(), any_text(), any_text()),
        cost in prop_oneof![Just(1), 0..5_u64, any::<u64>()],
        gap in any::<u32>(),
    ) {
        static LIMITER: OnceLock<(RateLimiter, ManualClock)> = OnceLock::new();
        let (limiter, clock) = LIMITER.get_or_init(|| {
            on_manual_clock(odd_policy(), Local::builder().max_keys(500).build())
        });
        clock.advance(Duration::from_nanos(gap.into()));
        let request = Descriptor::new(&path).method(&method).tenant(tenant.as_str()).plan(&plan).cost(cost);
        let decision = ask(limiter, &request);
        prop_assert!(!decision.tiers().is_empty(), "a rule without a path applies to all");
        match decision.verdict() {
            Verdict::Allow => prop_assert!(decision.rejection().is_none() && decision.retry_after().is_none()),
            Verdict::Reject => prop_assert!(decision.tiers().iter().any(|tier| tier.is_violated())),
            other => prop_assert!(false, "a check never waits: {:?}", other),
        }
        prop_assert!(decision.tiers().iter().all(|tier| tier.remaining() <= tier.limit()));
        prop_assert!(limiter.stats().keys() <= 500);
    }
}

/// The memory of this process, in bytes.
#[cfg(target_os = "linux")]
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// New tenants, forty times the cap: keys stay within it, memory within 8 MiB (21 bytes
/// for each tenant of the flood), every newcomer is admitted, and a tenant that has
/// used more than one of the flood keeps its counter.
#[cfg(target_os = "linux")]
#[test]
fn a_flood_of_tenants_takes_no_memory() {
    const MAX_KEYS: usize = 10_000;
    const FLOOD: usize = 400_000;
    let backend = Local::builder().max_keys(MAX_KEYS).build();
    let (limiter, _) = on_manual_clock(Quota::per_hour(3), backend);
    let before = |tenant| ask(&limiter, &Descriptor::new("/").tenant(tenant));
    assert_eq!([before("acme").remaining(), before("acme").remaining()], [2, 1]);
    // It includes the memory of other tests that run at the same time.
    let at_rest = resident();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut passed = 0;
    for flood in 0..FLOOD {
        // xorshift
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let mut name = [0; 16];
        let name = hex(random, &mut name);
        passed += usize::from(ask(&limiter, &Descriptor::new("/").tenant(name)).is_allowed());
        if flood % 10_000 == 0 {
            assert!(limiter.stats().keys() <= MAX_KEYS);
        }
    }
    let grown = resident().saturating_sub(at_rest);
    assert!(grown < 8 << 20, "grown by {grown} bytes");
    assert_eq!(limiter.stats().keys(), MAX_KEYS);
    assert_eq!(passed, FLOOD, "newcomers were rejected");
    assert_eq!(before("acme").remaining(), 0, "it keeps its counter");
    assert!(!before("acme").is_allowed());
}

fn hex(number: u64, digits: &mut [u8; 16]) -> &str {
    for (index, digit) in digits.iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(number >> (index * 4)) as usize & 15];
    }
    std::str::from_utf8(digits).unwrap()
}

/// Tenants with similar names do not share a counter, nor do a name and an equal
/// address.
#[test]
fn similar_tenants_have_their_own_counters() {
    let (limiter, _) = on_manual_clock(Quota::per_hour(1), Local::new());
    let names = ["a", "A", "a ", " a", "a\0", "\0a", "", "aa", "192.0.2.7", "::ffff:192.0.2.7", "é", "e\u{301}"];
    assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
    for name in names {
        assert!(ask(&limiter, &Descriptor::new("/").tenant(name)).is_allowed(), "{name:?}");
    }
    let address: std::net::IpAddr = [192, 0, 2, 7].into();
    assert!(ask(&limiter, &Descriptor::new("/").tenant(address)).is_allowed());
    assert!(!ask(&limiter, &Descriptor::new("/").tenant(address)).is_allowed());
}
