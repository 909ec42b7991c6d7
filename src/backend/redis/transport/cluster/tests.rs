use super::*;

#[test]
fn a_lane_has_consecutive_hash_slots() {
    // The slots that `CLUSTER KEYSLOT` names.
    assert_eq!(["123456789", "foo", "bar"].map(lane_of), [12_739 / 64, 12_182 / 64, 5_061 / 64]);
}

#[test]
fn a_hash_tag_chooses_the_slot_of_a_key() {
    assert_eq!(["foo", "a{foo}b", "{foo}{bar}", "rl:foo:{foo}:"].map(slot_of), [12_182; 4]);
    assert_ne!(slot_of("{}foo"), slot_of("foo"));
}

#[test]
fn the_owners_of_slots_are_read() {
    let text = |text: &str| Value::BulkString(text.into());
    let range = |last, host: Value, port| {
        let primary = Value::Array(vec![host, Value::Int(port), text("id")]);
        Value::Array(vec![Value::Int(0), Value::Int(last), primary, Value::Array(Vec::new())])
    };
    let reply = Value::Array(vec![
        range(99, text("10.0.0.1"), 7000),
        range(199, text(""), 7001),
        range(299, Value::Nil, 7002),
        Value::Int(3),
        range(399, text("::1"), 7003),
    ]);
    let owners = [(99, "10.0.0.1:7000"), (199, "10.0.0.9:7001"), (299, "10.0.0.9:7002"), (399, "::1:7003")];
    assert_eq!(read_owners(&reply, "10.0.0.9:7001"), owners.map(|(last, address)| (last, address.to_owned())));
    assert!(read_owners(&Value::Okay, "10.0.0.9:7001").is_empty());
}
