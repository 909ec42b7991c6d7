use proptest::prelude::*;

use super::*;

/// A list of (name, parameters), as RFC 9651 has it; panics at what is none.
fn parse(mut text: &str) -> Vec<(String, Vec<(String, u64)>)> {
    let mut items = Vec::new();
    loop {
        let (mut name, mut at) = (String::new(), 1);
        assert!(text.starts_with('"'), "{text}");
        loop {
            match text.as_bytes()[at] {
                b'"' => break,
                b'\\' => {
                    at += 1;
                    assert!(matches!(text.as_bytes()[at], b'"' | b'\\'), "{text}");
                }
                byte => assert!((0x20..=0x7e).contains(&byte), "{text}"),
            }
            name.push(text.as_bytes()[at].into());
            at += 1;
        }
        text = &text[at + 1..];
        let end = text.find(',').unwrap_or(text.len());
        let parameters = text[..end].split(';').skip(1).map(|parameter| {
            let (key, value) = parameter.split_once('=').unwrap();
            assert!(value.len() <= 15 && value.bytes().all(|byte| byte.is_ascii_digit()), "{value}");
            (key.to_owned(), value.parse().unwrap())
        });
        items.push((name, parameters.collect()));
        if end == text.len() {
            return items;
        }
        text = text[end..].strip_prefix(", ").unwrap();
    }
}

fn any_tier() -> impl Strategy<Value = TierStatus> {
    let algorithm = prop_oneof![
        Just(Algorithm::TokenBucket),
        Just(Algorithm::LeakyBucket),
        Just(Algorithm::FixedWindow),
        Just(Algorithm::SlidingLog),
    ];
    let naming = prop_oneof![
        Just(TierNameStyle::Alone),
        Just(TierNameStyle::ByWindow),
        any::<u8>().prop_map(TierNameStyle::Nth)
    ];
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    ("[ -~]{0,128}", algorithm, naming, numbers, any::<bool>()).prop_map(
        |(rule, algorithm, naming, (limit, window, remaining, reset), violated)| TierStatus {
            rule: super::rule(&rule),
            quota: Quota::new(limit, Duration::from_nanos(window)).algorithm(algorithm),
            remaining,
            reset,
            naming,
            violated,
            unit: Unit::default(),
        },
    )
}

proptest! {
    #[test]
    fn any_decision_yields_legal_fields(
        tiers in prop::collection::vec(any_tier(), 1..4),
        retry_after in prop::option::of(0..u64::MAX),
        jitter in any::<u64>(),
    ) {
        let decision = rejected_for(RateLimitedKind::QuotaExceeded, retry_after, tiers.iter().copied());
        let map = stamped(Headers::ALL.jitter(Duration::from_nanos(jitter)), &decision);
        let [policy, status] = fields(&map, IETF).map(|list| parse(&list));
        prop_assert_eq!(policy.len(), tiers.len());
        prop_assert_eq!(status.len(), tiers.len());
        let reported = |name| field(&map, name).parse::<u64>().ok();
        let again = reported("retry-after");
        prop_assert_eq!(again.is_some(), retry_after.is_some());
        for ((tier, policy), status) in tiers.iter().zip(policy).zip(status) {
            prop_assert_eq!(&policy.0, &*tier.name());
            prop_assert_eq!(&policy.0, &status.0);
            prop_assert_eq!(&policy.1[0], &("q".to_owned(), tier.limit().min(999_999_999_999_999)));
            prop_assert_eq!(&status.1[0].0, "r");
            match &status.1[1..] {
                [] => prop_assert_eq!(tier.limit(), 0),
                [(t, seconds)] => {
                    prop_assert!(t == "t" && *seconds >= 1 && tier.limit() > 0);
                    prop_assert!(!tier.violated || again.is_none_or(|again| again >= *seconds));
                }
                more => panic!("{more:?}"),
            }
        }
        let binding = decision.binding().unwrap();
        prop_assert_eq!(reported("x-ratelimit-limit"), Some(binding.quota().capacity().min(999_999_999_999_999)));
        prop_assert!(reported("x-ratelimit-reset") >= Some(1) || binding.limit() == 0);
    }
}
