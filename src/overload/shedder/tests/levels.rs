use super::super::*;

const NOW: Timestamp = Timestamp::from_secs(1_704_067_200);

/// The parts of each class that are shed.
fn shed(levels: &Levels, cut: u32) -> [f64; CLASSES] {
    let part = |priority| {
        let of_tenant = |tenant: String| level(priority, TenantId::Name(&tenant), NOW);
        let below = (0..4_000).filter(|n| levels.is_below(of_tenant(format!("tenant-{n}")), cut)).count();
        below as f64 / 4_000.0
    };
    [Priority::Low, Priority::Normal, Priority::High, Priority::Critical].map(part)
}

#[test]
fn a_cut_is_the_end_of_what_is_below() {
    let levels = Levels::default();
    assert_eq!(levels.cut(0.5), 0, "nothing was seen");
    assert!(levels.is_below(3, position(4)) && !levels.is_below(4, position(4)));
}

#[test]
fn whole_classes_are_cut_off_before_the_next_is_touched() {
    let levels = Levels::default();
    for n in 0..SEEN {
        let priority = [Priority::Low, Priority::Low, Priority::Normal, Priority::Critical][n % 4];
        levels.record(level(priority, TenantId::Name(&format!("tenant-{n}")), NOW));
    }
    let near = |found: [f64; CLASSES], expected: [f64; CLASSES]| {
        let is_near = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 0.05);
        assert!(is_near, "{found:?}, not {expected:?}");
    };
    near(shed(&levels, levels.cut(0.0)), [0.0; 4]);
    near(shed(&levels, levels.cut(0.25)), [0.5, 0.0, 0.0, 0.0]);
    near(shed(&levels, levels.cut(0.5)), [1.0, 0.0, 0.0, 0.0]);
    near(shed(&levels, levels.cut(0.625)), [1.0, 0.5, 0.0, 0.0]);
    near(shed(&levels, levels.cut(0.75)), [1.0, 1.0, 1.0, 0.0]);
}

/// With one tenant there is one level in a class, of which a part is cut.
#[test]
fn a_single_level_is_cut_in_parts() {
    let levels = Levels::default();
    let only = level(Priority::Normal, TenantId::Name("acme"), NOW);
    (0..SEEN).for_each(|_| levels.record(only));
    for fraction in [0.0, 0.1, 0.5, 0.95] {
        let cut = levels.cut(fraction);
        let outcomes: Vec<bool> = (0..1_000).map(|_| levels.is_below(only, cut)).collect();
        let below = outcomes.iter().filter(|below| **below).count();
        assert!((below as f64 / 1_000.0 - fraction).abs() < 0.002, "{below} of 1,000 for {fraction}");
        let longest = outcomes.chunk_by(|a, b| a == b).filter(|run| run[0]).map(<[_]>::len).max().unwrap_or(0);
        assert!(fraction > 0.5 || longest <= 2, "{longest} in a row for {fraction}");
    }
}

#[test]
fn a_tenant_keeps_its_level_for_an_hour() {
    let at = |seconds| level(Priority::High, TenantId::Name("acme"), Timestamp::from_secs(seconds));
    let start = NOW.as_secs();
    assert!((start..start + 3_600).step_by(60).all(|second| at(second) == at(start)));
    assert!((1..24).any(|hour| at(start + hour * 3_600) != at(start)));
}

#[test]
fn only_the_last_requests_count() {
    let levels = Levels::default();
    let of = |priority| level(priority, TenantId::Name("acme"), NOW);
    let (low, high) = (of(Priority::Low), of(Priority::High));
    (0..SEEN).for_each(|_| levels.record(low));
    (0..SEEN).for_each(|_| levels.record(high));
    assert!(levels.is_below(low, levels.cut(0.5)) && levels.cut(0.5) > position(high));
}

/// Beside tenants, they are shed as all are: not all of them in one hour, and none in another.
#[test]
fn requests_without_a_tenant_are_shed_in_turn() {
    let levels = Levels::default();
    for n in 0..SEEN {
        let tenant = format!("tenant-{n}");
        let tenant = (n % 2 == 0).then_some(TenantId::Name(&tenant));
        levels.record(levels.of(Priority::Normal, tenant, NOW));
    }
    let cut = levels.cut(0.3);
    let outcomes: Vec<bool> =
        (0..1_000).map(|_| levels.is_below(levels.of(Priority::Normal, None, NOW), cut)).collect();
    let below = outcomes.iter().filter(|below| **below).count();
    assert!((250..350).contains(&below), "{below} of 1,000");
    let longest = outcomes.chunk_by(|a, b| a == b).filter(|run| run[0]).map(<[_]>::len).max().unwrap_or(0);
    assert!(longest <= 2, "{longest} in a row");
}
