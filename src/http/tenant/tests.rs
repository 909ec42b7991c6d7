use std::sync::Arc;

use http::{HeaderValue, Request};
use proptest::prelude::*;

use super::*;
use crate::descriptor::TenantId;

fn found(extractor: &impl TenantExtractor, request: &Request<()>) -> Option<Tenant> {
    extractor.extract(&RequestHead::new(request)).map(TenantRef::into_owned)
}

fn with_key(values: &[&[u8]]) -> Request<()> {
    let mut request = Request::new(());
    for value in values {
        request.headers_mut().append("x-api-key", HeaderValue::from_bytes(value).unwrap());
    }
    request
}

fn from(peer: &str) -> Request<()> {
    Request::builder().extension(PeerAddr(peer.parse().unwrap())).body(()).unwrap()
}

fn address(text: &str) -> Option<Tenant> {
    Some(Tenant::address(text.parse().unwrap()))
}

#[test]
fn a_key_is_its_bytes() {
    let key = |values: &[&[u8]]| found(&header("X-Api-Key"), &with_key(values));
    let keys = |values: &[&str]| key(&values.iter().map(|value| value.as_bytes()).collect::<Vec<_>>());
    assert_eq!(key(&[b"k-123"]), Some(Tenant::new("k-123")));
    assert_eq!(key(&["\u{e9}".as_bytes()]), Some(Tenant::new("\u{e9}")));
    assert_eq!(key(&[b"caf\xe9%\t"]), Some(Tenant::new("\0caf%E9%25")));
    for none in [&[][..], &[""], &[" \t "], &["a", "b"], &["a", "a"], &["a", ""]] {
        assert_eq!(keys(none), None, "{none:?}");
    }
}

