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

#[test]
fn keys_tell_their_rule_and_tier_and_nothing_else_of_them_is_alike() {
    let [first, second] = ["/a", "/b"].map(|endpoint| Scope::new(&["rule", endpoint, ""]));
    let other = Scope::new(&["another", "/a", ""]);
    let salts = ["1s", "1m"].map(|tier| Scope::new(&["token-bucket", tier]).salt());
    let tenant = Some(TenantId::Name("acme"));
    let keys = [first.key(tenant), first.key(None), second.key(tenant)];
    assert!(keys.iter().all(|key| key.rule() == keys[0].rule()));
    assert_ne!(keys[0].rule(), other.key(tenant).rule());
    let tiers = salts.map(|salt| keys[0].tier(salt));
    assert!(tiers.iter().all(|tier| tier.rule() == keys[0].rule()));
    assert_ne!(tiers[0].rule_and_tier(), tiers[1].rule_and_tier());
    assert_eq!(tiers[0].rule_and_tier(), keys[2].tier(salts[0]).rule_and_tier());
    assert_ne!(keys[0].hash(), keys[1].hash());
    let lanes: std::collections::HashSet<_> =
        (0..100).map(|tenant| first.key(Some(TenantId::Name(&tenant.to_string()))).to_u128() % 4).collect();
    assert_eq!(lanes.len(), 4, "keys of one rule are spread over all lanes");
}
