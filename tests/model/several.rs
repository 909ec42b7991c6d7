//! Several tiers, rules and tenants: all or nothing, compared with an oracle for
//! each tier.

use std::{collections::HashMap, time::Duration};

use proptest::prelude::*;
use tower_ratelimit::{Decision, Policy, Quota, Rule};

use super::{
    Bench,
    oracle::Oracle,
    schedule::{any_quota, config, nanos, steps},
};

/// All tiers conform, or none is charged. `retry_after` is the latest of theirs.
fn agree(tiers: &mut [&mut Oracle], now: u64, cost: u64, decision: &Decision) -> Result<(), TestCaseError> {
    let each: Vec<_> = tiers.iter().map(|tier| tier.earliest(now, cost)).collect();
    let all: Option<Vec<u64>> = each.iter().copied().collect();
    let earliest = all.and_then(|times| times.into_iter().max());
    prop_assert_eq!(decision.is_allowed(), earliest == Some(now), "cost {}: {:?}", cost, decision);
    if decision.is_allowed() {
        tiers.iter_mut().for_each(|tier| tier.admit(now, cost));
    } else {
        let retry_after = earliest.map(|earliest| Duration::from_nanos(earliest - now));
        prop_assert_eq!(decision.retry_after(), retry_after);
    }
    prop_assert_eq!(decision.tiers().len(), tiers.len());
    for ((tier, status), earliest) in tiers.iter().zip(decision.tiers()).zip(each) {
        prop_assert_eq!(status.remaining(), tier.remaining(now), "{:?}", status);
        prop_assert_eq!(status.reset(), Duration::from_nanos(tier.reset(now)), "{:?}", status);
        prop_assert_eq!(status.is_violated(), earliest != Some(now), "{:?}", status);
    }
    Ok(())
}

fn oracles(quotas: &[Quota]) -> Vec<Oracle> {
    quotas.iter().map(Oracle::new).collect()
}

/// Two tiers of one algorithm and window are legal as well; so are six.
fn quotas() -> impl Strategy<Value = Vec<Quota>> {
    prop::collection::vec(any_quota(), 1..6)
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn tiers_are_all_or_nothing(quotas in quotas(), steps in steps()) {
        let rule = quotas.iter().fold(Rule::new("all"), |rule, quota| rule.tier(*quota));
        let bench = Bench::new(Policy::new().rule(rule));
        let mut tiers = oracles(&quotas);
        for (gap, cost) in steps {
            bench.advance(nanos(&quotas[0], gap));
            let mut tiers: Vec<_> = tiers.iter_mut().collect();
            agree(&mut tiers, bench.now(), cost, &bench.cost(cost))?;
        }
        prop_assert_eq!(tiers.iter().find_map(Oracle::broken_bound), None);
    }

    /// One rule for every path, one for `/a` at twice the cost; three tenants.
    #[test]
    fn rules_are_all_or_nothing(
        wide in quotas(),
        narrow in quotas(),
        steps in steps(),
        who in prop::collection::vec((0..3_usize, any::<bool>()), 80),
    ) {
        let rule = |rule: Rule, quotas: &[Quota]| quotas.iter().fold(rule, |rule, quota| rule.tier(*quota));
        let policy = Policy::new()
            .rule(rule(Rule::new("wide"), &wide))
            .rule(rule(Rule::new("narrow").path("/a").cost(2), &narrow));
        let bench = Bench::new(policy);
        let mut kept: HashMap<usize, (Vec<Oracle>, Vec<Oracle>)> = HashMap::new();
        for ((gap, cost), (tenant, on_narrow)) in steps.into_iter().zip(who) {
            bench.advance(nanos(&wide[0], gap));
            let (wide, narrow) = kept.entry(tenant).or_insert_with(|| (oracles(&wide), oracles(&narrow)));
            let path = if on_narrow { "/a" } else { "/b" };
            let decision = bench.ask(path, &format!("tenant-{tenant}"), cost);
            let narrow: &mut [Oracle] = if on_narrow { narrow } else { &mut [] };
            agree_on_rules(wide, narrow, bench.now(), cost, &decision)?;
        }
        for (wide, narrow) in kept.values() {
            prop_assert_eq!(wide.iter().chain(narrow).find_map(Oracle::broken_bound), None);
        }
    }
}

/// As [`agree`], with twice the cost for the second rule.
fn agree_on_rules(
    wide: &mut [Oracle],
    narrow: &mut [Oracle],
    now: u64,
    cost: u64,
    decision: &Decision,
) -> Result<(), TestCaseError> {
    let each: Vec<_> = wide
        .iter()
        .map(|tier| tier.earliest(now, cost))
        .chain(narrow.iter().map(|tier| tier.earliest(now, 2 * cost)))
        .collect();
    let all: Option<Vec<u64>> = each.iter().copied().collect();
    let earliest = all.and_then(|times| times.into_iter().max());
    prop_assert_eq!(decision.is_allowed(), earliest == Some(now), "cost {}: {:?}", cost, decision);
    if decision.is_allowed() {
        wide.iter_mut().for_each(|tier| tier.admit(now, cost));
        narrow.iter_mut().for_each(|tier| tier.admit(now, 2 * cost));
    } else {
        prop_assert_eq!(decision.retry_after(), earliest.map(|earliest| Duration::from_nanos(earliest - now)));
    }
    let left: Vec<_> = wide.iter().chain(narrow.iter()).map(|tier| tier.remaining(now)).collect();
    prop_assert_eq!(decision.tiers().iter().map(|tier| tier.remaining()).collect::<Vec<_>>(), left);
    Ok(())
}
