//! Charges of counters that exist, at once: what the general decision would do, or
//! nothing.

use proptest::prelude::*;

use super::*;

/// Up to three tiers, of every algorithm that is charged at once and of some that are not.
fn tiers() -> impl Strategy<Value = Vec<Quota>> {
    let quota =
        (0..Algorithm::ALL.len(), 1u64..6, 1u64..4).prop_map(|(algorithm, limit, seconds)| {
            match Algorithm::ALL[algorithm] {
                Algorithm::InFlight => Quota::new(limit, Duration::from_secs(seconds)).burst(2 * limit),
                algorithm => Quota::new(limit, Duration::from_secs(seconds)).algorithm(algorithm),
            }
        });
    prop::collection::vec(quota, 1..4)
}

proptest! {
    #[test]
    fn charging_at_once_is_deciding_or_nothing(
        (one, other) in (tiers(), tiers()),
        settle in any::<bool>(),
        steps in prop::collection::vec((0u64..4_000, 0u64..4), 1..60),
    ) {
        let rule = |id: &str, tiers: Vec<Quota>| tiers.into_iter().fold(Rule::new(id), Rule::tier);
        // Buckets of rules that settle have wide states.
        let policy = Policy::new().rule(rule("one", one)).rule(rule("other", other).settle(settle));
        let (deciding, charging) = (Bench::new(policy.clone()), Bench::new(policy));
        let mut now = NOW;
        for (millis, cost) in steps {
            now += millis * 1_000_000;
            let request = Descriptor::new("/").tenant("acme").cost(cost);
            let is_admitted = deciding.ask(&request, now, 0).1.is_some();
            let is_charged = charging.charge_existing(&request, now);
            prop_assert!(is_admitted || !is_charged);
            let also_admitted = is_charged || charging.ask(&request, now, 0).1.is_some();
            prop_assert_eq!(also_admitted, is_admitted);
            let nothing = Descriptor::new("/").tenant("acme").cost(0);
            let tiers = |bench: &Bench| bench.ask(&nothing, now, 0).0.tiers;
            for (own, expected) in tiers(&charging).iter().zip(tiers(&deciding)) {
                prop_assert_eq!((own.remaining, own.resets_in()), (expected.remaining, expected.resets_in()));
            }
        }
    }
}

#[test]
fn what_the_last_tier_rejects_is_charged_to_none() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow] {
        let wide = Quota::per_day(9).algorithm(algorithm);
        let rules = [Rule::new("wide").tier(wide), Rule::new("narrow").tier(wide).tier(Quota::per_hour(2))];
        let bench = Bench::new(rules.into_iter().fold(Policy::new(), Policy::rule));
        let request = Descriptor::new("/").tenant("acme");
        assert!(!bench.charge_existing(&request, NOW), "its counters do not exist");
        assert!(bench.take("acme", 1, NOW).is_some());
        assert!(bench.charge_existing(&request, NOW));
        assert!(!bench.charge_existing(&request, NOW));
        let tiers = bench.ask(&request.cost(0), NOW, 0).0.tiers;
        assert_eq!(tiers.iter().map(|tier| tier.remaining).collect::<Vec<_>>(), [7, 7, 0], "{algorithm:?}");
    }
}
