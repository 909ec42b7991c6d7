use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn an_ipv6_address_is_cut_to_its_prefix() {
    let address = ip("2001:db8:1:2:3:4:5:6");
    for (bits, network) in [
        (0, "2001:db8::"),
        (32, "2001:db8::"),
        (48, "2001:db8:1::"),
        (64, "2001:db8:1:2::"),
        (128, "2001:db8:1:2:3:4:5:6"),
        (255, "2001:db8:1:2:3:4:5:6"),
    ] {
        assert_eq!(Ipv6Prefix::new(bits).cut(address), ip(network), "/{bits}");
    }
    assert_eq!(Ipv6Prefix::default().cut(address), ip("2001:db8:1:2::"));
}

#[test]
fn an_ipv4_address_is_never_cut_and_always_ipv4() {
    assert_eq!(canonical_ip(ip("::ffff:192.0.2.7")), ip("192.0.2.7"));
    assert_eq!(canonical_ip(ip("::ffff:c000:207")), ip("192.0.2.7"));
    // The deprecated form without ffff is not a mapped address.
    assert_eq!(canonical_ip(ip("::192.0.2.7")), ip("::192.0.2.7"));
    assert_eq!(Ipv6Prefix::new(32).cut(ip("192.0.2.7")), ip("192.0.2.7"));
}
