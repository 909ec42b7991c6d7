use http::{HeaderMap, HeaderValue, Request};

use super::*;

fn read(values: &[&'static [u8]]) -> u64 {
    let mut request = Request::new(());
    let mut map = HeaderMap::new();
    values.iter().for_each(|value| {
        map.append("x-cost", HeaderValue::from_bytes(value).unwrap());
    });
    *request.headers_mut() = map;
    header("x-cost").cost(&RequestHead::new(&request))
}

#[test]
fn a_header_is_a_number_or_one() {
    assert_eq!(read(&[b"7"]), 7);
    assert_eq!(read(&[b" 42 "]), 42);
    for value in [&b""[..], b"0", b"-5", b"1.5", b"7 7", b"0x10", b"+3", b"\xff"] {
        assert_eq!(read(&[value]), 1, "{value:?}");
    }
    assert_eq!(read(&[]), 1);
    assert_eq!(read(&[b"5", b"6"]), 1, "ambiguous");
}

#[test]
fn a_number_beyond_u64_is_the_largest() {
    assert_eq!(read(&[b"18446744073709551615"]), u64::MAX);
    assert_eq!(read(&[b"99999999999999999999999999"]), u64::MAX);
}
