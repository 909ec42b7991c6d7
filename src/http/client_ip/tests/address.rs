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

#[test]
fn an_embedded_ipv4_address_counts_whatever_the_prefix() {
    for (address, counted) in [
        ("64:ff9b::c000:207", "192.0.2.7"),
        ("2002:c000:207::", "192.0.2.7"),
        ("2002:c000:207:1:2:3:4:5", "192.0.2.7"),
        // Neighbours, and the prefix for local use (RFC 8215).
        ("64:ff9b:0:0:0:1:c000:207", "64:ff9b::"),
        ("64:ff9b:1::c000:207", "64:ff9b:1::"),
        ("2003:c000:207::1", "2003:c000:207::"),
    ] {
        assert_eq!(Ipv6Prefix::default().cut(ip(address)), ip(counted), "{address}");
    }
    assert_eq!(Ipv6Prefix::new(128).cut(ip("64:ff9b::c000:207")), ip("192.0.2.7"));
    assert_eq!(canonical_ip(ip("64:ff9b::c000:207")), ip("64:ff9b::c000:207"));
}
