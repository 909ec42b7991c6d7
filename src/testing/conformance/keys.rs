//! Requests that are counted by several keys, and by limits of their own.

use super::bench::{Fixture, rule};
use crate::{
    decision::RateLimitedKind,
    descriptor::{Descriptor, Tenant},
    policy::{Dimension, Policy},
    quota::Quota,
};

/// One rule counts by tenant, one by another key, one by both together. A
/// rejection by any of them charges none.
pub(super) fn all_or_nothing_over_keys(fixture: &Fixture<'_>) {
    let policy = Policy::new()
        .rule(rule("keys-tenant").per([Dimension::Tenant]).tier(Quota::per_day(2)))
        .rule(rule("keys-ip").per([Dimension::key("ip")]).tier(Quota::per_day(5)))
        .rule(rule("keys-both").per([Dimension::Tenant, Dimension::key("ip")]).tier(Quota::per_day(2)));
    let bench = fixture.bench(policy);
    let admitted = |tenant: &str, ip: &str, tries: usize| {
        let request = Descriptor::new("/").tenant(tenant).key("ip", ip);
        let admitted = (0..tries).filter(|_| bench.ask(&request).is_allowed()).count();
        // A cluster asks the slots of different keys one by one, and refunds.
        fixture.settle();
        admitted
    };
    assert_eq!(admitted("a", "x", 20), 2, "by the tenant's limit");
    assert_eq!(admitted("a", "y", 20), 0, "the tenant's limit, whatever the other key is");
    assert_eq!(admitted("b", "x", 20), 2, "another tenant");
    assert_eq!(admitted("c", "x", 20), 1, "what the rejected requests left of the other key's limit");
    assert_eq!(admitted("c", "y", 20), 1, "what the rejected requests left of the tenant's limit");
    // Of names that read alike when they are written one after the other.
    assert_eq!(admitted("c&ip=", "z", 1) + admitted("c", "&ip=z", 1), 1);
}

/// Limits that come with the request: they replace the rule's own, and a tenant
/// keeps what it has used when they change.
pub(super) fn limits_of_the_request(fixture: &Fixture<'_>) {
    let own = rule("own").per([Dimension::Tenant]).tier(Quota::per_day(1)).tenant("acme", [Quota::per_day(2)]);
    let bench = fixture.bench(Policy::new().rule(own));
    let admitted = |tenant: Tenant| {
        let request = Descriptor::new("/").tenant(tenant);
        (0..20).filter(|_| bench.ask(&request).is_allowed()).count()
    };
    let with = |limit| Tenant::new("acme").tiers([Quota::per_day(limit)]);
    assert_eq!(admitted(with(3)), 3, "the tenant's own limit");
    assert_eq!(admitted(with(5)), 2, "what a higher limit adds");
    assert_eq!(admitted(with(4)), 0, "a lower limit");
    assert_eq!(admitted(Tenant::new("acme")), 0, "the policy's limit for the tenant");
    assert_eq!(admitted(Tenant::new("b").tiers_for("conformance-own", [Quota::per_day(2)])), 2, "of one rule");
    assert_eq!(admitted(Tenant::new("c").tiers_for("other", [Quota::per_day(2)])), 1, "of another rule");
    let request = Descriptor::new("/").tenant(Tenant::new("d").tiers([]));
    assert_eq!(bench.ask(&request).rejection(), Some(RateLimitedKind::InvalidTiers), "no quota at all");
}
