//! Requests that are counted by several keys at once.

use http::{Method, StatusCode};
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{
    Descriptor, Dimension, MissingTenant, Policy, Quota, RateLimitLayer, Rule,
    tenant::{self, TrustedProxies},
};

use super::{
    common::{Caller, limiter},
    limited,
};

const OK: StatusCode = StatusCode::OK;
const REJECTED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

/// Three a minute for an API key, five for an address.
const POLICY: &str = "
rules:
  - id: per-key
    per: [tenant]
    tiers: [{ limit: 3, window: 1m }]
  - id: per-address
    per: [ip]
    tiers: [{ limit: 5, window: 1m }]
    tenants: { 10.0.0.0/8: unlimited, internal: unlimited }
";

fn layer(policy: Policy) -> RateLimitLayer {
    let proxies = TrustedProxies::cidrs(["127.0.0.1"]).unwrap();
    RateLimitLayer::new(limiter(policy).0).tenant(tenant::header("x-api-key")).key("ip", tenant::client_ip(proxies))
}

async fn status(server: &Caller, key: &str, address: &str) -> StatusCode {
    let headers = [("x-api-key", key.as_bytes()), ("x-forwarded-for", address.as_bytes())];
    server.call(Method::GET, "/", &headers).await.status
}

async fn admitted(server: &Caller, key: &str, address: &str) -> usize {
    let mut admitted = 0;
    for _ in 0..10 {
        admitted += usize::from(status(server, key, address).await == OK);
    }
    admitted
}

fn rules() -> Policy {
    Policy::new().rule(Rule::new("per-key").per([Dimension::Tenant]).tier(Quota::per_minute(3))).rule(
        Rule::new("per-address")
            .per([Dimension::key("ip")])
            .tier(Quota::per_minute(5))
            .tenant_unlimited("10.0.0.0/8")
            .tenant_unlimited("internal"),
    )
}

#[tokio::test]
async fn a_rejection_by_one_key_pays_nothing_for_another() {
    let server = limited(layer(rules())).await;
    assert_eq!(admitted(&server, "a", "192.0.2.1").await, 3, "by the API key's limit");
    assert_eq!(admitted(&server, "b", "192.0.2.1").await, 2, "what is left of the address's");
    assert_eq!(admitted(&server, "b", "192.0.2.2").await, 1, "what is left of the API key's");
    // Exceptions by the key that the rule counts by, and by the tenant.
    assert_eq!(admitted(&server, "c", "10.1.2.3").await, 3);
    assert_eq!(admitted(&server, "internal", "192.0.2.1").await, 3);
}

#[cfg(feature = "serde")]
#[test]
fn keys_are_written_in_a_policy_file() {
    assert_eq!(Policy::from_yaml(POLICY).unwrap(), rules());
    let error = |per: &str| {
        let yaml = format!("rules: [{{ id: r, per: [{per}], tiers: [{{ limit: 1, window: 1s }}] }}]");
        Policy::from_yaml(&yaml).unwrap_err().to_string()
    };
    assert!(error("tennant").contains("did you mean `tenant`?"));
    assert!(error("Tenant").contains("did you mean `tenant`?"));
    assert!(error("'client ip'").contains("1 to 64 letters"));
    assert!(error("ip, ip").contains("is named twice"));
    let login = "rules: [{ id: r, per: [ip], on_missing_key: reject, tiers: [{ limit: 1, window: 1s }] }]";
    let rule = Rule::new("r").per([Dimension::key("ip")]).on_missing_key(MissingTenant::Reject);
    assert_eq!(Policy::from_yaml(login).unwrap(), Policy::new().rule(rule.tier(Quota::per_second(1))));
}

