use super::*;

fn map(maps: &mut Maps, fields: &[(Field, &'static str)]) -> Vec<(String, String)> {
    let mut pushed = maps.fields();
    for &(field, value) in fields {
        pushed.push(field, HeaderValue::from_static(value));
    }
    let map = maps.map(pushed);
    assert_eq!(map.len(), fields.len());
    map.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect()
}

#[test]
fn every_field_has_its_name_and_value_in_order() {
    let mut maps = Maps::default();
    let all = [
        (Field::CacheControl, "cache-control"),
        (Field::Remaining, "x-ratelimit-remaining"),
        (Field::Limit, "x-ratelimit-limit"),
        (Field::Reset, "x-ratelimit-reset"),
        (Field::Policy, "ratelimit-policy"),
        (Field::Status, "ratelimit"),
        (Field::RetryAfter, "retry-after"),
        (Field::ContentType, "content-type"),
        (Field::ContentLength, "content-length"),
    ];
    for fields in [&all[..], &all[..4], &all[6..], &[all[0], all[5], all[6]], &[]] {
        let names: Vec<_> = fields.iter().map(|&(_, name)| (name.to_owned(), name.to_owned())).collect();
        // The second is a copy.
        assert_eq!(map(&mut maps, fields), names);
        assert_eq!(map(&mut maps, fields), names);
    }
}

#[test]
fn a_map_keeps_no_value_of_the_one_before() {
    let mut maps = Maps::default();
    map(&mut maps, &[(Field::CacheControl, "no-store"), (Field::RetryAfter, "7")]);
    let second = map(&mut maps, &[(Field::CacheControl, "private"), (Field::RetryAfter, "8")]);
    assert_eq!(second.iter().map(|(_, value)| &**value).collect::<Vec<_>>(), ["private", "8"]);
}
