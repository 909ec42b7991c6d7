//! What operators set for single tenants: other tiers and blocks, each for a while.

use std::time::Duration;

use tower_ratelimit::{
    Descriptor, Dimension, Policy, Quota, RateLimitedKind, RateLimiter, Rule, Tenant, descriptor::TenantId,
    testing::ManualClock,
};

use super::{admitted, ask};

const MINUTE: Duration = Duration::from_secs(60);

fn policy(limit: u64) -> Policy {
    let own = Rule::new("own").per([Dimension::Tenant]).tier(Quota::per_day(limit)).plan_unlimited("staff");
    let shared = Rule::new("shared").per([]).tier(Quota::per_day(1_000));
    let free = Rule::new("free").path("/healthz").exempt(true);
    Policy::new().rule(own).rule(shared).rule(free)
}

fn limiter(policy: impl Into<Policy>) -> (RateLimiter, ManualClock) {
    let clock = ManualClock::new();
    (RateLimiter::builder().policy(policy).clock(clock.clone()).build().unwrap(), clock)
}

fn of(tenant: &str) -> Descriptor<'_> {
    Descriptor::new("/x").tenant(tenant)
}

#[test]
fn tiers_keep_what_was_used_and_end_with_their_time() {
    let (limiter, clock) = limiter(policy(2));
    assert_eq!(admitted(&limiter, &of("acme"), 5), 2);

    limiter.override_tiers(Tenant::new("acme").tiers([Quota::per_day(5)]), MINUTE).unwrap();
    assert_eq!(admitted(&limiter, &of("acme"), 5), 3, "two of five are used");
    assert_eq!(admitted(&limiter, &of("globex"), 5), 2, "others keep the policy's");

    clock.advance(MINUTE - Duration::from_nanos(1));
    assert_eq!(ask(&limiter, &of("acme")).limit(), Some(5));
    clock.advance(Duration::from_nanos(1));
    assert_eq!(ask(&limiter, &of("acme")).limit(), Some(2));
}

#[test]
fn a_block_rejects_until_it_ends() {
    let (limiter, clock) = limiter(policy(2));
    limiter.block("mallory", MINUTE).unwrap();
    clock.advance(Duration::from_secs(20));

    let decision = ask(&limiter, &of("mallory"));
    assert_eq!(decision.rejection(), Some(RateLimitedKind::Blocked));
    assert_eq!(decision.retry_after(), Some(Duration::from_secs(40)));
    let of_staff = Descriptor::new("/x").tenant(Tenant::new("mallory").plan("staff"));
    assert!(!ask(&limiter, &of_staff).is_allowed(), "an unlimited plan does not help");
    assert!(ask(&limiter, &Descriptor::new("/healthz").tenant("mallory")).is_allowed(), "exempt");
    assert!(ask(&limiter, &of("acme")).is_allowed());

    clock.advance(Duration::from_secs(40));
    assert_eq!(ask(&limiter, &of("mallory")).remaining(), Some(1), "nothing was charged");
}

#[test]
fn a_reload_keeps_them() {
    let (limiter, clock) = limiter(policy(2));
    limiter.override_tiers(Tenant::new("acme").tiers([Quota::per_day(5)]), MINUTE).unwrap();
    limiter.block("mallory", 2 * MINUTE).unwrap();
    limiter.set_policy(policy(3)).unwrap();
    assert_eq!(ask(&limiter, &of("acme")).limit(), Some(5));
    assert_eq!(ask(&limiter, &of("mallory")).rejection(), Some(RateLimitedKind::Blocked));

    clock.advance(MINUTE);
    assert_eq!(ask(&limiter, &of("acme")).limit(), Some(3), "that of the new policy");
    assert_eq!(ask(&limiter, &of("mallory")).rejection(), Some(RateLimitedKind::Blocked), "its time is not over");
}

#[test]
fn they_are_lifted() {
    let (limiter, _) = limiter(policy(2));
    limiter.block("mallory", MINUTE).unwrap();
    limiter.override_tiers(Tenant::new("mallory").tiers([Quota::per_day(5)]), MINUTE).unwrap();
    assert_eq!(ask(&limiter, &of("mallory")).rejection(), Some(RateLimitedKind::Blocked), "a block comes first");
    assert!(limiter.lift_overrides(TenantId::Name("mallory")));
    assert_eq!(ask(&limiter, &of("mallory")).limit(), Some(2));
    assert!(!limiter.lift_overrides(TenantId::Name("mallory")));
}

