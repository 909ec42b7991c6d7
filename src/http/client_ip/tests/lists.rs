use http::HeaderValue;
use proptest::prelude::*;

use super::*;

const NAME: HeaderName = HeaderName::from_static("x-forwarded-for");

fn map<L: AsRef<[u8]>>(lines: impl IntoIterator<Item = L>) -> HeaderMap {
    let values = lines.into_iter().map(|line| HeaderValue::from_bytes(line.as_ref()).unwrap());
    values.map(|value| (NAME, value)).collect()
}

fn entries<L: AsRef<[u8]>>(lines: impl IntoIterator<Item = L>) -> Vec<String> {
    nearest_first(&map(lines), &NAME).map(|entry| String::from_utf8_lossy(entry).into_owned()).collect()
}

fn ip(text: &str) -> Option<IpAddr> {
    Some(text.parse().unwrap())
}

#[test]
fn all_lines_form_one_list_read_from_its_end() {
    assert_eq!(entries(["a, b", "", "c", " ,d ,\t,"]), ["d", "c", "b", "a"]);
    assert_eq!(entries([""; 0]), [""; 0]);
}

#[test]
fn a_quoted_comma_does_not_separate() {
    assert_eq!(entries([r#"a, b="x, y", c="\",\\", d"#]), ["d", r#"c="\",\\""#, r#"b="x, y""#, "a"]);
}

#[test]
fn an_open_quote_does_not_affect_appended_entries() {
    let read = entries([r#"for=1.1.1.1, for=", for="[2001:db8::1]""#]);
    assert_eq!(read[0], r#"for="[2001:db8::1]""#);
    assert_eq!(entries([r#"for="#, r#"", for=1.1.1.1"#])[0], "for=1.1.1.1");
}

#[test]
fn the_work_is_bounded() {
    let many = vec!["10.0.0.1"; 10_000];
    assert_eq!(entries([many.join(",")]).len(), MAX_ENTRIES);
    assert_eq!(entries(many).len(), MAX_ENTRIES);
    // Empty entries and lines count too.
    assert!(entries(["a", &",".repeat(10_000)]).is_empty());
    assert!(entries(std::iter::once("a").chain(std::iter::repeat_n("", 10_000))).is_empty());
    // An entry that is too long ends the list; the longest permitted one does
    // not.
    let long = "x".repeat(MAX_LENGTH);
    assert_eq!(entries([format!("a,{long},b")]), ["b", &long, "a"]);
    assert_eq!(entries([format!("a,{long}x,b")]), ["b"]);
    assert_eq!(entries([format!("a,{},b", "\"".repeat(60_000))]), ["b"]);
}

#[test]
fn an_address_with_and_without_a_port() {
    for (node, address) in [
        ("192.0.2.7", ip("192.0.2.7")),
        ("192.0.2.7:4711", ip("192.0.2.7")),
        ("192.0.2.7:_port", ip("192.0.2.7")),
        ("2001:db8::1", ip("2001:db8::1")),
        ("[2001:db8::1]", ip("2001:db8::1")),
        ("[2001:db8::1]:4711", ip("2001:db8::1")),
        (" [::ffff:192.0.2.7] ", ip("::ffff:192.0.2.7")),
        ("", None),
        ("unknown", None),
        ("_hidden", None),
        ("192.0.2.7:", None),
        ("192.0.2.7:x", None),
        ("192.0.2.7:_", None),
        ("192.0.2.7:65536", None),
        ("192.0.2.256", None),
        ("192.0.2.07", None),
        ("192.0.2", None),
        ("3221225991", None),
        ("[2001:db8::1", None),
        ("[2001:db8::1]4711", None),
        ("[192.0.2.7]", None),
        ("fe80::1%eth0", None),
        ("192.0.2.7 192.0.2.8", None),
    ] {
        assert_eq!(parse_node(node.as_bytes()), address, "{node}");
    }
    assert_eq!(parse_node(b"192.0.2.7\xff"), None);
}

#[test]
fn the_for_of_a_forwarded_element() {
    for (element, address) in [
        ("for=192.0.2.43", ip("192.0.2.43")),
        ("FOR=192.0.2.43;proto=http;by=203.0.113.43", ip("192.0.2.43")),
        ("proto=http; For=\"192.0.2.43:4711\"", ip("192.0.2.43")),
        (r#"For="[2001:db8:cafe::17]:4711""#, ip("2001:db8:cafe::17")),
        (r#"for="[2001:db8::1]""#, ip("2001:db8::1")),
        ("for=2001:db8::1", ip("2001:db8::1")),
        (r#"host="a;for=6.6.6.6";for=192.0.2.43"#, ip("192.0.2.43")),
        (r#"for=192.0.2.43;host="a\";for=6.6.6.6""#, ip("192.0.2.43")),
        (r#"host="\\";for=192.0.2.43"#, ip("192.0.2.43")),
        ("for=unknown", None),
        ("for=_hidden", None),
        ("for=\"_SEVKISEK\"", None),
        ("for=192.0.2.43;for=6.6.6.6", None),
        ("192.0.2.43", None),
        ("by=192.0.2.43", None),
        ("for=", None),
        ("for=\"", None),
        ("for=\"\"", None),
        ("for=\"192.0.2.43", None),
        (r#"for="192.0.2.\43""#, None),
        ("=;=;;", None),
        ("", None),
    ] {
        assert_eq!(parse_element(element.as_bytes()), address, "{element}");
    }
}

/// A naive model of the list, for lines without quotes.
fn naive(lines: &[String]) -> Vec<String> {
    let joined = lines.join(",");
    joined.rsplit(',').map(|entry| entry.trim_ascii().to_owned()).filter(|entry| !entry.is_empty()).collect()
}

proptest! {
    #[test]
    fn entries_equal_those_of_a_naive_split(lines in prop::collection::vec("[a-c,; ]{0,12}", 0..4)) {
        prop_assert_eq!(entries(&lines), naive(&lines));
    }

    #[test]
    fn garbage_never_panics(lines in prop::collection::vec("[^\r\n\0-\u{1f}\u{7f}]{0,40}", 0..4)) {
        let map = map(&lines);
        for entry in nearest_first(&map, &NAME) {
            prop_assert!(!entry.is_empty() && entry.len() <= MAX_LENGTH);
            let _ = (parse_node(entry), parse_element(entry));
        }
    }

    #[test]
    fn an_appended_element_is_read_whatever_precedes_it(
        before in "[\"\\\\,;= a-f0-9:\\[\\]]{0,80}",
        address: std::net::IpAddr,
    ) {
        let element = match address {
            IpAddr::V4(v4) => format!("for={v4};proto=https"),
            IpAddr::V6(v6) => format!("for=\"[{v6}]:4711\";proto=https"),
        };
        let map = map([format!("{before}, {element}")]);
        let nearest = nearest_first(&map, &NAME).next().unwrap();
        prop_assert_eq!(parse_element(nearest), Some(address));
    }
}
