use super::*;

#[test]
fn the_smallest_network_counts() {
    let mut networks = Networks::default();
    for (value, network) in
        ["0.0.0.0/0", "10.1.0.0/16", "10.0.0.0/8", "2001:db8::/32", "::ffff:192.0.2.0/120"].into_iter().enumerate()
    {
        networks.entry(parse_network(network).unwrap().unwrap()).or_insert(value);
    }
    for (address, value) in [
        ("10.1.2.3", Some(1)),
        ("10.2.2.3", Some(2)),
        ("11.0.0.1", Some(0)),
        ("2001:db8:1::", Some(3)),
        ("2001:db9::", None),
        ("192.0.2.7", Some(4)),
    ] {
        assert_eq!(networks.all(address.parse().unwrap()).next().copied(), value, "{address}");
    }
}

#[test]
fn names_with_a_slash_are_no_networks() {
    for name in ["acme", "acme/8", "a/b", "10/8", "cafe/8", "10.0.0.1", "v1.2/x", "1.2/3a"] {
        assert_eq!(parse_network(name), Ok(None), "{name}");
    }
}
