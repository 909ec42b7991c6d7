//! Which requests a rule is for, by method and path.

use http::Method;
use tower_ratelimit::{Descriptor, Policy, Quota, RateLimiter, Rule};

use super::{admitted, ask};

#[test]
fn head_counts_as_get_unless_the_rule_names_it() {
    let head = Descriptor::new("/search").method("HEAD");
    let rule = || Rule::new("search").path("/search").tier(Quota::per_hour(1));
    let limiter = RateLimiter::new(Policy::new().rule(rule().methods([Method::GET]))).unwrap();
    assert!(ask(&limiter, &Descriptor::new("/search").method("GET")).is_allowed());
    assert!(!ask(&limiter, &head).is_allowed());

    let limiter = RateLimiter::new(Policy::new().rule(rule().methods([Method::GET, Method::HEAD]))).unwrap();
    assert!(ask(&limiter, &Descriptor::new("/search").method("GET")).is_allowed());
    assert!(ask(&limiter, &head).is_allowed(), "HEAD has its own counter");

    let limiter = RateLimiter::new(Policy::new().rule(rule().methods([Method::POST]))).unwrap();
    assert_eq!(admitted(&limiter, &head, 5), 5, "a rule for POST does not apply");
}

#[test]
fn extra_slashes_do_not_bypass_a_rest_pattern() {
    let rule = Rule::new("rest").path("/v1/{*rest}").tier(Quota::per_hour(1));
    let limiter = RateLimiter::new(Policy::new().rule(rule)).unwrap();
    assert!(ask(&limiter, &Descriptor::new("/v1/a")).is_allowed());
    for path in ["/v1//", "/v1///", "//v1//", "/v1/%2F"] {
        assert!(!ask(&limiter, &Descriptor::new(path)).is_allowed(), "{path}");
    }
}

#[test]
fn a_tenant_in_a_path_matches_in_any_case_if_case_is_ignored() {
    let rule =
        Rule::new("org").path("/{org}/x").tenant_from_path("org").tier(Quota::per_hour(1)).tenant_unlimited("ACME");
    let limiter = RateLimiter::new(Policy::new().ignore_case(true).rule(rule)).unwrap();
    assert_eq!(admitted(&limiter, &Descriptor::new("/Acme/x"), 3), 3);
    assert_eq!(admitted(&limiter, &Descriptor::new("/other/x"), 3), 1);
}
