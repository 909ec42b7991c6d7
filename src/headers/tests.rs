mod properties;

use std::{collections::HashSet, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue};

use super::*;
use crate::{
    decision::{RateLimitedKind, RuleName, TierNameStyle, TierStatus},
    quota::{Algorithm, Quota},
    time::Timestamp,
    unit::Unit,
};

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);
const SECOND: u64 = 1_000_000_000;
const IETF: [&str; 2] = ["ratelimit-policy", "ratelimit"];
const X: [&str; 3] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];

static RULE: &str = "get-product";

fn rule(id: &str) -> RuleName {
    Box::leak(Box::new(&*String::from(id).leak()))
}

fn tier(quota: Quota, remaining: u64, reset: u64) -> TierStatus {
    TierStatus {
        rule: &RULE,
        quota,
        remaining,
        reset,
        naming: TierNameStyle::Alone,
        violated: false,
        unit: Unit::default(),
    }
}

fn violated(quota: Quota, reset: u64) -> TierStatus {
    TierStatus { violated: true, ..tier(quota, 0, reset) }
}

fn admitted(tiers: impl IntoIterator<Item = TierStatus>) -> Decision {
    let mut decision = Decision::unlimited();
    tiers.into_iter().for_each(|tier| decision.add_tier(tier));
    decision.admit(NOW, 0);
    decision
}

fn rejected(retry_after: u64, tiers: impl IntoIterator<Item = TierStatus>) -> Decision {
    rejected_for(RateLimitedKind::QuotaExceeded, Some(retry_after), tiers)
}

fn rejected_for(
    kind: RateLimitedKind,
    retry_after: Option<u64>,
    tiers: impl IntoIterator<Item = TierStatus>,
) -> Decision {
    let mut decision = Decision::unlimited();
    tiers.into_iter().for_each(|tier| decision.add_tier(tier));
    decision.reject(kind, NOW, retry_after);
    decision
}

fn stamped(headers: Headers, decision: &Decision) -> HeaderMap {
    let mut map = HeaderMap::new();
    headers.stamp(&mut map, decision);
    map
}

/// All lines of a field, as one list.
fn field(map: &HeaderMap, name: &str) -> String {
    let lines: Vec<_> = map.get_all(name).iter().map(|value| value.to_str().unwrap()).collect();
    lines.join(", ")
}

fn fields<const N: usize>(map: &HeaderMap, names: [&str; N]) -> [String; N] {
    names.map(|name| field(map, name))
}

#[test]
fn all_families_describe_every_tier() {
    let tiers = [
        TierStatus { naming: TierNameStyle::ByWindow, ..tier(Quota::per_second(10), 9, SECOND / 10) },
        TierStatus {
            naming: TierNameStyle::ByWindow,
            ..tier(Quota::new(50, Duration::from_secs(10)).algorithm(Algorithm::FixedWindow), 7, 4 * SECOND + 1)
        },
    ];
    let map = stamped(Headers::ALL, &admitted(tiers));
    assert_eq!(
        fields(&map, IETF),
        [
            r#""get-product-1s";q=10;w=1, "get-product-10s";q=50;w=10"#,
            r#""get-product-1s";r=9;t=1, "get-product-10s";r=7;t=5"#
        ]
    );
    // The trio describes the tier with the least remaining.
    assert_eq!(fields(&map, X), ["50", "7", "5"]);
    assert_eq!(map.len(), 5);
}

