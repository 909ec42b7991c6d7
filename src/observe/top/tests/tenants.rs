use super::super::*;

const START: Timestamp = Timestamp::from_nanos(600_000_000_000_000);

fn count(top: &TopTenants, tenant: &str, (measure, amount): (Measure, u64), now: Timestamp) {
    top.count(("rule", Some(TenantId::Name(tenant))), (measure, amount), 0.5, now);
}

fn names(top: &[TopTenant]) -> Vec<String> {
    top.iter().map(|tenant| tenant.tenant.as_ref().unwrap().id().to_string()).collect()
}

/// `SplitMix64`.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    #[allow(clippy::cast_precision_loss)]
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The sums of 1/rank: which rank a number below the last one falls to.
#[allow(clippy::cast_precision_loss)]
fn zipf(ranks: usize) -> Vec<f64> {
    let sums = (1..=ranks).scan(0.0, |sum, rank| {
        *sum += 1.0 / rank as f64;
        Some(*sum)
    });
    sums.collect()
}

/// Of 20 million requests by a million tenants, of which the n-th has 1/n of the first one's,
/// the ten with most are found.
///
/// The requests are independent of each other, so only those that are sampled are drawn.
#[test]
fn the_first_ten_of_a_million_are_found() {
    let ranks = zipf(1_000_000);
    let mut found = 0;
    for seed in 0..4 {
        let (mut random, sampler, top) = (Random(seed), Sampler::default(), TopTenants::new(256));
        let _jitter = crate::jitter::seeded::SeededJitter::new(seed);
        for request in 1..=20_000_000 {
            if sampler.is_due(1) {
                let charged = sampler.take(1, request, minute(START));
                let at = random.unit() * ranks[ranks.len() - 1];
                let rank = ranks.partition_point(|sum| *sum <= at);
                count(&top, &rank.to_string(), (Measure::Units, charged), START);
            }
        }
        let first = names(&top.of_rule("rule", 10, START));
        found += first.iter().take(10).filter(|name| name.parse::<u32>().unwrap() < 10).count();
    }
    assert_eq!(found, 40);
}

#[test]
fn rejections_of_a_flood_find_the_ten_that_are_rejected_most() {
    let ranks = zipf(1_000_000);
    let mut found = 0;
    for seed in 0..4 {
        let (mut random, top) = (Random(seed), TopTenants::new(256));
        for _ in 0..200_000 {
            let at = random.unit() * ranks[ranks.len() - 1];
            let rank = ranks.partition_point(|sum| *sum <= at);
            count(&top, &rank.to_string(), (Measure::Rejections, 1), START);
        }
        let first = names(&top.of_rule("rule", 10, START));
        found += (0..10).filter(|rank| first.contains(&rank.to_string())).count();
    }
    assert_eq!(found, 40);
}

/// Tenants that each thread counts in its own shard are one tenant, within the bound.
#[test]
fn shards_are_merged_within_the_bound() {
    let (top, threads) = (TopTenants::new(16), 2 * SHARDS as u64);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let top = &top;
            scope.spawn(move || {
                for step in 0..2_000_u64 {
                    count(top, "everywhere", (Measure::Units, 3), START);
                    count(top, &format!("{thread}-{step}"), (Measure::Units, 1), START);
                }
            });
        }
    });
    let first = &top.of_rule("rule", 1, START)[0];
    assert_eq!(first.tenant.as_ref().unwrap().id(), TenantId::Name("everywhere"));
    let (exact, all) = (threads * 6_000, threads * 8_000);
    assert!(first.units_error <= all / 16 && first.units.abs_diff(exact) <= first.units_error, "{first:?}");
    assert!(top.shards.iter().all(|shard| shard.lock().unwrap().rules["rule"][0].tenants.len() <= 16));
}

/// The order of counts, of which a tenant may lead in any.
#[test]
fn those_with_most_units_most_rejections_and_least_left_are_told() {
    let top = TopTenants::new(256);
    for number in 1..=20 {
        count(&top, &format!("heavy-{number}"), (Measure::Units, 100 * number), START);
        count(&top, &format!("rejected-{number}"), (Measure::Rejections, number), START);
    }
    top.count(("rule", None), (Measure::Units, 1), 0.01, START);
    let all = top.of_rule("rule", 1, START);
    let told: Vec<_> = all.iter().map(|tenant| (tenant.units, tenant.rejections, tenant.least_remaining)).collect();
    assert_eq!(told, [(2_000, 0, 0.5), (1, 0, 0.01), (0, 20, 0.5)]);
    assert_eq!(all[1].tenant, None);
    assert!(top.of_rule("rule", 0, START).is_empty() && top.of_rule("other", 9, START).is_empty());
}

#[test]
fn a_clock_that_is_set_back_halves_nothing() {
    let top = TopTenants::new(4);
    let minutes = |minutes: u64| Timestamp::from_nanos(START.as_nanos() + minutes * 60_000_000_000);
    count(&top, "acme", (Measure::Units, 8), minutes(5));
    let units = |now| top.of_rule("rule", 1, now).first().map_or(0, |tenant| tenant.units);
    assert_eq!([units(minutes(0)), units(minutes(1)), units(minutes(3)), units(minutes(9))], [8, 4, 1, 0]);
}

#[test]
fn names_of_any_length_take_bounded_memory() {
    let top = TopTenants::new(4);
    for last in ["a", "b"] {
        count(&top, &format!("{}{last}", "é".repeat(500_000)), (Measure::Units, 1), START);
    }
    let told = names(&top.of_rule("rule", 9, START));
    assert_eq!(told, vec![format!("{}…", "é".repeat(128)); 2]);
}
