use super::*;
use crate::unit::Unit;
use crate::{decision::TierNameStyle, quota::Quota, time::nanos};

fn tier(quota: Quota, remaining: u64, reset: Duration) -> TierStatus {
    TierStatus {
        rule: &"r",
        quota,
        remaining,
        reset: nanos(reset),
        naming: TierNameStyle::Alone,
        violated: false,
        unit: Unit::default(),
    }
}

#[test]
fn a_decision_is_one_pointer() {
    assert_eq!(size_of::<Decision>(), size_of::<usize>());
}

#[test]
fn the_tier_that_rejected_is_binding() {
    let mut decision = Decision::unlimited();
    decision.add_tier(tier(Quota::per_second(10), 0, Duration::from_secs(1)));
    decision.add_tier(TierStatus { violated: true, ..tier(Quota::per_hour(50), 3, Duration::from_secs(9)) });
    decision.reject(RateLimitedKind::QuotaExceeded, Timestamp::UNIX_EPOCH, Some(1));
    assert_eq!(decision.limit(), Some(50));
}

#[test]
fn any_number_of_tiers_is_kept_in_order() {
    // Records are used again, by decisions of more tiers and of fewer.
    for count in (0..9).chain((0..9).rev()) {
        let mut decision = Decision::unlimited();
        let tiers: Vec<_> = (0..count).map(|left| tier(Quota::per_hour(50), 20 - left, Duration::ZERO)).collect();
        tiers.iter().for_each(|tier| decision.add_tier(*tier));
        assert_eq!(decision.tiers(), tiers);
        let copy = decision.clone();
        drop(decision);
        assert_eq!(copy.tiers(), tiers);
        assert_eq!(copy.remaining(), tiers.last().map(TierStatus::remaining));
    }
}