#[test]
fn the_only_rule_of_a_policy_has_them_too() {
    let (limiter, clock) = limiter(Quota::per_day(2));
    limiter.block("mallory", MINUTE).unwrap();
    assert_eq!(ask(&limiter, &of("mallory")).rejection(), Some(RateLimitedKind::Blocked));
    assert!(ask(&limiter, &of("acme")).is_allowed());
    clock.advance(MINUTE);
    assert!(ask(&limiter, &of("mallory")).is_allowed());
}

#[test]
fn an_address_is_not_its_text() {
    let (limiter, _) = limiter(policy(2));
    let address: std::net::IpAddr = [192, 0, 2, 7].into();
    limiter.block(address, MINUTE).unwrap();
    assert!(ask(&limiter, &of("192.0.2.7")).is_allowed());
    let by_address = Descriptor::new("/x").tenant(address);
    assert_eq!(ask(&limiter, &by_address).rejection(), Some(RateLimitedKind::Blocked));
}

/// A router does not match these spellings, so the tenant of one may be made up.
#[test]
fn a_tenant_in_a_strange_path_gets_no_higher_tiers() {
    let rule = Rule::new("org").path("/orgs/{org}/x").tenant_from_path("org").tier(Quota::per_day(2));
    let (limiter, _) = limiter(Policy::new().rule(rule));
    limiter.override_tiers(Tenant::new("acme").tiers([Quota::per_day(5)]), MINUTE).unwrap();
    assert_eq!(ask(&limiter, &Descriptor::new("/orgs/acme/x")).limit(), Some(5));
    assert_eq!(ask(&limiter, &Descriptor::new("/orgs/./acme/x")).limit(), Some(2));

    limiter.override_tiers(Tenant::new("acme").tiers([Quota::per_day(1)]), MINUTE).unwrap();
    assert_eq!(ask(&limiter, &Descriptor::new("/orgs/./acme/x")).limit(), Some(1), "lower ones count");
    limiter.block("acme", MINUTE).unwrap();
    let decision = ask(&limiter, &Descriptor::new("/orgs/./acme/x"));
    assert_eq!(decision.rejection(), Some(RateLimitedKind::Blocked), "and so does a block");
}

#[test]
fn what_no_rule_could_use_is_an_error() {
    let (limiter, _) = limiter(policy(2));
    let fails = |tenant: Tenant| limiter.override_tiers(tenant, MINUTE).unwrap_err().to_string();
    assert!(fails(Tenant::new("acme")).contains("carries none"));
    assert!(fails(Tenant::new("acme").tiers([])).contains("1 to 32"));
    assert!(fails(Tenant::new("acme").tiers([Quota::new(1, Duration::ZERO)])).contains("own"));
    assert!(fails(Tenant::new("acme").tiers_for("typo", [Quota::per_day(1)])).contains("no such rule"));
    assert!(ask(&limiter, &of("acme")).is_allowed(), "nothing is in force");
}

#[test]
fn their_number_and_names_are_bounded() {
    let (limiter, clock) = limiter(policy(2));
    (0..1_024).for_each(|n| limiter.block(format!("t{n}"), MINUTE).unwrap());
    assert!(limiter.block("one-more", MINUTE).is_err());
    limiter.block("t7", 2 * MINUTE).unwrap();
    clock.advance(MINUTE);
    limiter.block("one-more", MINUTE).unwrap();
    assert!(limiter.block("x".repeat(1 << 20), MINUTE).unwrap_err().to_string().contains("1024 bytes"));
}

#[tokio::test]
async fn an_explanation_names_them() {
    let (limiter, clock) = limiter(policy(2));
    limiter.override_tiers(Tenant::new("acme").tiers([Quota::per_day(5)]), MINUTE).unwrap();
    limiter.block("mallory", 2 * MINUTE).unwrap();
    let of_acme = limiter.explain(&of("acme")).await.to_string();
    assert!(of_acme.contains("5 per 1d by token-bucket, from an override by an operator; 5 left"), "{of_acme}");
    let of_mallory = limiter.explain(&of("mallory")).await.to_string();
    assert!(of_mallory.contains("an operator has blocked its tenant"), "{of_mallory}");

    clock.advance(MINUTE);
    let of_acme = limiter.explain(&of("acme")).await.to_string();
    assert!(of_acme.contains("2 per 1d by token-bucket, from the rule; 2 left"), "{of_acme}");
}