#[tokio::test]
async fn a_missing_key_is_as_a_missing_tenant() {
    let policy = || Policy::new().rule(Rule::new("r").per([Dimension::key("device")]).tier(Quota::per_minute(1)));
    for (choice, statuses) in [
        (MissingTenant::Anonymous, [OK, REJECTED]),
        (MissingTenant::Allow, [OK, OK]),
        (MissingTenant::Reject, [StatusCode::UNAUTHORIZED; 2]),
    ] {
        let layer = RateLimitLayer::new(limiter(policy()).0)
            .key("device", tenant::header("x-device"))
            .on_missing_tenant(choice);
        let server = limited(layer).await;
        for status in statuses {
            assert_eq!(server.get("/").await.status, status, "{choice:?}");
        }
        assert_eq!(server.call(Method::GET, "/", &[("x-device", b"1")]).await.status, OK);
        assert_eq!(server.call(Method::GET, "/", &[("x-device", b"1")]).await.status, REJECTED);
        // More than one is ambiguous.
        let twice = [("x-device", &b"1"[..]), ("x-device", b"2")];
        assert_eq!(server.call(Method::GET, "/", &twice).await.status, StatusCode::BAD_REQUEST, "{choice:?}");
    }
}

/// By default a rule does not apply, and callers without the key share no counter. The
/// rule's choice comes before the layer's.
#[tokio::test]
async fn a_rule_chooses_what_happens_without_its_key() {
    use MissingTenant::{Allow, Anonymous, Reject};
    const UNKNOWN: StatusCode = StatusCode::UNAUTHORIZED;
    let by_device = || Rule::new("device").per([Dimension::Tenant, Dimension::key("device")]);
    for (rule, layer, statuses) in [
        (None, None, [OK, OK]),
        (None, Some(Anonymous), [OK, REJECTED]),
        (Some(Anonymous), None, [OK, REJECTED]),
        (Some(Anonymous), Some(Reject), [OK, REJECTED]),
        (Some(Reject), None, [UNKNOWN, UNKNOWN]),
        (Some(Reject), Some(Allow), [UNKNOWN, UNKNOWN]),
        (Some(Allow), Some(Reject), [OK, OK]),
    ] {
        let own = rule.map_or_else(by_device, |choice| by_device().on_missing_key(choice));
        let policy = Policy::new().rule(own.tier(Quota::per_minute(1)));
        let own = RateLimitLayer::new(limiter(policy).0).tenant(tenant::peer_ip());
        let own = own.key("device", tenant::header("x-device"));
        let server = limited(layer.map_or_else(|| own.clone(), |choice| own.clone().on_missing_tenant(choice))).await;
        for status in statuses {
            assert_eq!(server.get("/").await.status, status, "{rule:?}, {layer:?}");
        }
        for status in [OK, REJECTED] {
            assert_eq!(server.call(Method::GET, "/", &[("x-device", b"1")]).await.status, status, "{rule:?}");
        }
    }
}

/// To leave out a key is no way around all limits.
#[tokio::test]
async fn a_rule_that_lacks_its_key_does_not_stand_in_for_the_fallback() {
    let by_device = Rule::new("device").per([Dimension::key("device")]).tier(Quota::per_minute(2));
    let rest = Rule::new("rest").per([]).fallback(true).tier(Quota::per_minute(1));
    let layer = RateLimitLayer::new(limiter(Policy::new().rule(by_device).rule(rest)).0);
    let server = limited(layer.key("device", tenant::header("x-device"))).await;
    for status in [OK, REJECTED] {
        assert_eq!(server.get("/").await.status, status);
    }
    for status in [OK, OK, REJECTED] {
        assert_eq!(server.call(Method::GET, "/", &[("x-device", b"1")]).await.status, status);
    }
}

#[tokio::test]
async fn keys_of_any_service() {
    let layer = RateLimitLayer::keyed(limiter(rules()).0, |job: &(String, String)| {
        Descriptor::new("/").tenant(job.0.as_str()).key("ip", job.1.as_str())
    });
    let service = layer.layer(service_fn(async |_: (String, String)| Ok::<_, std::io::Error>(())));
    let mut admitted = 0;
    for n in 0..20 {
        let job = (format!("owner-{n}"), "host".to_owned());
        admitted += usize::from(service.clone().oneshot(job).await.is_ok());
    }
    assert_eq!(admitted, 5);
}