/// A concurrency limit has no window and no reset.
#[test]
fn a_concurrency_limit_has_a_unit_and_no_times() {
    let in_flight = Quota::concurrent(3);
    let held = tier(in_flight, 2, 0);
    let map = stamped(Headers::ALL, &admitted([held]));
    assert_eq!(fields(&map, IETF), [r#""get-product";q=3;qu="concurrent-requests""#, r#""get-product";r=2"#]);
    assert_eq!(fields(&map, X), ["3", "2", "1"]);

    let several = [
        TierStatus { naming: TierNameStyle::ByWindow, ..tier(Quota::per_second(10), 9, SECOND / 10) },
        TierStatus { naming: TierNameStyle::ByWindow, ..violated(in_flight, 0) },
        TierStatus { naming: TierNameStyle::Nth(2), ..tier(in_flight, 1, 0) },
    ];
    let map = stamped(Headers::ALL, &rejected(SECOND, several));
    let policy = r#""get-product-1s";q=10;w=1, "get-product-concurrent";q=3;qu="concurrent-requests", "#;
    assert!(field(&map, IETF[0]).starts_with(policy), "{}", field(&map, IETF[0]));
    let status = r#""get-product-1s";r=9;t=1, "get-product-concurrent";r=0, "get-product-concurrent-2";r=1"#;
    assert_eq!(field(&map, IETF[1]), status);
    assert_eq!(field(&map, "retry-after"), "1");
}

#[test]
fn only_chosen_families_are_written() {
    let decision = admitted([tier(Quota::per_second(10), 9, 1)]);
    let names = |headers| -> Vec<String> {
        let mut names: Vec<_> = stamped(headers, &decision).keys().map(ToString::to_string).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(names(Headers::NONE), [""; 0]);
    assert_eq!(names(Headers::X_RATELIMIT), X);
    assert_eq!(names(Headers::IETF), ["ratelimit", "ratelimit-policy"]);
    assert_eq!(names(Headers::ALL.ietf(false)), X);
}

#[test]
fn nothing_is_written_if_no_rule_applied() {
    assert!(stamped(Headers::ALL, &Decision::unlimited()).is_empty());
}

#[test]
fn a_window_is_whole_seconds_or_absent() {
    for (window, policy) in [
        (Duration::from_millis(250), r#""get-product";q=5"#),
        (Duration::from_millis(1_500), r#""get-product";q=5"#),
        (Duration::from_secs(1), r#""get-product";q=5;w=1"#),
        (Duration::MAX, r#""get-product";q=5"#),
        (Duration::from_secs(u64::MAX), r#""get-product";q=5;w=999999999999999"#),
    ] {
        let map = stamped(Headers::IETF, &admitted([tier(Quota::new(5, window), 5, 0)]));
        assert_eq!(field(&map, "ratelimit-policy"), policy, "{window:?}");
    }
}

#[test]
fn a_name_is_a_legal_string() {
    let odd = TierStatus { rule: rule("a\"b\\c ~100%"), ..tier(Quota::per_second(1), 1, 0) };
    let map = stamped(Headers::IETF, &admitted([odd]));
    assert_eq!(field(&map, "ratelimit-policy"), r#""a\"b\\c ~100%";q=1;w=1"#);
}

#[test]
fn integers_are_cut_to_the_range_of_a_structured_field() {
    let map = stamped(Headers::ALL, &admitted([tier(Quota::per_second(u64::MAX), u64::MAX - 1, u64::MAX)]));
    let most = "999999999999999";
    assert_eq!(fields(&map, X), [most, most, "18446744074"]);
    assert_eq!(field(&map, "ratelimit-policy"), format!(r#""get-product";q={most};w=1"#));
    assert_eq!(field(&map, "ratelimit"), format!(r#""get-product";r={most};t=1"#));
}

#[test]
fn times_are_rounded_up_and_never_zero() {
    for (reset, expected) in [(0, "1"), (1, "1"), (SECOND, "1"), (SECOND + 1, "2"), (59 * SECOND + 1, "60")] {
        let quota = Quota::per_minute(5).algorithm(Algorithm::FixedWindow);
        let map = stamped(Headers::ALL, &rejected(reset, [violated(quota, reset)]));
        assert_eq!(field(&map, "x-ratelimit-reset"), expected);
        assert_eq!(field(&map, "ratelimit"), format!(r#""get-product";r=0;t={expected}"#));
        assert_eq!(field(&map, "retry-after"), expected);
    }
}

#[test]
fn the_reset_can_be_a_point_in_time() {
    let map = stamped(
        Headers::ALL.epoch_reset(true),
        &rejected(3 * SECOND / 2, [violated(Quota::per_minute(5), 50 * SECOND)]),
    );
    assert_eq!(field(&map, "x-ratelimit-reset"), "1700000050");
    assert_eq!(field(&map, "retry-after"), "2", "a delta still");
}

#[test]
fn t_of_a_bucket_satisfies_both_readings() {
    let quota = Quota::per_minute(6);
    for (remaining, reset, expected) in [
        // The next unit is due in 10 s; two more seconds have passed in the
        // second case.
        (0, 60 * SECOND, 10),
        (0, 58 * SECOND, 8),
        // 3 units last 30 s, whenever the fourth comes.
        (3, 21 * SECOND, 30),
        (6, 0, 60),
    ] {
        let map = stamped(Headers::IETF, &admitted([tier(quota, remaining, reset)]));
        assert_eq!(field(&map, "ratelimit"), format!(r#""get-product";r={remaining};t={expected}"#));
    }
}

/// A limit of 0 never has more: any time would be wrong.
#[test]
fn a_limit_of_0_has_no_times() {
    let blocked = TierStatus { violated: true, ..tier(Quota::per_minute(0), 0, 0) };
    let never = rejected_for(RateLimitedKind::NeverFits, None, [blocked]);
    let map = stamped(Headers::ALL, &never);
    assert_eq!(fields(&map, IETF), [r#""get-product";q=0;w=60"#, r#""get-product";r=0"#]);
    assert_eq!((fields(&map, X), map.len()), (["0", "0", ""].map(String::from), 4));
    assert_eq!(field(&stamped(Headers::IETF_DRAFT_7, &never), "ratelimit"), "limit=0, remaining=0");

    // Nested: the trio with less remaining stays, and a reset is not mixed in.
    let other = admitted([tier(Quota::per_minute(5), 3, SECOND)]);
    let mut map = stamped(Headers::X_RATELIMIT, &other);
    Headers::X_RATELIMIT.stamp(&mut map, &never);
    assert_eq!(fields(&map, X), ["0", "0", ""]);
    Headers::X_RATELIMIT.stamp(&mut map, &other);
    assert_eq!(fields(&map, X), ["0", "0", ""]);
}

#[test]
fn draft_7_has_one_field_for_the_binding_tier() {
    let tiers = || [tier(Quota::per_minute(100), 50, 5 * SECOND), tier(Quota::per_hour(1_000), 70, 9 * SECOND)];
    let map = stamped(Headers::IETF_DRAFT_7, &admitted(tiers()));
    assert_eq!((field(&map, "ratelimit").as_str(), map.len()), ("limit=100, remaining=50, reset=5", 1));
    let both = stamped(Headers::IETF_DRAFT_7.x_ratelimit(true), &admitted(tiers()));
    assert_eq!((fields(&both, X), both.len()), (["100", "50", "5"].map(String::from), 4));
    // The two drafts name a field alike, so that the last one chosen counts.
    assert_eq!(Headers::IETF_DRAFT_7.ietf(true), Headers::IETF);
    assert_eq!(Headers::ALL.ietf_draft_7(true), Headers::IETF_DRAFT_7.x_ratelimit(true));
    assert_eq!(Headers::IETF_DRAFT_7.ietf_draft_7(false), Headers::NONE);

    // Nested: the one with less remaining stays, and so does another syntax.
    let few = |remaining| admitted([tier(Quota::per_minute(9), remaining, SECOND)]);
    for (first, second, expected) in [(3, 5, 3), (5, 3, 3), (4, 4, 4)] {
        let mut map = stamped(Headers::IETF_DRAFT_7, &few(first));
        Headers::IETF_DRAFT_7.stamp(&mut map, &few(second));
        assert_eq!(field(&map, "ratelimit"), format!("limit=9, remaining={expected}, reset=1"));
    }
    let mut map = stamped(Headers::IETF, &few(3));
    let before = map.clone();
    Headers::IETF_DRAFT_7.stamp(&mut map, &few(1));
    assert_eq!(map, before);
}

fn size(map: &HeaderMap) -> usize {
    map.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}

/// Proxies reject responses with large headers.
#[test]
fn beyond_the_bound_only_the_binding_tier_is_listed() {
    let many = |count: u64| {
        let named =
            |n: u64| TierStatus { rule: rule(&format!("{n:0>100}")), ..tier(Quota::per_minute(u64::MAX), n + 1, 0) };
        admitted((0..count).map(named))
    };
    let names = |map: &HeaderMap| field(map, "ratelimit").split(", ").count();
    let all = |count| stamped(Headers::ALL.max_bytes(usize::MAX), &many(count));
    for count in 1..40 {
        let map = stamped(Headers::ALL, &many(count));
        assert!(size(&map) <= 2_048, "{count}: {}", size(&map));
        let fits = size(&all(count)) <= 2_048 - 200;
        assert!(names(&map) == 1 || names(&map) as u64 == count);
        assert!(!fits || names(&map) as u64 == count, "{count} fit");
    }
    let map = stamped(Headers::ALL, &many(100));
    assert!(field(&map, "ratelimit").starts_with(&format!(r#""{:0>100}";r=1"#, 0)), "the binding tier");
    assert!(size(&all(100)) > 20_000);
    // Too little even for one: the integers stay.
    let map = stamped(Headers::ALL.max_bytes(300), &many(3));
    assert_eq!((fields(&map, IETF), field(&map, X[1])), ([String::new(), String::new()], "1".to_owned()));
}

#[test]
fn retry_after_is_never_earlier_than_the_time_of_a_tier_that_rejected() {
    // 3 units remain, 5 were requested: 2 more are due within 20 s, and the
    // remainder lasts 30 s.
    let short = TierStatus { violated: true, ..tier(Quota::per_minute(6), 3, 30 * SECOND) };
    let beside = tier(Quota::per_hour(6), 5, 600 * SECOND);
    let map = stamped(Headers::IETF, &rejected(20 * SECOND, [short, beside]));
    assert_eq!(field(&map, "retry-after"), "30");
}

#[test]
fn a_sliding_quota_admits_before_it_is_full_again() {
    for algorithm in [Algorithm::SlidingLog, Algorithm::SlidingWindow, Algorithm::LeakyBucket] {
        let hour = violated(Quota::per_hour(100).algorithm(algorithm), 3_600 * SECOND);
        let map = stamped(Headers::IETF, &rejected(2 * SECOND, [hour]));
        assert_eq!(field(&map, "retry-after"), "2", "{algorithm}");
        assert_eq!(field(&map, "ratelimit"), r#""get-product";r=0;t=2"#);
    }
}

#[test]
fn every_rejection_but_a_never_has_retry_after() {
    let expected = |kind, after: Option<u64>, tiers: &[TierStatus]| {
        let decision = rejected_for(kind, after, tiers.iter().copied());
        field(&stamped(Headers::NONE, &decision), "retry-after")
    };
    let tiers = [violated(Quota::per_second(10), SECOND)];
    assert_eq!(expected(RateLimitedKind::QuotaExceeded, Some(5 * SECOND), &tiers), "5");
    assert_eq!(expected(RateLimitedKind::NeverFits, None, &tiers), "");
    assert_eq!(expected(RateLimitedKind::MissingTenant, None, &[]), "");
    assert_eq!(expected(RateLimitedKind::BackendUnavailable, None, &[]), "1");
    assert_eq!(expected(RateLimitedKind::BackendUnavailable, Some(5 * SECOND), &tiers), "5");
    assert!(stamped(Headers::NONE, &admitted(tiers)).is_empty());
}

#[test]
fn jitter_is_drawn_once_and_shared() {
    let tier = violated(Quota::per_second(10).algorithm(Algorithm::FixedWindow), SECOND);
    let decision = rejected(SECOND, [tier]);
    let mut drawn = HashSet::new();
    for _ in 0..100 {
        let map = stamped(Headers::ALL.jitter(Duration::from_secs(1_000)), &decision);
        let expected = field(&map, "retry-after");
        assert_eq!(field(&map, "ratelimit"), format!(r#""get-product";r=0;t={expected}"#));
        assert_eq!(field(&map, "x-ratelimit-reset"), "1");
        let seconds: u64 = expected.parse().unwrap();
        assert!((1..=1_001).contains(&seconds), "{seconds}");
        drawn.insert(seconds);
    }
    assert!(drawn.len() > 50, "{} of 100 differ", drawn.len());
    // No overflow: the largest value of the field.
    stamped(Headers::ALL.jitter(Duration::MAX), &decision);
}

#[test]
fn lists_are_appended_to() {
    let mut map = HeaderMap::new();
    map.insert("ratelimit-policy", HeaderValue::from_static(r#""inner";q=5;w=1"#));
    map.insert("ratelimit", HeaderValue::from_static(r#""inner";r=4;t=1"#));
    Headers::IETF.stamp(&mut map, &admitted([tier(Quota::per_second(10), 9, 1)]));
    assert_eq!(
        fields(&map, IETF),
        [r#""inner";q=5;w=1, "get-product";q=10;w=1"#, r#""inner";r=4;t=1, "get-product";r=9;t=1"#]
    );
}

#[test]
fn a_policy_that_is_reported_is_not_reported_again() {
    let mut map = HeaderMap::new();
    map.insert("ratelimit-policy", HeaderValue::from_static(r#""inner";q=5;w=1, "get-product";q=5;w=1"#));
    map.insert("ratelimit", HeaderValue::from_static(r#""inner";r=4;t=1, "get-product";r=3;t=1"#));
    let before = map.clone();
    Headers::IETF.stamp(&mut map, &admitted([tier(Quota::per_second(10), 9, 1)]));
    assert_eq!(map, before);
}

#[test]
fn the_more_restrictive_trio_stays_whole() {
    let inner = |fields: [&'static str; 3]| -> HeaderMap {
        X.into_iter().map(HeaderName::from_static).zip(fields.map(HeaderValue::from_static)).collect()
    };
    let ours = ["10", "7", "2"];
    for (theirs, stays) in [
        (["99", "6", "30"], true),
        (["99", "7", "30"], true),
        (["99", "8", "30"], false),
        (["99", "x", "30"], false),
        (["99", "-1", "30"], false),
        (["10, 10;w=1", "6", "30"], false),
        (["99", "6", "30s"], false),
    ] {
        let mut map = inner(theirs);
        Headers::X_RATELIMIT.stamp(&mut map, &admitted([tier(Quota::per_second(10), 7, SECOND + 1)]));
        assert_eq!(fields(&map, X), if stays { theirs } else { ours }, "{theirs:?}");
    }
    // A repeated or partial trio is ignored.
    let mut twice = inner(["99", "6", "30"]);
    twice.append(X[1], HeaderValue::from_static("5"));
    let mut part = inner(["99", "6", "30"]);
    part.remove(X[2]);
    let mut bytes = inner(["99", "6", "30"]);
    bytes.insert(X[1], HeaderValue::from_bytes(b"\xff").unwrap());
    for mut map in [twice, part, bytes] {
        Headers::X_RATELIMIT.stamp(&mut map, &admitted([tier(Quota::per_second(10), 7, SECOND + 1)]));
        assert_eq!(fields(&map, X), ours);
        assert_eq!(map.len(), 3);
    }
}

#[test]
fn cached_policies_are_not_confused() {
    // More policies than the cache holds, so that they replace each other.
    let decisions: Vec<_> = (0..500).map(|limit| (limit, admitted([tier(Quota::per_hour(limit), 0, 0)]))).collect();
    for _ in 0..3 {
        for (limit, decision) in &decisions {
            let map = stamped(Headers::IETF, decision);
            assert_eq!(field(&map, "ratelimit-policy"), format!(r#""get-product";q={limit};w=3600"#));
        }
    }
    // Policies that differ only in their rule.
    let rules: Vec<_> = (0..500).map(|n| rule(&format!("rule-{n}"))).collect();
    for _ in 0..3 {
        for &rule in &rules {
            let map = stamped(Headers::IETF, &admitted([TierStatus { rule, ..tier(Quota::per_hour(7), 7, 0) }]));
            assert_eq!(field(&map, "ratelimit-policy"), format!(r#""{rule}";q=7;w=3600"#));
        }
    }
    let alone = tier(Quota::per_hour(7), 7, 0);
    let other = TierStatus { rule: rule("other"), ..alone };
    let sibling = TierStatus { naming: TierNameStyle::ByWindow, ..alone };
    let nth = TierStatus { naming: TierNameStyle::Nth(2), ..alone };
    for _ in 0..2 {
        for (tiers, names) in [
            (vec![alone], r#""get-product";q=7;w=3600"#),
            (vec![other], r#""other";q=7;w=3600"#),
            (vec![sibling], r#""get-product-1h";q=7;w=3600"#),
            (vec![sibling, nth], r#""get-product-1h";q=7;w=3600, "get-product-1h-2";q=7;w=3600"#),
        ] {
            assert_eq!(field(&stamped(Headers::IETF, &admitted(tiers)), "ratelimit-policy"), names);
        }
    }
}

#[test]
fn a_full_map_stays_unchanged() {
    let mut map = HeaderMap::new();
    for n in 0.. {
        let name = HeaderName::try_from(format!("h{n}")).unwrap();
        if map.try_insert(name, HeaderValue::from_static("")).is_err() {
            break;
        }
    }
    let full = map.len();
    Headers::ALL.stamp(&mut map, &rejected(1, [violated(Quota::per_second(1), 1)]));
    let mut unavailable = Decision::unlimited();
    unavailable.reject(RateLimitedKind::BackendUnavailable, NOW, None);
    Headers::ALL.stamp_rejection(&mut map, &RateLimited::new(unavailable));
    assert_eq!(map.len(), full);
    assert!(!map.contains_key("x-ratelimit-limit"));
}

/// A map that would have to grow gets its fields in another way.
#[test]
fn a_full_map_gets_the_fields_that_a_roomy_one_gets() {
    let tiers = [tier(Quota::per_second(10), 7, SECOND), tier(Quota::per_hour(100_000), 99_999, 1)];
    let jitter = Headers::ALL.jitter(Duration::ZERO);
    let own_names = [
        "content-type",
        "etag",
        "x-own",
        "vary",
        "x-ratelimit-reset",
        "set-cookie",
        "x-ratelimit-remaining",
        "ratelimit",
    ];
    let none_left = tier(Quota::per_second(0), 0, 0);
    for options in [Headers::X_RATELIMIT, Headers::IETF, Headers::IETF_DRAFT_7, jitter, jitter.epoch_reset(true)] {
        for count in 0..own_names.len() {
            // Some of them are ours, and so an inner limiter's.
            for start in 0..own_names.len() {
                let names = own_names.iter().cycle().skip(start).take(count);
                let own: Vec<_> = names.map(|name| (HeaderName::from_static(name), "1")).collect();
                for first in [admitted(tiers), admitted([tiers[1]]), admitted([none_left]), admitted([])] {
                    let [mut full, mut roomy] = [0, 100].map(|more| {
                        let mut map = HeaderMap::with_capacity(count);
                        map.reserve(more);
                        map.extend(own.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))));
                        map
                    });
                    for decision in [first, admitted([tiers[1]])] {
                        options.stamp(&mut full, &decision);
                        options.stamp(&mut roomy, &decision);
                        assert!(full.iter().eq(roomy.iter()), "{full:?} {roomy:?}");
                    }
                }
            }
        }
    }
}
