//! What a copy counts of several tiers.

use super::*;
use crate::{
    algorithm::CopiedState,
    backend::{QuotaStatuses, redis::copies::counts::Counts},
    policy::{Policy, Rule, Tier},
};

/// Four units are used, in a window of any length that ends in a second.
const COPIED: CopiedState = CopiedState { ends: START + SECOND, current: 4, previous: 0 };

/// A tier of ten units in each of two windows.
fn with_tiers(run: impl FnOnce(&[Tier])) {
    let quota = |seconds| Quota::new(10, Duration::from_secs(seconds)).algorithm(Algorithm::FixedWindow);
    let rule = Rule::new("all").tier(quota(1)).tier(quota(60));
    let policy = CompiledPolicy::new(Policy::new().rule(rule)).unwrap();
    request(&policy, (1, START), |_, charge| run(charge.tiers()));
}

fn restored(tiers: &[Tier], copied: [CopiedState; 2]) -> impl Iterator<Item = (&Tier, CopiedState, u64)> {
    tiers.iter().zip(copied).map(|(tier, copied)| (tier, copied, 0))
}

fn left(counts: &mut Counts, tiers: &[Tier], now: u64) -> Vec<u64> {
    counts.of(tiers.iter()).map(|(tier, own)| own.count.status(&tier.machine, now).remaining).collect()
}

#[test]
fn all_tiers_are_charged_or_none() {
    with_tiers(|tiers| {
        let (mut counts, mut statuses) = (Counts::default(), QuotaStatuses::new());
        assert!(!counts.try_charge(tiers.iter(), 1, START, &mut statuses), "nothing is known");
        let copied = [COPIED, CopiedState { current: 8, ..COPIED }];
        counts.restore(restored(tiers, copied));
        assert!(!counts.try_charge(tiers.iter(), 3, START, &mut statuses));
        assert_eq!((left(&mut counts, tiers, START), statuses.len()), (vec![6, 2], 0));
        assert!(counts.try_charge(tiers.iter(), 2, START, &mut statuses));
        assert_eq!(statuses.iter().map(|status| status.remaining).collect::<Vec<_>>(), [4, 0]);
    });
}

#[test]
fn units_are_added_to_restored_counts() {
    with_tiers(|tiers| {
        let (mut counts, copied) = (Counts::default(), [COPIED; 2]);
        counts.restore(restored(tiers, copied));
        counts.add(tiers.iter(), 2, START);
        assert_eq!(left(&mut counts, tiers, START), [4, 4]);
        counts.add(tiers.iter(), 1, START);
        assert_eq!(left(&mut counts, tiers, START), [3, 3]);
        // More than the limit is a debt of the next window.
        counts.restore(restored(tiers, copied));
        counts.add(tiers.iter(), 9, START);
        assert_eq!(left(&mut counts, tiers, START + SECOND)[0], 7);
    });
}
