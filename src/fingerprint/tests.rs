use super::*;

#[test]
fn names_addresses_and_the_anonymous_tenant_never_share_a_key() {
    let scope = Scope::new(&["rule", "/path", "GET"]);
    let address: IpAddr = [49, 50, 51, 52].into();
    let keys = [
        scope.key(Some(TenantId::Name("1234"))),
        scope.key(Some(TenantId::Address(address))),
        scope.key(Some(TenantId::Name(""))),
        scope.key(None),
        Scope::new(&["rule", "/pathGET", ""]).key(None),
    ];
    for (index, key) in keys.iter().enumerate() {
        assert!(!keys[..index].contains(key), "{index}");
    }
}

#[test]
fn thousands_of_scopes_and_tenants_have_different_keys() {
    let mut keys = std::collections::HashSet::new();
    for text in (0..10_000).map(|number| number.to_string()).chain((1..500).map(|times| "a".repeat(times))) {
        assert!(keys.insert(Scope::new(&[&text, "", ""]).shared().to_u128()), "rule {text}");
        assert!(keys.insert(Scope::new(&["", &text, ""]).shared().to_u128()), "endpoint {text}");
        let tenant = Some(TenantId::Name(&text));
        assert!(keys.insert(Scope::new(&["rule", "", ""]).key(tenant).to_u128()), "tenant {text}");
    }
}

#[test]
fn the_halves_of_a_fingerprint_differ() {
    let scope = Scope::new(&["rule"]);
    let Fingerprint { high, low } = scope.key(Some(TenantId::Name("acme")));
    assert_ne!(high, low);
}
