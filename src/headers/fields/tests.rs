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

fn pairs(map: &HeaderMap) -> Vec<(&str, &[u8])> {
    map.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect()
}

/// A response's own fields, some of a list of a hundred names.
fn own(names: impl IntoIterator<Item = usize>) -> HeaderMap {
    let field = |name: usize| {
        (HeaderName::try_from(format!("own-{name}")).unwrap(), HeaderValue::from(u64::try_from(name).unwrap()))
    };
    names.into_iter().map(field).collect()
}

const OURS: [(Field, &str, &str); 3] = [
    (Field::Remaining, "x-ratelimit-remaining", "7"),
    (Field::Limit, "x-ratelimit-limit", "10"),
    (Field::Status, "ratelimit", "\"r\";r=7"),
];

fn append(maps: &mut Maps, own: &mut HeaderMap) -> bool {
    let mut pushed = maps.fields();
    for (field, _, value) in OURS {
        pushed.push(field, HeaderValue::from_static(value));
    }
    maps.append(own, pushed)
}

#[test]
fn fields_are_appended_behind_the_responses_own_whatever_lists_of_names_occur() {
    let mut maps = Maps::default();
    let mut appended = 0;
    // More lists than are known, each again and again, of the same lengths.
    for round in 0..600 {
        let first = round * 7 % 40;
        for length in [0, 1, 2, 5, MAX_RESPONSE_FIELDS] {
            let mut response = own((first..first + length).rev());
            let before = response.clone();
            let is_appended = append(&mut maps, &mut response);
            appended += u32::from(is_appended);
            let mut expected = pairs(&before);
            expected.extend(OURS.iter().filter(|_| is_appended).map(|(_, name, value)| (*name, value.as_bytes())));
            assert_eq!(pairs(&response), expected, "{round} {length}");
        }
    }
    assert!(maps.extended.len() == MAX_CACHED && appended > 300, "{appended}");
}

#[test]
fn fields_are_not_appended_to_one_of_their_own_names_nor_to_repeated_names_nor_to_many() {
    let mut maps = Maps::default();
    let mut same = own(0..3);
    same.insert("x-ratelimit-limit", HeaderValue::from_static("5"));
    let mut repeated = own(0..3);
    repeated.append("own-1", HeaderValue::from_static("again"));
    for response in [same, repeated, own(0..=MAX_RESPONSE_FIELDS)] {
        for _ in 0..100 {
            let mut after = response.clone();
            assert!(!append(&mut maps, &mut after));
            assert_eq!(pairs(&after), pairs(&response));
        }
    }
    assert_eq!(maps.extended.len(), 1, "what cannot be appended to is cached as such");
    assert!(append(&mut maps, &mut own(0..3)));
}
