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

/// Keys as services have them: 1,000 that differ in a few characters or bits.
fn families(scope: Scope) -> Vec<(&'static str, Vec<Fingerprint>)> {
    let names = |name: fn(u32) -> String| {
        (0..1_000).map(|number| scope.key(Some(TenantId::Name(&name(number))))).collect::<Vec<_>>()
    };
    let addresses = |address: fn(u32) -> IpAddr| {
        (0..1_000).map(|number| scope.key(Some(TenantId::Address(address(number))))).collect::<Vec<_>>()
    };
    vec![
        ("number", names(|number| number.to_string())),
        ("user42", names(|number| format!("user{number}"))),
        ("tenant-0000042", names(|number| format!("tenant-{number:07}"))),
        ("0042aaaaaaaaaa", names(|number| format!("{number:04}aaaaaaaaaa"))),
        ("abcdef0042uvwxyz", names(|number| format!("abcdef{number:04}uvwxyz"))),
        ("0000000000042000", names(|number| format!("{:016x}", number << 12))),
        ("sk_live_000000000042", names(|number| format!("sk_live_{number:012}"))),
        ("UUID", names(|number| format!("{number:08x}-0000-4000-8000-{number:012x}"))),
        ("10.0.0.42", addresses(|number| std::net::Ipv4Addr::from(0x0a00_0000 + number).into())),
        ("10.42.0.0", addresses(|number| std::net::Ipv4Addr::from(0x0a00_0000 + (number << 12)).into())),
        (
            "2001:db8:0:42::",
            addresses(|number| std::net::Ipv6Addr::from(0x2001_0db8 << 96 | u128::from(number) << 64).into()),
        ),
    ]
}

#[test]
fn similar_keys_meet_as_rarely_as_random_ones() {
    const SHARDS: usize = 128;
    const ENTRIES: usize = 32;
    for seed in 0..32_u64 {
        // Nothing is random: a failure can be repeated.
        let bits = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let seeds = Box::leak(Box::new(Seeds([seed, seed + 1_000].map(SharedSeed::from_u64))));
        for (family, keys) in families(Scope { bits, seeds }) {
            let pairs = |bucket: fn(&Fingerprint) -> usize| {
                let mut keys_in = [0_usize; SHARDS * ENTRIES];
                keys.iter().for_each(|key| keys_in[bucket(key)] += 1);
                keys_in.iter().map(|keys| keys * keys.saturating_sub(1) / 2).sum::<usize>()
            };
            let in_shards = pairs(|key| key.spread_over(SHARDS));
            let at_homes = pairs(|key| key.home(SHARDS * ENTRIES));
            let at_homes_of_shards = pairs(|key| key.spread_over(SHARDS) * ENTRIES + key.home(ENTRIES));
            // By chance 3,902 pairs of keys meet in shards, and 122 elsewhere, with
            // standard deviations of 62 and 11.
            assert!((3_500..4_300).contains(&in_shards), "{family}, seed {seed}: {in_shards} in shards");
            assert!((50..200).contains(&at_homes), "{family}, seed {seed}: {at_homes} at homes");
            assert!((50..200).contains(&at_homes_of_shards), "{family}, seed {seed}: {at_homes_of_shards} in both");
        }
    }
}