#[test]
fn a_repeated_key_is_ambiguous_unless_the_first_or_the_last_is_chosen() {
    let ambiguous =
        |key: &dyn TenantExtractor, values: &[&[u8]]| key.is_ambiguous(&RequestHead::new(&with_key(values)));
    let by_key = || header("x-api-key");
    for values in [&[&b"a"[..], b"b"][..], &[b"a", b"a"], &[b"a", b""], &[b"", b""], &[b"a", b"b", b"c"]] {
        let request = with_key(values);
        assert!(ambiguous(&by_key(), values), "{values:?}");
        // A second choice would let the caller escape.
        let chained = by_key().or(from_fn(|_: &RequestHead<'_>| Some("other")));
        let shared: Arc<dyn TenantExtractor> = Arc::new(Box::new(chained));
        assert_eq!(found(&shared, &request), None);
        assert!(ambiguous(&shared, values));
        let text = |value: &[u8]| (!value.is_empty()).then(|| Tenant::new(str::from_utf8(value).unwrap()));
        assert_eq!(found(&by_key().first(), &request), text(values[0]));
        assert_eq!(found(&by_key().last(), &request), text(values[values.len() - 1]));
        assert!(!ambiguous(&by_key().first(), values) && !ambiguous(&by_key().last(), values));
    }
    assert!(!ambiguous(&by_key(), &[]) && !ambiguous(&by_key(), &[b""]) && !ambiguous(&by_key(), &[b"a"]));
    // The first choice has found a tenant: the second is not asked.
    let address_first = from_fn(|_: &RequestHead<'_>| Some("first")).or(by_key());
    assert_eq!(found(&address_first, &with_key(&[b"a", b"b"])), Some(Tenant::new("first")));
}

/// Of gRPC: the same bytes have many spellings in base64.
#[test]
fn a_binary_key_is_its_bytes() {
    let with = |value: &str| Request::builder().header("account-bin", value).body(()).unwrap();
    let key = |value: &str| found(&header("Account-Bin"), &with(value));
    assert_eq!(key("AQI"), Some(Tenant::new("AQI")));
    // With padding, and with bits set that belong to no byte.
    for spelling in ["AQI=", "AQJ", "AQK=", "AQL=", " AQI "] {
        assert_eq!(key(spelling), key("AQI"), "{spelling}");
    }
    assert_ne!(key("AQM"), key("AQI"));
    for invalid in ["A", "AQI==", "A=QI", "AQI!", "k-123", "=", ""] {
        assert_eq!(key(invalid), None, "{invalid}");
    }
    // Several values in one header are as several headers.
    let ambiguous = |key: HeaderTenant, value: &str| key.is_ambiguous(&RequestHead::new(&with(value)));
    assert_eq!(key("AQI,AQM"), None);
    assert!(ambiguous(header("account-bin"), "AQI,AQM") && !ambiguous(header("account-bin"), "AQI="));
    assert!(!ambiguous(header("account-bin").first(), "AQI,AQM"));
    assert_eq!(found(&header("account-bin").first(), &with("AQI=, AQM=")), key("AQI"));
    assert_eq!(found(&header("account-bin").last(), &with("AQI=, AQM=")), key("AQM"));
}

#[test]
fn a_long_key_is_borrowed() {
    let long = vec![b'k'; 64 * 1024];
    let request = with_key(&[&long]);
    let tenant = header("x-api-key").extract(&RequestHead::new(&request)).unwrap();
    let TenantId::Name(name) = tenant.id() else { panic!("{tenant:?}") };
    assert_eq!(name.as_ptr(), request.headers()["x-api-key"].as_bytes().as_ptr());
}

#[test]
#[should_panic(expected = "tests.rs")]
fn a_panic_for_a_header_name_is_where_the_extractor_is_made() {
    let place = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let (seen, hook) = (std::sync::Arc::clone(&place), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |info| *seen.lock().unwrap() = info.location().unwrap().to_string()));
    let _ = std::panic::catch_unwind(|| header("x api key"));
    std::panic::set_hook(hook);
    panic!("{}", place.lock().unwrap());
}

#[test]
fn an_invalid_header_name_fails_when_the_extractor_is_made() {
    for name in ["", "x api key", "caf\u{e9}", "a\nb"] {
        let made = std::panic::catch_unwind(|| header(name));
        let message = *made.unwrap_err().downcast::<String>().unwrap();
        assert_eq!(message, "tenant::header: the name is not a valid header name");
    }
}

proptest! {
    #[test]
    fn different_keys_are_different_tenants(
        a in prop::collection::vec(0x21u8.., 1..6),
        b in prop::collection::vec(0x21u8.., 1..6),
    ) {
        let legal = |key: &[u8]| !key.contains(&0x7f);
        prop_assume!(legal(&a) && legal(&b));
        let key = |value: &[u8]| found(&header("x-api-key"), &with_key(&[value])).unwrap();
        // A value in UTF-8 may spell the escape of one that is not.
        prop_assume!(str::from_utf8(&a).is_ok() == str::from_utf8(&b).is_ok());
        prop_assert_eq!(key(&a) == key(&b), a == b);
    }
}

#[test]
fn a_peer_is_its_network() {
    assert_eq!(found(&peer_ip(), &Request::new(())), None);
    assert_eq!(found(&peer_ip(), &from("192.0.2.7:1")), address("192.0.2.7"));
    assert_eq!(found(&peer_ip(), &from("[::ffff:192.0.2.7]:1")), address("192.0.2.7"));
    assert_eq!(found(&peer_ip(), &from("[2001:db8:1:2:3::4]:1")), address("2001:db8:1:2::"));
    assert_eq!(found(&peer_ip().ipv6_prefix(128), &from("[2001:db8::4]:1")), address("2001:db8::4"));
    assert_eq!(found(&peer_ip().ipv6_prefix(7), &from("[2001:db8:1::4]:1")), address("2001:db8::"));
}

#[cfg(feature = "axum")]
#[test]
fn a_peer_from_axums_connect_info() {
    use axum::extract::ConnectInfo;
    let peer: std::net::SocketAddr = "[::ffff:192.0.2.7]:1".parse().unwrap();
    let request = Request::builder().extension(ConnectInfo(peer)).body(()).unwrap();
    assert_eq!(found(&peer_ip(), &request), address("192.0.2.7"));
}

#[test]
fn a_client_is_its_network() {
    let mut request = from("10.0.0.1:1");
    request.headers_mut().insert("x-forwarded-for", HeaderValue::from_static("2001:db9:1:2:3::4"));
    let by_client = client_ip(TrustedProxies::hops(1));
    assert_eq!(found(&by_client, &request), address("2001:db9:1:2::"));
    assert_eq!(found(&by_client.ipv6_prefix(32), &request), address("2001:db9::"));
}

#[test]
fn an_extension_is_a_tenant_or_text() {
    #[derive(Clone)]
    struct Account(&'static str);
    impl AsTenant for Account {
        fn as_tenant(&self) -> TenantRef<'_> {
            TenantRef::name(self.0).plan("pro")
        }
    }
    let request = Request::builder()
        .extension(Tenant::new("a"))
        .extension(String::from("b"))
        .extension(Arc::<str>::from("c"))
        .extension(Account("d"))
        .body(())
        .unwrap();
    assert_eq!(found(&extension::<Tenant>(), &request), Some(Tenant::new("a")));
    assert_eq!(found(&extension::<String>(), &request), Some(Tenant::new("b")));
    assert_eq!(found(&extension::<Arc<str>>(), &request), Some(Tenant::new("c")));
    assert_eq!(found(&extension::<Account>(), &request), Some(Tenant::new("d").plan("pro")));
    assert_eq!(found(&extension::<Tenant>(), &Request::new(())), None);
}

#[test]
fn a_closure_gives_names_addresses_and_tenants() {
    let request = Request::new(());
    assert_eq!(found(&from_fn(|_: &RequestHead<'_>| Some("a")), &request), Some(Tenant::new("a")));
    let local = std::net::IpAddr::from([127, 0, 0, 1]);
    assert_eq!(found(&from_fn(move |_: &RequestHead<'_>| Some(local)), &request), address("127.0.0.1"));
    let tenant = Tenant::new("a").plan("pro");
    let given = tenant.clone();
    assert_eq!(found(&from_fn(move |_: &RequestHead<'_>| Some(given.clone())), &request), Some(tenant));
    assert_eq!(found(&from_fn(|_: &RequestHead<'_>| None::<String>), &request), None);
}

#[test]
fn the_second_extractor_is_the_fallback() {
    let either = header("x-api-key").or(peer_ip()).or(from_fn(|_: &RequestHead<'_>| Some("anyone")));
    let mut request = from("192.0.2.7:1");
    assert_eq!(found(&either, &request), address("192.0.2.7"));
    request.headers_mut().insert("x-api-key", HeaderValue::from_static("k"));
    assert_eq!(found(&either, &request), Some(Tenant::new("k")));
    assert_eq!(found(&either, &Request::new(())), Some(Tenant::new("anyone")));
    let shared: Arc<dyn TenantExtractor> = Arc::new(either);
    assert_eq!(found(&shared, &request), Some(Tenant::new("k")));
}

#[test]
fn a_client_counts_by_the_host_of_the_request() {
    let to = |uri: &str| found(&UpstreamHost, &Request::get(uri).body(()).unwrap());
    assert_eq!(to("https://API.example:8443/v1"), Some(Tenant::new("api.example")));
    assert_eq!(to("https://api.example/v1"), Some(Tenant::new("api.example")));
    assert_eq!(to("/v1"), None);
    let named = Request::get("https://api.example/").extension(Tenant::new("acme")).body(()).unwrap();
    assert_eq!(found(&extension::<Tenant>().or(UpstreamHost), &named), Some(Tenant::new("acme")));
}
