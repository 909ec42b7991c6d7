use super::*;

fn integer(n: u64) -> String {
    Buffer::with(|buffer| buffer.integer(n)).to_str().unwrap().to_owned()
}

#[test]
fn integers_are_decimal() {
    for n in (0..11_000).chain([MAX_INTEGER - 1, MAX_INTEGER]) {
        assert_eq!(integer(n), n.to_string());
    }
}

#[test]
fn integers_are_cut_to_what_a_structured_field_holds() {
    assert_eq!(integer(MAX_INTEGER + 1), "999999999999999");
    assert_eq!(integer(u64::MAX), "999999999999999");
}

#[test]
fn values_outlive_the_chunk_that_they_were_cut_from() {
    let mut buffer = Buffer::new();
    let kept: Vec<_> = (1_000_000..1_002_000).map(|n| buffer.integer(n)).collect();
    for (n, value) in (1_000_000..).zip(kept) {
        assert_eq!(value, n.to_string());
    }
}

#[test]
fn a_chunk_is_taken_again_once_its_values_are_dropped() {
    let mut buffer = Buffer::new();
    let start = buffer.integer(1_000_000).as_bytes().as_ptr();
    let again = (1_000_000..1_010_000).filter(|&n| buffer.integer(n).as_bytes().as_ptr() == start).count();
    assert!(again > 10, "taken again {again} times in 70,000 bytes");
}
